"""Every method in one process and on nodes of Flower: the same digest, or the reason why it does not run on nodes.

python benchmarks/deployed_methods.py --write

The nodes are Flower's apps, `server_app` and `client_app`, over its own objects and without a network; each keeps its
client's memory on disk. Needs ``pip install "medley-fl[flower]"``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

import medley as md
from medley import recipe
from medley.contract.algorithm import Algorithm
from medley.federation.run import PreparedRun
from medley.flower import client_app, server_app
from medley.server.options import RunOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.methods import METHODS

PAGE = Path(__file__).parents[1] / "docs" / "deployed.md"

CODE = """
import medley as md
from torch import nn


def rows():
    return md.datasets.gaussian_classes(n=90, features=4, classes=4, test=12)


def normed(features, classes):
    return nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes))
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
RECIPES = {
    "softmax regression": LINEAR,
    "MLP": NETWORK,
    "MLP with BatchNorm": NORMED,
    "softmax regression, 2 tasks": LINEAR + TASKS,
    "MLP, 2 tasks": NETWORK + TASKS,
}
"""Federations of three clients, the simplest first."""

SAME, HEAD = "equal", "| method | trained | digest on nodes |\n|---|---|---|\n"


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
        fsync, os.fsync = os.fsync, lambda fd: None  # nothing here need outlive a power cut
        try:
            where, path, r = place_of(method, folder)
            # Clients served one by one, as on nodes: a stack of them rounds otherwise.
            there = md.transports.Lossy()
            here = r.federation().run(method, r.rounds, **{**r.options(), "transport": there, "progress": False})
            got = on_nodes(path, method, folder)
        except md.MedleyError as e:
            return name, "", f"refused: {' '.join(str(e).split())}"
        finally:
            sys.path.remove(tmp)
            os.fsync = fsync
        if digest(here) == digest(got):
            return name, where, SAME
        return name, where, f"x differs by {float((here.x - got.x).abs().max()):.1e}"


def named(method: Algorithm[Any, Any]) -> str:
    """A method's name with its settings."""
    given = ", ".join(f"{k}={v!r}" for k, v in changed(method).items())
    return f"{method.name}({given})" if given else method.name


def changed(method: Algorithm[Any, Any]) -> dict[str, Any]:
    """The settings that are numbers or words, and not those of the method by default."""
    try:
        usual = type(method)().settings()
    except TypeError:
        usual = {}
    own = {k: v for k, v in method.settings().items() if v != usual.get(k)}
    return {k: v for k, v in own.items() if isinstance(v, int | float) or (isinstance(v, str) and len(v) < 20)}


def line(found: tuple[str, str, str]) -> str:
    """A row of the table."""
    return f"| {' | '.join(part.replace('|', '/') for part in found)} |\n"


def table(methods: Iterable[Algorithm[Any, Any]] = METHODS) -> list[tuple[str, str, str]]:
    """The rows of these methods."""
    return [row(m) for m in methods]


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/deployed.md")
    parser.add_argument("--only", default="", help="methods whose name has this in it")
    given = parser.parse_args()
    logging.getLogger("medley").setLevel(logging.ERROR)
    rows = []
    for method in METHODS:
        if given.only.lower() in method.name.lower():
            rows.append(row(method))
            print(line(rows[-1]), end="", flush=True)
    equal = sum(r[2] == SAME for r in rows)
    print(f"{equal} of {len(rows)} are equal")
    if given.write:
        text = PAGE.read_text(encoding="utf-8")
        page = text[: text.index(HEAD)] + HEAD + "".join(map(line, rows))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
