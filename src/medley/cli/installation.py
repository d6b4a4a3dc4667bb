"""Versions that are installed, requirements that they do not meet, and limits of the machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path

from ..runtime.versions import install
from ..runtime.versions import version_of as version

SHARED = Path("/dev/shm")
"""Where processes share their vectors on Linux."""

LEAST = 256.0
"""MiB of shared memory below which worker processes may run out of it."""

BACKSTAGE = ("dev", "docs", "hooks", "fuzz")
"""Extras for developing Medley."""


def extras(requirements: Iterable[str], version_of: Callable[[str], str | None] = version) -> dict[str, str]:
    """The packages of each extra of these requirements with their versions here, or the command that installs them."""
    rows: dict[str, dict[str, str | None]] = {}
    for line in requirements:
        name, _, extra = parts(line)
        if extra and extra not in BACKSTAGE and name != "medley-fl":
            rows.setdefault(extra, {})[name] = version_of(name)
    out: dict[str, str] = {}
    for extra, needs in sorted(rows.items()):
        packages = [f"{name} {installed}" if installed else f"no {name}" for name, installed in needs.items()]
        command = "" if all(needs.values()) else f": {install(extra)}"
        out[extra] = ", ".join(packages) + command
    return out


def conflicts(requirements: Iterable[str], version_of: Callable[[str], str | None] = version) -> list[str]:
    """Requirements that the installed packages do not meet, each with its remedy. For the arguments see `extras`.

    A package of an extra may be missing.
    """
    lines = []
    for line in requirements:
        name, versions, extra = parts(line)
        installed = version_of(name)
        if installed and any(not meets(installed, bound) for bound in filter(None, versions.split(","))):
            package = f"medley-fl[{extra}]" if extra else "medley-fl"
            lines.append(f"{name} {installed} is here, and {package} needs {versions}: pip install '{name}{versions}'")
        elif not installed and not extra:
            lines.append(f"{name} is not installed: pip install '{name}{versions}'")
    return lines


def parts(line: str) -> tuple[str, str, str]:
    """Name, versions and extra of a requirement such as "flwr<1.43,>=1.41; extra == 'flower'"."""
    match = re.fullmatch(r"([\w.-]+)(?:\[[^]]*])?\s*([^;]*?)\s*(?:;.*?extra\s*==\s*['\"]([\w-]+)['\"].*|;.*)?", line)
    return (match[1], match[2].strip("() "), match[3] or "") if match else (line, "", "")


def meets(installed: str, bound: str) -> bool:
    """Whether a version is on the right side of ">=1.2" or "<1.2"; other kinds of bounds are ignored."""
    match = re.fullmatch(r"(>=|<)\s*([\d.]+)", bound.strip())
    if not match:
        return True
    installed_parts = [int(k) for k in re.findall(r"\d+", installed.split("+")[0])[:3]]
    bound_parts = [int(k) for k in re.findall(r"\d+", match[2])[:3]]
    pairs = [*zip_longest(installed_parts, bound_parts, fillvalue=0)]
    order = next((a - b for a, b in pairs if a != b), 0)
    return order >= 0 if match[1] == ">=" else order < 0


def shared_memory() -> float | None:
    """MiB that are free where processes share their vectors; None if there is no such place."""
    return shutil.disk_usage(SHARED).free / 2**20 if SHARED.is_dir() else None


def lacks(free: float | None, threads: int, cores: int, encoding: str) -> list[str]:
    """Limits of the machine that cause trouble, each with its remedy. ``free`` is in MiB."""
    lines = []
    if free is not None and free < LEAST:
        lines.append(
            f"{SHARED} has {free:.0f} MiB free, and worker processes share their vectors there: give a container more "
            "(docker run --shm-size=1g), or run in one process (--jobs 1)"
        )
    if threads > cores:
        lines.append(f"torch uses {threads} threads on {cores} core(s): set OMP_NUM_THREADS={cores}")
    folder = os.environ.get("MEDLEY_DATA")
    if folder and not Path(folder).is_dir():
        lines.append(f"MEDLEY_DATA is {folder}, which is not a folder: set it to the folder that holds the data sets")
    if encoding.lower().replace("-", "") != "utf8":
        lines.append(f"the terminal's encoding is {encoding}: set PYTHONUTF8=1, or tables lose characters")
    return lines


def problems(requirements: Iterable[str]) -> list[str]:
    """Every problem of this installation: `conflicts` and `lacks`."""
    import torch

    from ..runtime.cores import cores

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return conflicts(requirements) + lacks(shared_memory(), torch.get_num_threads(), cores(), encoding)


def data_sets() -> list[str]:
    """The published data sets that are on this machine."""
    from ..datasets import files

    return [name for name in files.EXPECTED if files.is_present(name)]
