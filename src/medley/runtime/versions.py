"""The versions of packages that are here."""

from __future__ import annotations

from functools import cache
from importlib import metadata

OWN = "medley-fl"
"""The package's name where it is installed from."""


@cache
def found(package: str) -> str | None:
    """The version of an installed package, else None; reading it takes milliseconds, and a run asks several times."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_installed(package: str = OWN) -> bool:
    """Whether the package is installed, and does not only lie on PYTHONPATH."""
    return bool(found(package))


def version(package: str = OWN) -> str:
    """The version of a package, by default Medley's; "(not installed)" of one that only lies on PYTHONPATH."""
    return found(package) or "(not installed)"
