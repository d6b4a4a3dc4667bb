"""Training loops of the recipe's author, and figures of segmentation by class, on nodes."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley import recipe
from medley.contract.errors import ClientFailed
from medley.deploy.node import rows
from medley.flower import client_app, server_app
from medley.metrics import Dice, Hausdorff

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench
from support.deployed import Deployment

CODE = """
import torch
from torch import nn

import medley as md


class Net(nn.Sequential):
    def __init__(self, features=None, classes=None):
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


def rows():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (45, 4, 4), generator=g).repeat_interleave(3, 1).repeat_interleave(3, 2)
    X = y[:, None] + 0.5 * torch.randn(45, 1, 12, 12, generator=g)
    return md.datasets.Dataset(X[:30], y[:30], X[30:], y[30:], classes=3)


def loop(module, rows, pace, seed, state):
    optimizer = torch.optim.Adam(module.parameters(), lr=pace.lr)
    md.loops.restore(optimizer, state)
    for X, y in rows.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X) + 0.01 * torch.randn(3, 1, 1), y).backward()
        optimizer.step()
    md.loops.save(optimizer, state)


def fails(module, rows, pace, seed):
    if rows.client == 1:
        raise KeyError("scan_0042")


def leaves(module, rows, pace, seed):
    if rows.client == 1:
        module.register_forward_hook(lambda *_: None)
"""

TABLES: dict[str, Any] = {
    "rules": {"exact": True, "scores": True},
    "problem": {"kind": "Network", "model": "loop_code:Net", "train": "loop_code:loop"},
    "data": {"name": "loop_code:rows"},
    "partition": {"kind": "IID", "clients": 3},
    "pace": {"lr": 0.03, "batch": 5},
    "methods": [{"kind": "FedAvg"}],
    "run": {
        "rounds": 3,
        "clients_every": 3,
        "metrics": {
            "dice": {"kind": "Dice", "classes": 3, "only": 2},
            "border": {"kind": "Hausdorff", "classes": 3, "only": 1},
        },
    },
}


NAMES = {"loop_code:Net", "loop_code:loop", "loop_code:rows"}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "loop_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe.Recipe(TABLES).dumps())
    return tmp_path / "recipe.toml"


def deploy(app: Path, **config: Any) -> md.Result:
    config = {"clients": 3, "save": str(app.parent / "run"), "timeout": 60, **config}
    grid = Bench([client_app(app)] * 3, config, memory=str(app.parent / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(app.parent / "run")


def same(there: md.Result, r: recipe.Recipe) -> None:
    """x, and the figures of classes by site, are those of the recipe in one process."""
    here = r.federation().run(r.methods()[0], r.rounds, **r.options(), transport=md.transports.Lossy())
    assert torch.equal(here.x, there.x)
    assert there.model is not None
    for row in there.clients:
        (lot,) = rows.share(r, row["client"])
        outputs = there.model(lot.X_test).detach()
        for name, metric in (("dice", Dice(classes=3, only=2)), ("border", Hausdorff(classes=3, only=1))):
            assert row[name] == pytest.approx(metric(outputs, lot.y_test), abs=1e-6)
    assert len({row["dice"] for row in there.clients}) == 3
    for name in ("dice", "border"):
        assert there.history[-1][name] == pytest.approx(here.history[-1][name], rel=1e-9)
    assert 0.5 < there.history[-1]["dice"] < 1.0 <= there.history[-1]["border"]


def test_nodes_train_by_the_recipes_loop_as_one_process_does(app: Path) -> None:
    same(deploy(app), recipe.load(app))


@pytest.mark.parametrize("name", ["fails", "leaves"])
def test_a_node_whose_loop_goes_wrong_is_named_and_its_log_has_the_traceback(
    name: str, app: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {**TABLES, "problem": {**TABLES["problem"], "train": f"loop_code:{name}"}}
    app.write_text(recipe.Recipe(tables).dumps())
    with caplog.at_level(logging.ERROR), pytest.raises(md.MedleyError) as error:
        deploy(app)
    if name == "leaves":
        assert "client 1: Network(train=leaves): the function left a hook on the module" in str(error.value)
    else:
        assert isinstance(error.value, ClientFailed)
        assert "client 1 failed in round 1 in train(): KeyError" in str(error.value)
        assert "scan_0042" not in str(error.value)
        assert 'raise KeyError("scan_0042")' in caplog.text


def test_an_owner_who_has_not_allowed_the_loop_refuses_it(app: Path) -> None:
    config = {"clients": 3, "save": str(app.parent / "run"), "timeout": 60}
    apps = [client_app(app, code=NAMES - ({"loop_code:loop"} if k == 1 else set())) for k in range(3)]
    grid = Bench(apps, config, memory=str(app.parent / "memory"))
    message = (
        r"problem.train = 'loop_code:loop' is code that this node's owner has not allowed.*--allow-code loop_code:loop"
    )
    with pytest.raises(md.RecipeError, match=message):
        server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))


def test_the_server_cannot_choose_a_loop_that_the_owners_recipe_does_not_name(app: Path) -> None:
    with pytest.raises(md.RecipeError, match="loop_code:fails"):
        deploy(app, set="problem.train=loop_code:fails")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("deployed")
@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen")
def test_three_real_nodes_train_by_the_recipes_loop(there: Deployment, app: Path) -> None:
    r = recipe.load(app)
    r.federation()  # imports the module's class, which a result's model needs
    shutil.copy(app.parent / "loop_code.py", there.folder / "app")
    there.app(r)
    allowed = ["--allow-code", ",".join(sorted(NAMES))]
    with there.node(0, *allowed), there.node(1, *allowed), there.node(2, *allowed):
        same(there.result("loop"), r)
