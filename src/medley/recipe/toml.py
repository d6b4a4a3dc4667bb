"""TOML text: reading, writing, and settings of the form "pace.lr=0.05" put into tables."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from ..contract.errors import RecipeError, reason
from ..contract.text import shown
from ..runtime.field_words import nearest

DEEPEST = 30
"""How deeply a setting may nest tables."""


def load(path: Path) -> dict[str, Any]:
    """The tables in a file. Raises RecipeError, which names it, if it cannot be read or is not TOML."""
    try:
        return read(path.read_text(encoding="utf-8-sig"), path.name)
    except OSError as e:
        recipes = sorted(p.name for p in path.parent.glob("*.toml"))
        present = f" Its folder has {', '.join(recipes[:5])}." if recipes else ""
        near = nearest(path.name, recipes) or present
        raise RecipeError(
            f"cannot read the recipe {path}: {reason(e)}.{near} medley new NAME starts a project that has one."
        ) from None
    except UnicodeDecodeError as e:
        raise RecipeError(f"cannot read the recipe {path}: {e}") from None


def read(text: str, source: str) -> dict[str, Any]:
    """The tables of a text. Raises RecipeError, with the name ``source``, if it is not TOML."""
    try:
        return _parsed(text)
    except ValueError as e:
        raise RecipeError(f"{source} is not TOML: {e}{_remedy(text, str(e), source)}") from None
    except RecursionError:
        raise RecipeError(f"{source} has tables or lists nested thousands deep; write them flat") from None


REMEDIES = {
    "Cannot declare": "a table stands once: put its settings together",
    "Cannot overwrite": "a key stands once: leave out one of its lines",
    "Unescaped": "write a path with /, or between single quotes",
    "Invalid hex": "write a path with /, or between single quotes",
    "Expected '='": 'write key = value, as in kind = "FedAvg"',
    "Expected newline": "a number has a decimal point, text stands in quotes, and each key has a line of its own",
    "Invalid value": 'text stands in quotes, as in kind = "FedAvg"; true and false are small',
    "Expected": "a text ends with the quote that it begins with, a table's name with ]",
    "Illegal character": "a text ends with the quote that it begins with, on the same line",
}
"""What to do about errors of the parser, by the beginning of each: the first that fits."""


def _remedy(text: str, error: str, source: str) -> str:
    """The line of an error in a text that is not TOML, and what to do about it."""
    if Path(source).suffix not in ("", ".toml"):
        return "; give a recipe, a file such as recipe.toml; medley new NAME starts a project that has one"
    place = re.search(r"at line (\d+)", error)
    line = f": {shown(text.splitlines()[int(place[1]) - 1].strip()[:60])}" if place else ""
    return line + next((f"; {remedy}" for start, remedy in REMEDIES.items() if error.startswith(start)), "")


def _parsed(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError, also for a whole number that is too long to print."""
    tables = tomllib.loads(text)
    json.dumps(tables, default=str)  # Python reads hexadecimal digits without end
    return tables


def with_settings(tables: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of ``tables`` with ``settings`` in it, see `Recipe.with_settings`."""
    out = copy.deepcopy(dict(tables))
    for setting in settings:
        path, sign, text = setting.partition("=")
        *above, last = path.strip().split(".")
        if len(above) > DEEPEST:
            raise RecipeError(f"--set {setting[:60]}...: no recipe nests tables {len(above)} deep", path)
        if not sign or not last:
            raise RecipeError(f"--set {setting}: write key=value, e.g. --set pace.lr=0.05")
        at: Any = out
        for depth, key in enumerate(above):
            index = _index(at, key)
            if index is None:
                where = ".".join(above[:depth]) or "the recipe"
                raise RecipeError(f"--set {setting}: {where} has no table {key!r}", path)
            at = at.setdefault(index, {}) if isinstance(at, dict) else at[index]
        index = _index(at, last)
        if index is None:
            raise RecipeError(f"--set {setting}: {'.'.join(above)} is not a table", path)
        at[index] = _value(text.strip())
    return out


def _index(at: Any, key: str) -> Any:
    """The index of ``key`` in a table or a list, if it is a number or the kind of a table; None if there is none."""
    if isinstance(at, dict):
        return key
    if isinstance(at, list):
        if key.isascii() and key.isdigit():
            return int(key) if int(key) < len(at) else None
        kinds = [str(m.get("kind", "")).lower() if isinstance(m, dict) else "" for m in at]
        return kinds.index(key.lower()) if key.lower() in kinds else None
    return None


def _value(text: str) -> Any:
    """A value in TOML, else the text itself."""
    try:
        return _parsed(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as e:
        raise RecipeError(f"--set ...={text[:20]}...: {e}") from None
    except RecursionError:
        raise RecipeError(f"--set ...={text[:20]}...: lists nested thousands deep") from None


def written(tables: Mapping[str, Any]) -> str:
    """Tables in TOML. Raises RecipeError for a value that TOML cannot express."""
    try:
        return tomli_w.dumps(tables)
    except TypeError as e:
        raise RecipeError(f"a recipe cannot hold this value: {e}") from e


def inline(value: Any) -> str:
    """One value on one line, for messages."""
    return json.dumps(value, ensure_ascii=False)
