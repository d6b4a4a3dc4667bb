"""The command that prints what a folder of runs holds: show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import AsJson, Debug
from .console import pairs, show, table

if TYPE_CHECKING:
    from ..storage.result import Result

VERSIONS = ("medley", "torch", "numpy", "scipy", "python", "platform", "machine", "threads")
"""Entries of a start, in their order; entries that all starts share are printed separately."""

RUNS = ("run", "method", "seed", "rounds", "status")
"""Columns of the runs."""


def show_folder(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="A folder of medley run or medley compare.", metavar="FOLDER")
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print what a folder holds: its runs, their settings and identity, and the versions that made them."""
    from ..contract.errors import WireError
    from ..storage.as_json import plain
    from ..storage.identity import PREFIX
    from ..storage.result import Result
    from ..storage.run_folder import described

    results = [(path.parent, Result.load(path.parent, model=False)) for path in sorted(folder.glob("**/result.json"))]
    started = described(folder)
    if not results and not started:
        raise WireError(f"there is no run in {folder}: give a folder that medley run or medley compare wrote")
    settings = [r.settings for _, r in results] or [started["settings"]]
    if started:
        # The result names the engine that ran.
        settings = [{**started["settings"], **s} for s in settings]
    settings = [_shown(s) for s in settings]
    starts = started.get("starts", []) or [r.environment for _, r in results[:1] if r.environment]
    if as_json:
        return typer.echo(json.dumps({"runs": _plain(folder, results, settings), "starts": starts}, default=plain))
    show(_runs(folder, results, started))
    common = _alike(settings)
    show(pairs("settings", {k: v for k, v in common.items() if not k.startswith(PREFIX)}))
    identity = {k.removeprefix(PREFIX): v for k, v in common.items() if k.startswith(PREFIX)}
    show(pairs("identity", identity) if identity else "no identity is recorded: this folder was saved without one")
    for (path, _), run_settings in zip(results, settings, strict=False):
        differ = {k.removeprefix(PREFIX): v for k, v in run_settings.items() if k not in common}
        if differ and len(results) > 1:
            show(pairs(str(path.relative_to(folder)), differ))
    if starts:
        texts = [{k: str(s.get(k, "")) for k in ("at", "round", *VERSIONS)} for s in starts]
        alike = {k: v for k, v in _alike(texts).items() if k in VERSIONS}
        show(pairs("versions", alike))
        head = ["round", *(k for k in VERSIONS if k not in alike)]
        show(table(("start", *head), [[text["at"], *map(text.__getitem__, head)] for text in texts]))


def _plain(
    folder: Path, results: Sequence[tuple[Path, Result]], settings: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each run as plain values; of a run that is not finished, its settings."""
    if not results:
        return [{"run": ".", "outcome": None, "settings": settings[0]}]
    return [
        {
            "run": str(path.relative_to(folder)),
            "method": r.method,
            "outcome": r.status.outcome,
            "message": r.status.message,
            "figures": r.evaluation,
            "settings": mine,
        }
        for (path, r), mine in zip(results, settings, strict=True)
    ]


def _shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are printed: without a secret seed, and without the scaling, a number for each feature."""
    from ..storage.as_json import shown_seed

    out = {k: v for k, v in settings.items() if k != "scaling"}
    return out | ({"seed": shown_seed(settings["seed"], settings)} if "seed" in settings else {})


def _alike(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all tables share, in the order of the first."""
    first = tables[0]
    return {k: v for k, v in first.items() if all(k in t and t[k] == v for t in tables)}


def _runs(folder: Path, results: Sequence[tuple[Path, Result]], started: Mapping[str, Any]) -> Any:
    """A row for each run: folder, method, seed, rounds and status."""
    from ..storage.as_json import shown_seed
    from ..storage.run_folder import resuming

    rows = [
        (
            path.relative_to(folder),
            r.method,
            shown_seed(r.seed, r.settings),
            int(r.history[-1]["round"]) if r.history else 0,
            r.status,
        )
        for path, r in results
    ]
    if not results:
        settings = started["settings"]
        status = f"not finished: {resuming(folder)} goes on"
        return table(RUNS, [(".", settings["method"], shown_seed(settings["seed"], settings), "", status)])
    return table(RUNS, rows)
