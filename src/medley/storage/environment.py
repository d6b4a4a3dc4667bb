"""The versions and the machine that a run was made with."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..runtime.versions import version

log = logging.getLogger("medley")


def environment() -> dict[str, Any]:
    """Versions and machine: a run's bits may depend on them."""
    versions = {"medley": version()} | {name: version(name) for name in ("torch", "numpy", "scipy")}
    machine = {"platform": platform.platform(), "machine": platform.machine(), "threads": torch.get_num_threads()}
    return {"python": platform.python_version(), **versions, **machine}


def device_of(settings: Mapping[str, Any]) -> str:
    """The device of a run with these settings; "cuda:0" is "cuda"."""
    return str(settings.get("device", "cpu")).removesuffix(":0")


def warn_of_changes(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Log a warning for each version that is another one than when ``folder`` was written, and for another device."""
    for name, now in ours.items():
        if (before := theirs.get(name)) != now:
            log.warning("%s was made with %s %s and goes on with %s: bits may differ", folder, name, before, now)
