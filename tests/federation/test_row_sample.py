"""The training loss estimated from some rows: unbiased, with an honest standard error, and said to be an estimate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley import report
from medley.experiments.estimate import estimates

F64 = torch.float64


def sites(weighted: bool = False, sizes: tuple[int, ...] = (1, 7, 40, 300)) -> list[tuple[torch.Tensor, ...]]:
    """Clients of very different sizes and labels."""
    g = torch.Generator().manual_seed(3)
    out: list[tuple[torch.Tensor, ...]] = []
    for k, n in enumerate(sizes):
        X = torch.randn(n, 3, generator=g, dtype=F64) + k
        y = torch.arange(n) % 3
        out.append((X, y, torch.rand(n, generator=g) + 0.1) if weighted else (X, y))
    return out


X0 = torch.linspace(-1, 1, 9, dtype=F64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "weighted"),
    [
        ("uniform", True),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("size", False), ("size", True), ("uniform", False))),
    ],
)
def test_its_mean_is_the_loss_and_its_error_the_deviation(weights: Any, weighted: bool) -> None:
    fed = md.Federation(md.problems.Softmax(mu=0.1), clients=sites(weighted), weights=weights, classes=3)
    exact = fed.draw(0).evaluate(X0)["loss"]
    rows = [fed.draw(seed).evaluator(eval_rows=30).evaluate(X0, None, 0) for seed in range(400)]
    found, errors = (np.array([row[name] for row in rows]) for name in ("loss", "loss_error"))
    deviation = found.std(ddof=1)
    assert abs(found.mean() - exact) < 3 * deviation / 20
    assert np.sqrt((errors**2).mean()) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize(("weights", "weighted"), [("size", False), ("uniform", True)])
def test_of_more_clients_than_rows_some_are_drawn(weights: Any, weighted: bool) -> None:
    sizes = tuple(1 + k % 5 for k in range(90))
    fed = md.Federation(md.problems.Softmax(mu=0.1), clients=sites(weighted, sizes), weights=weights, classes=3)
    exact = fed.draw(0).evaluate(X0)["loss"]
    rows = [fed.draw(seed).evaluator(eval_rows=40).evaluate(X0, None, 0) for seed in range(100)]
    found, errors = (np.array([row[name] for row in rows]) for name in ("loss", "loss_error"))
    deviation = found.std(ddof=1)
    assert abs(found.mean() - exact) < 3 * deviation / 10
    assert np.sqrt((errors**2).mean()) == pytest.approx(deviation, rel=0.3)


@pytest.mark.shapes
def test_all_rows_give_the_loss_itself() -> None:
    fed = md.Federation(md.problems.Softmax(), clients=sites())
    row = fed.draw(0).evaluator(eval_rows=10**6).evaluate(X0, None, 0)
    assert row["loss"] == pytest.approx(fed.draw(0).evaluate(X0)["loss"], rel=1e-14)
    assert row["loss_error"] == 0.0


def test_each_client_has_its_share_and_at_least_two() -> None:
    fed = md.Federation(md.problems.Softmax(), clients=sites())
    draw = fed.draw(0)
    sample = draw.evaluator(eval_rows=100).sampled.__self__  # type: ignore[union-attr]
    drawn = sample.sample(0, draw.task(0))
    assert drawn.counts.tolist() == [1, 2, 11, 86]
    assert len(set(drawn.places.tolist())) == 100
    owner = np.searchsorted([1, 8, 48, 348], drawn.places.numpy(), side="right")
    assert np.bincount(owner).tolist() == [1, 2, 11, 86]


def test_a_run_says_that_it_is_an_estimate_and_has_the_same_model() -> None:
    fed = md.Federation(md.problems.Softmax(), clients=sites())
    whole = md.run(md.FedAvg(), fed, 4)
    some, other = (md.run(m, fed, 4, eval_rows=60) for m in (md.FedAvg(), md.FedProx(mu=0.1)))
    assert torch.equal(whole.x, some.x)
    assert some["loss"][0] == other["loss"][0]  # the same rows for every method
    for a, b, error in zip(some["loss"], whole["loss"], some["loss_error"], strict=True):
        assert abs(a - b) <= 4 * error + 1e-12  # at x = 0 all losses are log 3
    assert some.settings["eval_rows"] == 60
    assert "eval_rows" not in whole.settings
    assert " ± " in repr(some)
    assert " ± " not in repr(whole)
    assert "loss_error" in some.history[0]
    assert "loss_error" not in whole.history[0]
    assert "Loss, estimate" in report.page([some])
    assert "Loss, estimate" not in report.page([whole])


def test_a_run_goes_on_with_the_same_rows_only(tmp_path: Path) -> None:
    fed = md.Federation(md.problems.Softmax(), clients=sites())
    whole = md.run(md.FedAvg(), fed, 4, eval_rows=60)

    def stop(row: md.Row) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    md.run(md.FedAvg(), fed, 4, eval_rows=60, checkpoint=tmp_path / "a", on_round=stop)
    with pytest.raises(md.WireError, match="eval_rows"):
        md.run(md.FedAvg(), fed, 4, eval_rows=61, resume=tmp_path / "a")
    assert md.run(md.FedAvg(), fed, 4, eval_rows=60, resume=tmp_path / "a").digest == whole.digest


def test_of_a_stream_it_is_the_task_at_hand() -> None:
    data = md.datasets.digits().flatten()
    fed = md.Federation(
        md.problems.Softmax(mu=0.01),
        data=data,
        partition=md.partitions.Dirichlet(4, alpha=0.3),
        stream=md.tasks.Split(tasks=5),
    )
    some, whole = (md.run(md.FineTune(), fed, 2, eval_rows=n) for n in (100, None))
    for a, b in zip(some.history, whole.history, strict=True):
        assert a["task"] == b["task"]
        assert abs(a["loss"] - b["loss"]) < 4 * a["loss_error"]
    assert torch.equal(some.x, whole.x)


def test_of_members_it_is_those_of_the_round() -> None:
    clients = sites(sizes=(40, 60, 80))
    fed = md.Federation(
        md.problems.Softmax(), clients=clients, membership=md.scenarios.Membership(leaves={2: 2}), participation=1.0
    )
    draw = fed.draw(0)
    for t in (1, 3):
        row = draw.evaluator(eval_rows=10**6).evaluate(X0, None, t)
        assert row["loss"] == pytest.approx(draw.evaluate(X0, round=t)["loss"], rel=1e-13)
    some = draw.evaluator(eval_rows=50).evaluate(X0, None, 3)
    assert abs(some["loss"] - draw.evaluate(X0, round=3)["loss"]) < 4 * some["loss_error"]


@pytest.mark.slow
def test_the_plan_counts_the_rows_that_are_measured() -> None:
    g = torch.Generator().manual_seed(0)
    data = md.datasets.Dataset(torch.randn(20_000, 1, 14, 14, generator=g), torch.arange(20_000) % 10, classes=10)
    network = md.problems.Network(md.models.cnn((1, 14, 14), 10))
    pace = md.scenarios.Pace(steps=1, batch=8)
    fed = md.Federation(network, data=data, partition=md.partitions.IID(4), pace=pace)
    (whole,), (some,) = (list(estimates({"FedAvg": md.FedAvg()}, fed, 2, eval_rows=n)) for n in (None, 200))
    assert 40 < whole.evaluation / some.evaluation < 250  # 100, but for what else the machine does


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_rows": 0}, "run(eval_rows=0): must be a whole number, at least 1"),
        ({"eval_rows": 50, "target": {"grad_norm": 1e-3}}, "run(eval_rows=50, target={'grad_norm': ...})"),
        ({"eval_rows": 50, "metrics": {"loss_error": max}}, "'loss_error' is a column already"),
    ],
)
def test_what_it_refuses(options: dict[str, Any], message: str) -> None:
    fed = md.Federation(md.problems.Softmax(), clients=sites())
    with pytest.raises(md.RecipeError, match=re.escape(message)):
        md.run(md.FedAvg(), fed, 1, **options)


def test_a_loss_that_is_a_mean_has_no_estimate() -> None:
    mean = lambda z, y: torch.nn.functional.cross_entropy(z, y)
    fed = md.Federation(md.problems.Network(torch.nn.Linear(3, 3), loss=mean), clients=sites())
    with pytest.raises(md.RecipeError, match="the problem's loss is a mean over rows"):
        md.run(md.FedAvg(), fed, 1, eval_rows=50)


def test_a_known_optimum_has_no_gap_beside_an_estimate() -> None:
    fed = md.Federation(md.problems.Softmax(mu=0.1), clients=sites(), f_star=0.1)
    assert "gap" in md.run(md.FedAvg(), fed, 1).history[-1]
    assert "gap" not in md.run(md.FedAvg(), fed, 1, eval_rows=50).history[-1]
