"""The versions of installed packages."""

from __future__ import annotations

from functools import cache
from importlib import metadata

OWN = "medley-fl"
"""The package's name in package indexes."""


@cache
def found(package: str) -> str | None:
    """The version of an installed package, else None. Cached: reading takes milliseconds, and a run asks often."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_installed(package: str = OWN) -> bool:
    """Whether the package is installed, rather than only on PYTHONPATH."""
    return bool(found(package))


def version(package: str = OWN) -> str:
    """The version of a package, by default Medley's; "(not installed)" if it is only on PYTHONPATH."""
    return found(package) or "(not installed)"
