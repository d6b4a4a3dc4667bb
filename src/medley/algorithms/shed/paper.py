"""SHED as in the paper: when Hessians are renewed, a client's next eigenpairs, the server's use of them, Armijo's rule.

Section and algorithm numbers are those of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar, Literal

import torch

from ...contract import Client, Cohort, Line, Losses, MedleyError, Objective, TooFewReplies, Vec
from ...contract.place import name_of
from ...numerics.curvature import Factor, Values, Vectors, decompose
from .messages import Attempt, Memory, Report, Server

Renewal = Literal["auto", "once", "periodic", "fibonacci", "gradient_norm"]


def fibonacci(d: int) -> Iterator[int]:
    """1, 2, 4, 7, 12, ...: the sums of Fibonacci's numbers; from d − 1 on, in steps of d − 1 (section 5.2)."""
    t = 1
    a = 1
    b = 1
    while True:
        yield t
        t = t + (b if t < d - 1 else max(d - 1, 1))
        a, b = b, a + b


def due(s: Server, renewal: Renewal, period: int, b: float) -> bool:
    """Whether Hessians are renewed for iteration t + 1, once g_t is known.

    Args:
        renewal: the rule.
        period: iterations between renewals, for "periodic".
        b: for "gradient_norm", the share of its last fall by which ‖g‖ must fall.
    """
    d = len(s.x)
    following = s.t + 1
    if renewal == "periodic":
        return following % period == 0
    if renewal == "fibonacci":
        return following in takewhile(lambda t: t <= following, fibonacci(d))
    if renewal == "gradient_norm" and s.t - s.renewed_in >= 2:
        n0, n1, n2 = s.norms
        return n1 - n2 < b * (n0 - n1) or n2 > n1 or following - s.renewed_in >= d
    return False


# A client


@dataclass(frozen=True)
class Instalment:
    """A client's report before it is encoded; `Report` is the message on the wire.

    Attributes:
        g: ∇f_i(θ) [d].
        V, lam: the next eigenpairs of ∇²f_i, [k, d] and [k].
        rho: ρ_i.
        following: λ_{q+1}, the largest eigenvalue not sent.
        q: number of pairs sent since the renewal, these included.
        stored: number of pairs that the server already holds.
    """

    g: Vec
    V: Vectors
    lam: Values
    rho: float
    following: float
    q: int
    stored: int


def nothing(m: Memory, A: Factor) -> Vectors:
    """The base after a renewal is empty: no earlier pair is kept."""
    del A
    m.V = []
    m.lam = m.lam[:0]
    return none(m)


def none(m: Memory) -> Vectors:
    """No rows."""
    return m.x.new_empty(0, len(m.x))


def renew(m: Memory, f: Objective, few: int, keep: Callable[[Memory, Factor], Vectors]) -> None:
    """Decompose ∇²f_i = AᵀA + δI at m.x, ``few`` leading pairs if there are many; ``keep`` gives the base."""
    m.of = m.x
    m.sent = 0
    m.lost = 0.0
    A, m.delta = f.factor(m.x)
    f.work += min(A.shape) * f.n
    W = keep(m, A)
    m.base = len(W)
    m.diagonal = A.square().sum(0) + m.delta
    m.spectrum = decompose(A, W, m.lam, few)


def following(m: Memory, f: Objective, k: int) -> tuple[Vectors, Values, int]:
    """The next ``k`` eigenvectors, their eigenvalues, and the number q of pairs sent with them."""
    assert m.spectrum is not None
    assert m.of is not None
    W = torch.cat([none(m), *m.V])[: m.base]
    c = m.lam[: m.base]
    if m.spectrum.partial and m.sent + k >= len(m.spectrum.values):
        m.spectrum = m.spectrum.extended(f.factor(m.of)[0], W, c, 4 * k + 4)
    q = min(m.sent + k, len(m.spectrum.values))
    V = m.spectrum.basis[m.sent : q]
    if V.shape[1] < len(m.x):
        V = m.spectrum.vectors(m.sent, q, f.factor(m.of)[0], W, c)
    return V, m.spectrum.values[m.sent : q] + m.delta, q


class Exact:
    """Sends plain numbers."""

    refines: ClassVar[bool] = False
    """Whether a report also changes the eigenvectors sent before it."""

    def following(self, m: Memory, f: Objective, k: int) -> tuple[Vectors, Values, int]:
        """The next ``k`` eigenvectors, their eigenvalues, and the number q of pairs sent with them."""
        return following(m, f, k)

    def encode(self, m: Memory, new: Instalment) -> tuple[Report, Vectors]:
        """The report, and its eigenvectors as the server will decode them."""
        del m
        up = Report(
            g=new.g,
            g_scale=None,
            V=new.V,
            V_scale=None,
            fine=new.V[:0].to(torch.int16),
            fine_scale=new.lam[:0],
            unit=None,
            lam=new.lam,
            rho=new.rho,
            held=new.stored,
            lift=None,
            bits=None,
            packed=None,
        )
        return up, new.V

    def decode(self, s: Server, i: int, up: Report) -> tuple[Vec, Vectors]:
        """Client i's gradient and eigenvectors: those that it sent now, or all of them if ``refines``."""
        del s, i
        assert up.V is not None
        return up.g, up.V


# The server


def take(s: Server, reports: Mapping[int, Report], t: int, wire: Exact) -> None:
    """Keep the clients' reports.

    Args:
        t: the iteration of the reports' θ; 0 if that point was not accepted.
        wire: decodes the reports.
    """
    pairs = dict[int, tuple[Vectors, Values]]()
    renewed = set[int]()
    based = set[int]()
    for i, up in reports.items():
        if s.renewed.get(i) != s.renewals:
            (based if up.held else renewed).add(i)
        if (0 if i in renewed else s.held.count(i)) != up.held:
            raise MedleyError(f"{name_of(i)} has sent {up.held} pairs, and the server holds {s.held.count(i)} of them")
        lam = up.lam
        if wire.refines:
            lam = torch.cat([s.held.lam[(s.held.owner == i) & (i not in renewed)], lam])
            renewed.add(i)
        s.g[i], V = wire.decode(s, i, up)
        pairs[i] = V, lam
        s.rho[i] = up.rho
        s.lift[i] = up.lift or 0.0
        s.renewed[i] = s.renewals
        s.at[i] = t
    s.held = s.held.after(pairs, renewed, based)


@dataclass(kw_only=True)
class CandidateLosses:
    """Losses of candidate steps, as `backtrack` asks for them.

    The comparison uses the losses of clients that answered. For the other clients it uses the server's quadratic model,
    so that their part of the slope is on both sides.

    Attributes:
        s, clients: the server and this round's cohort.
        step, p: the direction [d], and the clients' weights, which sum to 1.
        beta: candidates are the powers of β.
        losses: the client method.
    """

    s: Server
    clients: Cohort
    step: Vec
    p: Mapping[int, float]
    beta: float
    losses: Callable[[Client[Memory], Line], Losses]
    next_reports: dict[int, Attempt] = field(default_factory=dict)
    """Reports of θ − p, if they came with the losses."""

    def __call__(self, etas: Sequence[float]) -> Sequence[float]:
        """f(θ − ηp) for every η."""
        s = self.s
        replies = self.replies(round(math.log(etas[1], self.beta)))
        if not replies:
            raise TooFewReplies(f"round {self.clients.round}: no client sent its loss; are they reachable?")
        f = {i: up.f for i, up in replies.items()}
        return s.held.along(self.step, etas, p=self.p, rho=s.rho, g=s.g, reported=f)

    def replies(self, first: int) -> Mapping[int, Losses | Attempt]:
        """The replies of one exchange, for powers of β from ``first`` on."""
        return self.clients.ask(self.losses, Line(self.step, first), ids=self.reporting).each()

    @property
    def reporting(self) -> tuple[int, ...]:
        """Ids of the clients that reported on this θ."""
        return tuple(i for i in self.clients.ids if self.s.at.get(i) == self.s.t)
