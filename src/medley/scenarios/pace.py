"""Each client's local training budget in each round: the scenario behind ``me.pace``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch

from ..contract import Checked, RecipeError, Settings, at_least, below, positive
from ..contract import pace as contract
from ..contract.place import name_of
from ..contract.text import unquoted
from ..distributions import Number, Spread, check_lengths, is_distribution, is_number, of_client, plain
from ..runtime.streams import rng

PaceSchedule = Callable[[int], Number]
"""A function of the round (1, 2, ...)."""

Each = Spread | PaceSchedule

EachOrNone = Each | Sequence[Number | None] | Callable[[int], Number | None] | None


@dataclass(frozen=True)
class step_decay(Settings):
    """A schedule: ``factor`` ** ⌊(round − 1) / ``every``⌋, so 1 for the first ``every`` rounds."""

    every: int
    factor: Number

    def __post_init__(self) -> None:
        if not is_number(self.every) or self.every < 1 or self.every != int(self.every):
            raise RecipeError(f"{self!r}: every counts rounds and must be at least 1, a whole number.", "every")
        if not is_number(self.factor) or self.factor <= 0:
            raise RecipeError(f"{self!r}: factor must be above 0, or the learning rate would vanish.", "factor")

    def __call__(self, round: int) -> float:
        """The factor of ``round``."""
        return float(self.factor ** ((round - 1) // self.every))


@dataclass(frozen=True)
class cosine(Settings):
    """A schedule: ½(1 + cos(π (round − 1) / ``rounds``)), from 1 in round 1 towards 0.

    Later rounds keep the factor of round ``rounds``, so it is never 0 (Loshchilov and Hutter, SGDR, ICLR 2017, without
    restarts).
    """

    rounds: int

    def __post_init__(self) -> None:
        if not is_number(self.rounds) or self.rounds < 1 or self.rounds != int(self.rounds):
            raise RecipeError(f"{self!r}: rounds must be at least 1, a whole number.", "rounds")

    def __call__(self, round: int) -> float:
        """The factor of ``round``."""
        return 0.5 * (1 + math.cos(math.pi * (min(round, self.rounds) - 1) / self.rounds))


_SPREAD = ("lr", "epochs", "steps", "batch", "pairs")


@dataclass(frozen=True)
class Pace(Checked):
    """Each client's local training budget in each round.

    The first four settings and ``pairs`` may differ between clients. Each is one number for all, a list with one entry
    per client, a distribution that each client draws from, or a function of the round (1, 2, ...). Raises RecipeError,
    naming key and client, for a learning rate not above 0, a count below 1 (``pairs``: below 0), and a value that is
    not finite.

    Attributes:
        lr: Learning rate of a client; default 0.1.
        epochs: Passes over the client's rows in a round; default 1.
        steps: Mini-batches in a round; overrides ``epochs``. Default None: epochs count.
        batch: Rows of a mini-batch; None is the full batch. Default 32.
        momentum: Momentum of the client's descent, in [0, 1); default 0.
        weight_decay: Weight decay, part of the local gradient; default 0.
        clip: Bound on the norm of the local gradient; default None, no bound. The gradient includes ``weight_decay``,
            but not the weight decay of a factory's optimizer, as with torch's ``clip_grad_norm_``.
        optimizer: "sgd" (default), "adam", or a factory (parameters, lr=...) -> torch.optim.Optimizer: a class of
            ``torch.optim``, or ``functools.partial(torch.optim.AdamW, betas=(0.9, 0.99))``.
        optimizer_state: "fresh" (default) starts a factory's optimizer again in every round, "kept" continues with the
            client's own. Kept states are part of a client's memory: if a reply is lost, so is its change of the state.
        drop_last: Whether to leave out the last batch of a pass if it is smaller than the others, as DataLoader's
            drop_last does; default False.
        pairs: Eigenpairs that the client can send in a round; default 1.
        redraw: Whether to draw from distributions in every round; default False, once per run.
        schedule: A function of the round that multiplies lr, such as ``step_decay(every=30, factor=0.1)`` or
            ``cosine(rounds=100)``; default none.
    """

    lr: Each = 0.1
    epochs: Each = 1
    steps: EachOrNone = None
    batch: EachOrNone = 32
    momentum: Annotated[Number, at_least(0), below(1)] = 0.0
    weight_decay: Annotated[Number, at_least(0)] = 0.0
    clip: Annotated[Number, positive] | None = None
    optimizer: contract.Optimizer = "sgd"
    optimizer_state: Literal["fresh", "kept"] = field(default="fresh", kw_only=True)
    drop_last: bool = field(default=False, kw_only=True)
    pairs: Each = 1
    redraw: bool = False
    schedule: Annotated[PaceSchedule, "scenarios.step_decay(every=30, factor=0.1)"] | None = None

    def __post_init__(self) -> None:
        for key in _SPREAD:
            value = plain(getattr(self, key))
            object.__setattr__(self, key, value)
            if isinstance(value, Mapping):
                raise RecipeError(
                    f"Pace({key}={value!r}): give a list with an entry for each client, in the order of their "
                    "numbers, or a distribution that each draws from.",
                    key,
                )
            if isinstance(value, tuple):
                for client, entry in enumerate(value):
                    _checked(key, entry, partial(name_of, client))
            elif isinstance(value, type) or not (is_distribution(value) or callable(value)):
                _checked(key, value, lambda: "every client")
        super().__post_init__()
        self._check_optimizer()

    def _check_optimizer(self) -> None:
        is_factory = callable(self.optimizer)
        if self.optimizer_state == "kept" and not is_factory:
            raise RecipeError(
                f"Pace(optimizer_state='kept') is for factories, but the optimizer is {self.optimizer!r}, which starts "
                "again in every round: set optimizer_state='fresh', or a class such as optimizer=torch.optim.SGD.",
                "optimizer_state",
            )
        if self.optimizer == "adam" and self.momentum:
            raise RecipeError(
                f"Pace(optimizer='adam', momentum={self.momentum}): Adam has moments of its own and takes no momentum: "
                "leave momentum= out, or give functools.partial(torch.optim.Adam, betas=(0.9, 0.999)).",
                "momentum",
            )
        if is_factory and self.momentum:
            raise RecipeError(
                f"Pace(momentum={self.momentum}): a factory's optimizer has settings of its own; write "
                "functools.partial(torch.optim.SGD, momentum=0.9).",
                "momentum",
            )
        if self.drop_last and self.batch is None:
            raise RecipeError(
                "Pace(drop_last=True, batch=None): a full batch has no smaller last one; leave drop_last= out, or give "
                "batch=",
                "drop_last",
            )
        if self.redraw and not any(is_distribution(getattr(self, key)) for key in _SPREAD):
            raise RecipeError(
                "Pace(redraw=True): no setting is drawn from a distribution; leave redraw= out, or give one, such as "
                "lr=distributions.LogUniform(0.01, 0.1)",
                "redraw",
            )
        if not isinstance(self.optimizer, str):
            _tried(self.optimizer)

    def check(self, clients: int) -> None:
        """Raise RecipeError unless every list has exactly one entry for each of ``clients`` clients."""
        check_lengths(self, clients)

    @property
    def steady(self) -> bool:
        """Whether a client's budget is the same in every round."""
        functions = (getattr(self, key) for key in _SPREAD)
        return (
            not self.redraw and self.schedule is None and all(is_distribution(f) or not callable(f) for f in functions)
        )

    def of(self, seed: int, client: int, round: int) -> contract.Pace:
        """The budget of ``client`` in ``round`` (1, 2, ...) of the run of ``seed``: a pure function of its arguments.

        Raises RecipeError if a distribution or a function gives a value out of range.
        """
        lr, epochs, steps, batch, pairs = (self._value(key, seed, client, round) for key in _SPREAD)
        if self.schedule is not None:
            factor = plain(_called(self.schedule, "schedule", round))
            if not is_number(factor):
                raise RecipeError(
                    f"Pace(schedule=...) gives {factor!r} in round {round}: it must be a finite number.", "schedule"
                )
            words = lambda: f"{name_of(client)} in round {round} (the schedule's factor is {factor!r})"
            lr = _checked("lr", lr * factor, words)
        return contract.Pace(
            lr=lr,
            epochs=epochs,
            steps=steps,
            batch=batch,
            momentum=float(self.momentum),
            weight_decay=float(self.weight_decay),
            clip=None if self.clip is None else float(self.clip),
            optimizer=self.optimizer,
            optimizer_state=self.optimizer_state,
            drop_last=self.drop_last,
            pairs=pairs,
        )

    def _value(self, key: str, seed: int, client: int, round: int) -> Any:
        value = getattr(self, key)
        if callable(value) and not is_distribution(value):
            value = plain(_called(value, key, round))
        if value is not None and not isinstance(value, str):
            name = (client, key, round) if self.redraw else (client, key)
            value = of_client(value, key, client, lambda: rng(seed, "pace", *name))
        return _checked(key, value, lambda: f"{name_of(client)} in round {round}")


def _tried(make: contract.OptimizerFactory) -> None:
    """Raise RecipeError unless the factory makes an optimizer that takes a step without a closure."""
    point = torch.nn.Parameter(torch.ones(2, 2))
    point.grad = torch.ones(2, 2)
    name = getattr(make, "__name__", repr(make))
    try:
        optimizer = make([point], lr=0.1)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise RecipeError(
                f"Pace(optimizer={name}): it makes a {type(optimizer).__name__}, not a torch.optim.Optimizer."
            )
        optimizer.step()
    except RecipeError:
        raise
    except Exception as e:
        raise RecipeError(
            f"Pace(optimizer={name}): calling it with (parameters, lr=0.1), and then step(), fails: {e}. Use a class "
            "of torch.optim that needs no closure, or a functools.partial of one.",
            "optimizer",
        ) from e


def _called(f: Callable[[int], Any], key: str, round: int) -> Any:
    """f(round). Raises RecipeError, naming the setting, if a user's function fails."""
    try:
        return f(round)
    except Exception as e:
        raise RecipeError(
            f"Pace({key}=...) is a function that fails in round {round}: {type(e).__name__}: {e}; it must take a round "
            "and return a number",
            key,
        ) from e


def _checked(key: str, value: Any, whose: Callable[[], str]) -> float | int | None:
    """``value`` in the contract's form: lr a float above 0, pairs a whole number from 0, others from 1 or None.

    ``whose`` makes the words of an error: every client of every round comes by here.
    """
    value = plain(value)
    if key == "lr":
        if not is_number(value) or value <= 0:
            remedy = f"a learning rate must be above 0 and finite{unquoted(value)}."
            raise RecipeError(f"Pace(lr=...) gives {value!r} to {whose()}: {remedy}", key)
        return float(value)
    if value is None and key in ("steps", "batch"):
        return None
    least = 0 if key == "pairs" else 1  # a channel in a deep fade carries none
    if not is_number(value) or value < least or value != int(value):
        hint = " Integers(low, high) draws whole numbers." if is_number(value) and value != int(value) else ""
        full = " None is the full batch." if key == "batch" else ""
        raise RecipeError(
            f"Pace({key}=...) gives {value!r} to {whose()}: {key} must be a whole number, at least {least}"
            f"{unquoted(value)}.{hint}{full}",
            key,
        )
    return int(value)
