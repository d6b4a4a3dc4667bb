"""A method's view of a client: its data, its memory and its pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import TypeVar

from ..runtime import stopwatch, streams
from .errors import Unsupported
from .pace import Optimizer, OptimizerState, Pace
from .problem import Correction, LocalLoss, Objective
from .task import Replay, Task
from .types import Index, Num, Rows, Vec


@dataclass
class Nothing:
    """The memory of a client that keeps nothing between calls."""


M = TypeVar("M", default=Any)

Part = Literal["both", "shared", "own"]
"""The parameters that a local descent trains, if clients have personal parameters."""


@dataclass(frozen=True)
class LocalUpdate:
    """The result of a local descent from x to y; `Client.descend` returns it.

    Attributes:
        step: the displacement y − x [d], which points downhill
        T: the simulated time lr·S. Under momentum ρ and a pull of strength mu, each step sets c ← ρc + 1 and S ← (1 −
            lr·mu)·S + c, from c = S = 0. So T is FedNova's lr·‖a‖₁ (Wang et al. 2020), and lr·steps for plain SGD. Adam
            has no such weights: with Adam, T is lr·steps
        steps: the number of optimizer steps
        engine: the name of the engine that ran, which may differ from the chosen one
        first: the first step [d], if requested; otherwise None

    For a stack of k clients, ``step`` and ``first`` are [k, d], and ``T`` and ``steps`` are columns [k, 1].
    """

    step: Vec
    T: Num
    steps: Num
    engine: str
    first: Vec | None = None


class Descent(NamedTuple):
    """The update rule of a local descent, as `Client.descend` passes it to an engine.

    x ← x − lr·(scale·∇f(x; batch) + mu·(x − anchor) + shift), with (mu, anchor) = ``pull``.

    Attributes:
        scale: a factor of the gradient; a number, or a column [k, 1].
        pull: (mu, anchor); mu is a number, a column [k, 1] or a vector [d], anchor a vector; None for no pull.
        shift: (factor, vector), whose product is added to every gradient; in a stack factor may be a column [k, 1].
        loss: replaces the problem's loss; None for the problem's own.
        correct: maps (x, gradient, rows) to the direction that replaces the gradient; None for the gradient itself.
        optimizer: "sgd", "adam", or a factory of torch's optimizers.
        train: "both", or the one part that is trained, if clients have personal parameters.
        first: whether the first step is requested. Clients with personal parameters, or with private rows, do not
            return it.
    """

    scale: Num = 1.0
    pull: tuple[Num | Vec, Vec] | None = None
    shift: tuple[Num, Vec] | None = None
    loss: LocalLoss | None = None
    correct: Correction | None = None
    optimizer: Optimizer = "sgd"
    train: Part = "both"
    first: bool = False


@runtime_checkable
class Engine(Protocol):
    """Runs local descents, for one client or for a stack. It draws only from the client's named streams."""

    @property
    def name(self) -> str:
        """The engine's name in the run's record."""

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """Run this round's pace of ``how`` from x [d], or [k, d] for a stack of k clients; see `Client.descend`."""


@dataclass
class Client(Generic[M]):
    """One client in one call. Only ``memory`` outlives the call.

    Attributes:
        id: from 0
        p: its share p_i of all clients' rows; Σ p_i = 1 over the population
        problem: its objective f_i
        pace: its local training budget in this round; read-only
        engine: runs its local descents
        seed: the seed of the run; default 0
        round: the number of the round, from 1
        task: the current task of a stream; without a stream, the only task
        replay: its rows of past tasks; None without a stream and a replay memory
        objective_of: indices of its rows, over all tasks -> their objective; None without a stream
        as_received: a message -> the message after the codec's round trip, as the server aggregates it
        ran: the engines that ran in this call
        optimizer_state: the state of its own optimizer; None before its first step, and if states are not kept
        phase: a part of its work with its own random streams, for example "own"; default ""
        noise_seed: the seed of the noise that protects its rows, known only to its own node; None for ``seed``
        people: the person of each of its rows, int64 [n]; None unless rows are private by person
        memory: its memory, as the algorithm declares it; change it only by assignment
    """

    id: int
    p: float
    problem: Objective
    pace: Pace
    engine: Engine
    seed: int = 0
    round: int = 0
    task: Task = field(default_factory=Task)
    replay: Replay | None = None
    objective_of: Callable[[Index], Objective] | None = None
    _recalled: list[Objective] = field(default_factory=list)
    as_received: Callable[[Any], Any] = lambda message: message
    ran: set[str] = field(default_factory=set)
    optimizer_state: OptimizerState | None = None
    phase: str = ""
    noise_seed: int | None = None
    people: Index | None = None
    _whole: Client[M] | None = field(default=None, repr=False)
    memory: M = field(default=None, kw_only=True)  # type: ignore[assignment]

    @property
    def members(self) -> tuple[Client[M], ...]:
        """The clients served in this call: this client, or the clients of a `ClientStack`."""
        return (self,)

    def recall(self, rows: Index) -> Objective:
        """The objective of some rows of this task and of past tasks, numbered as in `Task.first`.

        Raises Unsupported without a stream.
        """
        if self.objective_of is None:
            raise Unsupported(
                "recall() needs a stream of tasks; pass Federation(stream=...)", method="recall", need="stream"
            )
        self._recalled.append(self.objective_of(rows))
        return self._recalled[-1]

    @property
    def work(self) -> float:
        """The work of this call in row gradients, including those of past tasks' rows."""
        past = [*self._recalled, *([] if self.replay is None else [self.replay.problem])]
        return self.problem.work + sum(objective.work for objective in past) if past else self.problem.work

    def rng(self, purpose: str, reuse: torch.Generator | None = None) -> torch.Generator:
        """A fresh stream named (seed, client, round, phase and purpose), or ``reuse``, restarted at that name."""
        return streams.generator(self.seed, self.id, self.round, f"{self.phase} {purpose}".lstrip(), reuse=reuse)

    def secret(self, purpose: str) -> streams.Secret:
        """A random stream for the noise that protects its rows, from ``noise_seed``."""
        seed = self.seed if self.noise_seed is None else self.noise_seed
        return streams.Secret(seed, self.id, self.round, f"{self.phase} {purpose}".lstrip())

    def at(self, phase: str = "", epochs: int | None = None) -> Client[M]:
        """This client for one part of its work, for example to train another model, or for another number of epochs.

        Args:
            phase: a name; it selects the random streams and the optimizer's state
            epochs: passes over the rows; default None: the pace's number
        """
        pace = self.pace if epochs is None else replace(self.pace, epochs=epochs, steps=None)
        return replace(self, pace=pace, phase=f"{self.phase} {phase}".strip(), _whole=self)

    @property
    def full_batch(self) -> bool:
        """True if a step uses all rows."""
        return self.pace.batch is None or self.pace.batch >= self.problem.n

    @property
    def steps(self) -> int:
        """The number of optimizer steps in this round: ``pace.steps``, or epochs times mini-batches in an epoch."""
        if self.pace.steps is not None:
            return self.pace.steps
        n = self.problem.n
        size = self.pace.batch or 1
        return self.pace.epochs * (1 if self.full_batch else n // size if self.pace.drop_last else -(-n // size))

    @property
    def cuts(self) -> list[slice]:
        """One slice for each mini-batch of a pass, into the pass's order of rows; a single slice if a batch has all
        rows.
        """
        n = self.problem.n
        size = self.pace.batch or 1
        if self.full_batch:
            return [slice(0, n)]
        return [slice(at, min(at + size, n)) for at in range(0, n - n % size if self.pace.drop_last else n, size)]

    def orders(self, purpose: str = "batches") -> Iterator[Tensor]:
        """Endless shuffled passes over this client's rows; each is a permutation, int64 [n]."""
        rng = self.rng(purpose)
        while True:
            yield torch.randperm(self.problem.n, generator=rng)

    def batches(self, purpose: str = "batches") -> Iterator[Tensor | None]:
        """Row indices of this round's mini-batches, int64 [b], `steps` of them; None stands for all rows."""
        left = self.steps
        if self.full_batch:
            yield from [None] * left
            return
        for order in self.orders(purpose):
            for cut in self.cuts[:left]:
                yield order[cut]
                left -= 1
            if left == 0:
                return

    @property
    def first_batch(self) -> Tensor | None:
        """Row indices of the first mini-batch of this round, for ``problem.grad``; None stands for all rows."""
        return next(self.batches())

    def gradient(self, x: Vec, rows: Rows = None) -> Vec:
        """∇f_i(x) [d] as in a step of `descend`: with the pace's weight decay, then clipped. For a single client.

        Args:
            x: the point [d]
            rows: the rows of the step, as passed to ``correct``; default None: all
        """
        g = self.problem.grad(x, rows)
        if self.pace.weight_decay:
            g = g + self.pace.weight_decay * x
        if self.pace.clip is not None and (norm := float(g.norm())) > self.pace.clip:
            g = g * (self.pace.clip / norm)
        return g

    def descend(
        self,
        x: Vec,
        scale: Num = 1.0,
        pull: tuple[Num | Vec, Vec] | None = None,
        shift: Vec | tuple[Num, Vec] | None = None,
        loss: LocalLoss | None = None,
        correct: Correction | None = None,
        optimizer: Optimizer | None = None,
        train: Part = "both",
        first: bool = False,
    ) -> LocalUpdate:
        """Run this round's local steps from x. Returns a `LocalUpdate`.

        Each step is x ← x − lr·(scale·∇f(x; batch) + mu·(x − anchor) + shift), with (mu, anchor) = ``pull``.

        Args:
            x: the point to start from [d], which is not changed
            scale: a factor of the gradient; default 1
            pull: (mu, anchor), a number or a vector [d], and a vector [d]; default None: no pull
            shift: a vector [d] added to every gradient, or (factor, vector) without a copy of it; default None: 0
            loss: a local loss instead of the problem's; default None: the problem's
            correct: (x, gradient, rows) -> the direction used instead of the gradient; default None
            optimizer: "sgd", "adam" or a factory of torch's optimizers; default None: the pace's
            train: the part to train, if clients have personal parameters: "both" (default), "shared" or "own"
            first: whether to return the first step, see `Descent`; default False

        If clients have personal parameters, x and all vectors cover only the shared parameters [d]. Personal parameters
        start at the client's current values and keep their final values; no pull, shift or correction applies to them.
        For a stack of k clients, vectors are [k, d], or [d] if all clients share one, and numbers are floats or columns
        [k, 1]. Weight decay is part of the gradient. Clipping bounds the gradient before scale, shift and pull.
        Momentum accumulates scale·∇f + shift, so a shift of −scale·∇f leaves x in place; the pull is added after
        momentum. Adam and torch's optimizers get the sum of all three.
        """
        added = (1.0, shift) if isinstance(shift, torch.Tensor) else shift
        how = Descent(scale, pull, added, loss, correct, optimizer or self.pace.optimizer, train, first)
        before = sum(me.work for me in self.members) if stopwatch.running() else 0.0
        with stopwatch.doing("local steps"):
            update = self.engine.descend(self, x, how)
        for me in self.members:
            if me._whole is not None:
                me._whole.optimizer_state = me.optimizer_state
        if stopwatch.running():
            stopwatch.count(sum(me.work for me in self.members) - before)
        self.ran.add(update.engine)
        return update
