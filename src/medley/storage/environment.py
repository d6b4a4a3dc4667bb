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
    """Versions and machine, on which a run's bits may depend."""
    versions = {"medley": version()} | {name: version(name) for name in ("torch", "numpy", "scipy")}
    machine = {"platform": platform.platform(), "machine": platform.machine(), "threads": torch.get_num_threads()}
    return {"python": platform.python_version(), **versions, **machine}


def device_of(settings: Mapping[str, Any]) -> str:
    """The device of a run with these settings; "cuda:0" is "cuda"."""
    return str(settings.get("device", "cpu")).removesuffix(":0")


def warn_of_changes(folder: Path, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Log a warning for each version, and for the device, that has changed since ``folder`` was written."""
    for name, value in current.items():
        before = recorded.get(name)
        if before != value:
            log.warning("%s was written with %s %s and resumes with %s: bits may differ", folder, name, before, value)
