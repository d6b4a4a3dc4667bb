"""The versions of packages that are here."""

from __future__ import annotations

from importlib import metadata

OWN = "medley-fl"
"""The package's name where it is installed from."""


def is_installed(package: str = OWN) -> bool:
    """Whether the package is installed, and does not only lie on PYTHONPATH."""
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def version(package: str = OWN) -> str:
    """The version of a package, by default Medley's; "(not installed)" of one that only lies on PYTHONPATH."""
    return metadata.version(package) if is_installed(package) else "(not installed)"
