"""The memory that this process uses, now and at its peak."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak() -> int:
    """The most bytes that this process has held in memory since `restart`, or since it began; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # Windows has none
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def restart() -> None:
    """Let `peak` start again from the memory held now; Linux only, elsewhere without effect."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
