"""Earlier names of what users write, each with its name of today. All that meets an earlier name reads these tables.

An earlier name raises one sentence with the new one: as an attribute (`medley.contract.public`), in an import
(`Finder`), as a setting, a word or a table of a recipe (`RecipeError.unknown`), and in a recipe's "module:name".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

NAMES = {
    "medley.Local": "medley.LocalOnly",
    "medley.algorithms.local": "medley.algorithms.localonly",
    "medley.contract.Local": "medley.contract.LocalSampling",
    "medley.robust.Fold": "medley.robust.Rule",
    "medley.transports.Local": "medley.transports.InProcess",
    "medley.transports.local": "medley.transports.inprocess",
}
"""Modules and their attributes, by the names that they had. What was inside a module is inside its new place."""

WORDS = {
    "fold": ("rule",),
    "folds": ("rules",),
    "liars": ("byzantine", "attackers"),
    "local": ("inprocess", "LocalOnly"),
}
"""Settings, their values, and kinds of a recipe, in lower case; of several new words the one that fits is meant."""


def current(name: str) -> str | None:
    """The name of today for a dotted name such as "medley.robust.Fold"; None if it has no other."""
    head = name
    while head not in NAMES:
        head, dot, _ = head.rpartition(".")
        if not dot:
            return None
    return NAMES[head] + name.removeprefix(head)


def word(old: str, allowed: Iterable[str]) -> str | None:
    """The word of today among the allowed ones; None if there is none."""
    return next((new for new in WORDS.get(old.lower(), ()) if new in allowed), None)


class Finder:
    """The last of Python's finders of modules: it says where a module, or a name in a package, is now."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> None:
        """Raises ImportError for an earlier name."""
        new = current(name)
        if new is not None:
            raise ImportError(f"{name} is now {new}", name=name)


def install() -> None:
    """Add the finder to Python's, once."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
