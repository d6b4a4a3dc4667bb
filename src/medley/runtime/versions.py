"""The versions of packages that are here."""

from __future__ import annotations

from importlib import metadata

OWN = "medley-fl"
"""The package's name where it is installed from."""


def version(package: str = OWN) -> str:
    """The version of a package, by default Medley's; "(not installed)" of one that only lies on PYTHONPATH."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
