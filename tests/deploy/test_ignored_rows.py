"""Rows without a target on nodes: they count in no mean there either, so that the deployed run is the local one."""

from __future__ import annotations

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

CODE = """
import torch
from torch import nn

import medley as md


class Tag(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.l(self.e(x)).transpose(1, 2)


def rows(n, empty):
    g = torch.Generator().manual_seed(n)
    X, y = torch.randint(9, (n, 5), generator=g), torch.randint(3, (n, 5), generator=g)
    y = y.masked_fill(torch.rand(n, 5, generator=g) < 0.3, -1)
    y[:, 0] = y[:, 0].clamp(min=0)
    y[list(empty)] = -1
    return X, y


def tags():
    return md.datasets.Dataset(*rows(40, (0, 7, 8, 23)), *rows(12, (1, 4, 10)), classes=3)


def own(i):
    weights = torch.linspace(0.5, 2.0, 12 + i)
    return md.datasets.Dataset(*rows(12 + i, range(i)), *rows(3, [(), (0,), range(3)][i]), classes=3, weights=weights)
"""

RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Network"
model = "tag_code:Tag"
ignore_index = -1

{data}

[pace]
lr = 0.3
batch = 4

[run]
rounds = 3
dtype = "float64"

[[methods]]
kind = "SCAFFOLD"
"""

SHARED = '[data]\nname = "tag_code:tags"\n[partition]\nkind = "IID"\nclients = 3'


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tag_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "recipe.toml"


def deployed(app: Path, data: Any = None) -> md.Result:
    config = {"clients": 3, "save": str(app.parent / "run")}
    grid = Bench([client_app(app, data)] * 3, config, memory=str(app.parent / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(app.parent / "run")


def assert_same(here: md.Result, there: md.Result) -> None:
    assert float((here.x - there.x).abs().max()) < 1e-10
    for a, b in zip(here.history, there.history, strict=True):
        for name in ("loss", "test_loss", "accuracy"):
            assert a[name] == pytest.approx(b[name], rel=1e-10), name


def test_a_share_of_the_recipes_rows(app: Path) -> None:
    app.write_text(RECIPE.format(data=SHARED))
    r = recipe.load(app)
    assert_same(r.federation().run(r.methods()[0], 3, **r.options()), deployed(app))


def test_rows_of_a_nodes_own_with_weights(app: Path) -> None:
    """Client 1 has one training row without a target and one test row, client 2 two, and no test row with one."""
    app.write_text(RECIPE.format(data=""))
    import tag_code  # type: ignore[import-not-found]

    given = [tag_code.own(i) for i in range(3)]
    clients = [(d.X[i:], d.y[i:], d.weights[i:]) for i, d in enumerate(given)]
    tests = [(d.X_test[k], d.y_test[k]) for d, kept in zip(given, ([0, 1, 2], [1, 2], []), strict=True) for k in kept]
    r = recipe.load(app)
    problem = md.problems.Network(tag_code.Tag(), ignore_index=-1)
    pace = md.scenarios.Pace(lr=0.3, batch=4)
    test = (torch.stack([x for x, _ in tests]), torch.stack([y for _, y in tests]))
    fed = md.Federation(problem, clients=clients, test=test, classes=3, pace=pace)
    here = fed.run(r.methods()[0], 3, dtype="float64")
    assert_same(here, deployed(app, lambda context: tag_code.own(context.node_config["partition-id"])))


def test_a_node_without_any_target_is_named(app: Path) -> None:
    app.write_text(RECIPE.format(data=""))
    import tag_code

    def data(context: Context) -> md.datasets.Dataset:
        i = context.node_config["partition-id"]
        X, y = tag_code.rows(6, range(6) if i == 1 else ())
        return md.datasets.Dataset(X, y, classes=3)

    with pytest.raises(md.BadData, match="client 1: all targets of its rows are ignore_index; leave it out"):
        deployed(app, data)
