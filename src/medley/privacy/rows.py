"""Privacy inside clients: every local step takes a noisy sum of row gradients, each scaled down to a bound.

**Reference**: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang, "Deep Learning with Differential Privacy",
CCS 2016, Algorithm 1, with batches by Poisson sampling.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from ..contract import Algorithm, Local, LocalLoss, Message, Need, Objective, Pace, PartlyShared, Rows, Sampling, Vec
from ..contract.client import Client, Descent, LocalUpdate
from ..contract.cohort import Cohort, OnLate, Replies
from ..contract.errors import BudgetSpent, MedleyError, Unsupported
from ..engines.seq import Seq
from ..runtime.handed import handed
from ..runtime.streams import Secret
from . import accountant
from .accountant import Release
from .replies import Hidden

log = logging.getLogger("medley")

_READ = "its clients use {!r} of their rows outside local steps"


@dataclass(frozen=True)
class RowNoise:
    """The privacy of rows at a client.

    Attributes:
        bound: C, the largest norm of a row's gradient
        noise: z by the sampling of the client's batches; the standard deviation of a sum's noise is z·C
        identity: name and settings of the method, used in the names of random streams
    """

    method: Algorithm[Any, Any]
    bound: float
    noise: Callable[[Local], float]
    identity: str

    def refuse(self, what: str) -> NoReturn:
        """Raise Unsupported with the reason why the method's rows cannot be private."""
        name, other = self.method.name, self.method.instead.get(Need.HESSIAN)
        remedy = f"; use {other}, which does not need it" if other else ""
        raise Unsupported(f"{name} cannot be private by row: {what}{remedy}", method=name, need="rows")

    def call(self, name: str, me: Client[Any], *messages: Message) -> Message:
        """The method's client method ``name``, on a client whose rows enter only local steps."""
        of: Any = me.problem
        if getattr(of, "transform", None) is not None:
            self.refuse("a transform of batches can mix rows; leave transform= out")
        if Need.NOISE in getattr(of.problem, "gives", ()):
            self.refuse("its network draws random numbers, as dropout does, for a whole batch")
        if me.objective_of is not None:
            self.refuse("a stream's clients keep rows of past tasks")
        if isinstance(of.problem, PartlyShared):
            self.refuse("a problem with parameters of the clients' own; use Network without shared=")
        engine = NoisySteps(of=of, by=self, exchange=name, pace=me.pace)
        rows: Any = GuardedRows(of, self)
        guarded: Client[Any] = dataclasses.replace(me, problem=rows, engine=engine, replay=None, memory=me.memory)
        reply: Message = getattr(self.method, name)(guarded, *messages)
        me.memory, me.optimizer_state = guarded.memory, guarded.optimizer_state
        return reply


class GuardedRows:
    """An objective whose rows nobody can read. Its number of rows is public. Any other use raises Unsupported."""

    last, convexity, work, shapes = handed("_of", "last", "convexity", "work", "shapes")
    """They depend only on the model, the regulariser and public numbers."""

    def __init__(self, of: Objective, by: RowNoise) -> None:
        self._of, self._by = of, by
        self.n, self.d = of.n, of.d
        self.y = Hidden(by, _READ.format("y"))

    def workspace(self, x: Vec) -> Vec:
        """A copy of x."""
        return x.clone()

    def refuse(self, name: str) -> NoReturn:
        """Raise Unsupported for the use of this member."""
        self._by.refuse(_READ.format(name))


def _refused(name: str) -> Callable[..., NoReturn]:
    def member(self: GuardedRows, *args: Any, **kw: Any) -> NoReturn:
        self.refuse(name)

    return member


# Every other member of an objective: a class that has them counts as one. Each call raises Unsupported.
for _name in set(vars(Objective)) | set(Objective.__annotations__):
    if not _name.startswith("_") and _name not in (*vars(GuardedRows), "n", "d", "y"):
        setattr(GuardedRows, _name, _refused(_name))


@dataclass(frozen=True)
class NoisySteps(Seq):
    """The engine of a private client: `Seq` with Poisson-sampled batches and noisy gradients.

    Attributes:
        by: the bound and the noise
        exchange: the client method that is running, part of the names of its random streams
        pace: the pace that the server accounts for
    """

    of: Any = None
    by: Any = None
    exchange: str = ""
    pace: Pace = field(default_factory=Pace)
    ran: list[str] = field(default_factory=list)

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`. Raises Unsupported for steps that read rows in another way."""
        if how.loss is not None:
            self.by.refuse("its clients train on the method's own loss, which has no gradient for each row")
        if how.correct is not None:
            self.by.refuse("its clients correct gradients on rows")
        if dataclasses.replace(me.pace, optimizer_state=self.pace.optimizer_state) != self.pace:
            self.by.refuse("its clients train for a different number of steps than their pace says")
        if self.ran:
            self.by.refuse("its clients descend twice in one exchange, but the account has one descent")
        self.ran.append(self.exchange)
        law, before = Local.of(me.pace, self.of.n), self.of.work
        out = super().descend(me, x, how._replace(first=False))
        # The number of drawn rows is not public, and work is reported: in the ledger, and as time on the clock.
        self.of.work = before + law.steps * law.rate * law.rows
        return out

    def batches(self, me: Client[Any], want_names: bool) -> Iterator[tuple[Objective, Rows, Rows]]:
        """A noisy objective and its rows for every step of this round."""
        law = Local.of(me.pace, self.of.n)
        drawn = me.secret(f"private batches, {self.by.identity}, {self.exchange}")
        noise = me.secret(f"privacy of rows, {self.by.identity}, {self.exchange}")
        objective: Any = NoisyGradient(self.of, self.by.bound, self.by.noise(law), law, noise)
        for _ in range(law.steps):
            if law.rate == 1:
                yield objective, None, None
            else:
                took = drawn.uniform(self.of.n) < law.rate
                yield objective, took.nonzero()[:, 0], None


@dataclass(frozen=True)
class NoisyGradient:
    """The gradient of a step: (Σ_j g_j·min(1, C/‖g_j‖) + z·C·N(0, I))/(q·n), plus the regulariser's.

    Attributes:
        bound: C
        noise: z
        law: q, and n
    """

    of: Any
    bound: float
    noise: float
    law: Local
    rng: Secret

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """The noisy gradient at x [d]; always a new vector.

        If the user's loss or network raises an error, nothing is added to the sum, and only the log shows it: whether
        it occurs may depend on a row.
        """
        del loss, copy
        try:
            total, decay = self.of.clipped(x, rows, self.bound)
        except MedleyError:
            raise
        except Exception:
            log.exception("the gradients of private rows fail; the step continues with the noise alone")
            total, decay = torch.zeros_like(x), 0.0
        fresh = self.rng.normal(total.shape).to(x)
        noisy: Vec = total.add_(fresh, alpha=self.noise * self.bound).div_(self.law.rate * self.law.rows)
        return noisy.add_(decay * x)


class RowCohort:
    """The clients of one round, with an account for every client asked. Implements `Cohort` by delegation.

    Args:
        spent: releases so far, by client; a new mapping after each `ask`
        limit: (ε, δ) that no client may pass; None for no limit
    """

    def __init__(
        self, clients: Cohort, by: RowNoise, spent: Mapping[int, list[Release]], limit: tuple[float, float] | None
    ) -> None:
        self._clients, self._by, self.spent, self._limit = clients, by, dict(spent), limit
        self._asked: set[str] = set()
        if clients.buffers is not None:
            by.refuse("its model has buffers, such as BatchNorm's, which hold statistics of rows without noise")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def __len__(self) -> int:
        return len(self._clients)

    def ask(
        self, method: Any, common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> Replies[Any]:
        """See `Cohort.ask`. Raises BudgetSpent before a client would exceed its limit."""
        if method.__name__ in self._asked:
            self._by.refuse(f"it asks for {method.__name__!r} twice in one round, with the same noise both times")
        self._asked.add(method.__name__)
        for i in self._clients.ids if ids is None else ids:
            law = self._clients.local(i)
            now = accountant.release(Sampling("poisson", law.rows, law.rate), self._by.noise(law), law.steps)
            self.spent[i] = self._within(i, accountant.added(self.spent.get(i, []), now))
        replies: Replies[Any] = self._clients.ask(method, common, each, ids=ids, late=late)
        return replies

    def _within(self, i: int, then: list[Release]) -> list[Release]:
        if self._limit is not None:
            epsilon, delta = self._limit
            if not accountant.within(then, epsilon, delta, None):
                spent, after = (accountant.epsilon(r, delta) for r in (self.spent.get(i, []), then))
                if after > epsilon * (1 + 1e-9):
                    raise BudgetSpent(
                        f"DP-{self._by.method.name}: client {i} has spent ε = {spent:.4g} of {epsilon:g} for "
                        f"its rows (δ = {delta:g}); round {self._clients.round} would make it {after:.4g}. The "
                        "result has the model of the rounds before; for more rounds use more noise"
                    )
        return then


def noise_of_rows(law: Local, epsilon: float, delta: float, rounds: int) -> float:
    """The z with which ``rounds`` rounds of this sampling spend at most ε; its rate is rounded up to two digits."""
    digits = 10.0 ** (1 - math.floor(math.log10(law.rate)))
    rate = min(1.0, math.ceil(law.rate * digits) / digits)
    return accountant.noise_for(Sampling("poisson", law.rows, rate), epsilon, delta, rounds * law.steps)


def by_client(spent: Mapping[int, list[Release]], delta: float) -> dict[int, float]:
    """The ε of each client's rows."""
    return {i: accountant.epsilon(releases, delta) for i, releases in sorted(spent.items())}
