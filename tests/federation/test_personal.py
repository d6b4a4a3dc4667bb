"""Clients' own models: measured out of band, kept in results, refused where they cannot be had."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.clients.memories import Memories
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.messages import Model, Step
from medley.transports import Lossy, Processes
from support.pairs import quick

DATA = md.datasets.digits()


def federation(shared: Any = None, **more: Any) -> md.Federation:
    module = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))
    settings: dict[str, Any] = {"partition": md.partitions.Labels(clients=6, per_client=2), "own_test": True, **more}
    return md.Federation(md.problems.Network(module, shared=shared), data=DATA, **settings)


def run(method: Any, fed: md.Federation, rounds: int = 3, **more: Any) -> md.Result:
    return md.run(method, fed, rounds, progress=False, **more)


def test_rows_have_the_own_model_beside_the_servers():
    r = run(md.FedPer(), federation())
    fed = federation("body").draw(0)
    for row in r.clients:
        i, model = int(row["client"]), r.client_model(int(row["client"]))
        held = fed.tasks[0]
        assert held.held is not None
        assert held.owner is not None
        X, y = held.held[0][held.owner == i], held.held[1][held.owner == i]
        hits = (model(X).argmax(1) == y).double().mean()
        assert row["accuracy"] == pytest.approx(float(hits))
        assert row["test_rows"] == len(y)
        assert r.model is not None
        assert row["server_accuracy"] == pytest.approx(float((r.model(X).argmax(1) == y).double().mean()))
    rows = r.clients
    assert r.summary["personal_accuracy"] == pytest.approx(
        sum(row["accuracy"] * row["test_rows"] for row in rows) / sum(row["test_rows"] for row in rows)
    )
    assert r.summary["personal_accuracy_worst"] == min(row["accuracy"] for row in rows)
    assert r.summary["personal_accuracy"] > 0.9 > r.summary["accuracy"]


@pytest.mark.parametrize("method", [md.FedPer(), md.LocalOnly()], ids=lambda m: m.name)
def test_a_client_predicts_with_its_own_model_and_the_servers_untrained_one_is_refused(
    method: Algorithm[Any, Any], tmp_path: Path
) -> None:
    X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    names = np.where(X[:, 0] > 0, "ill", "well")
    clients = {"Bern": (X, names), "Lyon": (X, np.where(X[:, 0] > 0, "well", "ill"))}
    pace = md.scenarios.Pace(lr=0.5, epochs=10, batch=8)
    fed = md.Federation(md.problems.Network(net), clients=clients, pace=pace)
    r = run(method, fed)
    r.save(tmp_path)
    for result in (r, md.Result.load(tmp_path)):
        assert (result.predict(X, client="Bern") == names).mean() > 0.9
        assert (result.predict(X, client="Lyon") != names).mean() > 0.9
        assert (result.predict(X, client=1) == result.predict(X, client="Lyon")).all()
        assert torch.equal(result.client_model("Lyon")(X), result.outputs(X, client=1))
        with pytest.raises(md.RecipeError, match=rf"with {method.name} clients train .* predict\(X, client=0\)"):
            result.predict(X)
        with pytest.raises(md.RecipeError, match=r"no 'Bren'\. Did you mean 'Bern'"):
            result.predict(X, client="Bren")
    everybody = run(md.Ditto(), fed)
    assert len(everybody.predict(X)) == len(run(md.FedAvg(), fed).predict(X, client="Bern")) == 40


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(1, [md.Ditto(), md.FedRep(1), md.FedAvgFT()]), ids=lambda m: m.name)
def test_a_measurement_changes_and_counts_nothing(method: Algorithm[Any, Any]):
    often, once = run(method, federation(), clients_every=1), run(method, federation())
    assert torch.equal(often.x, once.x)
    assert list(often.ledger) == list(once.ledger)
    assert often["seconds"] == once["seconds"]
    assert often.clients[-6:] == once.clients
    assert [row["round"] for row in often.clients[::6]] == [1, 2, 3]
    assert "personal_accuracy" not in once.history[-1]
    assert often.history[-1]["personal_accuracy"] == once.summary["personal_accuracy"]


def test_global_methods_have_no_columns_of_own_models():
    r = run(md.FedAvg(), federation())
    assert not r.personal
    assert not any(k.startswith(("server_", "personal_")) for k in (*r.clients[0], *r.summary))
    model = r.client_model(2)
    assert r.model is not None
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), r.model.parameters(), strict=True))
    with pytest.raises(md.RecipeError, match="no such client"):
        r.client_model(17)
    X = torch.zeros(2, 64)
    short = run(md.FedAvg(), federation(), clients_every=None)
    for result in (r, replace(short, clients=[])):
        assert result.predict(X, client=5).shape == (2,)
        for client in (6, 999, -1):
            with pytest.raises(md.RecipeError, match=rf"\({client}\): there is no such client; ids end at 5"):
                result.predict(X, client=client)


@pytest.mark.parametrize("method", quick(1, [md.FedBN(), md.Ditto(), md.APFL()]), ids=lambda m: m.name)
def test_workers_and_losses_give_the_same_own_models(method: Algorithm[Any, Any]):
    here, there = (run(method, federation(), transport=t) for t in (None, Processes(2)))
    assert here.digest == there.digest
    assert here.clients == there.clients
    lossy = run(method, federation(), transport=Lossy(loss=0.5), clients_every=1)
    assert all("server_loss" in row and "loss" in row for row in lossy.clients)
    assert len(lossy.clients) == 18


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_own_parts(tmp_path: Path):
    whole = run(md.FedBN(), federation(), 4, clients_every=2)
    run(md.FedBN(), federation(), 3, clients_every=2, checkpoint=tmp_path)
    again = run(md.FedBN(), federation(), 4, clients_every=2, resume=tmp_path)
    assert whole.digest == again.digest
    assert [row for row in again.clients if row["round"] != 3] == whole.clients


@pytest.mark.slow
def test_a_late_client_keeps_its_pending_memory():
    memories = Memories()
    memories.put(0, (1, 0), "first")
    memories.put(0, (2, 0), "second")
    assert memories.peek(0, (1, 0)) == "first"
    assert memories.peek(0, (2, 0)) == "second"
    assert memories.peek(0, None) is None
    assert memories.peek(1, (1, 0)) is None
    policy = md.ReplyPolicy(replies=3)
    devices = md.devices.Devices(speed=[1e3, 1e4, 500.0, 1e5, 2e3, 100.0])
    often, once = (
        run(md.Ditto(), federation(devices=devices), 4, reply_policy=policy, clients_every=k) for k in (1, 4)
    )
    assert torch.equal(often.x, once.x)
    assert often.clients[-6:] == once.clients


@pytest.mark.slow
def test_a_folder_keeps_the_own_models(tmp_path: Path):
    r = run(md.FedPer(), federation(), checkpoint=tmp_path)
    back = md.Result.load(tmp_path)
    assert set(back.personal) == set(range(6))
    assert set(back.personal[0]) == {"3.weight", "3.bias"}
    X = DATA.X_test
    assert X is not None
    for i in range(6):
        assert torch.equal(back.client_model(i)(X), r.client_model(i)(X))
    none = run(md.FedPer(), federation(), client_models=False)
    with pytest.raises(md.RecipeError, match=r"run\(client_models=True\)"):
        none.client_model(0)
    (tmp_path / "clients.safetensors").write_bytes(b"junk")
    with pytest.raises(md.WireError, match=r"clients\.safetensors"):
        md.Result.load(tmp_path)


@pytest.mark.slow
def test_models_beyond_the_bound_are_kept_on_demand_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("medley.server.clientwise.MOST_KEPT", 1000)
    assert not run(md.Ditto(), federation()).personal
    assert set(run(md.Ditto(), federation(), client_models=True).personal) == set(range(6))


@pytest.mark.slow
def test_many_models_are_measured_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch):
    whole = run(md.Ditto(), federation()).clients
    monkeypatch.setattr("medley.federation.evaluation.MODELS_AT_ONCE", 2000)  # two models
    assert run(md.Ditto(), federation()).clients == whole


@dataclass
class Server:
    """The model."""

    x: torch.Tensor


@dataclass(frozen=True)
class Faulty(Algorithm[Server]):
    """A method whose own models are wrong in one way for client 2."""

    fault: str = "raises"

    def start(self, x: torch.Tensor) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Any) -> None:
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        return Step(me.descend(request.x).step)

    def personal(self, me: Client, x: torch.Tensor) -> Any:
        if me.id != 2:
            return x
        match self.fault:
            case "raises":
                raise ValueError("no such luck")
            case "shape":
                return x[:3]
            case "nan":
                return x * float("nan")
            case "in place":
                return x.add_(1.0)


@pytest.mark.parametrize(
    ("fault", "said"),
    quick(
        2,
        [
            ("raises", "no such luck"),
            ("shape", r"returned \[3\]"),
            ("nan", "not finite"),
            ("in place", "changed x in place"),
        ],
    ),
)
def test_a_model_that_fails_is_named_and_the_run_goes_on(fault: str, said: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "medley"):
        r = run(Faulty(fault), federation())
    text = " ".join(caplog.messages)
    assert "client 2's own model is not measured" in text
    import re

    assert re.search(said, text)
    assert "accuracy" not in r.clients[2]
    assert "server_accuracy" in r.clients[2]
    if fault != "in place":
        assert all("accuracy" in r.clients[i] for i in (0, 1, 3, 4, 5))


def test_weights_in_begin_at_the_whole_network():
    first = run(md.FedAvg(), federation())
    for init in (first.state_dict(), first.model):
        r = run(md.FedPer(), federation(), 0, init=init)
        assert r.model is not None
        assert first.model is not None
        a, b = r.model.state_dict(), first.model.state_dict()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_private_methods_keep_their_clients_models():
    net = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    fed = md.Federation(
        md.problems.Network(net), data=DATA, partition=md.partitions.Labels(6, 2), own_test=True, weights="uniform"
    )
    r = run(md.Private(md.FedPer(), noise=0.1, clip=1.0), fed)
    assert r.summary["personal_accuracy"] > r.summary["accuracy"]
    assert len(r.x) == 64 * 12 + 12


@pytest.mark.slow
def test_a_stream_measures_own_models_on_the_rows_of_its_task():
    fed = federation(stream=md.tasks.Split(tasks=5, mode="class"), partition=md.partitions.IID(4), own_test=None)
    r = run(md.FedPer(), fed, 2, clients_every=2)
    assert {row["round"] for row in r.clients} == {2, 4, 6, 8, 10}
    assert all("server_loss" in row for row in r.clients)
