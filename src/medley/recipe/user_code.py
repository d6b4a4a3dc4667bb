"""A user's own classes and functions, which a recipe names as "module:name"."""

from __future__ import annotations

import importlib
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..contract.errors import RecipeError

log = logging.getLogger("medley")


def is_own(value: object) -> bool:
    """Whether a value of a recipe names a user's own object: "mymodule:CNN"."""
    return isinstance(value, str) and ":" in value and all(p.isidentifier() for p in value.replace(":", ".").split("."))


def names(value: Any) -> frozenset[str]:
    """Every text of the form "module:name" in these tables of a recipe."""
    if isinstance(value, dict | list):
        return frozenset[str]().union(*map(names, value.values() if isinstance(value, dict) else value))
    return frozenset({value} if is_own(value) else ())


def modules(value: Any, folder: Path | None) -> list[Path]:
    """The files, next to a recipe, of the modules that it names, in alphabetical order."""
    if folder is None:
        return []
    files = {folder / (name.partition(":")[0].partition(".")[0] + ".py") for name in names(value)}
    return sorted(path for path in files if path.is_file())


def load_object(value: str, folder: Path | None, where: str) -> Any:
    """The object that ``value`` names.

    Medley looks for the module next to the recipe, then in the working folder, then among installed packages. Before
    the import, a log line says what is imported.

    Args:
        value: "module:name"; both may have dots
        folder: the recipe's folder; None if the recipe does not come from a file

    Raises RecipeError if there is no such module, its import fails, or it has no such name.
    """
    module, _, path = value.partition(":")
    if module not in sys.modules:
        # The folder of a run may come from elsewhere: nothing in it is run as code.
        places = [str(p.resolve()) for p in (folder, Path.cwd()) if p is not None and not (p / "run.json").exists()]
        for place in reversed(dict.fromkeys(places)):
            if place not in sys.path:
                sys.path.insert(0, place)
        try:
            importlib.invalidate_caches()
            spec = find_spec(module)
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:  # a folder without Python files would be an empty package
            remedy = "put its file next to the recipe"
            if folder is None or (folder / "run.json").exists():
                remedy = "give the recipe that this run began with, medley run RECIPE.toml --resume DIR"
            raise RecipeError(
                f"{where} = {value!r}: there is no module {module!r} in {' or '.join(dict.fromkeys(places))}, nor "
                f"installed; {remedy}",
                where.rsplit(".", 1)[-1],
            )
        if module.partition(".")[0] not in ("torch", "medley"):
            log.warning("%s: importing %s from %s", where, module, spec.origin)
    try:
        loaded: Any = importlib.import_module(module)
    except Exception as e:
        raise RecipeError(f"{where} = {value!r}: importing {module} failed: {type(e).__name__}: {e}") from e
    for name in path.split("."):
        if not hasattr(loaded, name):
            names = [n for n in vars(loaded) if not n.startswith("_")]
            raise RecipeError.unknown(name, names, f"{where}: {module}")
        loaded = getattr(loaded, name)
    return loaded
