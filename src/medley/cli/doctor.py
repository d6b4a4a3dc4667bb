"""The command that examines an installation: doctor."""

from __future__ import annotations

from typing import Any

import typer

from . import installation
from .arguments import Debug
from .console import REFUSED, pairs, say, show


def doctor(debug: Debug = False) -> None:
    """Print your versions, cores, devices, extras and data sets. If some don't fit together, print what to do."""
    from importlib import metadata

    from ..datasets import files
    from ..runtime.versions import OWN, is_installed

    requirements = (metadata.requires(OWN) if is_installed() else None) or []
    show(pairs("here", _machine()))
    show(pairs("extras", installation.extras(requirements)))
    sets = ", ".join(installation.data_sets()) or "none; medley list datasets says where each is expected"
    show(pairs("data sets", {"here": sets, "folders": ", ".join(map(str, files.places()))}))
    lost = "Medley is not installed, it is only on PYTHONPATH, so its requirements are not known here; pip install it"
    problems = [*([] if is_installed() else [lost]), *installation.problems(requirements)]
    if problems:
        for problem in problems:
            say(f"! {problem}")
        raise typer.Exit(REFUSED)
    show("nothing is wrong")


def _machine() -> dict[str, Any]:
    import torch

    from ..runtime import tricks
    from ..runtime.cores import cores
    from ..storage.environment import environment

    devices = [f"cuda:{k} {torch.cuda.get_device_name(k)}" for k in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    rows = {k: v for k, v in environment().items() if k != "threads"}
    rows["cores"] = f"{cores()} for this process; torch uses {torch.get_num_threads()} thread(s)"
    rows["devices"] = ", ".join(["cpu", *devices])
    free = installation.shared_memory()
    if free is not None:
        rows["shared memory"] = f"{free:,.0f} MiB free in {installation.SHARED}"
    rows["tricks"] = "on" if tricks.ON else "off (MEDLEY_TRICKS=0)"
    return rows
