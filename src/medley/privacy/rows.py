"""Privacy inside clients: every local step takes a noisy sum of gradients of rows, or of people with all their rows,
each scaled down to a bound.

**Reference**: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang, "Deep Learning with Differential Privacy",
CCS 2016, Algorithm 1, with batches by Poisson sampling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from ..contract import (
    Algorithm,
    LocalLoss,
    LocalSampling,
    Message,
    Need,
    Objective,
    Pace,
    PartlyShared,
    Rows,
    Sampling,
    Vec,
)
from ..contract.client import Client, Descent, LocalUpdate
from ..contract.cohort import Cohort, ForwardingCohort, OnLate, Replies
from ..contract.errors import BudgetSpent, MedleyError, Unsupported
from ..contract.place import name_of
from ..engines.seq import Seq
from ..numerics.sums import shortening
from ..runtime.forwarded import forwarded
from ..runtime.streams import Secret
from . import accountant, trees
from .accountant import Release
from .replies import Hidden

log = logging.getLogger("medley")

_READ = "its clients use {!r} of their rows outside local steps"


@dataclass(frozen=True)
class RowNoise:
    """The privacy of rows at a client.

    Attributes:
        bound: C, the largest norm of a row's gradient, or of the sum of the gradients of a person's rows
        noise: z by the sampling of the client's batches; the standard deviation of a sum's noise is z·C
        identity: name and settings of the method, used in the names of random streams
        unit: "row" or "person"
    """

    method: Algorithm[Any, Any]
    bound: float
    noise: Callable[[LocalSampling], float]
    identity: str
    unit: str = "row"

    def refuse(self, what: str) -> NoReturn:
        """Raise Unsupported with the reason why the method's rows cannot be private."""
        name = self.method.name
        other = self.method.instead.get(Need.HESSIAN)
        remedy = f"; use {other}, which does not need it" if other else ""
        raise Unsupported(f"{name} cannot be private by {self.unit}: {what}{remedy}", method=name, need="rows")

    def call(self, name: str, me: Client[Any], *messages: Message) -> Message:
        """The method's client method ``name``, on a client whose rows enter only local steps."""
        of: Any = me.problem
        if Need.TREES in self.method.needs:
            return trees.call(self.method, name, me, messages, self.bound, self.noise, self.identity, self.refuse)
        if getattr(of, "transform", None) is not None:
            self.refuse("a transform of batches can mix rows; leave transform= out")
        if Need.NOISE in getattr(of.problem, "gives", ()):
            self.refuse("its network draws random numbers, as dropout does, for a whole batch")
        if me.objective_of is not None:
            self.refuse("a stream's clients keep rows of past tasks")
        if isinstance(of.problem, PartlyShared):
            self.refuse("a problem with parameters of the clients' own; use Network without shared=")
        if (me.people is None) == (self.unit == "person"):
            self.refuse("its clients do not know the person of each row")
        engine = NoisySteps(of=of, by=self, exchange=name, pace=me.pace, people=me.people)
        rows: Any = GuardedRows(of, self)
        guarded: Client[Any] = dataclasses.replace(me, problem=rows, engine=engine, replay=None, memory=me.memory)
        reply: Message = getattr(self.method, name)(guarded, *messages)
        me.memory = guarded.memory
        me.optimizer_state = guarded.optimizer_state
        return reply


class GuardedRows:
    """An objective whose rows nobody can read. Its number of rows is public. Any other use raises Unsupported."""

    last, convexity, work, shapes = forwarded("_of", "last", "convexity", "work", "shapes")
    """They depend only on the model, the regulariser and public numbers."""

    def __init__(self, of: Objective, by: RowNoise) -> None:
        self._of = of
        self._by = by
        self.n = of.n
        self.d = of.d
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
    """The engine of a private client: `Seq` with Poisson-sampled batches of rows, or of people with all their rows, and
    noisy gradients.

    Attributes:
        by: the bound and the noise
        exchange: the client method that is running, part of the names of its random streams
        pace: the pace that the server accounts for
        people: the person of each row [n]; None if each row is drawn by itself
    """

    of: Any = None
    by: Any = None
    exchange: str = ""
    pace: Pace = field(default_factory=Pace)
    people: Any = None
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
        law = LocalSampling.of(me.pace, self.of.n)
        before = self.of.work
        out = super().descend(me, x, how._replace(first=False))
        # The number of drawn rows is not public, and work is reported: in the ledger, and as time on the clock.
        self.of.work = before + law.steps * law.rate * law.rows
        return out

    def batches(self, me: Client[Any], want_names: bool) -> Iterator[tuple[Objective, Rows, Rows]]:
        """A noisy objective and its rows for every step of this round."""
        law = LocalSampling.of(me.pace, self.of.n)
        stream = me.secret(f"private batches, {self.by.identity}, {self.exchange}")
        noise = me.secret(f"privacy of rows, {self.by.identity}, {self.exchange}")
        people = None if self.people is None else self.people.unique(return_inverse=True)[1]
        bound = self.by.bound
        z = self.by.noise(law)
        objective: Any = NoisyGradient(self.of, bound=bound, noise=z, law=law, rng=noise, people=people)
        for _ in range(law.steps):
            if law.rate == 1:
                yield objective, None, None
            else:
                chosen = stream.uniform(self.of.n if people is None else int(people.max()) + 1) < law.rate
                yield objective, (chosen if people is None else chosen[people]).nonzero()[:, 0], None


@dataclass(frozen=True)
class NoisyGradient:
    """The gradient of a step: (Σ_j g_j·min(1, C/‖g_j‖) + z·C·N(0, I))/(q·n), plus the regulariser's.

    g_j is the gradient of a row, or the sum of the gradients of a person's rows.

    Attributes:
        bound: C
        noise: z
        law: q, and n
        people: the person of each row [n], from 0; None if j is a row
    """

    of: Any
    bound: float
    noise: float
    law: LocalSampling
    rng: Secret
    people: Any = None

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """The noisy gradient at x [d]; always a new vector.

        If the user's loss or network raises an error for a row, that row adds nothing to the sum, and only the log
        shows it: whether it occurs may depend on the row.
        """
        del loss, copy
        total, decay = self._by_row(x, rows, self.bound) if self.people is None else self._by_person(x, rows)
        fresh = self.rng.normal(total.shape).to(x)
        noisy: Vec = total.add_(fresh, alpha=self.noise * self.bound).div_(self.law.rate * self.law.rows)
        return noisy.add_(decay * x)

    def _by_row(self, x: Vec, rows: Rows, bound: float) -> tuple[Vec, Any]:
        """Σ of the rows' gradients, each scaled down to ``bound``, and the regulariser's factor."""
        try:
            total, decay = self.of.clipped(x, rows, bound)
            return total, decay
        except MedleyError:
            raise
        except Exception:
            log.exception("the gradient of a private row fails; the row adds nothing to the step")
        # Were all rows left out for the sake of one, that row would move the sum by more than its bound.
        total, decay = self.of.clipped(x, torch.zeros(0, dtype=torch.int64), bound)
        for row in torch.split(torch.arange(self.of.n) if rows is None else torch.as_tensor(rows), 1):
            with contextlib.suppress(Exception):
                total = total + self.of.clipped(x, row, bound)[0]
        return total, decay

    def _by_person(self, x: Vec, rows: Rows) -> tuple[Vec, Any]:
        """The same of people; those with one row are computed together."""
        index = torch.arange(self.of.n) if rows is None else torch.as_tensor(rows)
        order = index[self.people[index].argsort(stable=True)]
        parts = torch.split(order, self.people[order].unique_consecutive(return_counts=True)[1].tolist())
        singles = torch.cat([order[:0], *[part for part in parts if len(part) == 1]])
        total, decay = self._by_row(x, singles, self.bound)
        for part in parts:
            if len(part) > 1:
                g, _ = self._by_row(x, part, torch.finfo(x.dtype).max)
                if bool(g.isfinite().all()):
                    total = total + float(shortening(g.norm()[None], self.bound)) * g
        return total, decay


class RowCohort(ForwardingCohort):
    """The clients of one round, with an account for every client asked. Implements `Cohort`.

    Args:
        spent: releases so far, by client; a new mapping after each `ask`
        limit: (ε, δ) that no client may pass; None for no limit
        depth: levels of a tree, for each of which a client sends one sum; 0 for local steps
    """

    def __init__(
        self,
        clients: Cohort,
        by: RowNoise,
        spent: Mapping[int, list[Release]],
        limit: tuple[float, float] | None,
        depth: int = 0,
    ) -> None:
        super().__init__(clients)
        self._by = by
        self.spent = dict(spent)
        self._limit = limit
        self._depth = depth
        self._methods: set[str] = set()
        if clients.buffers is not None:
            by.refuse("its model has buffers, such as BatchNorm's, which hold statistics of rows without noise")

    def ask(
        self, method: Any, common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> Replies[Any]:
        """See `Cohort.ask`. Raises BudgetSpent before a client would exceed its limit."""
        if method.__name__ in self._methods and not self._depth:  # the noise of trees has the request in its name
            self._by.refuse(f"it asks for {method.__name__!r} twice in one round, with the same noise both times")
        self._methods.add(method.__name__)
        for i in self._clients.ids if ids is None else ids:
            law = self._clients.local(i)
            steps = law.steps
            if self._depth:
                law, steps = trees.law(law.rows, self._depth), 1
            new = accountant.release(Sampling("poisson", law.rows, law.rate), self._by.noise(law), steps)
            self.spent[i] = self._within(i, accountant.added(self.spent.get(i, []), new))
        replies: Replies[Any] = self._clients.ask(method, common, each, ids=ids, late=late)
        return replies

    def _within(self, i: int, releases: list[Release]) -> list[Release]:
        if self._limit is not None:
            epsilon, delta = self._limit
            if not accountant.within(releases, epsilon, delta, None):
                spent, after = (accountant.epsilon(r, delta) for r in (self.spent.get(i, []), releases))
                if after > epsilon * (1 + 1e-9):
                    raise BudgetSpent(
                        f"DP-{self._by.method.name}: {name_of(i)} has spent ε = {spent:.4g} of {epsilon:g} for "
                        f"its rows (δ = {delta:g}); round {self._clients.round} would make it {after:.4g}. The "
                        "result has the model of the rounds before; for more rounds use more noise"
                    )
        return releases


def noise_of_rows(law: LocalSampling, epsilon: float, delta: float, rounds: int) -> float:
    """The z with which ``rounds`` rounds of this sampling spend at most ε; its rate is rounded up to two digits."""
    digits = 10.0 ** (1 - math.floor(math.log10(law.rate)))
    rate = min(1.0, math.ceil(law.rate * digits) / digits)
    return accountant.noise_for(Sampling("poisson", law.rows, rate), epsilon, delta, rounds * law.steps)


def by_client(spent: Mapping[int, list[Release]], delta: float) -> dict[int, float]:
    """The ε of each client's rows."""
    return {i: accountant.epsilon(releases, delta) for i, releases in sorted(spent.items())}
