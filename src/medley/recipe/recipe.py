"""A recipe: its tables, and the federation, methods and options that they describe."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from .. import metrics
from ..contract import Algorithm, RecipeError, Tuned, describe
from ..datasets.on_use import read_on_use
from ..experiments.tune import tunable, variant
from ..federation.federation import Federation
from ..federation.scenario import Scenario
from ..problems.network.model import FRESH
from ..report.sections.runs import flattened
from ..runtime import plugins, streams
from ..server.options import RunOptions
from ..statistics import Rules, Weights
from ..statistics.analysis import Analysis
from ..storage.as_json import is_secret
from ..storage.atomic import make_folder, write
from . import rows, schema, toml
from .bounds import Bounded
from .build import Builder, by_id, named, refuse_study
from .limits import ClientLimits
from .schema import (
    ANALYSES,
    CALLS,
    COUNTS,
    KINDS,
    PRESETS,
    RUN,
    SIMULATED,
    TABLES,
    constructors,
    methods,
    model_functions,
)  # fmt: skip
from .user_code import is_own
from .wrapping import WRAPPING, wrapped, written

Parts = tuple[Callable[..., Any], Callable[..., Any] | None, dict[str, Any], dict[str, Any]]
"""The problem's family; the function of its model or None; the settings of the family and of the function."""

BEGINNINGS = {
    "problem": '[problem] kind = "Softmax"',
    "data": '[data] kind = "digits"',
    "partition": '[partition] kind = "IID" clients = 10',
}
"""Tables that a recipe needs, with settings that do."""


@dataclass(frozen=True)
class Recipe:
    """The tables of a recipe. Every call builds new objects from them.

    Attributes:
        tables: as tomllib reads them
        source: the file's name, for messages; default "recipe"
        folder: the file's folder, in which a user's own modules are looked for; default None
        code: the names "module:name" that may be imported, if somebody else wrote the recipe; default None: all

    Raises RecipeError for a table that no recipe has.
    """

    tables: dict[str, Any]
    source: str = "recipe"
    folder: Path | None = None
    code: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for key, value in self.tables.items():
            if key not in TABLES:
                raise RecipeError.unknown(key, TABLES, self.source, in_recipe=True)
            if key in ("methods", "study"):
                if not isinstance(value, list) or not all(isinstance(m, dict) for m in value):
                    raise self._build.wrong(key, value, f"tables, each under [[{key}]]")
            elif not isinstance(value, dict) and key not in ("name", "participation"):
                raise self._build.wrong(key, value, f"a table, [{key}]")

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """The recipe with settings such as "pace.lr=0.05" put in.

        Values are TOML; anything else is taken as text. Lists count from 0: "methods.0.mu=1". You can also name a
        method by its kind: "methods.fedprox.mu=1". Raises RecipeError for a setting without "=", and for a table that
        does not exist.
        """
        return replace(self, tables=toml.with_settings(self.tables, settings))

    def federation(self, on_use: bool = False) -> Federation:
        """The federation. Names and keys are checked before any data is read.

        Args:
            on_use: whether images are read when they are used, for a network that a plan tries on few; default False

        Raises RecipeError for wrong tables, keys and values, and BadData for data that cannot be used.
        """
        refuse_study(self.source, self.tables)
        for key in ("problem", "data", "partition"):
            if key not in self.tables:
                raise RecipeError(f"{self.source}: there is no [{key}]; write {BEGINNINGS[key]}", key)
        problem = self._problem()
        partition = self._build.kind("partition", self._build.with_paths(self._table("partition")), KINDS["partition"])
        rest = self._rest()
        with read_on_use() if on_use and self.tables["problem"].get("kind") == "Network" else nullcontext():
            data, validation = rows.read(self._build, self._table("data"))
        family = self._family(problem, tuple(data.X.shape[1:]), data.classes, data.name)
        arguments = {"problem": family, "partition": partition, "validation": validation, "data": data, **rest}
        return cast(Federation, self._build.call("federation", Federation, arguments))

    def scenario(self, shape: tuple[int, ...], classes: int | None) -> Scenario:
        """The federation without its data, for clients that hold their own; [data] and [partition] are ignored."""
        if "problem" not in self.tables:
            raise RecipeError(f"{self.source}: there is no [problem]; write {BEGINNINGS['problem']}", "problem")
        for key, remedy in SIMULATED.items():
            if key in self.tables:
                raise RecipeError(f"{self.source}: [{key}] {remedy}, or run the recipe here", key)
        problem = self._problem()
        rest = self._rest()
        rest.pop("classes", None)
        family = self._family(problem, shape, classes, "the clients' data")
        if problem[1] in model_functions().values():
            FRESH.add(family.module)
        return cast(Scenario, self._build.call("federation", Scenario.of, {"problem": family, **rest}))

    def methods(self, names: Sequence[str] | None = None) -> list[Algorithm[Any, Any] | Tuned]:
        """The methods under [[methods]]; with ``names`` only those names, with defaults if the recipe lacks one.

        Raises RecipeError if there are none and ``names`` is not given, and for unknown names and settings.
        """
        refuse_study(self.source, self.tables)
        methods = [self._method(f"methods.{k}", m) for k, m in enumerate(self.tables.get("methods", []))]
        if names is None:
            if not methods:
                raise RecipeError(
                    f'{self.source}: there are no [[methods]]; write [[methods]] kind = "FedAvg", or --method FedAvg',
                    "methods",
                )
            return methods
        out: list[Algorithm[Any, Any] | Tuned] = []
        for name in names:
            out += [methods[k] for k in self._places(name.strip(), methods)] or [
                self._method("--methods", {"kind": name.strip()})
            ]
        return out

    def only(self, name: str | None = None) -> Recipe:
        """The recipe with one method: the first, or the first of this name; by default that method's own settings."""
        tables = self.tables.get("methods", [])
        if name is not None:
            if "," in name:
                raise RecipeError(f"--method {name}: a run has one method; medley compare takes several", "methods")
            tables = [tables[k] for k in self._places(name, self.methods() if tables else [])] or [{"kind": name}]
        return replace(self, tables={**self.tables, "methods": tables[:1]})

    def _places(self, name: str, methods: Sequence[Algorithm[Any, Any] | Tuned]) -> list[int]:
        """The [[methods]] that a name means: those of this kind; if there are none, those with this name, such as
        "DP-FedAvg"; otherwise those that wrap this kind.
        """
        tables = self.tables.get("methods", [])
        lower_name = name.lower()
        kinds = [str(m.get("kind", "")).lower() for m in tables]
        unwrapped = [k for k, kind in enumerate(kinds) if kind == lower_name and not tables[k].keys() & {*WRAPPING}]
        named = [k for k, m in enumerate(methods) if m.name.lower() == lower_name]
        ending = [k for k, kind in enumerate(kinds) if lower_name in (kind, kind.rpartition(":")[2])]
        return unwrapped or named or ending

    def analyses(self) -> list[Analysis]:
        """The analyses under [[study]]. Raises RecipeError if there are none."""
        analyses = []
        for k, table in enumerate(self.tables.get("study", [])):
            settings = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items() if key != "complete"}
            analyses.append(self._build.kind(f"study.{k}", settings, ANALYSES, inner={"weights": Weights}))
        if not analyses:
            trains = "; a recipe with [[methods]] is trained, medley run" * ("methods" in self.tables)
            analysis = '; write [[study]] kind = "glm" formula = "y ~ x"'
            raise RecipeError(f"{self.source}: there is no [[study]]{trains or analysis}", "study")
        reason = next((a.refuses_secure for a in analyses if a.refuses_secure), "")
        if "secure" in self.tables and reason:
            raise RecipeError(f"{self.source}: {reason}", "secure")
        return analyses

    def complete(self) -> tuple[str, ...]:
        """Columns without which a study leaves out a row: ``complete`` of the first of [[study]]."""
        return tuple(self.tables.get("study", [{}])[0].get("complete", ()))

    def rules(self) -> Rules:
        """The table [rules]: what may leave a site."""
        return cast(Rules, self._build.call("rules", CALLS["rules"], self._table("rules")))

    def limits(self) -> ClientLimits:
        """The table [clients]: limits on what clients on other machines report."""
        return cast(
            ClientLimits, self._build.call("clients", CALLS["clients"], self._build.with_paths(self._table("clients")))
        )

    @property
    def rounds(self) -> int:
        """run.rounds; default 100."""
        return cast(int, self._build.typed("run.rounds", self._table("run").get("rounds", 100), int))

    @property
    def seed(self) -> int:
        """run.seed, the seed of a single run; default 0."""
        return cast(int, self._build.typed("run.seed", self._table("run").get("seed", 0), int))

    @property
    def seeds(self) -> int | list[int]:
        """run.seeds; default 5."""
        return cast(
            "int | list[int]", self._build.typed("run.seeds", self._table("run").get("seeds", 5), int | list[int])
        )

    def options(self) -> dict[str, Any]:
        """The options of `medley.run`: keys of [run] except rounds and seeds, [codec], [reply_policy], [secure],
        [faults]."""
        run = {k: v for k, v in self._table("run").items() if k not in COUNTS}
        self._build.options(run, RUN, COUNTS)
        declared = {setting.name: setting.hint for setting in describe(RunOptions)}
        if "metrics" in run:
            run["metrics"] = self._metrics(run["metrics"])
        for key, value in run.items():
            self._build.typed(f"run.{key}", value, declared[key])
        if "init" in run and self.folder is not None:
            run["init"] = str(self.folder / run["init"])  # an absolute path stays as it is
        dtype = run.get("dtype")
        if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise RecipeError.unknown(dtype, ("float32", "float64"), f"{self.source}: run.dtype")
        if "codec" in self.tables:
            run["codec"] = self._build.kind("codec", self._table("codec"), KINDS["codec"], inner=KINDS["codec"])
        for table, key in (("reply_policy", "reply_policy"), ("secure", "secure"), ("faults", "transport")):
            if table in self.tables:
                run[key] = self._build.call(table, CALLS[table], self._table(table))
        return run

    def metric_functions(self) -> dict[str, Any]:
        """The functions of run.metrics, by the name of their column."""
        requested = self.options().get("metrics")
        return {} if requested is None else dict(RunOptions(metrics=requested).functions)

    def _metrics(self, value: Any) -> Any:
        """The metrics of run.metrics: names, or for each column a name, "module:name", a table with a kind, or one of
        these with its direction."""
        if isinstance(value, dict):
            build = self._build
            built = {k: build.nested(f"run.metrics.{k}", v, metrics.METRICS) for k, v in value.items()}
            value = {k: build.function(f"run.metrics.{k}", v) for k, v in built.items()}
        try:
            return metrics.named(value)
        except RecipeError as e:
            raise RecipeError(f"{self.source}: {e}", "metrics") from None

    @contextmanager
    def filing(self) -> Iterator[Callable[[Mapping[str, Any]], None] | None]:
        """The sink of [sink] for rows within ``with``, after it got the settings; None without that table."""
        if "sink" not in self.tables:
            yield None
            return
        table = self._table("sink")
        kinds = schema.sink_kinds(schema.only_name(table.get("kind")))
        with closing(self._build.kind("sink", table, kinds)) as sink:
            sink.settings(filed(self.tables))
            yield sink

    def check_clients(self, n: int) -> None:
        """Raise RecipeError unless lists in [pace] and [devices] have an entry for each of ``n`` clients."""
        self._pace().check(n)
        self._devices().check(n)

    def tuning(self) -> dict[str, Any]:
        """The arguments of `medley.tune`: rounds, seeds and metric of [tune], and the options of a run.

        It ignores the target, because runs that end early have their last evaluations in different rounds.
        """
        tune = {k: v for k, v in self._table("tune").items() if k != "grid"}
        self._build.check_keys("tune", tune, ("rounds", "seeds", "metric"), also=("grid",))
        options = {
            k: v
            for k, v in self.options().items()
            if k not in ("target", "target_over", "evaluate_on", "best", "patience")
        }
        return {"rounds": self.rounds, "seeds": 1, **options, **tune}

    def grid(self, method: Algorithm[Any, Any] | Tuned) -> dict[str, list[Any]]:
        """The grid of this method: the lists in tune.grid, and those in its sub-table with the method's name."""
        grid = self._table("tune").get("grid", {})
        self._build.typed("tune.grid", grid, dict)
        kinds = {name.lower(): name for name in (*methods(()), *plugins.names("methods"), method.name)}
        out: dict[str, list[Any]] = {}
        keys = tunable(method.method if isinstance(method, Tuned) else method)
        for key, value in grid.items():
            if isinstance(value, dict):
                if key.lower() not in kinds:
                    raise RecipeError.unknown(key, kinds.values(), f"{self.source}: tune.grid")
                if key.lower() == method.name.lower():
                    self._build.check_keys(f"tune.grid.{key}", value, keys)
                    out |= value
            elif key in keys:
                out.setdefault(key, value)
            else:
                raise RecipeError.unknown(key, keys, f"{self.source}: tune.grid, for {method.name}")
        return out

    def dumps(self) -> str:
        """The recipe in TOML; `loads` reads it back."""
        return toml.written(self.tables)

    def save(self, path: str | Path) -> Path:
        """Write `dumps` to ``path``, whole or not at all."""
        path = Path(path)
        make_folder(path.parent)
        write(path, self.dumps())
        return path

    @property
    def _build(self) -> Builder:
        return Builder(self.source, self.folder, self.code)

    def _table(self, key: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self.tables.get(key, {}))

    def _problem(self) -> Parts:
        """The parts of [problem], with checked keys."""
        table = {
            k: self._build.function(f"problem.{k}", v) if k in ("loss", "train", "transform") else v
            for k, v in self._table("problem").items()
        }
        family = self._build.pick("problem.kind", table.pop("kind", None), KINDS["problem"])
        parameters = inspect.signature(family).parameters
        if "module" not in parameters:
            self._build.check_keys("problem", table, parameters, also=("kind",))
            return family, None, table, {}
        model = self._build.pick("problem.model", table.pop("model", None), model_functions())
        model_parameters, takes_any = named(model)
        if not takes_any:
            self._build.check_keys(
                "problem", table, [*(k for k in parameters if k != "module"), *model_parameters], also=("kind", "model")
            )
        of_model = {k: v for k, v in table.items() if k in model_parameters or (takes_any and k not in parameters)}
        return family, model, {k: v for k, v in table.items() if k in parameters}, of_model

    def _family(self, problem: Parts, shape: tuple[int, ...], classes: int | None, name: str) -> Any:
        """The problem of [problem]."""
        family, model, arguments, of_model = problem
        if model is not None:
            sizes = {"features": math.prod(shape), "classes": classes, "shape": shape}
            parameters = inspect.signature(model).parameters
            if "classes" in parameters and "classes" not in of_model and classes is None:
                raise RecipeError(f"{self.source}: problem.model needs classes, but {name} has none", "classes")
            settings = {k: v for k, v in sizes.items() if k in parameters} | of_model
            with Bounded(), streams.globals_kept("cpu"):
                streams.name_globals("cpu", 0, "module")  # a frozen part, which no seed draws, is the same everywhere
                arguments = {**arguments, "module": self._build.call("problem", model, settings)}
        return self._build.call("problem", family, arguments)

    def _rest(self) -> dict[str, Any]:
        """The arguments of `Federation` other than problem, data and partition."""
        out: dict[str, Any] = {"pace": self._pace(), "participation": self._participation(), "devices": self._devices()}
        for key in ("stream", "replay"):
            table = self._table(key)
            if table:
                out[key] = self._build.kind(key, table, KINDS[key])
        if "membership" in self.tables:
            table = {k: by_id(v) for k, v in self._table("membership").items()}
            out["membership"] = self._build.call("membership", CALLS["membership"], table)
        if "attack" in self.tables:
            out["attack"] = self._build.call("attack", CALLS["attack"], self._table("attack"))
        rest = self._table("federation")
        self._build.check_keys("federation", rest, ("weights", "classes", "f_star"))
        return out | rest

    def _pace(self) -> Any:
        pace = self._table("pace")
        table = {k: self._build.nested(f"pace.{k}", v) for k, v in pace.items() if k != "optimizer"}
        if "optimizer" in pace:
            table["optimizer"] = self._optimizer(pace["optimizer"])
        if table.get("batch") == "full":
            table["batch"] = None
        return self._build.call("pace", CALLS["pace"], table)

    def _optimizer(self, value: Any) -> Any:
        """A name, or a factory: "torch.optim:AdamW", or a table with such a kind and its settings."""
        if not isinstance(value, dict) or "kind" not in value:
            return self._build.user_object("pace.optimizer", value)
        make = self._build.user_object("pace.optimizer.kind", value["kind"])
        if not callable(make):
            raise self._build.wrong("pace.optimizer.kind", value["kind"], "a factory such as torch.optim:AdamW")
        settings = {k: v for k, v in value.items() if k != "kind"}
        self._build.check_keys("pace.optimizer", settings, inspect.signature(make).parameters)
        return functools.partial(make, **settings)

    def _devices(self) -> Any:
        table = {k: self._build.nested(f"devices.{k}", v) for k, v in self._table("devices").items()}
        if "preset" in table:
            preset = self._build.pick("devices.preset", table.pop("preset"), PRESETS)
            self._build.check_keys("devices", table, ())
            return preset()
        return self._build.call("devices", CALLS["devices"], table)

    def _participation(self) -> Any:
        value = self.tables.get("participation")
        if isinstance(value, dict):
            return self._build.kind("participation", value, KINDS["participation"], default="Fraction")
        return self._build.typed("participation", value, float | None)

    def _method(self, path: str, table: Mapping[str, Any]) -> Algorithm[Any, Any] | Tuned:
        if "kind" not in table:
            raise RecipeError(f"{self.source}: {path} lacks 'kind', the name of a method", "kind")
        spelt = path if path == "--methods" else f"{path}.kind"
        kind = self._build.pick(spelt, table["kind"], constructors(schema.only_name(table["kind"])))
        if is_own(table["kind"]) and not (inspect.isclass(kind) and issubclass(kind, Algorithm)):
            raise RecipeError(f"{self.source}: {path}.kind = {table['kind']!r} is not an Algorithm", "kind")
        settings = {k: self._build.nested(f"{path}.{k}", v) for k, v in table.items() if k not in ("kind", *WRAPPING)}
        lr = self._build.typed(f"{path}.lr", settings.pop("lr", 1.0), float)
        self._build.takes(path, kind, settings, also=("lr", *WRAPPING))
        algorithm = cast("Algorithm[Any, Any]", self._build.call(path, kind, settings))
        algorithm = wrapped(self._build, path, table, algorithm)
        return algorithm if lr == 1.0 else variant(algorithm, {"lr": lr})


def load(path: str | Path) -> Recipe:
    """The recipe in a file. Raises RecipeError if it cannot be read, is not TOML, or has unknown tables."""
    path = Path(path)
    return Recipe(toml.load(path), path.name, path.parent)


def loads(text: str, source: str = "recipe") -> Recipe:
    """The recipe in a text; messages call it ``source``. Raises RecipeError, as `load` does."""
    return Recipe(toml.read(text, source), source)


def tuned(recipe: Recipe, methods: Sequence[Tuned]) -> Recipe:
    """The recipe with these methods instead of its own."""
    tables = copy.deepcopy(recipe.tables) | {"methods": [written(t) for t in methods]}
    return replace(recipe, tables=tables)


def filed(tables: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a sink stores, by dotted key; without its own, which may have a password, and a secret seed."""
    settings = flattened({k: v for k, v in tables.items() if k != "sink"})
    private = any("private" in table for table in tables.get("methods", ()))
    for key in ("seed", "seeds"):
        value = tables.get("run", {}).get(key)
        seeds = value if isinstance(value, list) else [value]
        if value is not None and (private or any(type(n) is int and is_secret(n, {}) for n in seeds)):
            settings[f"run.{key}"] = "hidden"
    return settings
