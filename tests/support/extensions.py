"""What a new metric, codec, partition or other thing that a recipe names still lacks: its export, a test, a page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from medley import codecs, datasets, metrics, participation, partitions, problems, replay, robust, tasks
from medley.contract import Family, ReplayPolicy
from medley.datasets import Dataset
from medley.recipe.schema import having
from medley.wire.codec import Codec

ROOT = Path(__file__).parents[2]


def protocol_of(protocol: Any) -> Callable[[ModuleType], Mapping[str, Any]]:
    """Finds the classes of a module that have a protocol's members."""
    return lambda module: having(module, protocol)


def rules(module: ModuleType) -> dict[str, Any]:
    """The aggregation rules of a module."""
    fits = lambda v: inspect.isclass(v) and issubclass(v, robust.Rule) and not inspect.isabstract(v)
    return {name: v for name, v in vars(module).items() if fits(v) and v.__module__ == module.__name__}


def reads(module: ModuleType) -> dict[str, Any]:
    """The functions of a module that return a data set, and check their arguments as those for users do."""
    return {
        name: f
        for name, f in vars(module).items()
        if inspect.isfunction(f)
        and f.__module__ == module.__name__
        and hasattr(f, "__wrapped__")
        and f.__annotations__.get("return") in ("Dataset", Dataset)
    }


PACKAGES: dict[str, tuple[ModuleType, Callable[[ModuleType], Mapping[str, Any]]]] = {
    "problems": (problems, protocol_of(Family)),
    "datasets": (datasets, reads),
    "partitions": (partitions, protocol_of(partitions.Partition)),
    "participations": (participation, protocol_of(participation.Participation)),
    "streams": (tasks, protocol_of(tasks.Stream)),
    "memories": (replay, protocol_of(ReplayPolicy)),
    "codecs": (codecs, protocol_of(Codec)),
    "metrics": (metrics, protocol_of(metrics.Summed)),
    "rules": (robust, rules),
}
"""The package of each kind, and what counts as one of the kind in a module of it."""


def is_base(value: Any, listed: Mapping[str, Any]) -> bool:
    """Whether something else in the list is a subclass of this class."""
    return inspect.isclass(value) and any(inspect.isclass(v) and issubclass(v, value) for v in listed.values())


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """A package and the modules in it."""
    yield package
    for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        yield importlib.import_module(info.name)


def not_exported(kind: str, listed: Mapping[str, Any]) -> list[str]:
    """A sentence for each thing of this kind that is written in a module, but that no list has."""
    package, finds = PACKAGES[kind]
    names = {name.lower() for name in {*listed, *package.__all__}}
    return [
        f"{kind}: {name} of {module.__name__} is in no list: import it in {package.__name__}, and add it to its __all__"
        for module in modules(package)
        for name, value in finds(module).items()
        if not name.startswith("_") and name.lower() not in names and not is_base(value, listed)
    ]


@cache
def words(folder: str, pattern: str) -> frozenset[str]:
    """The words of all files of a folder."""
    files = sorted((ROOT / folder).rglob(pattern))
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8")))


def lacks(kind: str, name: str) -> list[str]:
    """A sentence for the test and one for the page that a thing lacks."""
    out = []
    if name not in words("tests", "test_*.py"):
        out.append(
            f"{kind}: no test names {name}: test it with numbers, in the folder of tests/ that mirrors its file's"
        )
    if name not in words("docs", "*.md"):
        out.append(f"{kind}: no page names {name}: say on a page of docs/ what it is for, with an example")
    return out
