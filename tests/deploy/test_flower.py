"""Transport and apps over Flower's own objects, without a network."""

from __future__ import annotations

import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import medley as md
from medley import recipe
from medley.codecs import Cast
from medley.contract import pytree
from medley.contract.algorithm import Algorithm
from medley.contract.place import Place
from medley.contract.sampling import Sampling
from medley.deploy.node.account import Account
from medley.deploy.node.app import ClientSide, discreet
from medley.deploy.node.serve import Shelf
from medley.deploy.node.serve import client_app as made_up
from medley.deploy.protocol.calls import CallRequest
from medley.deploy.server import messenger
from medley.deploy.server.transport import FlowerConnection
from medley.flower import client_app, server_app
from medley.privacy.accountant import epsilon, release
from medley.rows.sparse import Sparse
from medley.storage import events
from medley.testing.faults import Rewired, losing
from medley.transports import InProcess
from medley.wire.exchange import Exchange

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from support.bench import Bench, FlowerInProcess


def assert_same(a: md.Result, b: md.Result) -> None:
    """But for Flower's framing, and for what a crew of clients rounds otherwise than one."""
    near = 1e-10 if a.x.dtype == torch.float64 else 1e-5
    assert float((a.x - b.x).abs().max()) < near
    assert [e._replace(overhead=0) for e in a.ledger] == [e._replace(overhead=0) for e in b.ledger]
    assert min(e.overhead for e in b.ledger) > 0
    for one, other in zip(a.history, b.history, strict=True):
        assert {**other, "wall": 0} == pytest.approx({**one, "wall": 0}, rel=near)


def federation() -> md.Federation:
    q = md.problems.synthetic_quadratics(clients=5, d=6)
    pace = md.scenarios.Pace(lr=[0.02, 0.05, 0.1, 0.03, 0.08], epochs=[1, 3, 2, 1, 2], batch=4)
    return md.Federation(q.problem, clients=q.clients, pace=pace, participation=0.6)


@pytest.mark.parametrize("method", [md.FedAvg(), md.SCAFFOLD(), md.FedNorton()], ids=lambda m: m.name)
@pytest.mark.shapes
def test_the_numbers_of_one_process(method: Algorithm[Any, Any], tmp_path: Path) -> None:
    fed = federation()
    assert_same(fed.run(method, 3), fed.run(method, 3, transport=FlowerInProcess(tmp_path)))


@pytest.mark.shapes
def test_buffers_dropout_and_a_codec(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    data = md.datasets.gaussian_classes(n=120, features=8, classes=3, test=30)
    fed = md.Federation(md.problems.Network(net), data=data, partition=md.partitions.IID(5))
    a = fed.run(md.SCAFFOLD(), 2, codec=Cast("float16"))
    b = fed.run(md.SCAFFOLD(), 2, codec=Cast("float16"), transport=FlowerInProcess(tmp_path))
    assert_same(a, b)
    assert a.buffers is not None
    assert b.buffers is not None
    assert torch.allclose(a.buffers[0], b.buffers[0], atol=1e-5)


def test_what_is_common_is_one_object_for_flower(tmp_path: Path) -> None:
    """Flower carries objects of the same content once, so a model goes up to the SuperLink once for all clients."""
    transport = FlowerInProcess(tmp_path)
    federation().run(md.FedAvg(), 1, transport=transport)
    asked = [m for m in transport.grid.sent if m.metadata.message_type == "query.train"]
    assert len(asked) == 3
    assert len({m.content["common"].object_id for m in asked}) == 1
    assert len({m.content["own"].object_id for m in asked}) == 3


def test_clients_keep_two_versions_and_go_back_to_the_acknowledged_one(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, {})
    assert shelf.get(3, None, 1) is None
    shelf.put((1, 0), {"c": torch.ones(2)})
    assert torch.equal(shelf.get(3, (1, 0), 2)["c"], torch.ones(2))
    shelf.put((2, 0), {"c": torch.zeros(2)})
    assert torch.equal(shelf.get(3, (1, 0), 2)["c"], torch.ones(2))  # the reply was lost: rolled back
    assert [p.name for p in tmp_path.iterdir()] == ["1-0.safetensors"]
    shelf.put((2, 1), {"c": torch.full((2,), 2.0)})
    assert torch.equal(Shelf(tmp_path, {}).get(3, (2, 1), 2)["c"], torch.full((2,), 2.0))  # after a restart
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1-0.safetensors", "2-1.safetensors"]
    path = tmp_path / "2-1.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x40]))
    with pytest.raises(
        md.WireError, match=r"client 3's memory 2-1.safetensors is damaged .* resume with readmit=\[3\], --readmit 3"
    ):
        shelf.get(3, (2, 1), 2)
    with pytest.raises(md.WireError, match=r"expects .* \(3, 0\), but the client holds \[\(1, 0\), \(2, 1\)\]"):
        shelf.get(3, (3, 0), 3)
    assert shelf.get(3, None, 1) is None  # a run that begins anew
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_is_down_is_a_lost_reply(tmp_path: Path) -> None:
    """What the silent client remembered in that round is rolled back, as for a reply lost in one process."""
    fed = md.Federation(federation().problem, clients=md.problems.synthetic_quadratics(clients=5, d=6).clients)
    transport = FlowerInProcess(tmp_path)

    def down(row: dict[str, Any]) -> None:
        transport.grid.silent = {102} if row["round"] == 1 else set()

    a = fed.run(md.SCAFFOLD(), 4, transport=Rewired(InProcess(), losing({(2, 0, 2)}, requests_arrive=True)))
    b = fed.run(md.SCAFFOLD(), 4, transport=transport, on_round=down)
    assert [e._replace(overhead=0) for e in a.ledger] == [e._replace(overhead=0) for e in b.ledger]
    assert [e.client for e in b.ledger if e.up == 0] == [2]
    assert float((a.x - b.x).norm()) < 1e-10 * float(a.x.norm())


def test_an_app_that_crashes_is_asked_again_and_at_the_third_time_named(tmp_path: Path) -> None:
    fed, transport, crashes = federation(), FlowerInProcess(tmp_path), 2

    def crash(row: dict[str, Any]) -> None:
        transport.grid.crashes = Counter({n: crashes for n in transport.grid.apps})

    assert_same(fed.run(md.SCAFFOLD(), 3), fed.run(md.SCAFFOLD(), 3, transport=transport, on_round=crash))
    crashes = 3
    with pytest.raises(md.MedleyError, match=r"node \d+ cannot run the client's app: ClientApp stopped responding"):
        fed.run(md.SCAFFOLD(), 3, transport=transport, on_round=crash)


@pytest.mark.slow
def test_a_number_stays_with_its_node_while_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Node 103 is client 3, and away in rounds 2 and 3, in which node 200 says that it is client 3."""
    fed, transport = federation(), FlowerInProcess(tmp_path)
    fed.participation = md.participation.Everyone()

    def moved(row: dict[str, Any]) -> None:
        grid, away = transport.grid, row["round"] in (1, 2)
        transport.messenger.timeout = 5  # which a busy machine's honest nodes keep
        grid.apps[200], grid.ids[200] = grid.apps[103], 3
        grid.silent = {103} if away else ()
        grid.get_node_ids = lambda: [n for n in grid.apps if n != 103 or not away]  # type: ignore[method-assign]

    b = fed.run(md.SCAFFOLD(), 4, transport=transport, on_round=moved)
    said = "node 200 says that it is client 3, which is node 103 in this run, so the server refuses it"
    assert caplog.text.count(said) == 1
    assert not any(m.metadata.dst_node_id == 200 for m in transport.grid.sent if m.metadata.message_type != "query")
    assert {e.round for e in b.ledger if e.client == 3 and e.up} == {1, 4}


def says(client: int) -> Any:
    """An app that says this number, and does nothing else."""
    return made_up({"query": lambda letter, context: json.dumps({"client": client}).encode()})


def test_a_run_that_is_resumed_has_its_nodes(app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Node 99 answers first; the number is node 101's in the folder, and node 99's once the operator says so."""
    config = {"clients": 3, "timeout": 5, "set": "run.rounds=2"}
    deploy(app, save=str(tmp_path / "run"), set="run.rounds=1")
    assert json.loads((tmp_path / "run" / "nodes.json").read_text()) == {"0": 100, "1": 101, "2": 102}
    config["resume"] = str(tmp_path / "run")
    grid = Bench([client_app(app) for _ in range(3)], config, memory=str(tmp_path / "memory"))
    grid.apps[99], grid.ids[99] = grid.apps[101], 1
    grid.get_node_ids = lambda: [99, 100, 101, 102]  # type: ignore[method-assign]
    run = lambda: server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    run()
    assert caplog.text.count("node 99 says that it is client 1, which is node 101 in this run, so the server") == 1
    assert "nodes.json and resume" in caplog.text
    (tmp_path / "run" / "nodes.json").write_text('{"0": 100, "2": 102}')
    del grid.apps[101]
    grid.get_node_ids = lambda: [99, 100, 102]  # type: ignore[method-assign]
    config["set"] = "run.rounds=3"
    run()
    assert md.Result.load(tmp_path / "run").status.ok
    (tmp_path / "run" / "nodes.json").write_text('{"0": "x"}')
    with pytest.raises(md.WireError, match=r"nodes\.json does not say which node each client is"):
        run()


@pytest.mark.parametrize("number", [77, 3])
def test_a_number_out_of_range_is_a_faulty_answer_of_its_node(
    number: int, app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = (
        f"node 102 says that it is client {number}, but the app has clients = 3, with ids from 0: start the node with"
    )
    config = {"clients": 3, "save": str(tmp_path / "a"), "timeout": 5}

    def start() -> None:
        grid = Bench([client_app(app), client_app(app), says(number)], config, memory=str(tmp_path / "m"))
        server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))

    with pytest.raises(md.MedleyError, match=said):
        start()
    app.write_text(RECIPE + '[reply_policy]\nfaulty = "drop"\n')
    config["save"] = str(tmp_path / "b")
    start()
    r = md.Result.load(tmp_path / "b")
    assert r.status.ok
    assert {e.client for e in r.ledger} == {0, 1}
    assert f"a node is refused: {said}" in caplog.text


def caused(error: Exception) -> Exception:
    """The error as `raise ... from ValueError()` makes it."""
    error.__cause__ = ValueError("Ada")
    return error


def boom(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if outputs.requires_grad:
        raise ZeroDivisionError("no loss today")
    return outputs.sum()


def test_errors_of_clients_keep_class_and_attributes(tmp_path: Path) -> None:
    data = md.datasets.gaussian_classes(n=60, features=4, classes=3)
    fed = md.Federation(md.problems.Network(nn.Linear(4, 3), loss=boom), data=data, partition=md.partitions.IID(5))
    with pytest.raises(md.ClientFailed, match=r"client 0 failed in round 1 in train\(\): .*, ZeroDivisionError") as e:
        fed.run(md.FedAvg(), 1, transport=FlowerInProcess(tmp_path))
    assert "in boom" in e.value.traceback


@pytest.mark.parametrize("letter", [{}, {"common": b"", "own": b""}, {"common": b"x" * 100, "own": b"{}" * 50}])
def test_what_is_no_request_is_refused(letter: dict[str, bytes]) -> None:
    with pytest.raises(md.WireError):
        CallRequest.read(letter)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"round": "../../../PWNED"}, r"round is str '../../../PWNED', but must be a whole number in \[0"),
        ({"number": "../PWNED"}, r"number is str '\.\./PWNED', but must be a whole number in \[0"),
        ({"round": True}, "round is True"),
        ({"round": -1}, "round is -1"),
        ({"number": 1 << 40}, f"number is {1 << 40}"),
        ({"acked": {0: ("../x", 0)}}, r"acked is .* a list of 2: a whole number in \[0"),
        ({"acked": {0: (1, 2, 3)}}, r"acked is \[\(0, \(1, 2, 3\)\)\], but must be"),
        ({"p": {0: "1"}}, r"p is \[\(0, '1'\)\], but must be .* a number in \[0"),
        ({"p": {0: math.nan}}, r"p is \[\(0, nan\)\]"),
        ({"method": 7}, "method is 7"),
        ({"weights": {0: 1.0}}, "this client's part repeats or lacks some"),
        ({"buffers": (torch.ones(2), torch.ones(2))}, "this client's part repeats or lacks some"),
    ],
)
def test_a_requests_fields_are_checked_before_anything_is_done(
    fields: dict[str, Any], said: str, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is text was a part of a file's name: the server could write anywhere on a node."""
    honest, change = FlowerConnection._own, {"acked": {0: (1, 0)}} if "acked" in fields else {}

    def own(self: FlowerConnection, exchange: Any, i: int) -> bytes:
        tree = pytree.from_bytes(honest(self, exchange, i), {"Exchange": Exchange})
        return pytree.to_bytes({**tree, "exchange": replace(tree["exchange"], **{**change, **fields})})

    monkeypatch.setattr(FlowerConnection, "_own", own)
    with pytest.raises(md.WireError, match=said):
        deploy(app)
    assert not [p for p in tmp_path.rglob("*PWNED*")]
    assert not [*(tmp_path / "memory").rglob("*.safetensors")]


RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Network"
model = "mlp"
hidden = [8]

[data]
name = "digits"
train = 300
flatten = true

[partition]
kind = "Dirichlet"
clients = 3
alpha = 0.5

[pace]
lr = [0.1, 0.05, 0.2]
epochs = { kind = "Integers", low = 1, high = 3 }
batch = 32

[run]
rounds = 3
dtype = "float64"

[[methods]]
kind = "FedNorton"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def deploy(path: Path, data: Any = None, clients: int = 3, **config: Any) -> Bench:
    """Run the recipe as a Flower app."""
    config = {"clients": 3, "save": str(path.parent / "run"), **config}
    grid = Bench([client_app(path, data)] * clients, config, memory=str(path.parent / "memory"))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


@pytest.mark.parametrize("codec", ["", '[codec]\nkind = "Delta"\ninner = { kind = "Quantise", bits = 8 }\n'])
@pytest.mark.shapes
def test_a_recipe_as_a_flower_app_is_the_recipe_run_here(codec: str, app: Path, tmp_path: Path) -> None:
    """x to 1e-10 in float64; and loss and accuracy measured by the clients are those measured here."""
    app.write_text(codec + RECIPE)
    r = recipe.load(app)
    here = r.federation().run(r.methods()[0], 3, **r.options())
    grid = deploy(app, save=str(tmp_path / "out"))
    there = md.Result.load(tmp_path / "out")
    assert float((here.x - there.x).abs().max()) < 1e-10
    for a, b in zip(here.history, there.history, strict=True):
        for name in ("loss", "test_loss", "accuracy", "bytes_up", "bytes_down", "exchanges"):
            assert a[name] == pytest.approx(b[name], rel=1e-10), name
    assert [row["evaluations"] for row in there.history] == [1, 1, 1, 1]
    asked = Counter(f"query.{e.method}" for e in here.ledger)
    sent = Counter(m.metadata.message_type for m in grid.sent)
    assert dict(sent) == {**asked, "query": 3, "evaluate": 12}


STREAM = """
[rules]
exact = true
scores = true
[problem]
kind = "Softmax"
mu = 0.01

[data]
name = "digits"
train = 300
flatten = true

[partition]
kind = "Dirichlet"
clients = 3
alpha = 0.3

[pace]
lr = [0.1, 0.05, 0.2]
batch = 8

[stream]
kind = "Split"
tasks = 3
mode = "{mode}"
own_order = {own}

[replay]
kind = "Ring"
capacity = 12
sample = 6

[run]
rounds = 2

[[methods]]
kind = "CFLAG.joint"
"""


@pytest.mark.parametrize(("mode", "own"), [("class", "false"), ("task", "true")])
@pytest.mark.shapes
def test_a_stream_of_tasks_is_the_stream_run_here(mode: str, own: str, app: Path, tmp_path: Path) -> None:
    """Tasks, their classes, the rows that are kept of them, and the accuracies on all of them at each one's end."""
    app.write_text(STREAM.format(mode=mode, own=own))
    r = recipe.load(app)
    here = r.federation().run(r.methods()[0], 2)
    deploy(app, save=str(tmp_path / "out"))
    there = md.Result.load(tmp_path / "out")
    assert float((here.x - there.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in here.ledger] == [e._replace(overhead=0) for e in there.ledger]
    for a, b in zip(here.history, there.history, strict=True):
        for name in ("task", "loss", "test_loss", "accuracy"):
            assert a[name] == pytest.approx(b[name], rel=1e-10), name
    for a, b in zip(here.summary["matrix"], there.summary["matrix"], strict=True):
        assert a == pytest.approx(b, rel=1e-10)


def test_own_data_of_a_stream_is_a_data_set_for_each_task(app: Path, tmp_path: Path) -> None:
    app.write_text(STREAM.format(mode="class", own="false"))
    fed = recipe.load(app).federation()
    here = fed.run(md.CFLAG.joint(), 2)
    tasks = fed.tasks(0)
    head, _, tail = STREAM.format(mode="class", own="false").partition("[data]")
    app.write_text(head + tail[tail.index("[pace]") :])

    def data(context: Context) -> list[md.datasets.Dataset]:
        out = []
        for task in tasks:
            d, rows = task.data, torch.from_numpy(task.parts[context.node_config["partition-id"]])
            out.append(md.datasets.Dataset(d.X[rows], d.y[rows], d.X_test, d.y_test, classes=10))
        return out

    deploy(app, data, save=str(tmp_path / "out"))
    assert float((here.x - md.Result.load(tmp_path / "out").x).abs().max()) < 1e-10
    with pytest.raises(md.BadData, match=r"client \d's data function returns a Dataset; it must return a list"):
        deploy(app, lambda context: data(context)[0])


@pytest.mark.parametrize("kind", ["FedAvg", "SHED"])
@pytest.mark.shapes
def test_weights_of_rows_and_sparse_rows(kind: str, app: Path, tmp_path: Path) -> None:
    """Clients' shares are what their rows weigh; one client's rows are kept dense, which changes nothing."""
    rng = np.random.default_rng(0)
    X, X_test = (scipy.sparse.random_array((n, 12), density=0.3, rng=rng) for n in (60, 9))
    y, y_test, w = (torch.from_numpy(rng.integers(2, size=n)) for n in (60, 9, 60))
    w = w + torch.linspace(0.0, 2.0, 60)
    parts = [slice(0, 10), slice(10, 30), slice(30, 60)]
    app.write_text(f"""
        [rules]
        exact = true
        [problem]
        kind = "Logistic"
        mu = 0.01
        [pace]
        lr = 0.1
        batch = "full"
        [[methods]]
        kind = "{kind}"
        [run]
        rounds = 2
        dtype = "float64"
        """)

    def data(context: Context) -> md.datasets.Dataset:
        i = context.node_config["partition-id"]
        rows, tests = X.tocsr()[parts[i]], X_test.tocsr()[i::3]
        Xs = [torch.from_numpy(a.toarray()) if i == 1 else Sparse.of(a) for a in (rows, tests)]
        return md.datasets.Dataset(Xs[0], y[parts[i]], Xs[1], y_test[i::3], classes=2, weights=w[parts[i]])

    deploy(app, data, save=str(tmp_path / "out"))
    there, r = md.Result.load(tmp_path / "out"), recipe.load(app)
    own = [(X.tocsr()[rows], y[rows], w[rows]) for rows in parts]
    fed = md.Federation(
        md.problems.Logistic(mu=0.01), clients=own, test=(X_test, y_test), pace=md.scenarios.Pace(lr=0.1, batch=None)
    )
    here = fed.run(r.methods()[0], 2, dtype="float64")
    assert float((here.x - there.x).abs().max()) < 1e-10
    for name in ("loss", "test_loss", "accuracy"):
        assert there.history[-1][name] == pytest.approx(here.history[-1][name], rel=1e-10), name

    def bare(context: Context) -> md.datasets.Dataset:
        d = data(context)
        return replace(d, weights=None) if context.node_config["partition-id"] == 2 else d

    with pytest.raises(md.BadData, match=r"client 2 has weights of rows not at all, client 0 .*float64"):
        deploy(app, bare)


@pytest.mark.shapes
def test_own_data_needs_no_data_in_the_recipe(app: Path, tmp_path: Path) -> None:
    fed = recipe.load(app).federation()
    parts = fed.parts(0)[0]
    head, _, tail = RECIPE.partition("[data]")
    app.write_text(head + tail[tail.index("[pace]") :])

    def data(context: Context) -> md.datasets.Dataset:
        rows = torch.from_numpy(parts[context.node_config["partition-id"]])
        return md.datasets.Dataset(fed.data.X[rows], fed.data.y[rows], classes=10)

    deploy(app, data, save=str(tmp_path / "out"), **{"set": "run.rounds=2 run.seed=0"})
    there = md.Result.load(tmp_path / "out")
    here = fed.run(md.FedNorton(), 2, dtype="float64")
    assert float((here.x - there.x).abs().max()) < 1e-10
    assert "accuracy" not in there.history[-1]


def test_a_resumed_run_goes_on_with_what_clients_remember(app: Path, tmp_path: Path) -> None:
    deploy(app, save=str(tmp_path / "half"), **{"set": "run.rounds=1 methods.0.kind=SCAFFOLD"})
    deploy(app, resume=str(tmp_path / "half"), **{"set": "run.rounds=3 methods.0.kind=SCAFFOLD"})
    deploy(app, save=str(tmp_path / "scaffold"), **{"set": "methods.0.kind=SCAFFOLD"})
    a, b = (md.Result.load(tmp_path / k) for k in ("scaffold", "half"))
    assert torch.equal(a.x, b.x)
    with pytest.raises(md.RecipeError, match="already holds a run"):
        deploy(app, save=str(tmp_path / "half"))


def test_errors_of_clients_quote_none_of_their_rows(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    def unreadable(context: Context) -> md.datasets.Dataset:
        raise ValueError("row 3, column 'age' holds 'n.a.', the patient is Ada")

    def wrong(context: Context) -> md.datasets.Dataset:
        X = torch.zeros(8, 64)
        X[2, 3] = torch.nan if context.node_config["partition-id"] == 1 else 0
        return md.datasets.Dataset(X, torch.arange(8) % 10, classes=10)

    for data, said in (
        (unreadable, "its data cannot be read, ValueError"),
        (wrong, "its data cannot be read, BadData"),
    ):
        caplog.clear()
        with pytest.raises(md.BadData, match=rf"client \d: {said}; the log of its node says more") as e:
            deploy(app, data)
        assert not any(word in str(e.value) for word in ("Ada", "age", "nan", "Traceback", "/"))
        assert any(word in caplog.text for word in ("Ada", "nan"))
    context, trace = Context(7, 0, {"partition-id": 2}, RecordDict(), {}), "File \"/own.py\"\nKeyError: 'Ada'"
    for error, left in (
        (md.BadData("row 3 holds 'Ada'", row=3), "client 2: a row of its data cannot be used.* its owner mends it"),
        (
            md.BadData("it holds 'Ada'", place=Place("data", row=3, column="weight")),
            "client 2: column 'weight' in a row of its data cannot be used; .* medley node --check",
        ),
        (md.BadData("it holds 'Ada'", row=3, column=5), "client 2: column 5 in a row of its data cannot be used"),
        (caused(md.BadData("row 3 cannot be read: 'Ada'", row=3)), "client 2: a row of its data cannot be used"),
        (md.ClientFailed(client=2, round=1, method="train", traceback=trace), r"in train\(\): KeyError"),
        (KeyError("Ada"), "client 2 failed: KeyError"),
        (md.WireError("a message is damaged"), "a message is damaged"),
        (
            caused(md.RecipeError("Network(loss=own) failed, ValueError: 'Ada'")),
            "client 2 failed: RecipeError by ValueError",
        ),
    ):

        def fails(letter: Any, context: Context, error: Exception = error) -> bytes:
            raise error

        with pytest.raises(md.MedleyError, match=left) as e2:
            discreet(fails)({}, context)
        assert not any(word in str(e2.value) for word in ("Ada", "own.py"))
        assert e2.value.__suppress_context__ or isinstance(error, md.WireError)


def test_clients_that_do_not_fit_are_named(app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(context: Context) -> md.datasets.Dataset:
        width = 5 if context.node_config["partition-id"] == 1 else 4
        return md.datasets.Dataset(torch.zeros(3, width), torch.zeros(3, dtype=torch.int64), classes=2)

    with pytest.raises(md.BadData, match=r"client 1 has rows of shape .*\[5\].* client 0 .*\[4\]") as e:
        deploy(app, other)
    assert e.value.client == 1
    monkeypatch.setattr(messenger, "SOON", 0.5)
    with pytest.raises(
        md.MedleyError, match=r"2 of 3 clients are there after 3 s, clients \[0, 1\], but not clients \[2\]"
    ):
        deploy(app, clients=2, timeout=3, save=str(tmp_path / "missing"))
    said = [e["message"] for e in events.read(tmp_path / "missing") if e["event"] == "log"]
    assert said == ["waiting for clients [2], at most 3 s"]
    with pytest.raises(md.BadData, match=r"partition-id=3, but the recipe's partition has clients 0\.\.2"):
        deploy(app, clients=4)


def liar(path: Path, **lies: Any) -> Any:
    """A client's app whose answers to some kinds of messages are made up."""
    side = ClientSide(path, None, None)
    served = {f"query.{name}": side.serve for name in md.FedNorton.message_types}
    honest = {"query": side.report, "evaluate": side.evaluate, **served}
    app = made_up({**honest, **{k: f for k, f in lies.items() if f}})
    empty = lambda m, c: Message(RecordDict(), reply_to=m) if m.metadata.message_type in lies else app(m, c)
    return app if all(lies.values()) else empty


LIES = {
    "a weight of NaN": {"query": lambda *_: json.dumps({"client": 1, "rows": float("nan")}).encode()},
    "no terms": {"query": lambda *_: b'{"client": 1, "classes": 2000000, "tasks": [], "X": 1, "y": 1, "weights": 1}'},
    "an evaluation without loss": {"evaluate": lambda *_: b'{"tests": [{"test_loss": 0.1}]}'},
    "an evaluation of NaN": {"evaluate": lambda *_: b'{"tests": [{"test_loss": 0.1}], "loss": NaN}'},
    "garbage": {"query.simulate": lambda *_: b"garbage"},
    "a record without an answer": {"query.simulate": None},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_lies_is_named_and_the_run_goes_on_without_it(lie: str, app: Path, tmp_path: Path) -> None:
    """Client 1 lies; with ``faulty = "drop"`` the rest of the run is as if it had been silent."""
    apps = lambda: [client_app(app), liar(app, **LIES[lie]), client_app(app)]

    def run(save: str) -> Bench:
        config = {"clients": 3, "save": str(tmp_path / save), "timeout": 5}
        grid = Bench(apps(), config, memory=str(tmp_path / "memory" / save))
        server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
        return grid

    with pytest.raises(md.MedleyError, match=r"client 1|node 101"):
        run("strict")
    app.write_text(RECIPE + '\n[reply_policy]\nfaulty = "drop"\n')
    run("tolerant")
    there = md.Result.load(tmp_path / "tolerant")
    assert there.status.ok
    assert there.history[-1]["round"] == 3
    share = there.history[-1]["evaluated"]
    if "evaluate" in LIES[lie]:
        assert {e.client for e in there.ledger if e.up} == {0, 1, 2}
        assert share < 1
    else:
        assert {e.client for e in there.ledger if e.up} == {0, 2}
        assert share == pytest.approx(1.0)


PRIVATE = RECIPE.replace('kind = "FedNorton"', 'kind = "FedAvg"\nprivate = { noise = 1.0, unit = "row" }')


def test_noise_of_rows_is_drawn_by_the_node(app: Path) -> None:
    """The server knows the seed. Two runs with the same one have other noise."""
    pytest.importorskip("dp_accounting")
    app.write_text(PRIVATE.replace("[run]", "[run]\nseed = 3").replace("noise = 1.0", "noise = 1.0, rounds = 6"))
    found = []
    for name in ("first", "second"):
        deploy(app, save=str(app.parent / name))
        found.append(md.Result.load(app.parent / name))
    assert [r.seed for r in found] == [3, 3]
    assert float((found[0].x - found[1].x).norm()) > 0.1 * float(found[0].x.norm())


def test_private_rows_have_no_exact_loss_and_as_many_trainings_as_the_recipe_has_rounds(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each training has fresh noise, so that a server that asks often takes it off by a mean."""
    pytest.importorskip("dp_accounting")
    app.write_text(PRIVATE.replace("rounds = 3", "rounds = 1"))
    grid = deploy(app, save=str(tmp_path / "a"))
    r = md.Result.load(tmp_path / "a")
    assert r.status.ok
    assert all("loss" not in row and 0 < row["accuracy"] < 1 for row in r.history)
    assert "loss" not in r.clients[0]
    sent = {kind: [m for m in grid.sent if m.metadata.message_type == kind] for kind in ("evaluate", "query.train")}
    ask = lambda m: grid.replies[grid.push_messages([m])[0]].content["answer"]["bytes"]
    first = grid.replies[sent["query.train"][0].metadata.message_id].content["answer"]["bytes"]
    assert ask(sent["query.train"][0]) == first  # a reply that was lost is sent again, and is no training
    common = pytree.from_bytes(sent["evaluate"][0].content["common"]["bytes"], {})
    sent["evaluate"][0].content["common"]["bytes"] = pytree.to_bytes({**common, "loss": True})
    assert b"client 0 refuses: its rows are private, but the server asks for their loss" in ask(sent["evaluate"][0])

    honest = FlowerConnection.exchange

    def often(self: FlowerConnection, exchange: Any) -> Any:
        list(honest(self, exchange))
        return honest(self, replace(exchange, number=exchange.number + 1))

    monkeypatch.setattr(FlowerConnection, "exchange", often)
    said = r"refuses: its rows have spent ε = .* its recipe allows .*, and this training would make it"
    (tmp_path / "memory" / "client0" / "account.json").unlink()
    with pytest.raises(md.WireError, match=said):  # in the next run too
        deploy(app, save=str(tmp_path / "b"))


@pytest.mark.parametrize("change", ["methods.0.kind=FedProx", "pace.steps=3"])
def test_another_method_or_more_steps_spend_of_the_same_account(app: Path, tmp_path: Path, change: str) -> None:
    pytest.importorskip("dp_accounting")
    app.write_text(PRIVATE.replace("rounds = 3", "rounds = 2"))
    deploy(app, save=str(tmp_path / "a"), **{"set": "run.rounds=1"})
    with pytest.raises(md.WireError, match=r"client \d refuses: its rows have spent ε"):
        deploy(app, save=str(tmp_path / "b"), **{"set": f"run.rounds=2 {change}"})


def test_an_account_adds_over_studies_and_methods_and_its_owner_may_allow_more(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    law = release(Sampling("poisson", 100, 0.1), 1.0, 5)
    both = epsilon([replace(law, rounds=10)], 1e-5)
    one, other = (Account(tmp_path, 3, study) for study in ("one", "other"))
    one.train(law, both, None, 1e-5)
    other.train(law, both, None, 1e-5)
    for account in (one, other):
        with pytest.raises(md.WireError, match=rf"client 3 refuses: its rows have spent ε = {both:.4g} in all"):
            account.train(law, both, None, 1e-5)
    one.train(law, both, 3 * both, 1e-5)
    with pytest.raises(md.WireError, match="its recipe allows"):
        one.train(law, both, 3 * both, 1e-5)
    other.train(law, both, 3 * both, 1e-5)


@pytest.mark.parametrize("short", [1.0001, 1.03])
def test_an_account_that_is_a_little_short_of_three_trainings_has_two(short: float, tmp_path: Path) -> None:
    """By its recipe's ε, and by the ε of all studies."""
    pytest.importorskip("dp_accounting")
    law = release(Sampling("poisson", 100, 0.1), 1.0, 5)
    three = epsilon([replace(law, rounds=15)], 1e-5)
    for name, limits in (("recipe", (three / short, None)), ("all", (9 * three, three / short))):
        account = Account(tmp_path / name, 3, "one")
        for _ in range(2):
            account.train(law, *limits, 1e-5)
        with pytest.raises(md.WireError, match="and this training would make it"):
            account.train(law, *limits, 1e-5)


def test_losses_under_a_secure_sum_are_as_many_as_the_recipe_asks_for(tmp_path: Path) -> None:
    account = Account(tmp_path, 0, "one")
    for digest in ("a", "a", "b"):  # a request that comes again tells nothing more
        account.evaluate(digest, 2)
    with pytest.raises(md.WireError, match="client 0 refuses: it has sent the loss of its rows for 2 models"):
        account.evaluate("a", 2)


def test_an_account_misses_none_of_several_runs_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda k: Account(tmp_path, 0, "one").evaluate(f"model {k}", 40), range(40)):
            pass
    with pytest.raises(md.WireError, match="for 40 models"):
        Account(tmp_path, 0, "one").evaluate("another", 40)


def test_a_private_run_without_a_seed_has_one_that_nobody_guesses(app: Path) -> None:
    """It stands in the run's recipe, so that a run that goes on has it too."""
    pytest.importorskip("dp_accounting")
    app.write_text(PRIVATE.replace("noise = 1.0", "noise = 1.0, rounds = 4"))
    deploy(app)
    seed = md.Result.load(app.parent / "run").seed
    assert seed > 1 << 64
    assert recipe.load(app.parent / "run" / "recipe.toml").seed == seed
    config = {"clients": 3, "resume": str(app.parent / "run"), "set": "run.rounds=4"}
    grid = Bench([client_app(app)] * 3, config, memory=str(app.parent / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    again = md.Result.load(app.parent / "run")
    assert (again.seed, again.history[-1]["round"]) == (seed, 4)
