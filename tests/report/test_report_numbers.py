from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from medley.contract.errors import RecipeError
from medley.report import Stat, aggregate, band, by_method, paired, primary
from medley.report.bands import thin
from medley.report.numbers import final, status_of
from medley.report.table import markdown, told_apart
from medley.report.targets import Goal
from medley.storage.result import Result, Status
from medley.wire.ledger import Entry
from support.made_up_runs import board, run

floats = st.floats(-1e6, 1e6)


@given(st.lists(floats, min_size=2, max_size=12))
def test_interval_is_scipys(values: list[float]) -> None:
    s = Stat.of(values)
    assert s.mean == pytest.approx(np.mean(values), abs=1e-9)
    scale = stats.sem(values)
    if scale > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=scale)
        assert (s.low, s.high) == (pytest.approx(low, rel=1e-9, abs=1e-6), pytest.approx(high, rel=1e-9, abs=1e-6))
    else:
        assert s.half == 0


def test_interval_of_two_by_hand() -> None:
    # t(0.975; 1 dof) = tan(0.475 pi), the Cauchy quantile.
    s = Stat.of([1.0, 3.0])
    assert (s.mean, s.sd, s.n) == (2.0, pytest.approx(math.sqrt(2)), 2)
    assert s.half == pytest.approx(math.tan(0.475 * math.pi))


@pytest.mark.slow
def test_interval_covers_the_truth_19_times_in_20() -> None:
    draws = np.random.default_rng(0).normal(3.0, 2.0, (2000, 5))
    hit = sum(s.low <= 3.0 <= s.high for s in map(Stat.of, draws))
    assert 0.935 < hit / 2000 < 0.965


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    one, none = Stat.of([2.0]), Stat.of([math.nan])
    assert (one.mean, one.n) == (2.0, 1)
    assert math.isnan(one.sd)
    assert math.isnan(one.half)
    assert none.n == 0
    assert math.isnan(none.mean)


def test_diverged_runs_are_counted_and_enter_no_mean() -> None:
    a, b, c = aggregate(board(3))
    assert (c.method, c.seeds, c.used, c.n) == ("C", (0, 1, 2), (0, 1), 3)
    assert c.status == "diverged after round 7 on 1 of 3 seeds"
    assert a.status == b.status == "finished on 3 seeds"
    assert {s.n for s in c.metrics.values()} == {2}
    assert c["rounds"].mean == 30
    runs = [r for r in board(3) if r.method == "C"]
    assert c["accuracy"].mean == pytest.approx((runs[0]["accuracy"][-1] + runs[1]["accuracy"][-1]) / 2)


def test_a_method_of_which_nothing_survived_is_still_there() -> None:
    (s,) = aggregate([run("X", k, rounds=k + 2, died=True) for k in range(2)])
    assert (s.used, s["accuracy"].n, s.status) == ((), 0, "diverged after rounds 2 to 3 on 2 of 2 seeds")
    assert paired([run("Y"), run("X", rounds=3, died=True)])[0].n == 0


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["finished"], "finished"),
        (["diverged"], "diverged after round 4"),
        (["target", "finished"], "reached its target on 1 of 2 seeds"),
        (
            ["stalled", "interrupted"],
            "stalled after round 4 on 1 of 2 seeds; interrupted after round 4 on 1 of 2 seeds",
        ),
    ],
)
def test_status_sentences(outcomes: list[str], said: str) -> None:
    runs = [run(seed=k, rounds=4) for k in range(len(outcomes))]
    for r, outcome in zip(runs, outcomes, strict=True):
        r.status = Status(outcome)  # type: ignore[arg-type]
    assert status_of(runs) == said


@pytest.mark.parametrize("rounds", [5, 38, 39, 40, 200])
def test_the_final_figure_is_that_of_the_last_evaluation_whatever_the_length_of_the_run(rounds: int) -> None:
    runs = [run("A", s, rounds=rounds) for s in range(2)]
    for r in runs:
        r.history[-1]["accuracy"], r.summary["tail_accuracy"] = 0.5 + r.seed / 4, 0.1
    assert aggregate(runs)[0]["accuracy"].mean == 0.625
    assert "at the last evaluation" in markdown(runs)


def test_costs_come_from_the_ledger_where_there_is_one() -> None:
    r = run()
    assert (final(r, "bytes_up"), final(r, "exchanges")) == (27000, 60)
    r.ledger.add([Entry(31, 61, "train", k, 10, 20) for k in range(4)])
    s = aggregate([r])[0]
    assert (s["bytes_down"].mean, s["bytes_up"].mean, s["exchanges"].mean, s["rounds"].mean) == (40, 80, 1, 31)


@settings(max_examples=30)  # each makes a checked result a number
@given(st.lists(st.tuples(floats, floats), min_size=2, max_size=8), st.booleans())
def test_pairing_is_the_interval_of_the_differences(pairs: list[tuple[float, float]], shuffled: bool) -> None:
    def one(method: str, seed: int, loss: float) -> Result:
        return Result(method, seed, torch.zeros(1), [{"round": 0, "loss": 0.0}, {"round": 1, "loss": loss}])

    results = [one("base", k, a) for k, (a, _) in enumerate(pairs)]
    results += [one("new", k, b) for k, (_, b) in enumerate(pairs)][:: -1 if shuffled else 1]
    (p,) = paired(results, "base", "loss")
    assert p.diff == Stat.of(b - a for a, b in pairs)
    assert p.wins == sum(b < a for a, b in pairs)
    assert (p.method, p.n) == ("new", len(pairs))


def test_pairing_takes_common_seeds_and_sees_through_what_seeds_share() -> None:
    results = board(3)
    b, c = paired(results)
    assert (b.n, b.wins, c.n) == (3, 3, 2)
    shift = {0: -0.3, 1: 0.0, 2: 0.15}
    for r in results:
        for row in r.history:
            row["accuracy"] += shift[r.seed]
    again, _ = paired(results)
    assert again.diff.mean == pytest.approx(b.diff.mean, abs=1e-12)
    assert again.diff.half == pytest.approx(b.diff.half, abs=1e-12)
    assert aggregate(results)[1]["accuracy"].half > 5 * again.diff.half


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(RecipeError, match="both 'FedAvg' with seed 0"):
        aggregate([run(), run()])
    with pytest.raises(RecipeError, match="Did you mean 'FedAvg'"):
        paired([run()], "FedAvgg")
    with pytest.raises(RecipeError, match="for one method"):
        band([run("A"), run("B")])


def test_primary_metric() -> None:
    assert primary(board()) == "accuracy"
    assert primary(board(accuracy=False)) == "loss"
    assert primary(board(accuracy=False, gap=True)) == "gap"
    assert primary(board(gap=True)) == "gap"  # the optimal loss is known
    assert primary([run(summary={"acc": 0.5})]) == "acc"
    assert list(by_method(board())) == ["A", "B", "C"]


@pytest.mark.parametrize("log", [False, True])
def test_band_at_rounds_is_each_rounds_interval(log: bool) -> None:
    runs = [run("A", s, rounds=10 + s) for s in range(4)]
    b = band(runs, y="loss", log=log)
    assert list(b.x) == list(range(11))
    assert b.n == 4
    change = math.log10 if log else float
    back = (lambda v: 10.0**v) if log else float
    for t in (0, 5, 10):
        s = Stat.of(change(r["loss"][t]) for r in runs)
        assert (b.low[t], b.mean[t], b.high[t]) == pytest.approx((back(s.low), back(s.mean), back(s.high)))


def test_band_over_time_interpolates_within_what_all_cover() -> None:
    def line(seed: int, pace: float) -> Result:
        rows = [{"round": t, "seconds": pace * t, "loss": 5.0 - pace * t} for t in range(11)]
        return Result("A", seed, torch.zeros(1), rows)  # type: ignore[arg-type]

    b = band([line(0, 0.7), line(1, 1.0), line(2, 1.3)], x="seconds")
    assert (b.x[0], b.x[-1]) == (0.0, 7.0)
    # All three lie on loss = 5 - seconds, so there is no spread left once seconds agree.
    np.testing.assert_allclose(b.mean, 5.0 - b.x, atol=1e-12)
    np.testing.assert_allclose(b.high - b.low, 0, atol=1e-12)


def test_band_leaves_out_what_diverged_and_what_is_missing() -> None:
    whole, dead = run("A", 0), run("A", 1, rounds=3, died=True)
    b = band([whole, dead], y="accuracy")
    assert b.n == 1
    assert np.isnan(b.low).all()
    np.testing.assert_array_equal(b.mean, whole["accuracy"])
    assert band([dead]).n == 0
    assert len(band([whole], y="no such thing").x) == 0
    del whole.history[4]["accuracy"]
    assert 4 not in band([whole], y="accuracy").x


@pytest.mark.shapes
def test_band_on_a_log_scale_takes_zeros_for_the_smallest_positive() -> None:
    b = band([run(gap=True)], y="gap", log=True)
    assert b.mean[-1] == pytest.approx(b.mean[-2])
    assert (b.mean > 0).all()


@given(st.integers(0, 3000), st.integers(2, 400))
def test_thinning_keeps_the_ends(n: int, points: int) -> None:
    keep = thin(n, points)
    assert len(keep) == min(n, points)
    assert list(keep[:1]) == [0][:n]
    assert list(keep[-1:]) == [n - 1][:n]
    if n > 1:
        gaps = np.diff(keep)
        assert gaps.max() - gaps.min() <= 1


def test_targets() -> None:
    slow, fast, never = run("A", 0, top=0.7, noise=0), run("A", 1, top=0.9, noise=0), run("A", 2, top=0.4, noise=0)
    goal = Goal({"accuracy": 0.5})
    hit = goal.reached(fast)
    assert hit is not None
    # 0.1 + 0.8 (1 - e^(-8t/30)) >= 0.5 first at t = ceil(30 ln 2 / 8) = 3
    assert (hit["round"], hit["bytes"]) == (3, 3 * 1900)
    assert goal.reached(never) is None
    assert Goal({"accuracy": 0.99, "loss": 2.0}).reached(fast) == Goal({"loss": 2.0}).reached(fast) is not None
    (s,) = aggregate(goal.with_costs([slow, fast, never]))
    rounds = s["rounds_to_target"]
    assert (rounds.n, rounds.mean) == (2, (3 + math.ceil(30 / 8 * math.log(3))) / 2)
    assert s["exchanges_to_target"].values == (2 * math.ceil(30 / 8 * math.log(3)), 2 * 3)
    assert s["bytes_to_target"].values == (1900 * math.ceil(30 / 8 * math.log(3)), 1900 * 3)
    (s,) = aggregate(Goal({"loss": 2.3 - 1.8 * (1 - math.exp(-8 * 5 / 30)) + 1e-9}).with_costs([fast]))
    assert s["rounds_to_target"].mean == 5


def test_a_target_on_the_mean_of_evaluations_is_no_lucky_round() -> None:
    noisy = run("A", 0, noise=0)
    for row, value in zip(noisy.history, [0.1, 0.9, 0.1, 0.5, 0.6, 0.7, 0.8], strict=False):
        row["accuracy"] = value
    one, three = Goal({"accuracy": 0.6}), Goal({"accuracy": 0.6}, over=3)
    first, steady = one.reached(noisy), three.reached(noisy)
    assert first is not None
    assert steady is not None
    assert (first["round"], steady["round"]) == (1, 5)


def test_the_directions_of_own_metrics_come_from_the_settings() -> None:
    r = run("A", 0, settings={"metrics": {"bias": "lower", "auroc": "higher"}})
    for t, row in enumerate(r.history):
        row |= {"bias": 1 - 0.01 * t, "auroc": 0.01 * t}
    told = [Goal.of([r], {m: v}) for m, v in (("bias", 0.9), ("auroc", 0.2))]
    assert [goal.reached(r)["round"] for goal in told if goal is not None] == [10, 20]


def test_methods_with_a_target_are_compared_by_its_costs_and_those_that_all_seeds_reached_come_first() -> None:
    slow, quick = (
        [run("slow", s, top=0.8, noise=0) for s in range(3)],
        [run("quick", s, top=0.9, noise=0) for s in (0, 1)],
    )
    runs = [*slow, *quick, run("quick", 2, top=0.3, noise=0)]
    told = Goal({"accuracy": 0.7}).with_costs(runs)
    assert primary(told) == "seconds_to_target"
    assert told_apart(told, "seconds_to_target") == {"slow"}
    sure = Goal({"accuracy": 0.7}).with_costs([*slow, *quick, run("quick", 2, top=0.9, noise=0)])
    assert told_apart(sure, "seconds_to_target") == {"quick"}
    head, *lines = markdown(told).splitlines()
    assert "reached" in head
    assert "accuracy" not in head
    assert "2 of 3" in next(line for line in lines if "quick" in line)
