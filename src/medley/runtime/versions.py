"""The versions of installed packages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

OWN = "medley-fl"
"""The package's name in package indexes."""


@cache
def version_of(package: str) -> str | None:
    """The version of an installed package, else None. Cached: reading takes milliseconds, and a run asks often."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """The command that installs an extra from where Medley came: its clone, or the file of its wheel.

    Medley is in no package index, where anybody could take its name.
    """
    import json
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # with it come http, ssl and email

    try:
        origin = metadata.distribution(OWN).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in the clone of Medley"
    came = json.loads(origin or "{}")
    place = Path(url2pathname(urlsplit(came.get("url", "")).path))
    if came.get("dir_info", {}).get("editable"):
        return f"pip install -e '{place}[{extra}]'"
    wheel = place if place.name and place.exists() else f"medley_fl-{version()}-py3-none-any.whl"
    return f"pip install '{wheel}[{extra}]'"


def is_installed(package: str = OWN) -> bool:
    """Whether the package is installed, rather than only on PYTHONPATH."""
    return bool(version_of(package))


def version(package: str = OWN) -> str:
    """The version of a package, by default Medley's; "(not installed)" if it is only on PYTHONPATH."""
    return version_of(package) or "(not installed)"
