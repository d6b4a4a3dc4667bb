"""The tables and keys of a recipe, the names that each of them takes, and the types of their values."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from .. import algorithms, datasets, models
from ..contract.algorithm import Algorithm
from ..contract.settings import Bounds
from ..experiments.compare import presets

TABLES = (
    "name", "problem", "data", "partition", "pace", "participation", "membership", "devices", "stream", "replay",
    "attack", "federation", "run", "codec", "reply_policy", "secure", "faults", "methods", "tune", "clients",
)  # fmt: skip

COUNTS = ("rounds", "seed", "seeds")

RUN = (
    "dtype", "device", "engine", "eval_every", "eval_rows", "evaluate_on", "target", "target_over", "metrics",
    "clients_every", "checkpoint_every", "init",
)  # fmt: skip
"""Options of a run that a file can set."""

SIMULATED = {
    "attack": "clients that lie, and clients on other machines are real: leave it out",
    "membership": "clients that join and leave, and those on other machines do so by themselves: leave it out, and "
    "start the run with --open",
}
"""Tables for federations on this machine only, with what they do and the remedy elsewhere."""

STEPS: dict[str, Any] = {
    "split": float | dict, "train": int, "test": int, "pool": int, "standardise": bool, "flatten": bool,
    "validation": float,
}  # fmt: skip
"""Keys of [data] that change a data set once it is read, in this order, with their types."""

PROBLEMS = ("LeastSquares", "Logistic", "Network", "Softmax")

CODECS = ("Cast", "Delta", "Quantise", "TopK", "TwoWay")

LAWS = (
    "Bandwidth", "Choice", "Constant", "Integers", "LogUniform", "Normal", "Rayleigh", "Uniform", "cosine",
    "step_decay",
)  # fmt: skip

PARTITIONS = ("ByKey", "Dirichlet", "IID", "Labels", "Quantity", "Saved", "Shards")

STREAMS = ("Permuted", "Rotated", "Split", "TimeOrder")

REPLAYS = ("Reservoir", "Ring")

PARTICIPATIONS = ("Availability", "Bernoulli", "Cyclic", "Everyone", "Fixed", "Fraction")

FOLDS = (
    "CentredClipping", "FLTrust", "GeometricMedian", "Krum", "Median", "Mixed", "MultiKrum", "TrimmedMean",
)  # fmt: skip

PRESETS = ("factory", "hospitals", "phones")

WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table",
    abc.Mapping: "a table", list: "a list", tuple: "a list", abc.Sequence: "a list",
}  # fmt: skip
"""Types in the words of TOML."""


def methods() -> dict[str, type[Algorithm[Any, Any]]]:
    """Every method of `medley.algorithms`, by name; those that are attributes of another's class as "CFLAG.joint"."""
    out: dict[str, type[Algorithm[Any, Any]]] = {}
    for info in pkgutil.iter_modules(algorithms.__path__):
        module = importlib.import_module(f"{algorithms.__name__}.{info.name}")
        for name, thing in vars(module).items():
            mine = inspect.isclass(thing) and issubclass(thing, Algorithm) and thing.__module__ == module.__name__
            if mine and not inspect.isabstract(thing):
                out[name] = thing
                forms = {k: v for k, v in vars(thing).items() if inspect.isclass(v) and issubclass(v, Algorithm)}
                out |= {f"{name}.{k}": v for k, v in forms.items()}
    return dict(sorted(out.items(), key=lambda item: item[0].lower()))


def constructors() -> dict[str, Callable[..., Algorithm[Any, Any]]]:
    """Every method, and the class methods that make one in another form, by name as "SHED.fast"."""
    kinds = methods()
    made: dict[str, Callable[..., Algorithm[Any, Any]]] = {
        **kinds,
        **{name: make for kind in kinds.values() for name, make in presets(kind).items()},
    }
    return dict(sorted(made.items(), key=lambda item: item[0].lower()))


def named(module: Any, names: Iterable[str]) -> dict[str, Any]:
    """The attributes of ``module`` with these names."""
    return {name: getattr(module, name) for name in names}


def model_functions() -> dict[str, Any]:
    """Every function of `medley.models`, by name."""
    return named(models, models.__all__)


def readers() -> dict[str, Any]:
    """Every function of `medley.datasets` that reads or makes a data set, by name."""
    return {name: f for name, f in named(datasets, datasets.__all__).items() if inspect.isfunction(f)}


def hints(f: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's or a constructor's arguments, with the bounds declared there."""
    return typing.get_type_hints(f.__init__ if inspect.isclass(f) else f, include_extras=True)


def fits(value: Any, hint: Any) -> bool:
    """True if a value of TOML, or an object built from one, has the type of the annotation.

    The class itself checks declared bounds, since its message names them. Annotations that no TOML value has take every
    object and no TOML value.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return fits(value, args[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin is Literal:
        return value in args
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    kind = origin or hint
    if kind in (tuple, list, abc.Sequence):
        inner = args[0] if args else Any
        return isinstance(value, list | tuple) and all(fits(v, inner) for v in value)
    if kind in (dict, abc.Mapping):
        return isinstance(value, dict)
    return not isinstance(value, bool | int | float | str | list | dict) or hint is Any


def in_words(hint: Any) -> str:
    """An annotation in words, with its declared bounds: "a number above 0 or 'auto'"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        words = in_words(args[0])
        for bounds in (b for b in args[1:] if isinstance(b, Bounds)):
            words = bounds.of(words)
        return words
    if origin in (typing.Union, types.UnionType):
        args = tuple(a for a in args if a is not type(None))
        return " or ".join(dict.fromkeys(in_words(a) for a in args if a is not int or float not in args))
    if origin is Literal:
        return " or ".join(repr(a) for a in args)
    return WORDS.get(origin or hint, "a table with a kind")
