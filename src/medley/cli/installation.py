"""Versions that are installed, requirements that they do not meet, and limits of the machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from ..runtime.versions import found as version
from ..runtime.versions import install

SHARED = Path("/dev/shm")
"""Where processes share their vectors on Linux."""

LEAST = 256.0
"""MiB of shared memory below which worker processes may run out of it."""

BACKSTAGE = ("dev", "docs", "hooks", "fuzz")
"""Extras for developing Medley."""


def extras(wanted: Iterable[str], here: Callable[[str], str | None] = version) -> dict[str, str]:
    """The packages of each extra of these requirements with their versions here, or the command that installs them."""
    rows: dict[str, dict[str, str | None]] = {}
    for line in wanted:
        name, _, extra = parts(line)
        if extra and extra not in BACKSTAGE and name != "medley-fl":
            rows.setdefault(extra, {})[name] = here(name)
    return {
        extra: ", ".join(f"{name} {found}" if found else f"no {name}" for name, found in needs.items())
        + ("" if all(needs.values()) else f": {install(extra)}")
        for extra, needs in sorted(rows.items())
    }


def conflicts(wanted: Iterable[str], here: Callable[[str], str | None] = version) -> list[str]:
    """Requirements that what is installed does not meet, each with its remedy; the arguments are those of `extras`.

    A package of an extra may be missing.
    """
    told = []
    for line in wanted:
        name, versions, extra = parts(line)
        found = here(name)
        if found and any(not meets(found, bound) for bound in filter(None, versions.split(","))):
            what = f"medley-fl[{extra}]" if extra else "medley-fl"
            told.append(f"{name} {found} is here, and {what} needs {versions}: pip install '{name}{versions}'")
        elif not found and not extra:
            told.append(f"{name} is not installed: pip install '{name}{versions}'")
    return told


def parts(line: str) -> tuple[str, str, str]:
    """Name, versions and extra of a requirement such as "flwr<1.43,>=1.41; extra == 'flower'"."""
    found = re.fullmatch(r"([\w.-]+)(?:\[[^]]*])?\s*([^;]*?)\s*(?:;.*?extra\s*==\s*['\"]([\w-]+)['\"].*|;.*)?", line)
    return (found[1], found[2].strip("() "), found[3] or "") if found else (line, "", "")


def meets(found: str, bound: str) -> bool:
    """Whether a version is on the right side of ">=1.2" or "<1.2"; other kinds of bounds are ignored."""
    known = re.fullmatch(r"(>=|<)\s*([\d.]+)", bound.strip())
    if not known:
        return True
    ours, theirs = (tuple(int(k) for k in re.findall(r"\d+", v)[:3]) for v in (found.split("+")[0], known[2]))
    width = max(len(ours), len(theirs))
    ours, theirs = (v + (0,) * (width - len(v)) for v in (ours, theirs))
    return ours >= theirs if known[1] == ">=" else ours < theirs


def shared_memory() -> float | None:
    """MiB that are free where processes share their vectors; None if there is no such place."""
    return shutil.disk_usage(SHARED).free / 2**20 if SHARED.is_dir() else None


def lacks(free: float | None, threads: int, cores: int, encoding: str) -> list[str]:
    """Limits of the machine that cause trouble, each with its remedy. ``free`` is in MiB."""
    told = []
    if free is not None and free < LEAST:
        told.append(
            f"{SHARED} has {free:.0f} MiB free, and worker processes share their vectors there: give a container more "
            "(docker run --shm-size=1g), or run in one process (--jobs 1)"
        )
    if threads > cores:
        told.append(f"torch uses {threads} threads on {cores} core(s): set OMP_NUM_THREADS={cores}")
    folder = os.environ.get("MEDLEY_DATA")
    if folder and not Path(folder).is_dir():
        told.append(f"MEDLEY_DATA is {folder}, which is not a folder: set it to the folder that holds the data sets")
    if encoding.lower().replace("-", "") != "utf8":
        told.append(f"the terminal's encoding is {encoding}: set PYTHONUTF8=1, or tables lose characters")
    return told


def problems(wanted: Iterable[str]) -> list[str]:
    """Every problem of this installation: `conflicts` and `lacks`."""
    import torch

    from ..runtime.cores import cores

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return conflicts(wanted) + lacks(shared_memory(), torch.get_num_threads(), cores(), encoding)


def data_sets() -> list[str]:
    """The published data sets that are on this machine."""
    from ..datasets import files

    return [name for name in files.EXPECTED if files.there(name)]
