"""The command that prints what a folder of runs holds: show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.box
import rich.table
import typer
from rich.text import Text

from .arguments import Debug
from .console import show

if TYPE_CHECKING:
    from ..storage.result import Result

VERSIONS = ("medley", "torch", "numpy", "scipy", "python", "platform", "machine", "threads")
"""Entries of a start, in the order of their columns."""


def show_folder(
    folder: Annotated[Path, typer.Argument(help="A folder of medley run or medley compare.", metavar="FOLDER")],
    debug: Debug = False,
) -> None:
    """Print what a folder holds: its runs, their settings and identity, and the versions that made them."""
    from ..contract.errors import WireError
    from ..storage.as_json import shown_seed
    from ..storage.identity import PREFIX
    from ..storage.result import Result
    from ..storage.run_folder import described

    results = [(path.parent, Result.load(path.parent, model=False)) for path in sorted(folder.glob("**/result.json"))]
    begun = described(folder)
    if not results and not begun:
        raise WireError(f"there is no run in {folder}: give a folder that medley run or medley compare wrote")
    show(_runs(folder, results, begun))
    settings = [r.settings for _, r in results] or [begun["settings"]]
    if begun:
        # The result's engine is the one that ran.
        settings = [{**begun["settings"], **s} for s in settings]
    # Scaling is a number for each feature.
    settings = [{k: shown_seed(v, s) if k == "seed" else v for k, v in s.items() if k != "scaling"} for s in settings]
    common = {k: v for k, v in settings[0].items() if all(k in s and s[k] == v for s in settings)}
    show(_pairs("settings", {k: v for k, v in common.items() if not k.startswith(PREFIX)}))
    identity = {k.removeprefix(PREFIX): v for k, v in common.items() if k.startswith(PREFIX)}
    show(_pairs("identity", identity) if identity else "no identity is recorded: this folder was saved without one")
    for (path, _), own in zip(results, settings, strict=False):
        differ = {k.removeprefix(PREFIX): v for k, v in own.items() if k not in common}
        if differ and len(results) > 1:
            show(_pairs(str(path.relative_to(folder)), differ))
    starts = begun.get("starts", []) or [r.environment for _, r in results[:1] if r.environment]
    if starts:
        show(_starts(starts))


def _runs(folder: Path, results: Sequence[tuple[Path, Result]], begun: Mapping[str, Any]) -> rich.table.Table:
    """A row for each run: folder, method, seed, rounds and status."""
    from ..storage.as_json import shown_seed
    from ..storage.run_folder import resuming

    table = _table("run", "method", "seed", "rounds", "status")
    for path, r in results:
        rounds = str(int(r.history[-1]["round"])) if r.history else "0"
        table.add_row(
            str(path.relative_to(folder)), r.method, shown_seed(r.seed, r.settings), rounds, Text(str(r.status))
        )
    if not results:
        own = begun["settings"]
        table.add_row(
            ".", str(own["method"]), shown_seed(own["seed"], own), "", Text(f"not finished: {resuming(folder)} goes on")
        )
    return table


def _pairs(title: str, values: Mapping[str, Any]) -> rich.table.Table:
    table = _table(title, "")
    for key, value in values.items():
        table.add_row(key, Text(value if isinstance(value, str) else json.dumps(value)))
    return table


def _starts(starts: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    """A row for each start: the round it began in, versions and processor."""
    table = _table("start", "round", *VERSIONS)
    for start in starts:
        table.add_row(str(start.get("at", "")), str(start.get("round", "")), *(str(start.get(k, "")) for k in VERSIONS))
    return table


def _table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name)
    return table
