"""The best round by validation rows, and the end of a run that gets no better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from medley.report.numbers import final
from medley.storage.result import Result


def fed(**settings: Any) -> md.Federation:
    data = md.datasets.digits()
    settings = {"partition": md.partitions.Dirichlet(6, alpha=0.3), "validation": 0.2, **settings}
    return md.Federation(md.problems.Softmax(mu=1e-3), data=data, pace=md.scenarios.Pace(lr=0.05), **settings)


def ran(rounds: int = 12, method: Any = None, over: Any = None, **options: Any) -> Result:
    options = {"best": "far", "metrics": {"far": (far, "min")}, "evaluate_on": "validation", **options}
    return md.run(method or md.FedAvg(), over or fed(), rounds, progress=False, **options)


def far(z: torch.Tensor, y: torch.Tensor) -> float:
    """Logits of a size of 0.15 on average are best: a figure that falls and rises again as the model grows."""
    return abs(float(z.abs().mean()) - 0.15)


def test_the_result_is_the_best_round_to_the_bit() -> None:
    r, plain = ran(), ran(best=None)
    figures = plain["far"]
    k = figures.index(min(figures))
    assert 0 < k < 12
    assert r.summary["best_round"] == k
    assert r["far"] == figures
    assert torch.equal(r.x, ran(k, best=None).x)
    assert r.summary["far"] == r.evaluation["far"] == min(figures)
    assert r.evaluation["round"] == k
    assert (r.summary["round"], plain.summary["round"]) == (k, 12)
    assert "best_accuracy" not in plain.summary
    again = md.run(md.FedAvg(), fed(), 0, init=r, progress=False, evaluate_on="validation", metrics={"far": far})
    assert again["far"] == [min(figures)]


def test_patience_ends_the_run_and_says_why() -> None:
    whole, r = ran(), ran(200, patience=3)
    k = whole.summary["best_round"]
    assert [row["round"] for row in r.history] == list(range(k + 4))
    assert r.status.outcome == "finished"
    assert r.status.message == f"far was best in round {k}, and no better in 3 evaluations since"
    assert torch.equal(r.x, whole.x)


@pytest.mark.slow
def test_a_run_that_is_stopped_and_goes_on_has_the_same_best(tmp_path: Path) -> None:
    whole, k = ran(), ran().summary["best_round"]
    for stop in (k - 1, k, k + 2):
        folder = tmp_path / str(stop)
        half = ran(stop, checkpoint=folder)
        assert half.summary["best_round"] == min(stop, k)
        r = ran(resume=folder)
        assert torch.equal(r.x, whole.x)
        assert r.digest == whole.digest
        loaded = Result.load(folder)
        assert torch.equal(loaded.x, whole.x)
        assert loaded.evaluation == r.evaluation
    with pytest.raises(Exception, match="best"):
        ran(resume=folder, best="accuracy")


@pytest.mark.slow
def test_the_board_and_the_clients_table_are_of_the_best_round() -> None:
    r = ran(clients_every=1)
    board = md.compare([md.FedAvg()], fed(), 12, 1, best="far", metrics={"far": (far, "min")}, evaluate_on="validation")
    (kept,) = board.results
    assert torch.equal(kept.x, r.x)
    assert "the round with the best far on validation rows" in " ".join(str(board).split())
    assert final(kept, "far") == min(r["far"])
    assert final(kept, "loss") == r["loss"][r.summary["best_round"]]
    last = [row for row in r.clients if row["round"] == 12]
    k = r.summary["best_round"]
    assert [row["loss"] for row in last] == [row["loss"] for row in r.clients if row["round"] == k][: len(last)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"evaluate_on": "test", "best": "accuracy"}, "looks better than it is"),
        ({"best": "loss"}, "test_loss"),
        ({"best": "acuracy"}, "Did you mean 'accuracy'"),
        ({"best": None, "patience": 3}, "name its figure"),
        ({"patience": 0}, "patience"),
        ({"method": md.Ditto(), "best": "accuracy"}, "use their own models"),
        ({"over": {"stream": md.tasks.Split(tasks=2)}, "best": "accuracy"}, "its own best round"),
    ],
)
def test_what_has_no_best_round_is_refused(options: dict[str, Any], said: str) -> None:
    over = fed(**options.pop("over", {}))
    with pytest.raises(RecipeError, match=said):
        ran(1, over=over, **options)
