from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import medley as md
from medley.contract.errors import BadData, MedleyError, RecipeError
from medley.datasets import Dataset, breast_cancer, diabetes, digits, gaussian_classes


def numbered(n: int = 10, m: int = 4) -> Dataset:
    """Row i holds i, and so do its key and (modulo 3) its label: what belongs together can be checked."""
    i, j = torch.arange(n), torch.arange(m)
    return Dataset(
        i[:, None].float(), i % 3, j[:, None].float(), j % 3, classes=3, keys={"i": np.arange(n)}, name="numbered"
    )


def test_embedded_sets_have_their_published_sizes() -> None:
    d = digits()
    assert d.X.shape == (1438, 64)
    assert d.X_test is not None
    assert d.X_test.shape == (359, 64)
    assert d.classes == 10
    assert (float(d.X.min()), float(d.X.max())) == (0.0, 1.0)
    # 1,797 · 64 pixels of mean 4.884 / 16
    pixels = torch.cat([d.X, d.X_test]).double().mean()
    assert float(pixels) == pytest.approx(4.884165 / 16, abs=1e-6)
    b = breast_cancer(test=0)
    assert b.X.shape == (569, 30)
    assert b.X_test is None
    assert b.y.bincount().tolist() == [212, 357]
    assert b.labels == ("malignant", "benign")
    p = diabetes(test=0)
    assert p.X.shape == (442, 10)
    assert (float(p.y.min()), float(p.y.max()), p.classes) == (25.0, 346.0, None)
    assert float(p.y.double().mean()) == pytest.approx(152.13348, abs=1e-4)


def test_split_is_drawn_by_its_seed() -> None:
    one, same, other = digits(seed=1), digits(seed=1), digits(seed=2)
    assert torch.equal(one.X, same.X)
    assert not torch.equal(one.X, other.X)


@given(n=st.integers(4, 60), test=st.floats(0.1, 0.6), validation=st.floats(0.1, 0.6), seed=st.integers(0, 2**63 - 1))
def test_split_partitions_the_rows_and_their_keys(n: int, test: float, validation: float, seed: int) -> None:
    whole = replace(numbered(n), X_test=None, y_test=None)
    m = round(test * n)
    k = round(validation * (n - m))
    if not 0 < m < n or not 0 < k < n - m:
        with pytest.raises(RecipeError):
            whole.split(test, validation, seed)
        return
    d = whole.split(test, validation, seed)
    assert d.X_test is not None
    assert d.X_validation is not None
    assert (len(d.X_test), len(d.X_validation)) == (m, k)
    parts = [d.X[:, 0], d.X_test[:, 0], d.X_validation[:, 0]]
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert d.X[:, 0].tolist() == d.keys["i"].tolist() == sorted(d.X[:, 0].tolist())
    assert d.y_validation is not None
    assert torch.equal(d.y_validation, d.X_validation[:, 0].long() % 3)
    assert torch.equal(d.y, d.X[:, 0].long() % 3)


def test_test_and_validation_rows_have_draws_of_their_own() -> None:
    whole = replace(numbered(100), X_test=None, y_test=None)
    test, validation = whole.split(0.3).X_test, whole.split(0, 0.3).X_validation
    assert test is not None
    assert validation is not None
    assert len(test) == len(validation) == 30
    assert not torch.equal(test, validation)


def test_split_leaves_a_given_test_set_alone_and_refuses_a_second_validation_set() -> None:
    d = numbered().split(test=0.5, validation=0.2)
    assert d.X_test is not None
    assert (len(d.X), len(d.X_test)) == (8, 4)
    with pytest.raises(RecipeError, match="validation set already"):
        d.split(validation=0.2)


@given(n=st.integers(1, 10), m=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_take_draws_without_replacement(n: int, m: int, seed: int) -> None:
    d = numbered().take(n, m, seed)
    assert d.X_test is not None
    assert len(set(d.X[:, 0].tolist())) == len(d.X) == n
    assert len(set(d.X_test[:, 0].tolist())) == len(d.X_test) == m
    assert d.keys["i"].tolist() == d.X[:, 0].tolist()


@pytest.mark.slow
def test_take_is_uniform() -> None:
    """2,000 draws of 3 of 10: each row's count is binomial with mean 600 and standard deviation 20.5."""
    count = np.zeros(10)
    for seed in range(2000):
        count[numbered().take(3, seed=seed).keys["i"]] += 1
    assert np.abs(count - 600).max() < 5 * 20.5


def test_take_refuses_what_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"n_train=11\): the data set has 10"):
        numbered().take(11)
    with pytest.raises(RecipeError, match="no test set"):
        digits(test=0).take(n_test=5)


@pytest.mark.shapes
def test_pool_means_over_squares() -> None:
    X = torch.arange(2 * 1 * 4 * 6.0).reshape(2, 1, 4, 6)
    d = Dataset(X, torch.tensor([0, 1]), X, torch.tensor([0, 1]), classes=2).pool(2)
    assert d.X_test is not None
    assert d.X.shape == d.X_test.shape == (2, 1, 2, 3)
    assert torch.equal(d.X, X.reshape(2, 1, 2, 2, 3, 2).mean((3, 5)))
    assert d.X[0, 0, 0, 0] == (0 + 1 + 6 + 7) / 4
    assert d.flatten().X.shape == (2, 6)
    with pytest.raises(RecipeError, match="does not divide images of 2×3"):
        d.pool(2)
    with pytest.raises(RecipeError, match="not \\[n, channels"):
        numbered().pool(2)


@pytest.mark.shapes
def test_standardise_uses_training_statistics_only() -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(500, 3, generator=g) * torch.tensor([1e-3, 1.0, 50.0]) + torch.tensor([0.0, 100.0, -7.0])
    X[:, 1] = 0.1  # constant, and not exact in binary
    d = Dataset(X, X[:, 0], X[:5] + 1, X[:5, 0]).standardise()
    assert d.X_test is not None
    assert torch.allclose(d.X.mean(0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(d.X.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]), atol=1e-5)
    mean, sd = X.double().mean(0), X.double().std(0, correction=0)
    expected = (X[:5].double() + 1 - mean) / torch.where(torch.arange(3) == 1, 1.0, sd)
    assert torch.allclose(d.X_test.double(), expected, rtol=1e-4)


def test_standardise_images_per_channel() -> None:
    g = torch.Generator().manual_seed(1)
    X = torch.rand(3000, 2, 8, 8, generator=g) * torch.tensor([1.0, 9.0])[:, None, None]  # several blocks
    d = Dataset(X, torch.zeros(3000)).standardise()
    assert torch.allclose(d.X.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(d.X.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5)
    raw = X.double()
    slow = (raw - raw.mean((0, 2, 3), keepdim=True)) / raw.std((0, 2, 3), keepdim=True, correction=0)
    assert torch.allclose(d.X.double(), slow, atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "says", "row", "column"),
    [
        (lambda d: replace(d, y=d.y[:-1]), r"X is \[10, 1\] and y is \[9\]", None, None),
        (lambda d: replace(d, X=d.X[:0], y=d.y[:0]), "there are no rows", None, None),
        (lambda d: replace(d, X=d.X[:, 0]), r"X\[:, None\] for one feature", None, None),
        (lambda d: replace(d, y=d.y + 1), "row 2, column 'y': 3 is no label", 2, None),
        (lambda d: replace(d, y=d.y.float()), "holds float32, but classes=3", None, None),
        (lambda d: replace(d, X_test=None), "both X and y", None, None),
        (lambda d: replace(d, X_test=d.X_test.repeat(1, 2)), r"the test rows: rows have the shape \[2\]", None, None),
        (lambda d: replace(d, keys={"i": np.arange(3)}), "key 'i' has 3 values", None, None),
        (lambda d: replace(d, labels=("a",)), "labels= has 1 names for 3 classes", None, None),
        (lambda d: replace(d, X=torch.where(d.X == 4, math.nan, d.X)), "row 4, column 0: nan is not finite", 4, 0),
        (lambda d: replace(d, X=torch.where(d.X == 7, math.inf, d.X)), "row 7, column 0: inf is not finite", 7, 0),
    ],
)
def test_what_does_not_fit_is_refused(bad, says: str, row: int | None, column: int | None) -> None:
    with pytest.raises(BadData, match=says) as caught:
        bad(numbered())
    assert (caught.value.row, caught.value.column) == (row, column)


def test_arrays_lists_and_texts_become_tensors_and_whole_numbers_are_counted() -> None:
    X = np.arange(12.0).reshape(6, 2)
    d = Dataset(X, np.array([0, 1, 2, 0, 1, 2]), X[:2].tolist(), [0, 1], keys={"site": np.array(list("aabbcc"))})
    assert (d.X.dtype, d.y.dtype, d.classes) == (torch.float64, torch.int64, 3)
    assert d.X_test is not None
    assert torch.equal(d.X_test, d.X[:2])
    assert d.keys["site"].tolist() == list("aabbcc")
    assert Dataset(X, X[:, 0]).classes is None  # values
    assert Dataset(X, torch.tensor([0, 1, 0, 1, 0, 1])).classes == 2
    t = Dataset(X, np.array(list("baabca"), object), X[:2], ["c", "a"])
    assert (t.classes, t.labels, t.y.tolist()) == (3, ("a", "b", "c"), [1, 0, 0, 1, 2, 0])
    assert t.y_test is not None
    assert t.y_test.tolist() == [2, 0]
    for y, said in (
        (np.ma.masked_equal(X[:, 0], 4.0), r"data, row 2, column 'y': 4.0 is masked"),
        (np.array([None] * 6), "data, row 0, column 'y': there is no label, None"),
    ):
        with pytest.raises(BadData, match=said):
            Dataset(X, y)  # type: ignore[arg-type]
    gaps = Dataset(X, np.array([3, 17, 4, 4, 4, 4]))
    assert (gaps.labels, gaps.y.tolist(), gaps.inferred) == ((3, 4, 17), [0, 2, 1, 1, 1, 1], True)
    with pytest.raises(
        BadData, match="data, the test rows: the labels are numbers, such as 0, and those of data texts"
    ):
        Dataset(X, list("aabbcc"), X, np.arange(6))  # type: ignore[arg-type]


def test_huge_but_finite_numbers_are_fine() -> None:
    top = torch.finfo(torch.float32).max
    assert Dataset(torch.full((100, 9), top), torch.zeros(100)).X.max() == top


def test_gaussian_classes_err_as_the_closed_form_says() -> None:
    """Two unit Gaussians at distance s, split half-way between their centres: the error is Φ(-s/2)."""
    d = gaussian_classes(n=40_000, features=20, classes=2, seed=3, test=20_000, separation=2.0)
    assert d.X_test is not None
    assert d.y_test is not None
    a, b = d.X[d.y == 0].mean(0), d.X[d.y == 1].mean(0)
    guess = ((d.X_test - (a + b) / 2) @ (b - a) > 0).long()
    s = float((a - b).norm())
    bayes = 0.5 * math.erfc(s / 2 / math.sqrt(2))
    wrong = float((guess != d.y_test).double().mean())
    assert wrong == pytest.approx(bayes, abs=4 * math.sqrt(bayes * (1 - bayes) / 20_000))
    assert float((d.X[d.y == 0] - a).var(0).mean()) == pytest.approx(1.0, abs=0.01)


def test_gaussian_classes_keep_their_separation_and_their_seed() -> None:
    d = gaussian_classes(n=6000, features=400, classes=30, seed=0, test=0, separation=50.0)
    assert d.X_test is None
    centres = torch.stack([d.X[d.y == c].mean(0) for c in range(30)])
    rms = torch.pdist(centres).square().mean().sqrt()
    assert float(rms) == pytest.approx(50.0, rel=0.05)
    assert torch.equal(d.X[:3], gaussian_classes(n=6000, features=400, classes=30, test=0, separation=50.0).X[:3])
    with pytest.raises(RecipeError, match="features=0"):
        gaussian_classes(features=0)


@pytest.mark.parametrize("value", [None, 3, "text", object(), {"a": 1}, ([[1.0], [2.0]], [3.0, [4.0, 5.0]])])
def test_values_that_are_no_rows_are_refused_in_words(value: Any) -> None:
    X, y = np.ones((2, 2)), np.array([0, 1])
    calls = {
        "X": lambda: Dataset(value, y),
        "y": lambda: Dataset(X, value),
        "key": lambda: Dataset(X, y, keys={"a": np.array(3)}),
        "frame": lambda: md.datasets.frame(value, "y"),
    }
    for call in calls.values():
        with pytest.raises(MedleyError):
            call()


def test_split_by_draws_from_each_value_and_leaves_each_a_training_row() -> None:
    ward = np.repeat(["a", "b", "c"], [100, 10, 1])
    y = np.tile([0, 1, 0], 37)
    d = Dataset(torch.arange(111.0)[:, None], torch.from_numpy(y), classes=2, keys={"ward": ward})
    for seed in range(5):
        s = d.split(0.2, validation=0.25, seed=seed, by="ward")
        counts = [dict(zip(*np.unique(k["ward"], return_counts=True), strict=True)) for k in (s.keys, s.test_keys)]
        assert counts == [{"a": 60, "b": 6, "c": 1}, {"a": 20, "b": 2}]
        assert sorted(torch.cat([s.X, s.X_test, s.X_validation])[:, 0].tolist()) == list(range(111))
    both = d.split(0.2, by=["ward", "label"])
    for label in (0, 1):
        of = {k: int(((d.y == label).numpy() & (ward == k)).sum()) for k in "ab"}
        drawn = {k: int(((both.y_test == label).numpy() & (both.test_keys["ward"] == k)).sum()) for k in "ab"}
        assert drawn == {k: round(0.2 * n) for k, n in of.items()}
    with pytest.raises(RecipeError, match=r"has no 'wards'\. Did you mean 'ward'"):
        d.split(0.2, by="wards")


def test_a_number_of_rows_in_place_of_a_fraction_is_told_of_it() -> None:
    with pytest.raises(RecipeError, match=r"split\(test=10\) takes 50 of 50 rows; .*, such as 10 / 50 for 10 rows"):
        Dataset(torch.zeros(50, 2), torch.zeros(50)).split(10)


def walks(n: int = 12, each: int = 10) -> Dataset:
    """Rows of ``n`` walks in two clinics, each with its walk's number and its own."""
    walk, step = np.repeat(np.arange(n), each), np.tile(np.arange(each), n)
    keys = {"walk": walk, "clinic": np.array(["a", "b"])[walk % 2]}
    return Dataset(np.c_[walk, step].astype(np.float32), np.arange(n * each) % 2, keys=keys)


@pytest.mark.parametrize("by", [(), "clinic"])
def test_rows_that_belong_together_stay_on_one_side(by: str) -> None:
    d = walks().split(test=0.25, validation=0.25, by=by, together="walk")
    assert d.X_test is not None
    assert d.X_validation is not None
    sides = [set(X[:, 0].tolist()) for X in (d.X, d.X_test, d.X_validation)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 12
    assert [len(X) for X in (d.X, d.X_test, d.X_validation)] == ([70, 30, 20] if not by else [80, 20, 20])
    if by:
        assert sum(v % 2 for v in sides[1]) == 1
    assert d.test_keys["walk"].tolist() == d.X_test[:, 0].tolist()
    assert set(walks().split(0.25, seed=1, together="walk").test_keys["walk"]) != sides[1]


def test_the_last_rows_of_each_are_taken_in_their_order() -> None:
    d = walks().split(test=0.2, validation=0.25, last="walk")
    assert d.X_test is not None
    assert d.X_validation is not None
    assert set(d.X_test[:, 1].tolist()) == {8, 9}
    assert set(d.X_validation[:, 1].tolist()) == {6, 7}
    assert set(d.X[:, 1].tolist()) == {0, 1, 2, 3, 4, 5}
    assert [len(X) for X in (d.X, d.X_test, d.X_validation)] == [72, 24, 24]


def test_splits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RecipeError, match="rows that stay together differ in by="):
        walks().split(together="clinic", by="walk")
    with pytest.raises(RecipeError, match="you cannot combine last= with by= or together="):
        walks().split(together="walk", last="walk")
    with pytest.raises(RecipeError, match="'patient'"):
        walks().split(together="patient")
    with pytest.raises(RecipeError, match="takes 0 of 120 rows"):
        walks(1, 120).split(together="walk")


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.float32])
def test_pooled_whole_numbers_keep_their_fractions(kind: torch.dtype) -> None:
    image = torch.tensor([[[1, 2], [2, 2]]], dtype=kind)
    assert Dataset(torch.stack([image, image]), [0, 1]).pool(2).X.flatten().tolist() == [1.75, 1.75]


def test_texts_are_numbered_by_the_given_labels() -> None:
    X, y = np.c_[[-1.0, 1.0, -1.0, 1.0]], ["well", "ill", "well", "ill"]
    d = Dataset(X, y, labels=("well", "ill"))
    assert (d.y.tolist(), d.labels, d.classes) == ([0, 1, 0, 1], ("well", "ill"), 2)
    result = md.run(
        md.Newton(), md.Federation(md.problems.Logistic(mu=1e-2), data=d, partition=md.partitions.IID(1)), 5
    )
    assert result.predict(X).tolist() == y
    more = Dataset(X, y, X[:1], ["dead"], labels=("well", "dead", "ill"))
    assert (more.y.tolist(), more.y_test.tolist(), more.classes) == ([0, 2, 0, 2], [1], 3)  # type: ignore[union-attr]
    assert Dataset(X, [0, 1, 0, 1], labels=("a", "b", "c")).classes == 3
    with pytest.raises(BadData, match=r"data, row 1, column 'y': ill is not among labels=\('well', 'sick'\)") as e:
        Dataset(X, y, labels=("well", "sick"))
    assert e.value.row == 1
