"""Private trees: the bound of a row, the noise of its sums, their account, an audit, repeats, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.algorithms.boost import Begin, Level, News
from medley.contract import Pace, Unsupported
from medley.contract.client import Client
from medley.engines.seq import Seq
from medley.numerics import forest, splits
from medley.privacy import trees
from medley.secure import SecureSum
from medley.transports import Processes

pytest.importorskip("dp_accounting")

COLUMNS = 4
BINS = 4
METHOD = md.Boost(bins=BINS, ranges=[(-2, 2)], min_child_weight=0.0)
SEED = 2**70 + 1


def table(rows: int = 60, loss: str = "logistic") -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(rows, COLUMNS)).astype(np.float32)
    return X, np.digitize(X[:, 0] * X[:, 1], [0.0] if loss == "logistic" else [-0.3, 0.3])


def federation(loss: str = "logistic", **more: Any) -> md.Federation:
    X, y = table(loss=loss)
    parts = np.array_split(np.arange(len(X)), 3)
    classes = 2 if loss == "logistic" else 3
    family = md.problems.Trees(loss, trees=4, depth=2)  # type: ignore[arg-type]
    return md.Federation(family, clients=[(X[i], y[i]) for i in parts], classes=classes, **more)


def private(noise: float = 1.0, **settings: Any) -> md.Private:
    return md.Private(METHOD, noise=noise, unit="row", **settings)


def asked(
    X: np.ndarray, y: np.ndarray, noise: float, clip: float = 1.0, seed: int = SEED, loss: str = "logistic"
) -> Any:
    """What a client with these rows answers to the beginning of a tree, after the outputs 0.3, 0.1 and 0."""
    family = md.problems.Trees(loss, trees=4, depth=2)  # type: ignore[arg-type]
    outputs = 1 if loss == "logistic" else 3
    problem = family.ready(torch.from_numpy(X), torch.from_numpy(y), outputs if outputs > 1 else 2, None, "cpu")
    objective: Any = problem.bind(torch.from_numpy(X), torch.from_numpy(y))
    memory = METHOD.remember(torch.zeros(0))
    me: Client[Any] = Client(0, 1.0, objective, Pace(), Seq(), seed=seed, round=1, memory=memory)
    lines = np.linspace(-2, 2, BINS + 1)[1:-1]
    base = torch.tensor([0.3, 0.1, 0.0][:outputs])
    cuts = torch.from_numpy(np.tile(lines, COLUMNS).astype(np.float32))
    news = News(torch.zeros(0), base, cuts, torch.full((COLUMNS,), BINS - 1))
    method = md.Private(METHOD, noise=noise, clip=clip, unit="row")
    return method.client_method("begin")(me, Begin(splits.PUBLIC, None), news)


def stacked(up: Any, loss: str = "logistic") -> np.ndarray:
    """Σg, and Σh in units of the largest h."""
    return np.concatenate([up.g.numpy(), up.h.numpy() / splits.BENDS[loss]])


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("clip", [0.2, 0.7, 10.0])
def test_a_row_moves_all_sums_together_by_at_most_the_bound(loss: str, clip: float) -> None:
    X, y = table(loss=loss)
    whole = stacked(asked(X, y, 0.0, clip, loss=loss), loss)
    moves = []
    for i in range(10):
        rest = np.delete(np.arange(len(X)), i)
        moves.append(np.linalg.norm(whole - stacked(asked(X[rest], y[rest], 0.0, clip, loss=loss), loss)))
    most = clip * math.sqrt(COLUMNS)
    assert max(moves) <= most * (1 + 1e-9)
    if clip < 1:
        assert max(moves) > 0.999 * most


def test_noise_has_the_standard_deviation_of_the_bound_of_a_row_in_all_columns() -> None:
    X, y = table()
    for clip in (0.5, 2.0):
        exact = stacked(asked(X, y, 0.0, clip))
        noise = np.concatenate([stacked(asked(X, y, 3.0, clip, seed=SEED + k)) - exact for k in range(40)])
        assert noise.std() == pytest.approx(3.0 * clip * math.sqrt(COLUMNS), rel=0.06)
        assert abs(noise.mean()) < 4 * noise.std() / math.sqrt(len(noise))


def test_a_repeated_request_gets_the_same_noise_and_other_sums_or_requests_get_another() -> None:
    X, y = table()
    one, again = (stacked(asked(X, y, 1.0)) for _ in range(2))
    assert (one == again).all()
    fewer = stacked(asked(X[1:], y[1:], 1.0))
    exact = stacked(asked(X, y, 0.0)) - stacked(asked(X[1:], y[1:], 0.0))
    assert np.abs(one - fewer - exact).min() > 0  # the difference of two replies has noise everywhere


def gaussian(z: float, delta: float) -> float:
    """ε of a Gaussian mechanism (Balle & Wang, ICML 2018, theorem 8), without the accountant."""
    cdf = NormalDist().cdf
    low, high = 0.0, 100.0
    for _ in range(100):
        e = (low + high) / 2
        spent = cdf(0.5 / z - e * z) - math.exp(e) * cdf(-0.5 / z - e * z)
        low, high = (e, high) if spent > delta else (low, e)
    return high


def test_epsilon_is_that_of_all_sums_of_all_levels_and_trees() -> None:
    """Gaussian sums, each chosen by what the earlier ones said, spend what one of noise z/√k does."""
    for row_share in (1.0, 0.5):
        method = md.Private(md.Boost(bins=4, ranges=[(-2, 2)], row_share=row_share), noise=3.0, unit="row", clip=0.5)
        result = md.run(method, federation(), 3, progress=False, seed=SEED)
        sums = sum(e.client == 1 and e.method in ("begin", "level") for e in result.ledger)
        assert sums == 6
        assert {e.method for e in result.ledger} == {"begin", "level"}
        assert result.history[-1]["epsilon"] == pytest.approx(gaussian(3 / math.sqrt(sums), 1e-5), rel=2e-3)


def test_a_budget_finds_the_noise_for_as_many_levels_and_ends_the_run() -> None:
    method = md.Private(METHOD, unit="row", epsilon=2.0, rounds=3)
    result = md.run(method, federation(), 3, progress=False, seed=SEED)
    assert result.summary["epsilon"] == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(md.BudgetSpent, match="round 4 would make it") as e:
        md.run(method, federation(), 4, progress=False, seed=SEED)
    assert e.value.result.history[-1]["round"] == 3


def bound_of(hits: int, draws: int, upper: bool) -> float:
    """The 99.9 % bound of Clopper and Pearson on a probability."""
    from scipy.stats import beta

    if upper:
        return float(beta.ppf(0.999, hits + 1, draws - hits)) if hits < draws else 1.0
    return float(beta.ppf(0.001, hits, draws - hits + 1)) if hits else 0.0


@pytest.mark.slow
def test_an_audit_finds_no_larger_epsilon_than_is_claimed() -> None:
    """Whoever knows all rows but one, and asks by likelihood whether it is there, is right no more often than ε allows;
    and often enough that noise which is too small by √p would be found.
    """
    pytest.importorskip("scipy")
    X, y = table(12)
    delta, z, draws = 1e-2, 1.0, 1200
    out = stacked(asked(X[1:], y[1:], 0.0, 0.5))
    row = stacked(asked(X, y, 0.0, 0.5)) - out
    scores = [
        np.array([(stacked(asked(X[k:], y[k:], z, 0.5, seed=SEED + 2 * j + k)) - out) @ row for j in range(draws)])
        for k in (0, 1)
    ]
    found = 0.0
    for line in np.quantile(scores[1], [0.5, 0.8, 0.9, 0.95, 0.975]):
        power = bound_of(int((scores[0] > line).sum()), draws, upper=False)
        false = bound_of(int((scores[1] > line).sum()), draws, upper=True)
        found = max(found, math.log(max(power - delta, 1e-9) / false))
    claimed = gaussian(z, delta)
    assert 0.25 * claimed < found < claimed
    assert gaussian(z / math.sqrt(COLUMNS), delta) > 1.9 * claimed


@pytest.mark.slow
def test_workers_a_resumed_run_and_secure_sums_have_the_same_bits(tmp_path: Path) -> None:
    for loss in ("logistic", "softmax"):
        whole = md.run(private(), federation(loss), 4, progress=False, seed=SEED)
        assert int(whole.x[forest.GROWN]) == 4
        others = [
            md.run(private(), federation(loss), 4, progress=False, seed=SEED, transport=Processes(2)),
            md.run(private(), federation(loss), 4, progress=False, seed=SEED, secure=SecureSum(bits=64, bound=2.0**16)),
        ]
        md.run(private(), federation(loss), 2, progress=False, seed=SEED, checkpoint=tmp_path / loss)
        others.append(md.run(private(), federation(loss), 4, progress=False, seed=SEED, resume=tmp_path / loss))
        for other in others:
            assert torch.equal(whole.x, other.x)
            assert other.history[-1]["epsilon"] == whole.history[-1]["epsilon"]
        assert not torch.equal(whole.x, md.run(private(), federation(loss), 4, progress=False, seed=SEED + 1).x)


def test_columns_of_one_histogram_get_one_total_by_least_squares() -> None:
    of = splits.Bins(np.array([2, 1, 3]), missing=True)
    noisy = np.random.default_rng(0).normal(size=(5, int(of.widths.sum())))
    out = of.levelled(noisy)
    totals = np.add.reduceat(out, [0, 4, 7], axis=1)
    assert np.ptp(totals, axis=1).max() < 1e-12
    first, second, third = (np.zeros(12) for _ in range(3))
    first[:4], second[4:7], third[7:] = 1, 1, 1
    A = np.stack([first - second, second - third])  # equal totals
    nearest = noisy - noisy @ A.T @ np.linalg.inv(A @ A.T) @ A
    assert np.abs(out - nearest).max() < 1e-12


def test_public_ranges_divide_columns_into_bins_of_equal_width_and_no_counts_leave() -> None:
    method = md.Boost(ranges=[(0, 1, 2), (-2, 2, 8), (-2, 2), (5, 6)], bins=16)
    result = md.run(method, federation(), 2, progress=False)
    assert {e.method for e in result.ledger} == {"begin", "level"}
    nodes = forest.Forest.of(result.x).trees.reshape(-1, forest.RECORD)
    for column, lines in enumerate([[0.5], np.linspace(-2, 2, 9), np.linspace(-2, 2, 17), np.linspace(5, 6, 17)]):
        used = nodes[nodes[:, forest.FEATURE] == column, forest.THRESHOLD]
        assert {*used.tolist()} <= {*np.float32(lines).tolist()}
    assert (nodes[:, forest.FEATURE] == 1).any()
    one = md.Federation(md.problems.Trees("logistic", trees=4, depth=2), clients=[table()], classes=2)
    assert torch.equal(md.run(method, one, 2, progress=False).x, result.x)


def test_what_private_trees_cannot_be_is_a_sentence() -> None:
    with pytest.raises(md.RecipeError, match=r"bins from counts tell about single rows; give Boost\(ranges=...\)"):
        md.Private(md.Boost(), noise=1.0, unit="row")
    with pytest.raises(Unsupported, match=r"Boost cannot be private: the thresholds .* use Private\(unit='row'\)"):
        md.Private(METHOD, noise=1.0)
    with pytest.raises(Unsupported, match="Boost cannot be private: the thresholds"):
        md.Private(METHOD, noise=1.0, unit="person", by="patient")
    X, _ = table()
    squared = md.Federation(md.problems.Trees("squared"), clients=[(X, X[:, 0])])
    with pytest.raises(md.RecipeError, match="the loss 'squared' have no bound that all know; use 'logistic' or"):
        md.run(private(), squared, 1, progress=False)
    few: list[tuple[list[Any], str]] = [
        ([(1, 1)], "with low < high"), ([(0, 1, 1)], "2 to 1024"), ([], "give"), ([(1,)], "give"),
        ([(0, 1)] * 2, "rows have 4"),
    ]  # fmt: skip
    for ranges, words in few:
        with pytest.raises(md.RecipeError, match=words):
            md.run(md.Boost(ranges=ranges), federation(), 1, progress=False)
    choice = {"evaluate_on": "validation", "best": "test_loss", "progress": False}
    with pytest.raises(Unsupported, match=r"run\(best='test_loss'\): DP-Boost would be chosen by exact figures"):
        md.run(private(), federation(validation=0.2), 1, **choice)


def test_a_client_refuses_requests_that_might_fail_for_some_rows_only() -> None:
    layout = forest.Layout(COLUMNS, 1, 4, 2, forest.LOSSES.index("logistic"))

    def refuse(why: str) -> Any:
        raise ValueError(why)

    none = torch.zeros(0)
    fits = torch.zeros(3, forest.RECORD)
    fits[1:, forest.FEATURE] = -1
    trees.check([Level(fits.reshape(-1), none)], layout, refuse)
    for place, column in ((0, COLUMNS), (0, -2), (0, math.nan), (1, 1e30)):
        bad = fits.clone()
        bad[place, forest.FEATURE] = column
        with pytest.raises(ValueError, match="do not fit the rows' columns"):
            trees.check([Level(bad.reshape(-1), none)], layout, refuse)
    deep = torch.zeros(7, forest.RECORD)  # leaves that go on
    with pytest.raises(ValueError, match="do not fit the rows' columns"):
        trees.check([News(deep.reshape(-1), None, None, None)], layout, refuse)
    with pytest.raises(ValueError, match="lines of its columns do not fit"):
        trees.check([News(none, torch.zeros(1), torch.zeros(5), torch.full((4,), 1))], layout, refuse)
    X, y = table()
    assert np.isfinite(stacked(asked(X, y, 0.0))).all()
    bounded = trees.BoundedTrees(Overflowing(), 1.0)
    g, h = bounded.gradients(np.zeros((2, 1)), splits.PUBLIC)
    assert g.tolist() == [[0.0], [0.5]]
    assert h.tolist() == [[0.0], [0.125]]


class Overflowing:
    """Two rows, one at an output that is not finite."""

    layout = forest.Layout(COLUMNS, 1, 4, 2, forest.LOSSES.index("logistic"))

    def gradients(self, F: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[math.nan], [0.5]]), np.array([[math.inf], [0.125]])
