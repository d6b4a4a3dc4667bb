"""Options of `run`, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ..contract.errors import RecipeError
from ..contract.numbers import integer, take
from ..scenarios.laws import is_number
from ..secure import SecureSum
from ..server.reply_policy import ReplyPolicy
from ..storage.directions import direction, higher_is_better
from ..storage.result import Row
from ..storage.weights import Start, Weights, weights_of
from ..wire.codec import Codec
from ..wire.connection import Transport
from .checks import expect
from .evaluation import Metric
from .simulation import HeldOut

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
"""Columns of the history beside metrics and a method's notes."""

GOALS = ("loss", "gap", "grad_norm", "test_loss", "accuracy", *sorted(c for c in COLUMNS if c.startswith("client_")))
"""Columns that a target may name, beside metrics."""


@dataclass(frozen=True, eq=False)
class RunOptions:
    """The options of `run`, with its meanings and defaults. Raises RecipeError for values out of range."""

    rounds: int = 100
    seed: int = 0
    init: Start | None = None
    dtype: torch.dtype | str | None = None
    device: str = "cpu"
    engine: str = "auto"
    transport: Transport | None = None
    codec: Codec | None = None
    reply_policy: ReplyPolicy | None = None
    secure: SecureSum | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int = 10
    resume: str | Path | None = None
    recipe: str | None = None
    eval_every: int = 1
    eval_rows: int | None = None
    clients_every: int | None = None
    client_models: bool | None = None
    evaluate_on: HeldOut = "test"
    target: Mapping[str, float] | None = None
    target_over: int = 1
    metrics: Mapping[str, Metric] | None = None
    on_round: Callable[[Row], object] | None = None
    throw: bool = True
    progress: bool | None = None
    readmit: Sequence[int] = ()
    weights: Weights | None = field(init=False, default=None)
    """The tensors of ``init``."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunOptions:
        """These options of `run`, whose device may be torch's own. Raises RecipeError for an unknown one."""
        known = [f.name for f in fields(cls) if f.init]
        if unknown := options.keys() - known:
            raise RecipeError.unknown(min(unknown), known, "run()")
        device = options.get("device")
        return cls(**{**options, **({"device": str(device)} if isinstance(device, torch.device) else {})})

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", weights_of(self.init))
        self._check_kinds()
        self._check_numbers()
        ids: object = self.readmit
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise RecipeError(f"run(readmit={self.readmit!r}): give ids of clients, such as [3]", "readmit")
        if self.readmit and self.resume is None:
            raise RecipeError("run(readmit=...): belongs to resume=, the folder of the run that goes on", "readmit")
        self._check_figures()
        self._check_torch()

    def _check_kinds(self) -> None:
        expect(self.transport, Transport, "run(transport=...)", "transports.Local()", "transport")
        expect(self.codec, Codec, "run(codec=...)", "wire.codecs.Cast('float16')", "codec")
        expect(self.reply_policy, ReplyPolicy, "run(reply_policy=...)", "ReplyPolicy(deadline=60)", "reply_policy")
        expect(self.secure, SecureSum, "run(secure=...)", "SecureSum(bound=10)", "secure")
        expect(self.target, Mapping, "run(target=...)", "{'accuracy': 0.9}", "target")
        for key, folder in (("checkpoint", self.checkpoint), ("resume", self.resume)):
            expect(folder, str | Path, f"run({key}=...)", "'runs/a', a folder's name", key)
        expect(self.recipe, str, "run(recipe=...)", "a recipe's text in TOML", "recipe")
        expect(self.throw, bool, "run(throw=...)", "True", "throw", wanted=True)
        expect(self.client_models, bool, "run(client_models=...)", "True", "client_models")
        expect(self.progress, bool, "run(progress=...)", "True", "progress")
        expect(self.metrics, Mapping, "run(metrics=...)", "{'top3': function}", "metrics")
        functions: dict[str, object] = {"on_round": print if self.on_round is None else self.on_round}
        for name, f in (functions | {**(self.metrics or {})}).items():
            if not callable(f) or isinstance(f, type):
                raise RecipeError(f"run(): {name} is {f!r}; give a function", name)

    def _check_numbers(self) -> None:
        least = dict.fromkeys(("target_over", "eval_every", "eval_rows", "clients_every", "checkpoint_every"), 1)
        least["rounds"] = 0
        take(self, integer, "seed", *least)
        if integer(self.seed) is None:
            raise RecipeError(f"run(seed={self.seed!r}): must be a whole number", "seed")
        for key, low in least.items():
            value = getattr(self, key)
            if key in ("clients_every", "eval_rows") and value is None:
                continue
            if (number := integer(value)) is None or number < low:
                raise RecipeError(f"run({key}={value!r}): must be a whole number, at least {low}", key)

    def _check_figures(self) -> None:
        for name, goal in (self.target or {}).items():
            if not is_number(goal):
                raise RecipeError(f"run(target={{{name!r}: {goal!r}}}): must be a finite number", "target")
            if "accuracy" in name and not 0 <= goal <= 1:
                raise RecipeError(
                    f"run(target={{{name!r}: {goal!r}}}): accuracies are 0 to 1; write 0.9 for 90 %", "target"
                )
            if name not in (known := (*GOALS, *(self.metrics or {}))):
                raise RecipeError.unknown(name, known, "run(target=...)")
        if self.evaluate_on not in ("test", "validation"):
            raise RecipeError.unknown(str(self.evaluate_on), ("test", "validation"), "run(evaluate_on=...)")
        if self.eval_rows is not None and (exact := {"gap", "grad_norm"} & (self.target or {}).keys()):
            raise RecipeError(
                f"run(eval_rows={self.eval_rows}, target={{{min(exact)!r}: ...}}): an estimate from some rows is no "
                "end of a search for the optimum; leave one of them out",
                "eval_rows",
            )
        if taken := COLUMNS & (self.metrics or {}).keys():
            raise RecipeError(f"run(metrics=...): {min(taken)!r} is a column already; choose another name", "metrics")

    def _check_torch(self) -> None:
        found = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if found in (torch.float16, torch.bfloat16):
            kind = str(found).removeprefix("torch.")
            raise RecipeError(
                f"run(dtype={self.dtype!r}): choose float32 or float64. The model itself would be {kind}, whose "
                "rounding loses small steps, and a step on the CPU takes twice as long as in float32; "
                f"codec=wire.codecs.Cast({kind!r}) halves the bytes on the wire",
                "dtype",
            )
        if self.dtype is not None and found not in (torch.float32, torch.float64):
            raise RecipeError(f"run(dtype={self.dtype!r}): choose float32 or float64", "dtype")
        object.__setattr__(self, "dtype", found)
        try:
            torch.zeros(1, device=str(self.device)).item()  # the device "meta" has no values
        except Exception:  # of several kinds: no such word, torch built without it, no such hardware
            raise RecipeError(
                f"run(device={self.device!r}): torch finds no such device here; leave device= out, or take 'cpu'",
                "device",
            ) from None

    @property
    def directions(self) -> dict[str, str]:
        """The direction of each metric by name, "higher" or "lower"."""
        return {name: direction(name, f) for name, f in (self.metrics or {}).items()}

    @property
    def at_least(self) -> frozenset[str]:
        """The figures of the target that are to be at least so large."""
        return frozenset(name for name in self.target or {} if higher_is_better(name, self.directions))

    def check_measurable(self, tested: bool, f_star: float | None, stream: bool) -> None:
        """Raise RecipeError for targets and metrics that the federation cannot measure.

        Args:
            tested: whether there are test rows
            f_star: the optimal loss, None where it is not known
            stream: whether data comes in tasks
        """
        target = self.target or {}
        if stream and target:
            raise RecipeError("run(target=...): the tasks of a stream have one end each; leave target= out", "target")
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
