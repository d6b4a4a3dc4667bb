"""A client that lost its memory comes back: the run goes on, and the method's sums hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract import pytree
from medley.storage import checkpoint
from support.pairs import quick


def state(folder: Path, method: Any) -> tuple[Any, dict[int, Any]]:
    """The server's state and the clients' memories in a checkpoint."""
    server = type(method.start(torch.zeros(1, dtype=torch.float64)))
    kept = checkpoint.load(folder, pytree.dataclasses_in(server, method.memory))
    return kept["server"], dict(kept["memories"].items())


def federation(participation: float | None = None) -> tuple[md.Federation, Any]:
    q = md.problems.synthetic_quadratics(clients=5, d=6)
    pace = md.scenarios.Pace(lr=[0.02, 0.05, 0.1, 0.03, 0.08], epochs=[1, 3, 2, 1, 2], batch=None)
    return md.Federation(q.problem, clients=q.clients, pace=pace, participation=participation), q


@pytest.mark.slow
@pytest.mark.parametrize("participation", [None, 0.6])
def test_scaffolds_c_is_the_mean_of_the_c_i(participation: float | None, tmp_path: Path) -> None:
    fed, q = federation(participation)
    method = md.SCAFFOLD()
    fed.run(method, 8, checkpoint=tmp_path)
    s, memories = state(tmp_path, method)
    p = fed.draw(0, "test", None, "cpu", 1).view(1).p
    assert torch.allclose(s.c, sum(p[i] * m.c for i, m in memories.items()))
    before = memories[2].c.clone()
    fed.run(method, 9, resume=tmp_path, readmit=[2])
    s, memories = state(tmp_path, method)
    assert torch.allclose(s.c, sum(p[i] * m.c for i, m in memories.items()), atol=1e-14)
    assert not torch.equal(memories[2].c, before)
    r = fed.run(method, 600, resume=tmp_path, checkpoint_every=999, eval_every=600)
    assert float((r.x - q.x_star).norm() / q.x_star.norm()) < 1e-6
    asked = [e for e in r.ledger if e.method == "recall"]
    assert [(e.round, e.client) for e in asked] == [(9, i) for i in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("flows", ["client", pytest.param("server", marks=pytest.mark.slow)])
def test_fednortons_sum_is_that_of_the_flows(flows: str, tmp_path: Path) -> None:
    fed, q = federation(0.6)
    method = md.FedNorton(flows=flows)  # type: ignore[arg-type]
    fed.run(method, 8, checkpoint=tmp_path)
    fed.run(method, 9, resume=tmp_path, readmit=[1, 3])
    s, memories = state(tmp_path, method)
    p = fed.draw(0, "test", None, "cpu", 1).view(1).p
    flows_of = s.J if flows == "server" else {i: m.J for i, m in memories.items() if m.J is not None}
    assert torch.allclose(s.S, sum(p[i] * J for i, J in flows_of.items()), atol=1e-12)
    r = fed.run(method, 250, resume=tmp_path, checkpoint_every=999, eval_every=250)
    assert float((r.x - q.x_star).norm() / q.x_star.norm()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [md.SHED(pairs=2), md.SHED(budget=4), md.SHED.fast(pairs=2)], ids=["paper", "bits", "fast"]
)
def test_shed_forgets_the_pairs_and_reaches_the_optimum(method: Any, tmp_path: Path) -> None:
    toy = md.problems.synthetic_logistic(clients=5, d=8, mu=1e-3)
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
    fed.run(method, 6, checkpoint=tmp_path)
    r = fed.run(method, 60, resume=tmp_path, readmit=[4], target={"gap": 1e-10})
    assert r.status.outcome == "target", r.status
    s, memories = state(tmp_path, method)
    assert s.held.count(4) == memories[4].base + memories[4].sent


def test_a_method_that_cannot_says_why_and_the_folder_stays_as_it_was(tmp_path: Path) -> None:
    fed, _ = federation()
    fed.run(md.FedDyn(), 3, checkpoint=tmp_path)
    whole = fed.run(md.FedDyn(), 6)
    with pytest.raises(md.Unsupported, match="FedDyn cannot let a client in again without its memory"):
        fed.run(md.FedDyn(), 6, resume=tmp_path, readmit=[2])
    assert fed.run(md.FedDyn(), 6, resume=tmp_path).digest == whole.digest


def test_clients_without_a_memory_begin_anew_without_a_word(tmp_path: Path) -> None:
    fed, _ = federation()
    fed.run(md.FedAvg(), 3, checkpoint=tmp_path)
    assert fed.run(md.FedAvg(), 6, resume=tmp_path, readmit=[2]).digest == fed.run(md.FedAvg(), 6).digest
    with pytest.raises(md.RecipeError, match=r"there is no client 9; there are 0 to 4"):
        fed.run(md.FedAvg(), 7, resume=tmp_path, readmit=[9])
    with pytest.raises(md.RecipeError, match=r"run\(readmit=...\): needs resume="):
        fed.run(md.FedAvg(), 7, readmit=[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(1, [md.CFLAG(), md.CFLAG.joint()]), ids=["paper", "joint"])
def test_cflag_loses_nothing_with_a_memory_that_lasts_a_round(method: Any, tmp_path: Path) -> None:
    """Its digest is that of the undisturbed run, in the midst of a task and at the change of tasks."""
    fed = md.Federation(
        md.problems.Softmax(mu=1e-2),
        data=md.datasets.digits().take(400, 100),
        partition=md.partitions.Dirichlet(clients=4, alpha=1.0),
        stream=md.tasks.Split(tasks=2, mode="class"),
        replay=md.replay.Ring(capacity=20),
        pace=md.scenarios.Pace(lr=0.1, steps=2, batch=32),
    )
    whole = fed.run(method, 3)
    for last in (2, 3):

        def stop(row: dict[str, float], last: int = last) -> None:
            if row["round"] == last:
                raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            fed.run(method, 3, checkpoint=tmp_path / str(last), checkpoint_every=1, on_round=stop)
        _, memories = state(tmp_path / str(last), method)
        assert memories[1].x is None  # it lasts from one exchange of a round to the next
        assert fed.run(method, 3, resume=tmp_path / str(last), readmit=[1, 2]).digest == whole.digest
