"""Client memories on a node's disk: only their owner can read them, and old ones are deleted."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from ...contract.errors import RecipeError

OURS = r"\d+/(guarded|\d+-\d+\.safetensors|secure/(session\.json|secure_[a-z]+))"
"""Paths of files below a run's folder."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(age: str) -> float:
    """The seconds in "30d", "12h", "45m", "2w" or "90s". Raises RecipeError for other text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", age)
    if match is None:
        raise RecipeError(f"write an age as a number and s, m, h, d or w, for example 30d, not {age!r}", "older")
    return float(match[1]) * UNITS[match[2]]


def clean(folder: Path, older: float = 0.0, keep: str = "") -> list[Path]:
    """Delete the memories of runs that no request has touched for a time. Returns the deleted folders.

    Args:
        folder: the folder of all memories on this node
        older: seconds since the last change; default 0: all
        keep: the name of a run whose memories stay

    Only folders that hold memories and nothing else are deleted: a run's name, in it a client's number, in it
    ``<round>-<exchange>.safetensors``, ``guarded``, and the folder ``secure`` of its last secure sum.
    """
    gone = list[Path]()
    clock = time.time()
    for run in sorted(folder.iterdir()) if folder.is_dir() else ():
        files = [p for p in run.rglob("*") if not p.is_dir()] if run.is_dir() and not run.is_symlink() else []
        ours = all(re.fullmatch(OURS, str(p.relative_to(run))) for p in files)
        if run.name == keep or not files or not ours:
            continue
        if clock - max(p.stat().st_mtime for p in files) >= older:
            shutil.rmtree(run)
            gone.append(run)
    return gone
