"""Every method in one process and on nodes of Flower: the same digest, or the reason why it does not run on nodes.

    python benchmarks/deployed_methods.py --write
    python benchmarks/deployed_methods.py --nodes tls --write    # two real nodes; needs nginx, too

The nodes are Flower's apps, `server_app` and `client_app`, over its own objects and without a network; each keeps its
client's memory on disk. With ``--nodes tls`` they are processes of ``medley node`` behind the proxy of ``medley deploy
init``, with its certificates. Needs the extra ``flower``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import dropwhile
from pathlib import Path
from typing import Any

import torch

import medley as md
from medley import recipe
from medley.contract.algorithm import Algorithm
from medley.federation.run import PreparedRun
from medley.flower import client_app, server_app
from medley.recipe.user_code import names
from medley.server.options import RunOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.deployed import Deployment, started
from support.methods import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "deployed.md"

CODE = """
import medley as md
import torch
from medley.testing import toys
from torch import nn


def rows():
    return md.datasets.gaussian_classes(n=90, features=4, classes=4, test=12)


def normed(features, classes):
    return nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))


def lora(features, classes):
    return nn.Sequential(toys.Adapted(features, 5, 2), nn.ReLU(), toys.Adapted(5, classes, 2))


class Adapted(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.body, self.head = nn.Linear(features, 6).requires_grad_(False), nn.Linear(6, classes)
        self.adapter = nn.Sequential(nn.Linear(features, 2, bias=False), nn.Linear(2, 6, bias=False))

    def forward(self, X):
        return self.head(torch.relu(self.body(X) + self.adapter(X)))


def two(a, b):
    part = lambda rows: {k: v[rows] for k, v in zip("ab", (a, b))}
    y = torch.arange(90) % 3
    return md.datasets.Dataset(part(slice(60)), y[:60], part(slice(60, 90)), y[60:], classes=3)


def drawn(*shape):
    return torch.randn(90, *shape, generator=torch.Generator().manual_seed(len(shape)))


def notes():
    return two(torch.arange(360).reshape(90, 4) % 11, drawn(2))


def scans():
    return two(drawn(1, 6, 6), drawn(3))


def courses():
    return two(drawn(5, 2), drawn(4))


class Notes(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.age, self.out = nn.Embedding(11, 3), nn.Linear(2, 3), nn.Linear(6, classes)

    def forward(self, a, b):
        return self.out(torch.cat([self.words(a).mean(1), self.age(b)], 1))


class Scans(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
        self.out = nn.Linear(2 * 16 + 3, classes)

    def forward(self, a, b):
        return self.out(torch.cat([self.image(a), b], 1))


class Courses(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.course, self.out = nn.GRU(2, 4, batch_first=True), nn.Linear(8, classes)

    def forward(self, a, b):
        return self.out(torch.cat([self.course(a)[0][:, -1], b], 1))
"""

WHOLE = """
[data]
name = "nodes_code:rows"
[partition]
kind = "IID"
clients = 3
[federation]
weights = "uniform"
[pace]
lr = 0.05
batch = {batch}
[run]
rounds = 2
dtype = "float64"
[[methods]]
kind = "FedAvg"
"""

LINEAR = '[problem]\nkind = "Softmax"\nmu = 0.01\n' + WHOLE.format(batch='"full"')
NETWORK = '[problem]\nkind = "Network"\nmodel = "mlp"\nhidden = [5]\n' + WHOLE.format(batch=8)
NORMED = '[problem]\nkind = "Network"\nmodel = "nodes_code:normed"\n' + WHOLE.format(batch=8)
TASKS = '[stream]\nkind = "Split"\ntasks = 2\nmode = "task"\n[replay]\nkind = "Ring"\ncapacity = 12\nsample = 6\n'
TREES = '[problem]\nkind = "Trees"\nloss = "softmax"\ntrees = 4\ndepth = 2\n' + WHOLE.format(batch='"full"')
RECIPES = {
    "softmax regression": LINEAR,
    "MLP": NETWORK,
    "MLP with BatchNorm": NORMED,
    "MLP with LoRA adapters": NORMED.replace("normed", "lora"),
    "softmax regression, 2 tasks": LINEAR + TASKS,
    "MLP, 2 tasks": NETWORK + TASKS,
    "trees": TREES,
}
"""Federations of three clients, the simplest first."""

OWN = """[problem]
kind = "Network"
model = "nodes_code:{model}"
{more}
""" + WHOLE.format(batch=8)

REAL = {
    ("FedPer", "MLP"): NETWORK,
    ("FedBN", "MLP with BatchNorm"): NORMED,
    ("Ditto", "softmax regression"): LINEAR,
    ("APFL", "softmax regression"): LINEAR,
    ("FedAvg", "adapters of each client's own"): OWN.format(model="Adapted", more='shared = "head.*"'),
    ("FedAvg", "token ids and numbers"): OWN.format(model="Notes", more="").replace("rows", "notes"),
    ("SCAFFOLD", "images and numbers"): OWN.format(model="Scans", more="").replace("rows", "scans"),
    ("FedExLoRA", "MLP with LoRA adapters"): NORMED.replace("normed", "lora"),
    ("FedPer", "sequences and numbers"): OWN.format(model="Courses", more="").replace("rows", "courses"),
}
"""A method and what it trains -> a recipe, for real nodes: models of clients' own, and rows of two inputs."""

SAME = "equal"
HEAD = "| method | trained | digest on nodes |\n|---|---|---|\n"
REAL_HEAD = "| method | trained | digest on two nodes over TLS | seconds |\n|---|---|---|---|\n"


def digest(r: md.Result) -> str:
    """A checksum of x, buffers and ledger; of the latter without the bytes of Flower's records."""
    h = blake2b(digest_size=8)
    for t in (r.x, *(r.buffers or ())):
        h.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for e in r.ledger:
        h.update(repr(e._replace(overhead=0)).encode())
    return h.hexdigest()


def on_nodes(path: Path, method: Algorithm[Any, Any], folder: Path) -> md.Result:
    """The result of the recipe's app."""
    from flwr.app import Context, RecordDict

    from support.bench import Bench

    config: dict[str, Any] = {"clients": 3, "save": str(folder / "run"), "timeout": 600}
    grid = Bench([client_app(path, method=method)] * 3, config, memory=str(folder / "memory"))
    server_app(path, method)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(folder / "run", model=False)


def over_tls(kinds: Iterable[tuple[str, str]] = REAL) -> Iterator[tuple[str, str, str, str]]:
    """A row for each of these entries of `REAL`, run on two nodes that are processes of their own."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="medley-nodes-") as tmp, Deployment.running(Path(tmp) / "at", 2) as server:
        app = server.folder / "app"
        (app / "nodes_code.py").write_text(CODE)
        for k, (kind, trained) in enumerate(kinds):
            text = REAL[kind, trained].replace("clients = 3", "clients = 2").replace('"FedAvg"', f'"{kind}"')
            (app / "recipe.toml").write_text(text)
            sys.path.insert(0, str(app))
            sys.modules.pop("nodes_code", None)
            r = recipe.load(app / "recipe.toml")
            begun = time.monotonic()
            one = {**r.options(), "transport": md.transports.Lossy(), "progress": False}
            simulated = r.federation().run(r.methods()[0], r.rounds, **one)
            sys.path.remove(str(app))
            code = f"--allow-code={','.join(names(r.tables))}"
            command = ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={server.folder / f'run{k}'}"]
            with (
                server.node(0, code),
                server.node(1, code),
                started(command, server.folder, server.env, f"run{k}") as (p, log),
            ):
                if p.wait(600):
                    raise md.MedleyError(f"{kind} of {trained}: {log.read_text()}\n{server.logs()}")
            deployed = md.Result.load(server.folder / f"run{k}", model=False)
            yield kind, trained, same(simulated, deployed), f"{time.monotonic() - begun:.0f}"


def place_of(method: Algorithm[Any, Any], folder: Path) -> tuple[str, Path, recipe.Recipe]:
    """The first federation that has what the method needs. Raises Unsupported where none has."""
    for name, text in RECIPES.items():
        path = folder / "recipe.toml"
        path.write_text(text)
        r = recipe.load(path)
        try:
            prepared = PreparedRun.of(method, r.federation(), RunOptions(rounds=r.rounds, **r.options()))
            if method.is_personal or method.shares() is None or name.startswith("MLP"):
                prepared.algorithm.start(prepared.x0)
                return name, path, r
        except md.MedleyError as e:
            last = e
    raise last


def row(method: Algorithm[Any, Any]) -> tuple[str, str, str]:
    """A method's row: its name with its settings, its federation, and the outcome."""
    torch.set_num_threads(1)
    name = named(method)
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "nodes_code.py").write_text(CODE)
        sys.path.insert(0, tmp)
        sys.modules.pop("nodes_code", None)
        fsync = os.fsync  # nothing here need outlive a power cut
        os.fsync = lambda fd: None
        try:
            where, path, r = place_of(method, folder)
            # Clients served one by one, as on nodes: a stack of them rounds otherwise.
            lossy = md.transports.Lossy()
            simulated = r.federation().run(method, r.rounds, **{**r.options(), "transport": lossy, "progress": False})
            deployed = on_nodes(path, method, folder)
        except md.MedleyError as e:
            return name, "", f"refused: {' '.join(str(e).split())}"
        finally:
            sys.path.remove(tmp)
            os.fsync = fsync
        return name, where, same(simulated, deployed)


def same(simulated: md.Result, deployed: md.Result) -> str:
    """`SAME` where two results have one digest; else how far apart they are."""
    if digest(simulated) == digest(deployed):
        return SAME
    return f"x differs by {float((simulated.x - deployed.x).abs().max()):.1e}"


def named(method: Algorithm[Any, Any]) -> str:
    """A method's name with its settings."""
    settings = ", ".join(f"{k}={v!r}" for k, v in changed(method).items())
    return f"{method.name}({settings})" if settings else method.name


def changed(method: Algorithm[Any, Any]) -> dict[str, Any]:
    """The settings that are numbers or words, and not those of the method by default."""
    try:
        usual = type(method)().settings()
    except (TypeError, md.RecipeError):  # it has settings without a default
        usual = {}
    different = {k: v for k, v in method.settings().items() if v != usual.get(k)}
    return {k: v for k, v in different.items() if isinstance(v, int | float) or (isinstance(v, str) and len(v) < 20)}


def line(cells: tuple[str, ...]) -> str:
    """A row of the table."""
    return f"| {' | '.join(part.replace('|', '/') for part in cells)} |\n"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/deployed.md")
    parser.add_argument("--only", default="", help="methods whose name has this in it")
    parser.add_argument("--nodes", choices=["here", "tls"], default="here", help="two processes, over TLS, or none")
    args = parser.parse_args()
    logging.getLogger("medley").setLevel(logging.ERROR)
    tls = args.nodes == "tls"
    only = args.only.lower()
    results: Iterator[tuple[str, ...]] = (
        over_tls(k for k in REAL if only in k[0].lower())
        if tls
        else (row(m) for m in METHODS if only in m.name.lower())
    )
    rows = []
    for one in results:
        rows.append(one)
        print(line(one), end="", flush=True)
    equal = sum(r[2] == SAME for r in rows)
    print(f"{equal} of {len(rows)} are equal")
    if args.write:
        before, head, after = PAGE.read_text(encoding="utf-8").partition(REAL_HEAD if tls else HEAD)
        rest = "".join(dropwhile(lambda text: text.startswith("| "), after.splitlines(keepends=True)))
        PAGE.write_text(before + head + "".join(map(line, rows)) + rest, encoding="utf-8")


if __name__ == "__main__":
    main()
