"""Clients' own models on nodes: they stay there, and the run is the one of a single process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley import recipe
from medley.flower import client_app, server_app

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Network"
model = "{model}"
{more}

[data]
name = "digits"
train = 200
flatten = true

[partition]
kind = "Dirichlet"
clients = 3
alpha = 0.5

[pace]
lr = 0.1
batch = 32

[run]
rounds = 3
dtype = "float64"
clients_every = 1

[[methods]]
kind = "{kind}"
"""

NORMED = """
from torch import nn


def net(features, classes):
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
"""

METHODS = ["FedPer", "FedRep", "FedBN", "Ditto", "APFL", "FedAvgFT"]


FROZEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.base, self.head = nn.Linear(features, 8).requires_grad_(False), nn.Linear(8, classes)
        {more}

    def forward(self, X):
        return self.head(torch.relu(self.base(X)))
"""


def deploy(path: Path, save: str = "run", **config: Any) -> tuple[md.Result, Bench]:
    config = {"clients": 3, "save": str(path.parent / save), "timeout": 60, **config}
    grid = Bench([client_app(path)] * 3, config, memory=str(path.parent / "memory"))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(Path(config.get("resume", config["save"]))), grid


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "normed_net.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "recipe.toml"


def written(app: Path, kind: str) -> recipe.Recipe:
    model, more = ("normed_net:net", "") if kind == "FedBN" else ("mlp", "hidden = [8]")
    app.write_text(RECIPE.format(kind=kind, model=model, more=more))
    return recipe.load(app)


@pytest.mark.parametrize("kind", METHODS)
def test_own_models_stay_at_their_nodes_and_are_those_of_one_process(kind: str, app: Path) -> None:
    """x has the same bits as with clients served one by one; figures of own models agree where both measure them."""
    r = written(app, kind)
    here = r.federation().run(r.methods()[0], 3, **r.options(), transport=md.transports.Lossy())
    there, grid = deploy(app)
    assert torch.equal(here.x, there.x)
    assert [e._replace(overhead=0) for e in here.ledger] == [e._replace(overhead=0) for e in there.ledger]
    assert there.personal == {}
    assert [(row["round"], row["client"]) for row in there.clients] == [(t, i) for t in (1, 2, 3) for i in range(3)]
    for a, b in zip(here.clients, there.clients, strict=True):
        for name in ("loss", "server_loss"):
            assert a[name] == pytest.approx(b[name], rel=1e-10), name
        assert b["accuracy"] != b["server_accuracy"] or b["test_loss"] != b["server_test_loss"]
    assert here.summary["personal_loss"] == pytest.approx(there.summary["personal_loss"], rel=1e-10)
    own = {m.metadata.message_type for m in grid.sent}
    assert "query.personal" not in own
    answers = [m for m in grid.replies.values() if m.has_content()]
    largest = max(len(m.content["answer"]["bytes"]) for m in answers if b'"tests"' in m.content["answer"]["bytes"][:20])
    assert largest < 1500


@pytest.mark.parametrize("kind", ["FedPer", "Ditto"])
def test_a_resumed_run_goes_on_with_own_models(kind: str, app: Path, tmp_path: Path) -> None:
    written(app, kind)
    whole, _ = deploy(app, "whole")
    deploy(app, "half", set="run.rounds=1")
    half, _ = deploy(app, resume=str(tmp_path / "half"), set="run.rounds=3")
    assert torch.equal(whole.x, half.x)
    assert whole.clients[-3:] == half.clients[-3:]


def test_own_parts_begin_at_a_given_model(app: Path, tmp_path: Path) -> None:
    r = written(app, "FedPer")
    first = r.federation().run(md.FedAvg(), 1, dtype="float64")
    torch.save(first.state_dict(), weights := tmp_path / "first.pt")
    there, _ = deploy(app, set=f"run.init={weights}")
    options = {**r.options(), "init": weights, "transport": md.transports.Lossy()}
    here = r.federation().run(md.FedPer(), 3, **options)
    assert torch.equal(here.x, there.x)
    assert here.summary["personal_loss"] == pytest.approx(there.summary["personal_loss"], rel=1e-10)


def test_a_client_whose_model_cannot_be_made_says_why(
    app: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(app, "FedAvgFT")
    honest = md.FedAvgFT.personal

    def fails(self: Any, me: Any, x: torch.Tensor) -> torch.Tensor:
        if me.id == 1:
            raise ZeroDivisionError("no")
        return honest(self, me, x)

    monkeypatch.setattr(md.FedAvgFT, "personal", fails)
    there, _ = deploy(app, set="run.rounds=1")
    assert "client 1's own model is not measured: its method failed; the log of its node says more" in caplog.text
    assert ["accuracy" in row for row in there.clients] == [True, False, True]
    assert all("server_accuracy" in row for row in there.clients)


def test_what_a_node_is_asked_beside_the_others_is_checked(app: Path, tmp_path: Path) -> None:
    from medley.contract import pytree
    from medley.deploy.node.app import ClientSide

    written(app, "FedPer")
    side, context = (
        ClientSide(app, None, None),
        Context(1, 1, {"partition-id": 0, "memory": str(tmp_path / "m")}, RecordDict(), {"clients": 3}),
    )
    asked = {"x": torch.zeros(64 * 8 + 8, dtype=torch.float64), "buffers": None, "round": 1, "tests": [0], "loss": True}
    asked |= {"grad": False, "known": {"classes": 10, "labels": [list(range(10))]}, "run": "r"}
    ask = lambda **own: side.evaluate({"common": pytree.to_bytes(asked), "own": json.dumps(own).encode()}, context)
    assert set(json.loads(ask())) == {"tests", "loss", "own"}
    for own in ({"acked": [1, 1]}, {"sample": [0, 67, 67]}, {"sample": [67, 134, 67]}):
        assert "own" in json.loads(ask(**own))
    wrong = {"acked": ["../x", 0]}, {"acked": [1, 0, 2]}, {"acked": [1]}
    for own in (*wrong, {"sample": [-1, 2, 3]}, {"sample": [1, 2]}, {"sample": "all"}):
        with pytest.raises(md.WireError, match="the server's request of an evaluation: "):
            ask(**own)
    asked["run"] = "../r"
    with pytest.raises(md.WireError, match="a run's name consists of letters, digits, _ and -"):
        ask()


@pytest.mark.slow
def test_figures_of_own_models_do_not_leave_where_rows_are_private(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FedAvgFT makes a client's own model by steps without noise."""
    written(app, "FedAvgFT")
    app.write_text(app.read_text() + 'private = { unit = "row", noise = 1.0, clip = 1.0 }\n')
    there, grid = deploy(app, set="run.rounds=1")
    assert "client 1's own model is not measured: its rows are private" in caplog.text
    assert all("server_accuracy" in row and "accuracy" not in row for row in there.clients)
    answers = [m.content["answer"]["bytes"] for m in grid.replies.values()]
    assert any(b'"why"' in a for a in answers)
    assert not any(b'"own"' in a for a in answers)


@pytest.mark.slow
def test_secure_sums_count_figures_of_own_models_by_themselves(app: Path) -> None:
    """An honest run has its figures after each round; models beyond that are refused, with training loss or without."""
    from medley.contract import pytree
    from medley.deploy.node.app import ClientSide

    pytest.importorskip("cryptography")
    written(app, "FedAvgFT")
    app.write_text(app.read_text() + "[secure]\nbound = 50.0\n")
    there, _ = deploy(app)
    assert [("loss" in row, row["round"]) for row in there.clients] == [(True, t) for t in (1, 2, 3) for _ in range(3)]
    side, folder = ClientSide(app, None, None), str(app.parent / "other")
    context = Context(1, 1, {"partition-id": 0, "memory": folder}, RecordDict(), {"clients": 3})
    asked = {"buffers": None, "round": 1, "tests": [0], "loss": False, "grad": False, "run": "r"}
    asked |= {"known": {"classes": 10, "labels": [list(range(10))]}}

    def model(k: int) -> torch.Tensor:
        return torch.full((64 * 8 + 8 + 8 * 10 + 10,), 0.01 * k, dtype=torch.float64)

    def ask(k: int, **more: object) -> bytes:
        return side.evaluate({"common": pytree.to_bytes({"x": model(k), **asked, **more}), "own": b"{}"}, context)

    for k in range(5):
        assert "own" in json.loads(ask(k))
    assert "own" in json.loads(ask(4))
    with pytest.raises(md.WireError, match="it has sent the loss of its rows for 5 models"):
        ask(5)
    own = json.dumps({"sample": [0, 200, 2]}).encode()
    with pytest.raises(md.WireError, match=r"its recipe has \[secure\], but the server asks for the loss of some"):
        side.evaluate(
            {"common": pytree.to_bytes({"x": model(6), **asked, "loss": True, "run": ""}), "own": own}, context
        )


def frozen(app: Path, name: str, more: str = "") -> recipe.Recipe:
    """A recipe whose network has a frozen part that each process makes for itself."""
    (app.parent / f"{name}.py").write_text(FROZEN.format(more=more))
    app.write_text(RECIPE.format(kind="FedAvg", model=f"{name}:Net", more=""))
    return recipe.load(app)


def test_a_frozen_part_is_that_of_one_process(app: Path) -> None:
    """Messages do not carry it: the recipe makes it the same everywhere."""
    r = frozen(app, "frozen_net")
    torch.manual_seed(1)
    here = r.federation().run(r.methods()[0], 3, **r.options(), transport=md.transports.Lossy())
    torch.manual_seed(2)
    there, _ = deploy(app)
    assert torch.equal(here.x, there.x)


def test_a_frozen_part_of_other_weights_is_refused(app: Path) -> None:
    frozen(app, "other_net", "self.base.weight.data.normal_(generator=(g := torch.Generator(), g.seed())[0])")
    with pytest.raises(md.RecipeError, match=r"client 0's network has a frozen part with digest .* give both the same"):
        deploy(app)
