"""The published files themselves, where MEDLEY_DATA names a folder that holds them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from medley import datasets
from medley.contract.errors import BadData
from medley.datasets import Dataset

pytestmark = [pytest.mark.data, pytest.mark.slow]


def real(read: Callable[[], Dataset]) -> Dataset:
    if not os.environ.get("MEDLEY_DATA"):
        pytest.skip("MEDLEY_DATA is not set: no real data sets here")
    try:
        return read()
    except BadData as error:
        if "is in none of" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(
    ("read", "train", "test", "shape", "mean"),
    [
        (datasets.mnist, 60_000, 10_000, (1, 28, 28), 0.1307),
        (datasets.fashion_mnist, 60_000, 10_000, (1, 28, 28), 0.2860),
        (datasets.cifar10, 50_000, 10_000, (3, 32, 32), 0.4734),
        (datasets.cifar100, 12_000, 2_500, (3, 32, 32), 0.479),
    ],
)
def test_images_have_their_published_sizes_and_means(
    read: Callable[[], Dataset], train: int, test: int, shape: tuple[int, ...], mean: float
) -> None:
    d = real(read)
    assert d.X_test is not None
    assert d.X.shape == (train, *shape)
    assert d.X_test.shape == (test, *shape)
    assert float(d.X.double().mean()) == pytest.approx(mean, abs=6e-5 if mean != 0.479 else 6e-4)
    assert len(d.y.unique()) == d.classes
    if read is not datasets.mnist:
        assert (d.y.bincount() == train // len(d.y.unique())).all()


def test_cifar10_has_its_published_channel_means() -> None:
    d = real(datasets.cifar10)
    assert d.X.double().mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


@pytest.mark.slow
def test_cifar10_has_its_published_constants() -> None:
    d = real(lambda: datasets.cifar10(normalise="published"))
    assert d.X.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-3)
    assert d.X.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=1e-3)


def test_cifar100_has_five_classes_in_each_coarse_one() -> None:
    d = real(datasets.cifar100)
    pairs = {(int(c), int(f)) for c, f in zip(d.keys["coarse"], d.y, strict=True)}
    assert len(pairs) == 100
    assert [sum(c == k for c, _ in pairs) for k in range(20)] == [5] * 20


@pytest.mark.parametrize(
    ("read", "n", "features", "positive", "accuracy"),
    [(datasets.w8a, 49_749, 300, 1_479, 0.985), (datasets.a9a, 32_561, 123, 7_841, 0.850)],
)
def test_libsvm_sets_are_as_hard_as_they_should_be(
    read: Callable[[], Dataset], n: int, features: int, positive: int, accuracy: float
) -> None:
    d = real(read)
    assert d.X_test is not None
    assert d.y_test is not None
    assert d.X.shape == (n, features)
    assert int(d.y.sum()) == positive
    assert ((d.X == 0) | (d.X == 1)).all()
    reached = LogisticRegression(max_iter=1000).fit(d.X, d.y).score(d.X_test, d.y_test)
    assert reached == pytest.approx(accuracy, abs=0.004)


def test_sentiment140_is_as_hard_as_it_should_be() -> None:
    d = real(lambda: datasets.sentiment140(features=3000))
    assert d.X_test is not None
    assert d.y_test is not None
    assert d.X.shape == (27_689, 3000)
    assert d.y.bincount().tolist() == [14_881, 12_808]
    assert d.y_test.bincount().tolist() == [177, 182]
    assert len(set(d.keys["user"].tolist())) == 25_815
    assert LogisticRegression(max_iter=300).fit(d.X, d.y).score(d.X_test, d.y_test) == pytest.approx(0.779, abs=0.04)


@pytest.mark.slow
def test_sentiment140_has_few_unknown_words() -> None:
    d = real(datasets.sentiment140_tokens)
    assert d.X_test is not None
    assert d.X.shape == (27_689, 30)
    assert int(d.X.max()) == 9_999
    unknown = [float((X == 1).sum() / (X > 0).sum()) for X in (d.X, d.X_test)]
    assert unknown == pytest.approx([0.040, 0.098], abs=1e-3)


def test_online_news_is_as_hard_as_it_should_be() -> None:
    whole = real(datasets.online_news)
    assert whole.X.shape == (9_874, 59)
    assert set(whole.keys["channel"]) == {"lifestyle", "entertainment", "bus", "socmed", "tech", "world", "other"}
    assert len(set(whole.keys["weekday"])) == 7
    reached = []
    for seed in range(4):
        d = whole.split(0.25, seed=seed).standardise()
        assert d.X_test is not None
        assert d.y_test is not None
        reached.append(Ridge(alpha=10).fit(d.X.double(), d.y.double()).score(d.X_test.double(), d.y_test.double()))
    assert sum(reached) / 4 == pytest.approx(0.105, abs=0.03)


def test_msd_years_are_predictable_from_timbre() -> None:
    d = real(datasets.msd_years)
    assert d.X.shape == (4_680, 54)
    assert len(set(d.keys["year"].tolist())) == 68
    assert torch.equal(d.y, torch.from_numpy(d.keys["year"]).float())
    s = d.split(0.25).standardise()
    assert s.X_test is not None
    assert s.y_test is not None
    r2 = Ridge(alpha=10).fit(s.X, s.y).score(s.X_test, s.y_test)
    assert 0.1 < r2 < 0.4


@pytest.mark.slow
def test_tiny_imagenet_decodes_throughout() -> None:
    pytest.importorskip("PIL")
    d = real(datasets.tiny_imagenet50)
    assert d.X_test is not None
    assert d.X.shape == (10_000, 3, 64, 64)
    assert len(d.X_test) == 2_500
    assert (d.y.bincount() == 200).all()


@pytest.mark.slow
@pytest.mark.parametrize(("read", "accuracy"), [(datasets.mnist, 0.922), (datasets.fashion_mnist, 0.839)])
def test_images_are_as_hard_as_they_should_be(read: Callable[[], Dataset], accuracy: float) -> None:
    d = real(read).flatten()
    assert d.X_test is not None
    assert d.y_test is not None
    with pytest.warns(ConvergenceWarning):  # sixty iterations are enough for two digits
        model = LogisticRegression(max_iter=60).fit(d.X, d.y)
    assert model.score(d.X_test, d.y_test) == pytest.approx(accuracy, abs=0.004)
