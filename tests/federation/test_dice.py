"""The Dice coefficient and the Hausdorff distance of label maps, against plain counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.metrics import Dice, Hausdorff


def maps(n: int = 30, classes: int = 3, side: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n, side, side), generator=rng)
    outputs = torch.randn(n, classes, side, side, generator=rng)
    return outputs + 1.5 * nn.functional.one_hot(y, classes).movedim(-1, 1), y


def counted(outputs: torch.Tensor, y: torch.Tensor, rows: np.ndarray) -> float:
    """The mean over classes but the background, in NumPy, over these rows."""
    labels = y.numpy()[rows]
    predicted = np.where(labels < 0, -1, outputs.argmax(1).numpy()[rows])
    values = []
    for c in range(1, outputs.shape[1]):
        mine = predicted == c
        true = labels == c
        if mine.any() or true.any():
            values.append(2 * (mine & true).sum() / (mine.sum() + true.sum()))
    return float(np.mean(values))


def test_the_coefficient_and_its_error_are_those_of_counting_and_of_the_bootstrap() -> None:
    outputs, y = maps(n=80)
    y[3, 0] = -100  # pixels without a label
    metric = Dice(classes=3)
    value, error = metric.figure(metric.sums(outputs, y))
    assert value == pytest.approx(counted(outputs, y, np.arange(80)), abs=1e-12)
    rng = np.random.default_rng(0)
    draws = [counted(outputs, y, rng.integers(0, 80, 80)) for _ in range(1500)]
    assert error == pytest.approx(np.std(draws), rel=0.1)


def test_sums_of_sites_add_up() -> None:
    outputs, y = maps()
    metric = Dice(classes=3)
    parts = metric.sums(outputs[:7], y[:7]) + metric.sums(outputs[7:], y[7:])
    assert torch.equal(parts, metric.sums(outputs, y))
    assert metric.fits(parts, 30)
    assert not metric.fits(parts + 0.5, 30)
    assert not metric.fits(torch.cat([parts[2:4], parts[:2], parts[4:]]) + 0.0, 30)


def test_two_classes_may_have_margins_and_an_absent_class_is_left_out() -> None:
    outputs, y = maps(classes=2)
    margin = outputs[:, 1] - outputs[:, 0]
    assert Dice()(margin, y) == Dice()(margin[:, None], y) == Dice()(outputs, y)
    assert math.isnan(Dice()(-margin.abs(), torch.zeros_like(y)))
    three, labels = maps(classes=3)
    labels[labels == 2] = 0
    three[:, 2] = -10.0
    assert Dice(classes=3)(three, labels) == pytest.approx(Dice()(three[:, :2], labels))
    with pytest.raises(md.RecipeError, match=r"Dice\(classes=2\): the outputs are \[30, 3, 5, 5\]"):
        Dice()(three, labels)


def border(mask: torch.Tensor) -> torch.Tensor:
    """The places of a mask's pixels that have a neighbour outside, in two loops."""
    padded = nn.functional.pad(mask, (1, 1, 1, 1))
    inside = mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return torch.nonzero(mask & ~inside).double()


def test_two_discs_three_pixels_apart_are_three_pixels_apart() -> None:
    g = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    disc = lambda centre: ((g[0] - 32) ** 2 + (g[1] - centre) ** 2 <= 400)[None]
    assert Hausdorff()(disc(33).float() - 0.5, disc(30).long()) == pytest.approx(3.0)


@pytest.mark.parametrize("percentile", [95.0, 100.0])
def test_the_distance_is_that_of_all_pairs_of_pixels(percentile: float) -> None:
    outputs, y = maps(n=6, side=7)
    y[0, :2] = -100
    values = []
    for mine, true in zip(outputs.argmax(1), y, strict=True):
        for c in (1, 2):
            A = border((mine == c) & (true >= 0))
            B = border(true == c)
            if len(A) and len(B):
                pairs = torch.cdist(A, B)
                ways = (np.percentile(pairs.amin(side).numpy(), percentile) for side in (0, 1))
                values.append(max(ways))
    assert Hausdorff(classes=3, percentile=percentile)(outputs, y) == pytest.approx(float(np.mean(values)), abs=1e-9)
    assert math.isnan(Hausdorff()(torch.full(y.shape, -1.0), y))


def test_a_federation_learns_to_segment() -> None:
    rng = torch.Generator().manual_seed(0)
    y = (torch.rand(60, 1, 4, 4, generator=rng) > 0.6).float().repeat_interleave(3, 2).repeat_interleave(3, 3)
    X = y + 0.5 * torch.randn(y.shape, generator=rng)
    sites = {f"site {k}": (X[k::3][:14], y[k::3][:14, 0].long()) for k in range(3)}
    net = md.problems.Network(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)))
    fed = md.Federation(net, clients=sites, test=(X[42:], y[42:, 0].long()), pace=md.scenarios.Pace(lr=0.5, batch=7))
    result = md.run(md.FedAvg(), fed, rounds=12, metrics=["dice", "hausdorff"], progress=False)
    assert result.summary["dice"] > 0.8 > result.history[0]["dice"]
    assert result.summary["hausdorff"] < result.history[0]["hausdorff"]
    assert result.model is not None
    assert result.summary["dice"] == pytest.approx(
        Dice()(torch.as_tensor(result.model(X[42:])), y[42:, 0].long()), abs=1e-6
    )


def test_one_class_counts_alone() -> None:
    outputs, y = maps(n=12, side=7)
    one, two = (Dice(classes=3, only=c)(outputs, y) for c in (1, 2))
    assert Dice(classes=3)(outputs, y) == pytest.approx((one + two) / 2, abs=1e-12)
    of_two = (outputs.argmax(1) == 2).float() - 0.5
    assert two == pytest.approx(Dice()(of_two, (y == 2).long()), abs=1e-12)
    assert Hausdorff(classes=3, only=2)(outputs, y) == pytest.approx(Hausdorff()(of_two, (y == 2).long()), abs=1e-12)
    for kind in (Dice, Hausdorff):
        with pytest.raises(
            md.RecipeError, match=rf"{kind.__name__}\(classes=2, only=2\): classes are 1 to 1, and 0 is"
        ):
            kind(only=2)


def test_distances_of_sites_add_up_and_impossible_sums_do_not_fit() -> None:
    outputs, y = maps(n=9, side=7)
    metric = Hausdorff(classes=3)
    parts = metric.sums(outputs[:4], y[:4]) + metric.sums(outputs[4:], y[4:])
    distances = [
        metric(outputs[k : k + 1], torch.where((y[k : k + 1] == c) | (y[k : k + 1] == 0), y[k : k + 1], -100))
        for k in range(9)
        for c in (1, 2)
    ]
    assert len(distances) == 18
    value, error = metric.figure(parts)
    assert value == pytest.approx(metric(outputs, y), abs=1e-12)
    assert parts[2] == 18
    assert 0 < error < value
    assert metric.fits(parts, 9)
    for wrong in (
        [0, 0, 19],
        [1, 0.5, 1],
        [-1, 1, 1],
        [3, 2, 4],
        [2, 5, 2],
        [1, 1, 0.5],
        [math.nan] * 3,
        [0, math.inf, 1],
    ):
        assert not metric.fits(torch.tensor(wrong, dtype=torch.float64), 9), wrong
    assert all(math.isnan(v) for v in metric.figure(torch.zeros(3)))


def test_the_bootstrap_draws_patients_with_all_their_rows() -> None:
    outputs, y = maps(n=60, side=6)
    patient = np.repeat(np.arange(20), 3)
    outputs[:30] += 5 * torch.randn(30, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    value, low, high, units = md.metrics.bootstrap(Dice(classes=3), outputs, y, by=patient)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(1500):
        rows = np.concatenate([np.flatnonzero(patient == p) for p in rng.integers(0, 20, 20)])
        draws.append(counted(outputs, y, rows))
    expected = np.quantile(draws, [0.025, 0.975])
    assert value == pytest.approx(Dice(classes=3)(outputs, y), abs=1e-12)
    assert units == 20
    assert [low, high] == pytest.approx(expected.tolist(), abs=0.1 * (expected[1] - expected[0]))
    alone = md.metrics.bootstrap(Dice(classes=3), outputs, y, by=np.arange(60))
    assert high - low > 1.2 * (alone.high - alone.low)  # slices of a patient are alike
    wide = md.metrics.bootstrap(Hausdorff(classes=3), outputs, y, by=patient, level=0.99)
    assert wide.low < Hausdorff(classes=3)(outputs, y) < wide.high
    # A draw without the class is left out, and a figure that never exists has no interval.
    absent = md.metrics.bootstrap(Dice(), torch.full((4, 2, 2), -1.0), torch.zeros(4, 2, 2).long(), by=[0, 0, 1, 1])
    assert all(math.isnan(v) for v in absent[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": ["a"] * 4}, "all 4 rows are of one patient"),
        ({"by": ["a", "b"]}, r"4 outputs, 4 targets and by= of the shape \[2\]"),
        ({"level": 95}, r"level=95, draws=2000\): level is in \(0, 1\)"),
        ({"metric": md.metrics.concordance}, "has no sums over rows; give AUROC, Dice, Hausdorff"),
    ],
)
def test_what_the_bootstrap_cannot_draw_is_said(change: dict[str, object], message: str) -> None:
    outputs, y = maps(n=4, classes=2)
    how = {"metric": Dice(), "outputs": outputs, "y": y, "by": [0, 0, 1, 1], **change}
    with pytest.raises(md.RecipeError, match=message):
        md.metrics.bootstrap(**how)  # type: ignore[arg-type]
