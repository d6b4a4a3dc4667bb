"""Methods side by side: the same clients, the same cohorts, the same batches, seed by seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract import Algorithm, MedleyError, RecipeError, Tuned, Wrapper
from ..contract.surroundings import set_aside
from ..contract.text import NAME, is_name
from ..federation.federation import Federation
from ..storage import atomic
from ..storage.as_json import plain
from ..storage.result import Result, Status
from .board import Board, kind_of
from .plan import Method, seeds_of, split
from .sweep import Sweep, check_options

PER_METHOD = ("reply_policy", "codec", "device")
"""Options that may be mappings by a method's name."""


@set_aside("compare()")
def compare(
    methods: Sequence[Method] | Mapping[str, Method],
    fed: Federation,
    rounds: int = 100,
    seeds: int | Sequence[int] = 5,
    *,
    jobs: int | None = None,
    save: str | Path | None = None,
    base: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Board:
    """Run every method with every seed. Equal seeds have the same partition, cohorts, batch orders and initial x.

    Args:
        methods: a list of methods, or methods by name. Methods in a list get their own names; if several are of one
            kind, the settings that differ are added
        fed: the federation
        rounds: rounds of every run. Default 100
        seeds: a list of seeds, or their number; 5, the default, means 0, 1, ..., 4
        jobs: runs at a time, in processes of their own. Default: one for each core
        save: a file that `Board.save` writes at the end; or a folder that keeps every run as it finishes, so that after
            Ctrl-C the same call makes only the missing runs. Default None saves nothing
        base: the name of the method from which differences are taken. Default: the first
        progress: whether to draw a bar. Default None draws it on a terminal and in a notebook
        options: options of `medley.run`; ``recipe`` is the TOML source, kept in the folder. ``reply_policy``, ``codec``
            and ``device`` may be mappings by method: ``reply_policy={"FedBuff": ReplyPolicy(replies=5)}``. ``on_round``
            is called in this process, with rows that also have ``method`` and ``seed``

    Medley checks every method before the first run, and raises Unsupported at once if one needs more than the
    federation offers. A run that diverges is a row of the board like any other. ``save`` is tried before the first run;
    if it still fails at the end, the error's ``result`` is the board. Raises RecipeError if two methods have the same
    name and settings, and WireError for a folder with other settings.
    """
    check_options(compare, options)
    named = _by_name(methods)
    if base is not None and (not isinstance(base, str) or base not in named):
        raise RecipeError.unknown(str(base), named, "compare(base=...)")
    path = None if save is None else Path(save)
    folder = path if path is not None and kind_of(path) == "folder" else None
    if path is not None and folder is None:
        atomic.writable(path, "compare(save=...)")
    chosen = seeds_of(seeds, "compare")
    results, status = Sweep(
        named,
        fed,
        rounds,
        chosen,
        "compare",
        jobs=jobs,
        folder=folder,
        progress=progress,
        recipe=options.pop("recipe", None),
        per_method=_own_options(named, options),
        options=options,
    ).run()
    board = _board(results, base, status, fed.describe(chosen[0]), options)
    if path is not None and folder is None and results:
        _save(board, path)
    return board


def _by_name(methods: Sequence[Method] | Mapping[str, Method]) -> dict[str, Method]:
    """The methods by name. Raises RecipeError for anything else."""
    is_one = isinstance(methods, Algorithm | Tuned | str | type) or not isinstance(methods, Mapping | Iterable)
    listed = [] if is_one else [*(methods.values() if isinstance(methods, Mapping) else methods)]
    if is_one or any(not isinstance(m, Algorithm | Tuned) for m in listed):
        of_class = next((f"; {m.__name__} is a class: write {m.__name__}()" for m in listed if isinstance(m, type)), "")
        remedy = f"give a list of methods such as [FedAvg(), SCAFFOLD()]{of_class}"
        raise RecipeError(f"compare({methods!r}): {remedy}", "methods")
    named = dict(methods) if isinstance(methods, Mapping) else dict(zip(names(methods), methods, strict=True))
    unnamed = [name for name in named if not is_name(name)]
    if unnamed:
        raise RecipeError(f"compare({{{unnamed[0]!r}: ...}}): the name of a method is {NAME}", "methods")
    if not named:
        raise RecipeError("compare([]): give at least one method", "methods")
    return named


def _board(
    results: list[Result], base: str | None, status: Status, partition: Any, options: Mapping[str, Any]
) -> Board:
    """The board of a comparison; an interrupted one may lack the runs of ``base``."""
    present = {r.method for r in results}
    return Board(
        results,
        base if base in present else None,
        status,
        partition,
        target=options.get("target"),
        target_over=options.get("target_over"),
    )


def _save(board: Board, path: Path) -> None:
    """Write the board; if that fails, the board is the ``result`` of the error."""
    try:
        board.save(path)
    except MedleyError as e:
        e.result = board
        raise


def _own_options(methods: Mapping[str, Method], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options of single methods by name, removed from ``options``. Raises RecipeError for an unknown name."""
    per_method: dict[str, dict[str, Any]] = {}
    for key in PER_METHOD:
        if isinstance(options.get(key), Mapping):
            for name, value in options.pop(key).items():
                if name not in methods:
                    raise RecipeError.unknown(name, methods, f"compare({key}={{...}}): the comparison")
                per_method.setdefault(name, {})[key] = value
    return per_method


def names(methods: Sequence[Method]) -> list[str]:
    """A name for each method: its class, and if several have the same class, the settings that are not the default.

    ``lr`` is the factor on the clients' lr.
    """
    settings = []
    defaults = []
    for m in methods:
        algorithm, lr = split(m)
        settings.append(_named(algorithm.settings(), lr))
        defaults.append(_named(_defaults(algorithm), 1.0))
    out = []
    for m, values, default in zip(methods, settings, defaults, strict=True):
        same_kind = [o for n, o in zip(methods, settings, strict=True) if n.name == m.name]
        differ = [k for k in values if len({repr(other[k]) for other in same_kind}) > 1]
        wrapper = f"{getattr(split(m)[0], 'prefix', '')}."
        differences = ", ".join(
            f"{k.removeprefix(wrapper)}={_short(values[k])}" for k in differ if repr(values[k]) != repr(default[k])
        )
        out.append(f"{m.name} ({differences})" if differences else m.name)
    out = [preset(split(m)[0]) or name if split(m)[1] == 1 else name for m, name in zip(methods, out, strict=True)]
    for name in out:
        if out.count(name) > 1:
            raise RecipeError(
                f"compare: {out.count(name)} methods are {name} with the same settings; leave out all but one, or give "
                "them different ones",
                "methods",
            )
    return out


def preset(method: Algorithm[Any, Any]) -> str:
    """The short name of a method that a class method without arguments makes, such as "SHED.fast"; otherwise empty."""
    return next((name for name, make in presets(type(method)).items() if make() == method), "")


def presets(kind: type[Algorithm[Any, Any]]) -> dict[str, Callable[..., Algorithm[Any, Any]]]:
    """The class methods of a method's class that make one, by name, such as "SHED.fast"."""
    return {
        f"{kind.__name__}.{name}": getattr(kind, name)
        for name, constructor in vars(kind).items()
        if isinstance(constructor, classmethod)
        and constructor.__func__.__annotations__.get("return") == kind.__name__
        and not name.startswith("_")
    }


def _defaults(algorithm: Algorithm[Any, Any]) -> dict[str, Any]:
    """The defaults of a method's settings; for a wrapper also its method's defaults, with the names of `settings`."""
    defaults = {f.name: f.default for f in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    if not isinstance(algorithm, Wrapper):
        return defaults
    prefixed = {f"{algorithm.prefix}.{name}": value for name, value in defaults.items() if name != "method"}
    return {**_defaults(algorithm.method), **prefixed}


def _named(settings: Mapping[str, Any], lr: float) -> dict[str, Any]:
    return {"lr": float(lr)} | dict(settings)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(plain(value) if callable(value) else value)
