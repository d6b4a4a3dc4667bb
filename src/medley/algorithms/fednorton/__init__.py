r"""FedNorton: this library's own method. A Norton equivalent stands in the sum for each absent client.

**Reference**: this library's own. It keeps the circuit, the common clock and Kirchhoff's sum of FedECADO (Agarwal,
Joshi & Pileggi, ICML 2025). Its flows are SCAFFOLD's control variates (Karimireddy et al., ICML 2020). Noise is scaled
to one time for all clients, as in FedNova (Wang et al., NeurIPS 2020). The node moves by Nesterov's method (Su et al.,
JMLR 2016) with O'Donoghue & Candès' restart (2015).

**Status**: this library's own

**Needs**: nothing.

**One round sends** (floats per client):

- simulate (if flows="server"): 2d down, d + 1 up
- change_flow (if flows="client"): 2d + 2 down, 2d + 4 up

**The circuit.** The server is a node x that feeds one branch per client. The flow J_i in a branch is the mean gradient
of its client's last descent. At rest J_i = ∇f_i(x*), and Kirchhoff's sum over ALL clients, S = Σ p_i J_i = 0, says
∇f(x*) = 0. In each round a set A of clients replies, a share f of all. Sums and means are over A, weighted by p_i; ⁻
marks the round before.

| | |
|---|---|
| $n_i = \rho\,(J_i - S)$ | net flow, sent down; J_i = 0 at first |
| $\dot x_i = n_i - \nabla f_i(x_i),\ x_i(0) = x$ | descent; sent up: its displacement D_i and its time T_i = Σ lr |
| $J_i^+ = n_i - D_i/T_i$ | the mean gradient of this descent |
| $S^+ = S + \sum p_i (J_i^+ - J_i)$ | Kirchhoff's sum |
| $\rho^+ = \max(0, 1 - \sum p_i \Vert J_i^+ - J_i \Vert^2 / 2 \sum p_i \Vert J_i^+ \Vert^2)$ | the share that lasts |
| $T = 1/\mathrm{mean}(1/T_i)$ | the window |
| $w_i = \rho \sqrt{T T_i} + (1 - \rho)\sqrt{T T^-}$ | the time for which a reply counts |
| $a = a^-/2 + \langle S^+ - S, v\rangle/f,\ b = b^-/2 + \Vert v \Vert^2$ | a secant along the last move |
| $h = \max(0, a/b)$ | the star's conductance |
| $t = (t^- + 1)(1 - \max(0, \cos(S^+, v))),\ \beta_0 = f t/(t + 3)$ | age, 0 in round 1, and damping of the motion |
| $\beta = \min(\beta_0, 1 - \min(1, \Vert S^+ - S \Vert^2 / 2f \Vert S^+ \Vert^2)/2)$ | noise dampens it more |
| $u = \mathrm{mean}\,w_i (S + J_i^+ - J_i) + (1 - \rho)\sqrt{T T^-}\,\mathrm{mean}(J_i - S)$ | the clients' part |
| $v^+ = \beta v - u - 2 T S^+/(1 + 2 T h)$ | the move |
| $x^+ = x + v^+,\ \hat x^+ = \hat x + \sqrt{f(1 - \beta_0)}\,(x^+ - \hat x)$ | x̂ is the model evaluated |

Why this form: a descent saturates, so per unit of x a branch's flow changes by at most 1/T_i, and the star's by at most
1/T. This gives the window. −u is the mean of the displacements D_i, scaled to the time √(T T_i). The part of the flows
that does not last is scaled to one time for all clients, which does not move the point of rest. The last term of
the move is two more windows along Kirchhoff's sum, by backward Euler. If a descent would make an error of its flow
grow, the client repeats it with shorter steps (see `descent`). ``docs/decisions/fednorton.md`` has the reason for each
constant, and how much it helps.

**One reply of several clients** does not show which share of the flows lasts, and S is then mostly old flows. So ρ
stays, and v⁺ = −u. As ρ = 1 at first, a run with one reply a round has SCAFFOLD's x, if no descent is repeated.

**Late replies** are read with the x and n_i that the client was sent. An absent client is modelled as its flow J_i in
parallel with a conductance h_i, measured by secants: Ĵ_i(x) = J_i + m h_i (x − x̄_i) replaces J_i, and S(x) = Σ p_i
Ĵ_i(x) replaces S, in proportion to the mean delay of the clients' last replies. The second mean of u becomes Σ p_i g_i
(J_i − S), where g_i is the number of rounds since the client's last reply, and p_i g_i at most 1. So clients that reply
often do not pull the node to their own minima. See `late`.

**Point of rest.** With exact gradients ρ → 1, and v = 0 gives S = 0, D_i = 0 and J_i = ∇f_i(x*), whatever the clients'
learning rates and steps. With mini-batches ρ stays below 1, and clients drift in part to their own minima. The shift is
smaller than FedNova's, and grows with 1 − ρ.

**SCAFFOLD** is the case ρ = 1, w_i = T_i, without the last term, the motion and the average: J_i = c_i and S = c. As in
SCAFFOLD, clients must run SGD, with or without momentum, so that D_i/T_i is a mean of gradients.

**Departures**: none, because no paper has this method. Unlike FedECADO's, the circuit has no inductors, and clients
send no sensitivities.

**Missing replies**: if a reply is lost, the client's flow and the sum stay as they were. With flows at the clients, a
late reply is lost. If a client lost its memory, nothing changes with flows at the server; otherwise it begins with J_i
= 0. When clients join or leave, the server sums S anew over the members (with flows at the clients, by one exchange
with all of them), and the node starts again from rest.

**Example**

>>> import medley as md
>>> q = md.problems.synthetic_quadratics(clients=10, d=5, seed=1)
>>> lr = md.distributions.Uniform(0.01, 0.1)
>>> pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(q.problem, clients=q.clients, pace=pace, participation=0.4)
>>> run = md.run(md.FedNorton(), fed, rounds=300, progress=False)
>>> float((run.x - q.x_star).norm() / q.x_star.norm()) < 1e-8
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...contract import (
    Algorithm,
    Client,
    Cohort,
    Each,
    LocalUpdate,
    Message,
    Need,
    Num,
    Unsupported,
    Vec,
    number,
    on_client,
)
from ...contract.messages import Model, Recalled, TimedStep, recall_all
from ...numerics.blocks import blocks
from ...numerics.offload import offload, release_pages
from .descent import passive
from .late import KEPT, MARGIN, NEAR, Lateness, Share

AHEAD = 2.0
"""The windows that a move adds along Kirchhoff's sum."""

NESTEROV = 3.0
"""Nesterov's damping t/(t + 3) has this number."""

HALF = 0.5
"""The bound on β: the motion sums S over at most as many rounds as twice its signal-to-noise ratio, but always over two
or more."""


TOGETHER = 4
"""The replies that the server computes with at a time: more take memory, fewer more passes over its own vectors."""


class Net(Message):
    """Down to one client: the net flow n_i of its descent [d]."""

    flow: Vec


class Star(Message):
    """Down to all clients, if they keep the flows: the node x and Kirchhoff's sum S [d]; ρ; the last round's T."""

    x: Vec
    S: Vec
    rho: float
    T: float


class Change(Message):
    """Up, if clients keep the flows: J_i⁺ − J_i and its part of u/√T [d]; T_i, 1/T_i, |J_i⁺ − J_i|² and |J_i⁺|²."""

    flow: Vec
    u: Vec
    T: Num
    rate: Num
    changed: Num
    size: Num


@dataclass
class Server:
    """The node and its branches, in the card's symbols.

    Attributes:
        x, S, J: the node and Kirchhoff's sum [d], and the flows by client, if the server keeps them.
        rho, T: ρ, and the window of the last round; 0 before the first.
        v, age, rise, way: the node's last move [d], None before the first; t, a and b.
        read: x̂, the model evaluated [d]; None if that is x itself.
        late: the requests under way, and the state that late replies need.
    """

    x: Vec
    S: Vec
    J: dict[int, Vec] = field(default_factory=dict)
    rho: Share = 1.0
    T: float = 0.0
    v: Vec | None = None
    age: float = 0.0
    rise: float = 0.0
    way: float = 0.0
    read: Vec | None = None
    late: Lateness = field(default_factory=Lateness)


@dataclass
class Memory:
    """A client's flow J_i [d], if the clients keep the flows; None before its first visit."""

    J: Vec | None = None


class Visit(NamedTuple):
    """A client's visit at the node x [d]: its net flow n_i = base + keep·J_i, and the reply's D_i [d] and T_i."""

    x: Vec
    base: Vec
    keep: float
    delta: Vec
    T: float

    def measure(self, J: Vec | None, at: slice, change: Vec, flow: Vec) -> None:
        """J_i⁺ − J_i = base − (1 − keep)·J_i − D_i/T_i and J_i⁺ in these coordinates, in ``change`` and ``flow``."""
        if J is None:
            flow.copy_(torch.add(self.base[at], self.delta[at], alpha=-1 / self.T, out=change))
            return
        torch.add(self.base[at], J[at], alpha=self.keep - 1, out=change).add_(self.delta[at], alpha=-1 / self.T)
        torch.add(J[at], change, out=flow)


def steadiness(changed: Tensor, size: Tensor) -> Tensor:
    """ρ⁺ = max(0, 1 − ½ Σ p_i|J_i⁺ − J_i|²/Σ p_i|J_i⁺|²) []; 1 where both are 0.

    If a flow has a part that lasts and a part drawn anew at each visit, ρ⁺J_i predicts J_i⁺ best. It is a ratio of
    sums, because a client at rest has no flow and its own ratio would be 0/0.
    """
    still = torch.where(changed > 0, 0.0, 1.0).to(size)
    return torch.where(size > 0, 1 - changed / (2 * size), still).nan_to_num(0.0).clamp_min(0)


def products(before: Vec, after: Vec, v: Vec, rho: Share, cuts: Sequence[slice]) -> list[float]:
    """|S⁺|, |S⁺ − S|, |v|, ⟨S⁺, v⟩ and ⟨S⁺ − S, v⟩; with them ρ if it is a tensor, for one wait."""
    norms = []
    inner = after.new_zeros(2)
    for at in cuts:
        change = after[at] - before[at]
        norms.append(torch.stack([after[at].norm(), change.norm(), v[at].norm()]))
        inner += torch.stack([after[at] @ v[at], change @ v[at]])
    sizes = norms[0] if len(norms) == 1 else torch.stack(norms).norm(dim=0)
    parts = [sizes, inner, *([rho[None]] if isinstance(rho, Tensor) else [])]
    return torch.cat(parts).tolist()


def is_lone(s: Server, clients: Cohort, replies: float) -> bool:
    """Whether a single client of several replied, and no reply is late."""
    return replies <= 1 < clients.population and s.late.delay == 0


@dataclass(frozen=True)
class FedNorton(Algorithm[Server, Memory]):
    """The method. Only the clients' learning rate needs tuning.

    Attributes:
        flows: where they are kept. With "server" the server reads replies one by one and accepts late ones. With
            "client" it reads only sums, as `Private` and `SecureSum` need, and keeps O(d) numbers.
    """

    flows: Literal["server", "client"] = "server"

    sums_as = "FedNorton(flows='client')"

    def requires(self) -> frozenset[str]:
        """Replies one by one, unless the clients keep the flows."""
        return self.needs | ({Need.REPLIES} if self.flows == "server" else set())

    def start(self, x: Vec) -> Server:
        """No flows."""
        return Server(x, torch.zeros_like(x))

    def model(self, s: Server) -> Vec:
        """x̂; x itself before the node moves."""
        return s.x if s.read is None else s.read

    def round(self, s: Server, clients: Cohort) -> None:
        """Clients simulate their branches, then the server its node. A server that keeps flows uses late replies."""
        if self.flows == "client":
            return self.round_of_sums(s, clients)
        if not s.late.asked and s.late.delay == 0:
            s.late = Lateness(s.late.delays, s.late.turns)  # without branches
        busy = clients.at_work
        S = s.late.kirchhoff(s.S, s.x)
        rho_net, rho_node = s.late.lasting(clients.p, s.rho)
        keep = float(rho_net)
        base = S * -keep
        first = base if s.late.part == 0 else base * (1 - s.late.part)

        def flow(i: int) -> Vec:
            """n_i."""
            if i not in s.J:
                return first
            net = torch.add(base, s.J[i], alpha=keep)
            release_pages(s.J[i])
            return net

        nets = Each(clients.ids, lambda i: Net(flow(i)), like=Net(S))
        replies = clients.ask(self.simulate, Model(s.x), nets, late="deliver")
        steps = replies.each()
        asked = s.late.asked
        s.late.asked = {i: asked[i] if i in busy else (s.x, flow(i)) for i in sorted(clients.at_work)}
        if not steps:
            return None
        s.late.arrived(replies, clients.round)
        visits = dict[int, Visit]()
        for i, w in steps.items():
            sent = (*asked[i], 0.0) if i in busy else (s.x, base, keep) if i in s.J else (s.x, first, 0.0)
            visits[i] = Visit(*sent, w.delta, float(w.T))
        steps.clear()
        rate = sum(clients.p[i] * v.T**-1 for i, v in visits.items()) / replies.share
        root = sum(clients.p[i] * v.T**0.5 for i, v in visits.items()) / replies.share
        count = len(visits)
        after, u = self.refresh(s, S, visits, clients.p, rho_node, is_lone(s, clients, count))
        damped = 1 + (AHEAD / rate + root * rate**-0.5) * MARGIN * s.late.part * s.late.G
        return self.move(s, (S, after), u, T=1 / rate, clients=clients, replies=count, damped=damped)

    @on_client(vectorized=True)
    def simulate(self, me: Client[Memory], request: Model, net: Net) -> TimedStep:
        """Forward Euler on dx_i/dt = n_i − ∇f_i(x_i): local descent with the net flow as a constant shift."""
        update = self.descend(me, request.x, net.flow)
        return TimedStep(update.step, update.T)

    def refresh(
        self, s: Server, S: Vec, visits: dict[int, Visit], p: Mapping[int, float], rho: Share, lone: bool
    ) -> tuple[Vec, Vec]:
        """J_i⁺, ρ⁺ (not of a `lone` reply) and Kirchhoff's sum, from replies. Returns S⁺ and u/√T [d].

        Empties ``visits``: a reply's memory is free once its flow is there. Vectors are read once, in blocks that stay
        in a core's cache.
        """
        share = sum(p[i] for i in visits)
        fresh = 1 - float(rho)
        is_late = s.late.applies
        of_S = 0.0
        after = S.clone()
        u = torch.zeros_like(S)
        powers = S.new_zeros(2)
        J = dict(s.J)
        sums = s.S.clone() if is_late else after
        cuts = [slice(None)] if is_late else blocks(S)
        changes = S.new_empty(1 if is_late else min(TOGETHER, len(visits)), len(S[cuts[0]]))
        while visits:
            some = {i: visits.pop(i) for i in [*visits][: len(changes)]}
            common = {i: fresh * (s.T or v.T) ** 0.5 for i, v in some.items()}
            weight = {i: p[i] / share * ((1 - fresh) * v.T**0.5 + common[i]) for i, v in some.items()}
            back = {i: (s.late.weight(i, p[i]) if is_late else p[i] / share) * common[i] for i in some}
            factors = S.new_tensor([[p[i] for i in some], [*weight.values()]])
            flows = {i: torch.empty_like(S) for i in some}
            for at in cuts:
                part = changes[: len(some), : len(S[at])]
                of_u = u[at]
                sizes = []
                for (i, v), change in zip(some.items(), part, strict=True):
                    J_i = J.get(i)
                    flow = flows[i][at]
                    v.measure(J_i, at, change, flow)
                    if is_late:
                        sums.add_(change, alpha=p[i])
                        change.copy_(s.late.visit(i, p[i], s.x, at=v.x + NEAR * v.delta, flow=flow, change=change))
                    if J_i is not None and fresh:
                        of_u.add_(J_i[at], alpha=back[i])
                    sizes.append(flow @ flow)
                made = factors @ part
                after[at].add_(made[0])
                of_u.add_(made[1])
                changed = part.norm(dim=1).square()
                if is_late and not J.keys() >= some.keys():
                    changed.zero_()  # the first visit
                powers += torch.stack([changed, torch.stack(sizes)]) @ factors[0]
            of_S += sum(weight.values()) - sum(back.values())
            for i, flow in flows.items():
                release_pages(J.get(i, flow))
                J[i] = offload(flow)
        s.J = J
        s.S = sums
        if not lone:
            s.rho = steadiness(*powers)
        return after, u.add_(S, alpha=of_S)

    def move(
        self, s: Server, S: tuple[Vec, Vec], u: Vec, T: float, clients: Cohort, replies: float, damped: float = 1.0
    ) -> None:
        """v⁺, x⁺ and the average x̂⁺, which is evaluated.

        ``S`` is Kirchhoff's sum at x before and after the replies, ``u`` the clients' part of the move over √T, [d];
        ``replies`` is the number of replies, in a private run the expected number; ``damped`` is 1 + the step's time ×
        m Σ p_i h_i.
        """
        f = replies / clients.population
        v = s.x.new_zeros(1).expand_as(s.x) if s.v is None else s.v
        cuts = blocks(s.x)
        after, changed, moved, along, rise, *rho = products(S[0], S[1], v, s.rho, cuts)
        s.rho = rho[0] if rho else s.rho
        s.rise = KEPT * s.rise + rise / f
        s.way = KEPT * s.way + moved * moved
        star = max(0.0, s.rise / s.way) if s.way > 0 else 0.0
        cos = min(max(along / (after * moved), 0.0), 1.0) if after * moved > 0 else 0.0
        s.age = 0.0 if s.v is None else (s.age + 1) * (1 - cos)
        several = not is_lone(s, clients, replies)
        b = several * f * s.age / (s.age + NESTEROV)
        noise = min(1.0, (changed / after) * (changed / after) / (2 * f)) if after > 0 else 1.0
        w = math.sqrt(f * (1 - b))
        model = self.model(s)
        x = torch.empty_like(s.x)
        read = None if w == 1 else torch.empty_like(s.x)
        ahead = several * AHEAD * T / (1 + AHEAD * T * star)
        for at in cuts:
            moves = u[at].mul_(-(T**0.5) / damped).add_(S[1][at], alpha=-ahead / damped)  # u has served: v's memory
            moves.add_(v[at], alpha=min(b, 1 - HALF * noise))
            torch.add(s.x[at], moves, out=x[at])
            if read is not None:
                torch.lerp(model[at], x[at], w, out=read[at])
        s.read = read
        s.x = x
        s.v = u
        s.T = T
        clients.note(window=T, conductance=star, lateness=s.late.delay)

    def descend(self, me: Client[Memory], x: Vec, net: Vec) -> LocalUpdate:
        """dx_i/dt = n_i − ∇f_i(x_i). Raises Unsupported if the optimizer is not SGD."""
        if me.pace.optimizer != "sgd":
            name = getattr(me.pace.optimizer, "__name__", me.pace.optimizer)
            raise Unsupported(
                f"FedNorton computes gradients as displacement over time, which Pace(optimizer={name!r}) does "
                "not give: the fixed point would be lost. Leave optimizer out; momentum is fine",
                method="FedNorton",
                need="sgd",
            )
        return passive(me, x, net)

    def round_of_sums(self, s: Server, clients: Cohort) -> None:
        """One round if the clients keep the flows: the server sees only sums of replies."""
        replies = clients.ask(self.change_flow, Star(s.x, s.S, float(s.rho), s.T))
        up = replies.sum()
        share = replies.share
        before = s.S
        s.S = s.S + up.flow
        if min(float(up.T), float(up.rate)) <= 0:
            return  # a private run's noise can outweigh the times: the flows are in the sum, and the node waits
        if not is_lone(s, clients, replies.count):
            s.rho = min(1.0, float(steadiness(*torch.tensor([up.changed, up.size], dtype=torch.float64))))
        window = min(share / float(up.rate), float(up.T) / share)  # the first, unless clipping made the sums smaller
        self.move(s, (before, s.S), up.u / share, T=window, clients=clients, replies=replies.count)

    @on_client(vectorized=True)
    def change_flow(self, me: Client[Memory], request: Star) -> Change:
        """Local descent with the client's own flow J_i, which becomes the mean gradient of this descent."""
        J = torch.zeros_like(request.x) if me.memory.J is None else me.memory.J
        net = torch.sub(J, request.S).mul_(request.rho)
        update = self.descend(me, request.x, net)
        change = update.step  # D_i, and then J_i⁺ − J_i in its memory
        after = net.expand_as(change).contiguous()  # n_i, and then J_i⁺; a stack's first is common to all
        u = torch.empty_like(after)
        root = update.T**0.5
        fresh = (1 - request.rho) * (request.T**0.5 if request.T else root)
        whole = request.rho * root + fresh
        norms = []
        for at in blocks(J):
            J_i = J[..., at]
            new = after[..., at].sub_(change[..., at] / update.T)
            moved = torch.sub(new, J_i, out=change[..., at])
            S = request.S[..., at]
            torch.mul(moved + S, whole, out=u[..., at]).add_((J_i - S) * fresh)
            norms.append(torch.stack([moved.norm(dim=-1, keepdim=True), new.norm(dim=-1, keepdim=True)]))
        me.memory.J = after
        changed, size = map(number, (norms[0] if len(norms) == 1 else torch.stack(norms).norm(dim=0)).square())
        return Change(flow=change, u=u, T=update.T, rate=1 / update.T, changed=changed, size=size)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Sum S = Σ p_i J_i anew over the members, from the server's flows or by an exchange; J_i = 0 for ``who``."""
        p = clients.p
        old = s.late
        if self.flows == "client" or s.J.keys() - p.keys() or {*who} - s.J.keys():
            s.v = None
            s.age = 0.0
            s.rise = 0.0
            s.way = 0.0
        if self.flows == "client":
            s.S = recall_all(self.name, clients, self.recall, Model(s.x))
        else:
            s.J = {i: J for i, J in s.J.items() if i in p}
            requests = {i: r for i, r in old.asked.items() if i in p}
            s.S = sum((p[i] * J for i, J in s.J.items()), torch.zeros_like(s.x))
            delays = {i: d for i, d in old.delays.items() if i in p}
            s.late = Lateness(delays, old.turns, requests)

    @on_client
    def recall(self, me: Client[Memory], request: Model) -> Recalled:
        """J_i; 0 before the first visit."""
        return Recalled(torch.zeros_like(request.x) if me.memory.J is None else me.memory.J)
