"""Objects from tables: each key and value is checked against the signature of the function or class it goes to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import transports
from ..contract.errors import RecipeError
from ..contract.keywords import refuse_gone
from ..contract.text import unquoted
from ..runtime import renamed
from . import toml
from .bounds import Bounded
from .schema import DISTRIBUTIONS, fits, hints, in_toml, model_functions
from .user_code import is_own, load_object


@dataclass(frozen=True)
class Builder:
    """Builds objects from the tables of ``source``, a file in ``folder``.

    ``code`` are the names "module:name" that may be imported; None: all. All methods raise RecipeError with the path of
    the wrong key.
    """

    source: str
    folder: Path | None = None
    code: frozenset[str] | None = None

    def wrong(self, path: str, value: Any, wants: str) -> RecipeError:
        """The error for a value that should be ``wants``."""
        text = toml.inline(value) if isinstance(value, bool | int | float | str | list | dict) else repr(value)
        return RecipeError(
            f"{self.source}: {path} = {text} should be {wants}{unquoted(value)}", path.rsplit(".", 1)[-1]
        )

    def check_keys(self, path: str, table: Iterable[str], keys: Iterable[str], also: Iterable[str] = ()) -> None:
        """Check that all keys of ``table`` are in ``keys``; messages also suggest those in ``also``."""
        keys = list(keys)
        for key in table:
            if key not in keys:
                raise RecipeError.unknown(key, {*keys, *also}, f"{self.source}: {path}", in_recipe=True)

    def takes(
        self, path: str, f: Callable[..., Any], args: Mapping[str, Any], also: Iterable[str] = ()
    ) -> Mapping[str, inspect.Parameter]:
        """Check that every key of ``args`` is a parameter of f, and return f's parameters. A removed setting raises its
        own text.
        """
        parameters, takes_any = named(f)
        refuse_gone(f, args, f"{self.source}: {path}: ")
        if not takes_any:
            self.check_keys(path, args, parameters, also)
        return parameters

    def options(self, run: Mapping[str, Any], keys: Iterable[str], also: Iterable[str]) -> None:
        """Check the keys of [run]; an option that other libraries have and Medley lacks gets an explanation."""
        if "precision" in run:
            raise RecipeError(
                f"{self.source}: run.precision = {run['precision']!r}: there is no mixed precision. On the CPU a step "
                "of ResNet-18 in bfloat16 took 1.5 times as long as in float32; set run.dtype to float32 or float64",
                "precision",
            )
        self.check_keys("run", run, keys, also)

    def typed(self, path: str, value: Any, hint: Any) -> Any:
        """``value``, if it has the type ``hint``."""
        if not fits(value, hint):
            raise self.wrong(path, value, in_toml(hint))
        return value

    def pick(self, path: str, value: Any, choice: Mapping[str, Any]) -> Any:
        """The entry of ``choice`` with this name, in any case; or the user's own object, "module:name"."""
        if is_own(value):
            return self.user_object(path, value)
        if not isinstance(value, str):
            raise self.wrong(path, value, f"one of {', '.join(sorted(choice))}")
        by_name = {name.lower(): entry for name, entry in choice.items()}
        if value.lower() not in by_name:
            raise RecipeError.unknown(value, choice, f"{self.source}: {path}: this version", in_recipe=True)
        return by_name[value.lower()]

    def user_object(self, path: str, value: Any) -> Any:
        """The object that "module:name" names; any other value unchanged."""
        if not is_own(value):
            return value
        new = renamed.current(value.replace(":", "."))
        if new is not None:
            module, _, attribute = new.rpartition(".")
            raise RecipeError(
                f"{self.source}: {path} = {value!r} is now '{module}:{attribute}'", path.rsplit(".", 1)[-1]
            )
        if self.code is not None and value not in self.code:
            raise RecipeError(
                f"{self.source}: {path} = {value!r} is code that this node's owner has not allowed "
                f"(allowed: {', '.join(sorted(self.code)) or 'none'}); to allow it: medley node --allow-code {value}",
                path.rsplit(".", 1)[-1],
            )
        return load_object(value, self.folder, f"{self.source}: {path}")

    def function(self, path: str, value: Any) -> Any:
        """The function that "module:name" names; of a class, an instance with its defaults. Other values unchanged."""
        if isinstance(value, list) and value:
            return (self.function(path, value[0]), *value[1:])
        thing = self.user_object(path, value)
        if not isinstance(thing, type):
            return thing
        try:
            return thing()
        except (TypeError, RecipeError) as e:
            raise RecipeError(
                f"{self.source}: {path} = {value!r}: the class needs arguments ({e}); make the object in your module, "
                "and name that",
                path.rsplit(".", 1)[-1],
            ) from None

    def with_paths(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The table, with relative paths made relative to the recipe's folder; other values unchanged."""
        out = dict(table)
        for key in ("path", "folder", "prepared"):
            value = table.get(key)
            if self.folder is not None and isinstance(value, str) and value:
                place = self.folder / value
                out[key] = str(place) if place.exists() else value
        return out

    def call(self, path: str, f: Callable[..., Any], args: Mapping[str, Any]) -> Any:
        """f(**args), after checking every key and value against f's signature."""
        parameters = self.takes(path, f, args)
        declared = hints(f)
        for key, value in args.items():
            if key in declared:
                self.typed(f"{path}.{key}", value, declared[key])
        missing = [k for k, p in parameters.items() if p.default is p.empty and k not in args]
        if missing:
            raise RecipeError(f"{self.source}: {path} lacks {missing[0]!r}, which {f.__name__} needs", missing[0])
        try:
            return f(**args)
        except RecipeError as e:
            raise RecipeError(f"{self.source}: {path}: {e}", e.key) from None

    def kind(
        self,
        path: str,
        table: Mapping[str, Any],
        choice: Mapping[str, Any],
        default: str | None = None,
        inner: Mapping[str, Any] | None = None,
    ) -> Any:
        """The object that a table's ``kind`` names, built from its other keys.

        Args:
            choice: functions and classes that ``kind`` may name
            default: the kind of a table without ``kind``; without a default such a table is an error
            inner: functions and classes that tables inside it may name; by default distributions, schedules and models
        """
        args = {k: self.nested(f"{path}.{k}", v, inner) for k, v in table.items() if k != "kind"}
        if "kind" not in table and default is None:
            raise RecipeError(f"{self.source}: {path} lacks 'kind': one of {', '.join(sorted(choice))}", "kind")
        return self.call(path, self.pick(f"{path}.kind", table.get("kind", default), choice), args)

    def nested(self, path: str, value: Any, choice: Mapping[str, Any] | None = None) -> Any:
        """The object that a table with a kind names, by default a distribution, schedule or model; else the value."""
        if isinstance(value, dict) and "kind" in value:
            with Bounded():
                return self.kind(path, value, choice or {**DISTRIBUTIONS, **model_functions()}, inner=choice)
        return value


def refuse_study(source: str, tables: Mapping[str, Any]) -> None:
    """Raise RecipeError, with what to do, for a study where methods are wanted."""
    if "study" in tables and "problem" not in tables:
        raise RecipeError(
            f"{source}: it holds a study, [[study]], and there is nothing to train. On the sites run it by medley "
            f"deploy run; here, with a file for each site, by medley study {source} A.csv B.csv",
            "study",
        )


def named(f: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """f's named parameters, and whether it accepts any others too, as ``**options``."""
    parameters = inspect.signature(f).parameters
    stars = {name: p.kind for name, p in parameters.items() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {k: p for k, p in parameters.items() if k not in stars}, inspect.Parameter.VAR_KEYWORD in stars.values()


def transport_kinds() -> dict[str, Any]:
    """Every class of `medley.transports` that opens a connection, by its name in lower case."""
    return {k.lower(): v for k, v in vars(transports).items() if inspect.isclass(v) and hasattr(v, "open")}


def transport(name: str, workers: int | None) -> Any:
    """The transport of this name, in any case; ``workers`` for one that has workers. Raises RecipeError otherwise."""
    kinds = transport_kinds()
    if name.lower() not in kinds:
        raise RecipeError.unknown(name, kinds, "--on: this version")
    kind: Any = kinds[name.lower()]
    if workers is None:
        return kind()
    if "workers" not in inspect.signature(kind).parameters:
        raise RecipeError(f"--workers {workers}: {name} has no workers; use --on processes", "workers")
    return kind(workers=workers)


def by_id(value: Any) -> Any:
    """A table by client, with numbers as keys: TOML has only text keys."""
    if not isinstance(value, dict):
        return value
    return {int(k) if k.isascii() and k.isdigit() else k: v for k, v in value.items()}
