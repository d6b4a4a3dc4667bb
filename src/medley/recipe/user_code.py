"""A user's own classes and functions, which a recipe names as "module:name"."""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from importlib.util import find_spec
from itertools import chain
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
    """The files, next to a recipe, of the modules that it names, and of those that they import; in alphabetical
    order.
    """
    if folder is None:
        return []
    waiting = {name.partition(":")[0] for name in names(value)}
    files = set[Path]()
    while waiting:
        top = waiting.pop().partition(".")[0]
        package = folder / top
        found = {*package.rglob("*.py")} if (package / "__init__.py").is_file() else {folder / f"{top}.py"}
        fresh = {path for path in found - files if path.is_file()}
        files |= fresh
        waiting.update(chain.from_iterable(map(_imported, fresh)))
    return sorted(files)


def _imported(path: Path) -> set[str]:
    """The modules that a Python file imports by their full names."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))]
    plain = chain.from_iterable(n.names for n in nodes if isinstance(n, ast.Import))
    return {a.name for a in plain} | {
        n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module is not None and not n.level
    }


def refuse_absent(value: Any, folder: Path | None, source: str) -> None:
    """Raise RecipeError for a module that is neither next to the recipe nor installed, so that no copy has it."""
    present = {path.relative_to(folder or ".").parts[0].removesuffix(".py") for path in modules(value, folder)}
    for name in sorted(names(value)):
        top = name.partition(":")[0].partition(".")[0]
        if top in present:
            continue
        spec = find_spec(top)
        if spec is None or Path(spec.origin or top).parent.resolve() == Path.cwd():
            raise RecipeError(
                f"{source}: {name!r} names the module {top!r}, but there is no {top}.py next to the recipe"
                f"{'' if folder is None else f', in {folder}'}, and no such package is installed; put the file there: "
                "it is copied to the server and the nodes",
                top,
            )


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
