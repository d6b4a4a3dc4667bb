"""The settings of a run: names, types, values, defaults and meanings, declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..contract import Checked, RecipeError, at_least, describe, integer, kinds, take
from ..contract.surroundings import set_aside
from ..contract.text import NAME, is_name
from ..metrics import named
from ..secure import SecureSum
from ..storage.directions import COSTS, DECLARED, directions_of, higher_is_better
from ..storage.history import Row
from ..storage.weights import Start, Weights, weights_of
from ..wire.codec import Codec, Plain
from ..wire.connection import Transport
from .reply_policy import EVERY_REPLY, ReplyPolicy

HeldOut = Literal["test", "validation"]
"""The rows on which Medley measures test figures."""

Metric = Callable[[Tensor, Tensor], float]
"""A figure of the test rows' outputs and targets."""

DeclaredMetric = Metric | str | tuple[Metric | str, Literal["max", "min"]]
"""A metric, the name of one, or one with its direction: "max" where more is better."""

(FINITE,) = kinds(float)

COLUMNS = {"round", "exchanges", "seconds", "wall", "bytes_down", "bytes_up", "loss", "gap", "grad_norm"}
COLUMNS |= {"loss_error", "test_loss", "accuracy", "attack_success", "task", "client", "rows", "test_rows"}
COLUMNS |= {f"client_{m}_{of}" for m in ("accuracy", "test_loss") for of in ("mean", "worst", "spread")}
PERSONAL = {"personal_loss", "personal_test_loss", "personal_accuracy"}
PERSONAL |= {"personal_accuracy_mean", "personal_accuracy_worst"}
COLUMNS |= PERSONAL | {"took_part"} | {f"server_{name}" for name in ("loss", "test_loss", "accuracy")}
COLUMNS |= {
    "client_accuracy_mean_estimate",
    "client_accuracy_worst_estimate",
    "lost",
    "late",
    "evaluations",
    "evaluated",
}
"""Columns of the history, besides metrics and a method's notes."""

TABLE = {
    "method", "seeds", "used", "status", "reached", "base", "compared_by", "difference", "difference_half",
    "difference_n", "wins",
}  # fmt: skip
"""Columns of a comparison's table, besides figures."""

GOALS = (
    "loss",
    "gap",
    "grad_norm",
    "test_loss",
    "accuracy",
    *sorted(c for c in COLUMNS if c.startswith("client_")),
    *COSTS,
)
"""Columns that a target may name, besides metrics."""

HERE = {"recipe": False}
"""The metadata of a setting that belongs to one call, not to a recipe."""


@dataclass(frozen=True, eq=False)
class RunOptions(Checked):
    """The settings of a run. The arguments of `medley.run`, its documentation and the keys of [run] follow from them.

    Attributes:
        rounds: the number of rounds; in a stream, of each task
        seed: the seed of all random draws
        init: weights and buffers to start from; by default the seed draws them. A Result, a state_dict, a module, a
            file of either (safetensors, or torch.save's), the folder of a run, or x₀ [d]
        dtype: the floating-point type of the model, "float32" or "float64"; the problem's own by default
        device: the device, or torch's name of it
        engine: the engine of local descents: "auto", "seq", "fused" or "stacked"
        transport: the way to the clients; this process by default. `transports.Auto()` takes worker processes if
            they save time
        codec: the encoding of messages; see `medley.codecs`
        reply_policy: the replies that an exchange waits for; all by default
        secure: secure aggregation: the server learns only sums of replies. None, the default, for none
        checkpoint: a new folder for everything that the run saves; see `medley.storage.run_folder`
        checkpoint_every: rounds between two checkpoints; there is one at the end and on Ctrl-C, too
        resume: the folder of a run that was stopped or killed; the run continues, and keeps writing to this folder
        recipe: the TOML source, saved in the run folder
        eval_every: rounds between two rows of the history
        eval_rows: the number of training rows from which the history's loss is estimated; about p_i of them are client
            i's. None, the default: all rows. The column ``loss_error`` has the standard error
        clients_every: rounds between two tables of `Result.clients`; by default there is one, at the end, if clients
            have their own test rows or models
        client_models: whether the result keeps the clients' own models, for `Result.client_model`; by default if they
            take at most 256 MiB together
        evaluate_on: the rows that test figures are of, "test" or "validation"
        target: the run ends when a figure reaches its value here: ``{"accuracy": 0.9}`` at least; losses, gap and
            grad_norm at most; metrics in their own direction. It also ends at the first evaluation with at least these
            virtual ``seconds``, ``bytes``, ``bytes_down``, ``bytes_up`` or ``exchanges``
        target_over: the number of last evaluations whose mean is compared with ``target``. With the default, 1, a noisy
            run can stop at a lucky round
        best: the result has the model of the round in which this figure was best: "accuracy", "test_loss" or a metric,
            on validation rows, so it needs ``evaluate_on="validation"``. None, the default: the last round's model
        patience: early stopping: with ``best``, the run ends after this number of evaluations without a better one
        metrics: names of `medley.metrics`, ``["auroc"]``; or, by the name of their column, functions of the test rows'
            (outputs, y) and such names. ``(f, "max")`` or ``(f, "min")`` says whether more or less is better. Without
            it, Medley looks for known words in the name, such as "recall", and asks you if it matters and no word
            decides
        on_round: a function that is called with every row of the history
        throw: whether to raise Diverged, Stalled or BudgetSpent if the run diverges, stalls, or spends its privacy
            budget; the error carries the result so far
        progress: whether to show a progress bar; on a terminal by default
        readmit: with ``resume``, clients that lost their memory: they start again, and the method recomputes its sums

    Raises RecipeError for settings that make no sense.
    """

    call: ClassVar[str] = "run"

    rounds: Annotated[int, at_least(0)] = 100
    _: KW_ONLY
    seed: int = 0
    init: Start | None = None
    dtype: torch.dtype | str | None = None
    device: str | torch.device = "cpu"
    engine: Annotated[str, "'auto'"] = "auto"
    transport: Annotated[Transport, "transports.InProcess()"] | None = None
    codec: Annotated[Codec, "codecs.Cast('float16')"] | None = None
    reply_policy: Annotated[ReplyPolicy, "ReplyPolicy(deadline=60)"] | None = None
    secure: Annotated[SecureSum, "SecureSum(bound=10)"] | None = None
    checkpoint: Annotated[str, "'runs/a'"] | Path | None = field(default=None, metadata=HERE)
    checkpoint_every: Annotated[int, at_least(1)] = 10
    resume: Annotated[str, "'runs/a'"] | Path | None = field(default=None, metadata=HERE)
    recipe: str | None = field(default=None, metadata=HERE)
    eval_every: Annotated[int, at_least(1)] = 1
    eval_rows: Annotated[int, at_least(1)] | None = None
    clients_every: Annotated[int, at_least(1)] | None = None
    client_models: bool | None = field(default=None, metadata=HERE)
    evaluate_on: HeldOut = "test"
    target: Annotated[Mapping[str, float], "{'accuracy': 0.9}"] | None = None
    target_over: Annotated[int, at_least(1)] = 1
    best: Annotated[str, "'accuracy'"] | None = None
    patience: Annotated[int, at_least(1)] | None = None
    metrics: (
        Annotated[Mapping[str, DeclaredMetric], "{'top3': (function, 'max')}"]
        | Sequence[Annotated[str, "'auroc'"]]
        | None
    ) = None
    on_round: Callable[[Row], object] | None = None
    throw: bool = field(default=True, metadata=HERE)
    progress: bool | None = field(default=None, metadata=HERE)
    readmit: Annotated[Sequence[int], "[3], ids of clients"] = field(default=(), metadata=HERE)
    weights: Weights | None = field(init=False, default=None)
    """The tensors of ``init``."""

    @set_aside("run()")
    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", weights_of(self.init))
        settings = describe(type(self))  # type: ignore[arg-type]
        take(self, integer, *(s.name for s in settings if any(kind.type is int for kind in s.kinds)))
        super().__post_init__()
        object.__setattr__(self, "metrics", named(self.metrics))
        for name, metric in self.declared.items():
            if not is_name(name):
                raise RecipeError(f"run(metrics={{{name!r}: ...}}): the name of a metric is {NAME}", "metrics")
            if isinstance(metric, tuple) and (len(metric) != 2 or metric[1] not in DECLARED):
                raise RecipeError(
                    f"run(metrics={{{name!r}: {metric!r}}}): give a function, or (function, 'max' or 'min')", name
                )
        functions: dict[str, object] = {"on_round": self.on_round or print, **self.functions}
        for name, f in functions.items():
            if not callable(f) or isinstance(f, type):
                remedy = f"an object of it, {f.__name__}()" if isinstance(f, type) else "a function"
                raise RecipeError(f"run(): {name} is {f!r}; give {remedy}", name)
        if self.readmit and self.resume is None:
            raise RecipeError("run(readmit=...): needs resume=, the folder of the run that should go on", "readmit")
        self._check_figures()
        self._check_torch()

    def _check_figures(self) -> None:
        for name, goal in (self.target or {}).items():
            if not FINITE.fits(goal, {}):
                raise RecipeError(f"run(target={{{name!r}: {goal!r}}}): must be {FINITE.text}", "target")
            if "accuracy" in name and not 0 <= goal <= 1:
                raise RecipeError(
                    f"run(target={{{name!r}: {goal!r}}}): accuracies are 0 to 1; write 0.9 for 90 %", "target"
                )
            goals = (*GOALS, *self.declared)
            if name not in goals:
                raise RecipeError.unknown(name, goals, "run(target=...)")
            if name not in COSTS:
                higher_is_better(name, self.directions)
        self._check_best()
        if self.target_over != 1 and not self.target:
            raise RecipeError(
                f"run(target_over={self.target_over}): there is no target; give target={{'accuracy': 0.9}}, or leave "
                "it out",
                "target_over",
            )
        exact = {"gap", "grad_norm"} & (self.target or {}).keys()
        if self.eval_rows is not None and exact:
            raise RecipeError(
                f"run(eval_rows={self.eval_rows}, target={{{min(exact)!r}: ...}}): this target needs an exact "
                "figure, and eval_rows= only estimates it; leave one of them out",
                "eval_rows",
            )
        derived = {f"{m}_{end}" for m in self.declared for end in ("error", "within", "sd", "half", "n")}
        taken = (COLUMNS | TABLE | derived) & self.declared.keys()
        if taken:
            raise RecipeError(f"run(metrics=...): {min(taken)!r} is a column already; choose another name", "metrics")

    def _check_best(self) -> None:
        if self.best is None:
            if self.patience is not None:
                raise RecipeError("run(patience=...): name its figure, best='accuracy' or best='test_loss'", "patience")
            return
        figures = ("accuracy", "test_loss", *self.declared)
        if self.best == "loss":
            raise RecipeError(
                "run(best='loss') would choose by the training rows; to choose by held-out rows, pass best='test_loss'",
                "best",
            )
        if self.best not in figures:
            raise RecipeError.unknown(self.best, figures, "run(best=...)")
        higher_is_better(self.best, self.directions)
        if self.evaluate_on != "validation":
            raise RecipeError(
                f"run(best={self.best!r}): a model that is chosen by test rows looks better than it is; give "
                "evaluate_on='validation', and measure the result on the test rows by run(rounds=0, init=result)",
                "best",
            )

    def _check_torch(self) -> None:
        dtype = self.float_type
        if dtype in (torch.float16, torch.bfloat16):
            kind = str(dtype).removeprefix("torch.")
            raise RecipeError(
                f"run(dtype={self.dtype!r}): choose float32 or float64. The model itself would be {kind}, whose "
                "rounding loses small steps, and a step on the CPU takes twice as long as in float32; "
                f"codec=codecs.Cast({kind!r}) halves the bytes on the wire",
                "dtype",
            )
        if self.dtype is not None and dtype not in (torch.float32, torch.float64):
            raise RecipeError(f"run(dtype={self.dtype!r}): choose float32 or float64", "dtype")
        try:
            torch.zeros(1, device=self.device_name).item()  # the device "meta" has no values
        except Exception:  # of several kinds: no such word, torch built without it, no such hardware
            raise RecipeError(
                f"run(device={self.device!r}): torch finds no such device here; leave device= out, or take 'cpu'"
                + ("; torch calls an Nvidia GPU 'cuda'" if str(self.device).startswith("gpu") else ""),
                "device",
            ) from None

    @property
    def float_type(self) -> torch.dtype | None:
        """The floating-point type of the model; None for the problem's own."""
        return getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype

    @property
    def device_name(self) -> str:
        """Torch's name of the device."""
        return str(self.device)

    @cached_property
    def encoding(self) -> Codec:
        """The encoding of messages."""
        return self.codec or Plain()

    @property
    def policy(self) -> ReplyPolicy:
        """The replies that an exchange waits for."""
        return self.reply_policy or EVERY_REPLY

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None keeps nothing."""
        folder = self.resume if self.checkpoint is None else self.checkpoint
        return None if folder is None else Path(folder)

    @property
    def declared(self) -> Mapping[str, DeclaredMetric]:
        """The metrics by the name of their column, without names of metrics."""
        return self.metrics if isinstance(self.metrics, Mapping) else {}

    @property
    def functions(self) -> dict[str, Metric]:
        """The metrics' functions by name."""
        functions: dict[str, Any] = {name: m[0] if isinstance(m, tuple) else m for name, m in self.declared.items()}
        return functions

    @property
    def directions(self) -> dict[str, str]:
        """The direction of each metric by name: "higher", "lower" or "unknown"."""
        return directions_of(self.declared)

    @property
    def at_least(self) -> frozenset[str]:
        """The figures of the target that must reach at least their value."""
        figures = {*(self.target or {})} - {*COSTS}
        return frozenset(name for name in figures if higher_is_better(name, self.directions))

    @property
    def aims(self) -> list[tuple[str, str]]:
        """The figures that end the run or choose its model, each as (setting, figure)."""
        best = [] if self.best is None else [("best", self.best)]
        return [("target", name) for name in sorted(self.target or {}) if name not in COSTS] + best

    def check_measurable(self, tested: bool, f_star: float | None, stream: bool, personal: bool) -> None:
        """Raise RecipeError for targets, metrics and choices that the federation or the method does not have."""
        target = self.target or {}
        if stream and target:
            raise RecipeError("run(target=...): each task of a stream has its own end; leave target= out", "target")
        if stream and self.best is not None:
            raise RecipeError("run(best=...): each task of a stream has its own best round; leave best= out", "best")
        if personal and self.best is not None:
            raise RecipeError(
                "run(best=...): clients use their own models here, and only the last round has them; leave best= out",
                "best",
            )
        if "gap" in target and f_star is None:
            raise RecipeError(
                "run(target={'gap': ...}): the optimum is not known; give Federation(f_star=...)", "target"
            )
        on_test = {"accuracy", "test_loss", *(c for c in target if c.startswith("client_"))}
        if not tested and (self.metrics or target.keys() & on_test):
            key = "metrics" if self.metrics else "target"
            raise RecipeError(
                f"run({key}=...): there is no test set to measure that on; give Federation(test=(X, y))", key
            )
