"""The tables and keys of a recipe, the names that each of them accepts, and the types of their values.

Names come from the classes: a partition is any class with the members of `medley.partitions.Partition`, and so on.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache
from os import PathLike
from typing import Any, NamedTuple, Protocol

from typing_extensions import get_protocol_members

from .. import (
    algorithms,
    codecs,
    datasets,
    devices,
    distributions,
    models,
    participation,
    partitions,
    problems,
    replay,
    robust,
    scenarios,
    sinks,
    tasks,
)
from ..contract import Algorithm, Family, RecipeError, ReplayPolicy, ValueType, describe, in_words, kinds
from ..experiments.compare import presets
from ..runtime.plugins import plugins
from ..secure import SecureSum
from ..server.options import RunOptions
from ..server.reply_policy import ReplyPolicy
from ..statistics import (
    GLM,
    PCA,
    Balance,
    Correlation,
    Cox,
    Describe,
    KaplanMeier,
    Margins,
    Meta,
    Mixed,
    Ordinal,
    Prepare,
    Rules,
)
from ..transports import Lossy
from ..wire.codec import Codec
from .limits import ClientLimits
from .toml import inline

TOML = (bool, int, float, str, Sequence, Mapping)
"""Types that a file can contain."""


class Schedule(Protocol):
    """A function of the round, with settings."""

    def __call__(self, round: int) -> float:
        """The factor of a round."""


def having(module: Any, protocol: Any) -> dict[str, Any]:
    """The classes of a module that have a protocol's members with the same arguments, by name."""

    def takes(cls: Any, name: str) -> list[str]:
        return [*inspect.signature(getattr(cls, name)).parameters]

    members = get_protocol_members(protocol)
    classes = {}
    functions = [name for name in members if inspect.isfunction(getattr(protocol, name))]
    for name, value in sorted(vars(module).items()):
        is_own_class = inspect.isclass(value) and value.__module__.startswith(module.__name__)
        if not is_own_class or getattr(value, "_is_protocol", False):
            continue
        if members <= {*dir(value), *getattr(value, "__dataclass_fields__", ())} and all(
            takes(value, name) == takes(protocol, name) for name in functions
        ):
            classes[name] = value
    return classes


DISTRIBUTIONS = having(distributions, distributions.Distribution) | having(scenarios, Schedule)

RULES = {
    name: f
    for name, f in sorted(vars(robust).items())
    if inspect.isclass(f) and issubclass(f, robust.Rule) and not inspect.isabstract(f)
}

PRESETS = {
    name: f
    for name, f in sorted(vars(devices).items())
    if inspect.isfunction(f) and f.__annotations__.get("return") == "Devices"
}

KINDS: dict[str, dict[str, Any]] = {
    "problem": having(problems, Family),
    "partition": having(partitions, partitions.Partition),
    "participation": having(participation, participation.Participation),
    "stream": having(tasks, tasks.Stream),
    "replay": having(replay, ReplayPolicy),
    "codec": having(codecs, Codec),
    "sink": {name: getattr(sinks, name) for name in sinks.__all__ if name != "Sink"},
}
"""Tables with a key `kind`, and what the kind names."""

CALLS: dict[str, Any] = {
    "pace": scenarios.Pace,
    "devices": devices.Devices,
    "membership": scenarios.Membership,
    "attack": scenarios.Attack,
    "reply_policy": ReplyPolicy,
    "secure": SecureSum,
    "faults": Lossy,
    "clients": ClientLimits,
    "rules": Rules,
}
"""Tables that are the arguments of one class."""

TABLES = ("name", "data", "federation", "run", "methods", "study", "tune", *KINDS, *CALLS)

ANALYSES = {
    "glm": GLM, "describe": Describe, "cox": Cox, "kaplan_meier": KaplanMeier, "meta": Meta, "prepare": Prepare,
    "pca": PCA, "margins": Margins, "correlation": Correlation, "balance": Balance, "ordinal": Ordinal,
    "mixed": Mixed,
}  # fmt: skip
"""Analyses of [[study]], by kind."""

COUNTS = ("rounds", "seed", "seeds")


def is_written(kind: ValueType) -> bool:
    """Whether a file can write such a value itself."""
    return issubclass(kind.type, TOML)


_OPTIONS = [f for f in fields(RunOptions) if f.init]
RUN = [
    f.name
    for f, setting in zip(_OPTIONS, describe(RunOptions), strict=True)
    if f.name not in COUNTS and f.metadata.get("recipe", True) and any(is_written(kind) for kind in setting.kinds)
]
"""Options of a run that a file can set."""

SIMULATED = {
    "attack": "simulates Byzantine clients, but clients on other machines are real: leave it out",
    "membership": "simulates clients that join and leave, but those on other machines do so by themselves: leave it "
    "out, and start the run with --open",
    "sink": "stores figures of medley run and medley compare; for a deployed run use medley watch and medley status "
    "--prometheus: leave it out",
}
"""Tables that work only for federations on this machine, with what they do and the remedy elsewhere."""

STEPS: dict[str, Any] = {
    "split": float | dict, "train": int, "test": int, "pool": int, "standardise": bool, "flatten": bool,
    "validation": float,
}  # fmt: skip
"""Keys of [data] that change a data set after reading it, in this order, with their types."""


def _with_others(
    group: str, fits: Callable[[Any], bool], entries: Mapping[str, Any], only: Collection[str] | None
) -> dict[str, Any]:
    """Medley's own entries and those of other packages. Raises RecipeError if one of ``only`` cannot be used."""
    try:
        return {**entries, **plugins(group, fits, entries, only)}
    except ImportError as e:
        raise RecipeError(str(e), "kind") from e


@cache
def _own_methods() -> dict[str, type[Algorithm[Any, Any]]]:
    """Medley's own methods by name: a look at every name of every module, for each method of a recipe."""
    out: dict[str, type[Algorithm[Any, Any]]] = {}
    for info in pkgutil.iter_modules(algorithms.__path__):
        module = importlib.import_module(f"{algorithms.__name__}.{info.name}")
        for name, value in vars(module).items():
            is_method = inspect.isclass(value) and issubclass(value, Algorithm) and value.__module__ == module.__name__
            if is_method and not inspect.isabstract(value):
                out[name] = value
                forms = {k: v for k, v in vars(value).items() if inspect.isclass(v) and issubclass(v, Algorithm)}
                out |= {f"{name}.{k}": v for k, v in forms.items()}
    return out


def methods(only: Collection[str] | None = None) -> dict[str, type[Algorithm[Any, Any]]]:
    """Every method, including other packages', by name; methods that are attributes of another class as "CFLAG.joint".

    Args:
        only: names in any case: from other packages only methods with these names are imported. Default all
    """
    is_method = lambda value: inspect.isclass(value) and issubclass(value, Algorithm)
    out: dict[str, Any] = _with_others("methods", is_method, _own_methods(), only)
    return dict(sorted(out.items(), key=lambda item: item[0].lower()))


def constructors(only: Collection[str] | None = None) -> dict[str, Callable[..., Algorithm[Any, Any]]]:
    """Every method, and the class methods that make one in another form, by name as in "SHED.fast"; see `methods`."""
    kinds = methods(None if only is None else [name.partition(".")[0] for name in only])
    forms: dict[str, Callable[..., Algorithm[Any, Any]]] = dict(kinds)
    for kind in kinds.values():
        forms |= presets(kind)
    return dict(sorted(forms.items(), key=lambda item: item[0].lower()))


def model_functions() -> dict[str, Any]:
    """Every function of `medley.models`, by name."""
    return {name: getattr(models, name) for name in models.__all__}


def readers(only: Collection[str] | None = None) -> dict[str, Any]:
    """Every function of `medley.datasets` and other packages that reads or makes a data set; see `methods`."""
    public = {name: getattr(datasets, name) for name in datasets.__all__ if name not in ("frame", "lazy")}
    functions = {name: f for name, f in public.items() if inspect.isfunction(f)}  # those two take objects of Python
    return _with_others("datasets", callable, functions, only)


def sink_kinds(only: Collection[str] | None = None) -> dict[str, Any]:
    """Every class of `medley.sinks` and other packages that stores rows, by name; see `methods`."""
    fits = lambda value: inspect.isclass(value) and issubclass(value, sinks.Sink)
    return _with_others("sinks", fits, KINDS["sink"], only)


def only_name(value: object) -> tuple[str, ...]:
    """A name in a recipe, in the form of ``only`` of `methods`; empty if the value is not a name."""
    return (value,) if isinstance(value, str) else ()


def hints(f: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's or constructor's arguments, with the bounds declared there."""
    try:
        return typing.get_type_hints(f.__init__ if inspect.isclass(f) else f, include_extras=True)
    except NameError:  # of fields that another module declares
        return typing.get_type_hints(f, include_extras=True)


def fits(value: Any, hint: Any) -> bool:
    """True if a TOML value, or an object built from one, has the type of the annotation."""
    return any(kind.fits(value, {}) for kind in kinds(hint))


def in_toml(hint: Any) -> str:
    """An annotation in the words of TOML: "a finite number above 0, or 'auto'"."""
    allowed = [kind for kind in kinds(hint) if kind.type is not type(None) and not issubclass(kind.type, PathLike)]
    texts = [kind.text if kind.type is object or is_written(kind) else "a table with a kind" for kind in allowed]
    return in_words(text.replace("True or False", "true or false") for text in texts)


class Argument(NamedTuple):
    """An argument in a recipe: its name, its values and its default in words, and its meaning."""

    name: str
    values: str
    default: str
    text: str


def arguments(f: Callable[..., Any]) -> list[Argument]:
    """The arguments of a function or a class, from their annotations and docstrings."""
    annotations = hints(f)
    texts = _texts(f)
    out = []
    for name, p in inspect.signature(f).parameters.items():
        plain = isinstance(p.default, bool | int | float | str | tuple | list)
        default = "needed" if p.default is p.empty else inline(p.default) if plain else ""
        out.append(
            Argument(name, in_toml(annotations[name]) if name in annotations else "", default, texts.get(name, ""))
        )
    return out


def _texts(f: Callable[..., Any]) -> dict[str, str]:
    """The arguments that docstrings describe under "Args:" or "Attributes:", including base classes'."""
    out: dict[str, str] = {}
    for described in inspect.getmro(f) if inspect.isclass(f) else (f,):
        if not described.__module__.startswith("medley."):
            continue
        for block in re.split(r"(?:Args|Attributes):\n", inspect.cleandoc(described.__doc__ or ""))[1:]:
            matches = re.findall(r"^    ([\w, ]+): (.+?)(?=^    \w|\Z)", block.partition("\n\n")[0], re.M | re.S)
            for names, text in matches:
                for name in names.split(", "):
                    out.setdefault(name, " ".join(text.split()))
    return out
