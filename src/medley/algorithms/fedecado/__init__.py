"""FedECADO: federated learning as an electric circuit, whose server follows Kirchhoff's sum of all clients' flows.

**Reference**: Agarwal, Joshi & Pileggi, "FedECADO: A Dynamical System Model of Federated Learning", ICML 2025,
Algorithms 1 and 2; equation numbers below are the paper's, with the signs of its appendix (41)-(43).

**Needs**: nothing; Hessian-vector products where ``sensitivity`` is on.

**One round sends** (floats per client):

- simulate_net (if flows="server"): 2d down, d + 1 up
- change_flow (if flows="client"): 2d + 2 down, 2d + 6 up
- simulate (if form="J" and flows="server"): 2d down, d + 2 up
- simulate (if form="I"): 2d + 1 down, d + 2 up
- simulate (if form="paper"): 2d down, 2d + 2 up
- simulate (if form="J" and flows="client"): d down, d + 2 up
- simulate (if form="J", flows="client" and kappa is on): d down, 2d + 2 up
- settle (if form="J" and flows="client"): d + 1 down, 0 up
- curvature (if sensitivity="scalar"): d down, 1 up; when a client is new or due for a refresh
- curvature (if sensitivity="diagonal"): d down, d up

**The circuit.** The server's node x (capacitor C) feeds a branch per client; J_i is the flow in it per unit of its
weight p_i, in units of a gradient:

    C dx/dt = −Σ_i p_i J_i        dx_i/dt = J_i − ∇f_i(x_i)                                              (41), (43)

At rest x_i = x = x*, J_i = ∇f_i(x*), and Kirchhoff's sum S = Σ p_i J_i = 0 over ALL clients says ∇f(x*) = 0, whatever
the clients' learning rates, epochs and sizes, where gradients are exact. Between its visits a client is its Norton
equivalent, a source J_i in parallel with a conductance h_i: Ĵ_i(x) = J_i + m h_i (x − x̄_i). One round, with f the
share of clients that reply:

    n_i = ρ (J_i − S),  −S where J_i is not known   down, with x: the star's neutral floats
    D_i, T_i                                        up: a descent with shift −n_i, and its time Σ lr
    J_i⁺ = n_i − D_i/T_i,  ε_i = Ĵ_i⁺(x) − Ĵ_i(x)   the mean gradient met; the innovation
    S⁺ = S + Σ p_i ε_i                              Kirchhoff's sum
    ρ⁺ = max(0, 1 − ½ mean |ε_i|²/mean |J_i⁺|²)     the flows' share that lasts; means by p_i, over the replies
    w_i = √(T̄ T_i),  T̄ = mean T_i²/mean T_i         the window, of length Te = mean w_i; all w_i are less by one factor
                                                    where mean w_i/T_i > 1.25
    u_i = ρ w_i + (1 − ρ) √(T̄ T_h)                  less by the same factor; T_h of the rounds before
    e = max( min(1, 1/f − 1), min( (1 + e⁻) f |S⁺|/|S⁺ − S| − 1, 1 ), 0 )
    t = (t⁻ + 1) (1 − max(0, cos(S⁺, v⁻))),  b = f t/(t + 3)
    β = min( b, 1 − ½ min( 1, N/|S⁺|² ) ),   N = |S⁺ − S|²/2f
    v = β v⁻ − ( mean (u_i J_i⁺ − w_i n_i) + e Te S⁺ ) / (1 + (1 + e) Te m Σ p_i h_i)
    x⁺ = x + v

    T_h = 1/(E[1/√T]³ E[√T]),  (1 + e) Te ≤ max(Te, 3 T_h)       means by p_i over replies and rounds, decay .9

Where flows last, the bracket's first term is the clients' mean displacement, with the other sign; by its second the
window goes on along Kirchhoff's sum for e windows, by backward Euler. The step is as long as the time in which S
changes by its own size, by its change in the last step, of 1 + e⁻ windows, and at most two windows. Unequal times make
it shorter: since descents saturate, a branch answers to x by 1/T_i at most and the star by Σ p_i/T_i = 1/T_h, so a
longer step overshoots the flows of clients with short times. T_h is that harmonic mean, as if times were log-normal. In
the same way the mean of w_i/T_i is bounded: a descent that ends at its minimum would not go further in a longer time. ρ
is the factor on all J_i that predicts the J_i⁺ best, if a flow has a part that stays and one that is new at each visit;
first visits give ½, exact gradients 1 in the end. What does not last is in J_i⁺ but in no n_i. It counts with the same
window for all, √(T̄ T_h), as in FedNova; w_i would move the point of rest. β v⁻ is the current of an inductor at the
node, damped as in Nesterov's method by a resistor 3/t. The motion's age t is set back where it runs against Kirchhoff's
sum. N is the power of noise in S⁺, as if S changed by noise alone. The motion sums S up over no more than 2|S⁺|²/N
rounds, and over two where S is all noise. The evaluated model is a moving average of x with weight √(f(1 − b)).

Where no reply is late, m = 0. Where replies are d rounds under way, a mean over rounds with decay .9, m = 2 min(1, d),
h_i is measured by secants, n_i and x are those of the request, in ρ a first visit counts as 1, and with δ = min(1, d),
of the rounds before in m and n_i,

    n_i = ρ' (J_i − S),  −(1 − δ) S where J_i is not known
    mean (u_i J_i⁺ − w_i n_i) is  Te S + mean w_i ε_i + (1 − ρ'') √(T̄ T_h) Σ p_i g_i (J_i − S)
    ρ' = (1 − δ) ρ + δ (1 − min(1, √σ)),  ρ'' = (1 − δ) ρ + δ max(0, 1 − σ/2),  σ = Σ p_i |ε_i|²/Σ p_i |J_i|²

with the sums of σ over clients that replied since replies came late. S + ε_i is free of what one client's flow has for
itself, and doubles its noise; ρ'' takes off as much of it as leaves the least. g_i is the number of rounds since the
client's last reply, at most three mean ones, so that those that reply more often count for more only beyond that. And f
in 1/f − 1 counts clients that are at work. Below d = .01, no reply due, conductances and σ are forgotten.

**Departures** (``docs/decisions/measured-flows.md``): the star, Kirchhoff's sum over all clients, shifted descents,
time as Σ lr, and backward Euler with a step by local truncation error are the paper's. Changed:

- A flow is the gradient that its client met, not the integral of an inductor: a stale flow then cannot run away.
- The neutral floats: with J_i in the place of n_i each client is pushed by the common current too.
- The window is a mean of T_i, not the longest, which amplifies the others' noise and overshoots their minima.
- A net flow counts by ρ. Whole flows that do not last push a client of many steps far along what they no longer say.
  Where batches are drawn ρ stays below 1, and clients drift towards their own minima: the point of rest moves by the
  share 1 − ρ of FedNova's distance, which is small where all T_i h are; with ``steady=False`` it does not.
- Inactive clients stay in the sum. Without them the fixed point is lost.
- No sensitivities H̄_i are asked for; the conductance is measured, and matters for late replies only.
- The node has an inductor, damped as in Nesterov's method (Su, Boyd & Candès, JMLR 2016), with O'Donoghue & Candès'
  restart (2015) made gradual. f keeps it from summing stale flows, N from noise.
- The evaluated model is an average of the node's way, not where the node stands.
- A descent whose mean force shows that an error of the flow would grow, see `descent.growth`, is made again with steps
  a quarter as long: beyond a growth of 1 where gradients are exact, of 1.25 where batches are drawn; not of one step.

**Steps by a tolerance.** ``gamma`` is an option in the manner of the authors' sequel, AdaptiveFedECADO (arXiv
2510.04203), of which only the abstract was at hand. The default has γ = ½ between one window and two. With ``gamma``

- the node's step lasts until its error is γ, from an eighth of a window on, but two at most;
- a client takes steps of a_i lr with a_i lr h_i/2 = γ, the error of forward Euler. h_i is measured on its first batch,
  which takes three gradients more, and 0.1 ≤ a_i ≤ 10;
- b is at most f (1 − √(τh))², critical for the step τ and the conductance h of the star along the motion.

**SCAFFOLD** is the special case q = 1, reach = 0, inertia, steady and shorten off: J_i = c_i and S = c there. The
circuit adds the window's common time and extension, the inductor, the read-out, the absent branches' conductance.

**The clients' optimizer**: SGD, with or without momentum: D_i/T_i is an exact mean of gradients. Others are refused.

**Missing replies**: a lost one leaves its flow as it was, and the sum with it. With flows at the server a late reply is
taken in the round in which it arrives, with its own request's node and net flow; with flows at the clients it is lost.
A client that lost its memory comes back with flows at the server as if nothing had been, else with J_i = 0. When
clients join or leave, S is summed anew over the members: by the server, or with flows at the clients by one exchange
with all, as after a loss. The node's motion was that of another circuit, and begins at rest; with flows at the server
it goes on where those that left had no flow yet and nobody came. The other forms want the same clients throughout.

**Earlier forms**, for ablation, are in `inductive`: ``form="J"``, with inductors and a passivity limiter,
``form="I"``, the paper's variables, and ``form="paper"``, Algorithm 2 as printed but for its signs. In these any
optimizer runs at the clients; under other ones than SGD their fixed point is lost. A ``sensitivity`` of the J form is
bounded so that branches stay passive; with λ = 0 it ran away where T_i times a curvature was above 1.6.

**Example**

>>> import medley as md
>>> q = md.problems.quadratics(clients=10, d=5, seed=1)
>>> pace = md.scenarios.Pace(lr=md.scenarios.Uniform(0.01, 0.1), epochs=md.scenarios.Integers(1, 10), batch=None)
>>> fed = md.Federation(q.problem, clients=q.clients, pace=pace, participation=0.4)
>>> run = md.run(md.FedECADO(), fed, rounds=300, progress=False)
>>> float((run.x - q.x_star).norm() / q.x_star.norm()) < 1e-8
True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from ...contract.algorithm import on_client
from ...contract.client import Client, LocalUpdate
from ...contract.cohort import Cohort
from ...contract.errors import Unsupported
from ...contract.messages import Recalled, recall_all
from ...contract.types import Vec, number
from ...numerics.circuit.norton import (
    FORGET,
    Branch,
    Reach,
    Sizes,
    advance,
    controlled,
    critical,
    extension,
    inertia,
    noise_bound,
    refresh,
    steadiness,
    window,
)
from . import late
from .descent import passive, rate
from .inductive import Inductive
from .late import Lasting
from .messages import Center as Center
from .messages import Change, Request, Server, Star, Window
from .messages import Memory as Memory
from .messages import Net as Net
from .messages import Node as Node


class FedECADO(Inductive):
    """The method; it has no knob that needs turning. The settings beside ``flows`` are for ablation.

    Attributes:
        lam: the J form's λ, the inductance in units of the window squared; auto: 0 for convex problems, 1 for networks.
        C_c: the J form's capacitance at the server; auto: 0 at full participation, else the share that takes part.
        q: trust in replies by their length, see `Reach`: 0 extrapolates each to the mean time, 1 none; auto: 0.5, in
            the J form 0 for convex problems.
        kappa: the J form's κ of the passivity limiter, None for none; auto: none for convex problems, 1 for networks.
        delta: tolerance of the inductive forms' step control by local truncation error, relative to the clients'
            longest way; None takes exactly one step a round.
        sensitivity: the clients' curvature in the inductive forms' G_i: none, tr(H_i)/d, or the diagonal of H_i.
        refresh: rounds after which a client's curvature is asked for again; 0: never.
        form: "norton" is the method; "J", "I" and "paper" are earlier ones, see `inductive`.
        flows: where flows are kept: at the server, or at the clients, with O(d) memory at the server and sums of
            replies only.
        weights: the I form's w_i in w_i f_i: N·p_i, p_i, or 1, which has the optimum of the plain mean of f_i.
        probes: Hutchinson samples of a curvature.
        reach: the longest extension of a window, in windows; default 1.
        inertia: whether the node has an inductor; default True.
        steady: whether net flows are multiplied by ρ, the share of the flows that lasts; default True.
        shorten: whether a descent that overshoots is made again with shorter steps, see `passive`; default True. It is
            not with ``gamma``, where rows are private, and where clients have parameters of their own.
        gamma: tolerance of the local truncation error of the node's steps and of the clients', relative to a step, at
            most 0.25; default None: the node's own rule, and clients at their pace.

    In the forms I and paper C_c is 1, q means nothing, and None for ``delta`` is 0.01; the I form's λ is in units of
    max(1, N/8)·T², T the longest window so far. The defaults are this library's own; the paper gives none.
    """

    sums_as = "FedECADO(flows='client')"

    def model(self, s: Server) -> Vec:
        """The read-out of the node; the node itself before it moves, and in the inductive forms."""
        return s.x if s.read is None else s.read

    def round(self, s: Server, clients: Cohort) -> None:
        """Algorithm 2: clients simulate their branches, then the server its node."""
        if self.form != "norton":
            self.inductive_round(s, clients)
        elif self.flows == "client":
            self.round_of_sums(s, clients)
        else:
            self.round_of_replies(s, clients)

    def round_of_replies(self, s: Server, clients: Cohort) -> None:
        """One round with flows at the server, late replies among them."""
        if s.late < FORGET and not s.asked:
            s.late, s.branches, s.GX, s.G = 0.0, {}, None, 0.0
        m = 2 * min(1.0, s.late)
        S = s.S if s.GX is None else s.S + m * (s.G * s.x - s.GX)  # S(x) = Σ p_i (J_i + m h_i (x − x̄_i))
        net, busy = self.nets(s, S, clients), clients.at_work
        replies = clients.ask(self.simulate_net, Node(s.x), net, late="deliver")
        got = replies.each()
        asked = s.asked | {i: Request(s.x, n.flow) for i, n in net.items() if i not in busy}
        s.asked = {i: asked[i] for i in sorted(clients.at_work)}
        if not got:
            return
        p = [clients.p[i] for i in got]
        reach = Reach.of(torch.tensor([w.T for w in got.values()], dtype=torch.float64), p, float(self.q))
        common = s.times.common(float(self.q))
        s.times = s.times.then(reach.share, reach.trust, reach.slope)
        age = sum(clients.round - t for t in replies.asked.values()) / len(got)
        s.late, s.turns = s.late + (age - s.late) / s.times.rounds, s.turns + 1
        if s.late == 0:
            n, D, J = ([asked[i].flow for i in got], [w.delta for w in got.values()], [s.J.get(i) for i in got])
            new = refresh(S, n, D, J, reach, s.steady if self.steady else 1.0, common)
            s.J, s.S = s.J | dict(zip(got, new.J, strict=True)), new.S
        else:
            rho = float(Lasting.of(s, clients.p).node) if self.steady else 1.0
            new = late.refresh(s, S, clients, {i: (asked[i], w) for i, w in got.items()}, reach, m, rho, common)
        s.steady, s.met = new.steady, s.met | dict.fromkeys(got, s.turns)
        at_work = len(s.asked)
        self.move(s, (S, new.S), new.ahead / reach.share, reach.Te, clients, len(got), m * s.G, at_work)

    @on_client(vectorized=True)
    def simulate_net(self, me: Client[Memory], got: Node, own: Net) -> Window:
        """Forward Euler on dx_i/dt = n_i − ∇f_i(x_i), (43): local descent with the net flow as a constant shift."""
        went = self.descend(me, got.x, own.flow)
        return Window(went.step, went.T)

    def nets(self, s: Server, S: Vec, clients: Cohort) -> dict[int, Net]:
        """n_i = ρ' (J_i − S): the star's neutral floats, so that the common current is not pushed into the clients."""
        share = Lasting.of(s, clients.p).net if self.steady else 1.0
        first = Net(S * (min(1.0, s.late) - 1))
        return {i: Net((s.J[i] - S).mul_(share)) if i in s.J else first for i in clients.ids}

    def move(
        self,
        s: Server,
        S: tuple[Vec, Vec],
        ahead: Vec,
        Te: float,
        clients: Cohort,
        replies: float,
        h: float = 0.0,
        at_work: int = 0,
    ) -> None:
        """The node after the window and its extension, and the read-out.

        Args:
            S: Kirchhoff's sum at x before the replies and after them [d].
            ahead: Σ p_i (u_i J_i⁺ − w_i n_i)/Σ p_i [d].
            Te: length of the window.
            replies: number of replies; the expected number in a private run.
            h: conductance of the whole star.
            at_work: number of clients whose replies are due.
        """
        f, due = replies / clients.population, at_work / clients.population
        sizes = Sizes.of(*S, s.v if self.inertia else None)
        most = min(float(self.reach), s.times.reach(float(self.q), Te))
        if self.gamma is None:
            e, share = extension(f, sizes, s.extended, most, due), 1.0
        else:
            e, share = controlled(f, sizes, s.extended, self.gamma, most, due)
        x = advance(s.x, Te, S[1], ahead, e, h)
        if share < 1:
            x = torch.lerp(s.x, x, share)
        b = 0.0
        if self.inertia:
            if s.v is not None:
                b, s.age = inertia(f, sizes, s.age)
                b = min(b, self.damping(s, S, f, share * (1 + e) * Te))
                x.add_(s.v, alpha=min(b, noise_bound(f, sizes)))
            s.v = x - s.x
        read = s.x if s.read is None else s.read
        w = math.sqrt(f * (1 - b))
        s.x, s.read, s.extended = x, None if w == 1 else torch.lerp(read, x, w), share * (1 + e) - 1
        clients.note(Te=Te, extended=s.extended, lateness=s.late)

    def damping(self, s: Server, S: tuple[Vec, Vec], f: float, tau: float) -> float:
        """With gamma, the critical β for the star's conductance."""
        if self.gamma is None:
            return 1.0
        s.star = Branch(s.x) if s.star is None else s.star.moved(s.x, (S[1] - S[0]) / f)
        return critical(f, tau, s.star.h if s.late == 0 else s.G)

    # Flows at the clients

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """S = Σ p_i J_i anew, over the members: of the flows here, or by an exchange, J_i = 0 for ``who``.

        With flows at the server those of members stay, and so do their conductances.
        """
        s.h = {i: h for i, h in s.h.items() if i not in who}
        s.sensed = {i: t for i, t in s.sensed.items() if i not in who}
        if self.flows == "client" or s.J.keys() - clients.p.keys() or {*who} - s.J.keys():
            s.v, s.star, s.age, s.extended = None, None, 0.0, 0.0  # the motion was that of another circuit
        if self.flows == "client":
            s.S = recall_all(self.name, clients, self.recall, Node(s.x))
        elif self.form == "norton":
            s.met |= dict.fromkeys({*who} - s.J.keys(), s.turns)
            self.regroup(s, clients)

    def regroup(self, s: Server, clients: Cohort) -> None:
        """S, G = Σ p_i h_i and Σ p_i h_i x̄_i once more, over the flows and branches of the members."""
        p = clients.p
        s.J = {i: J for i, J in s.J.items() if i in p}
        s.branches = {i: b for i, b in s.branches.items() if i in p}
        s.asked = {i: r for i, r in s.asked.items() if i in p}
        s.met = {i: t for i, t in s.met.items() if i in p}
        zero = torch.zeros_like(s.x)
        s.S = sum((p[i] * J for i, J in s.J.items()), zero)
        s.G = sum(p[i] * b.h for i, b in s.branches.items())
        if s.GX is not None:
            s.GX = sum((p[i] * b.h * b.at for i, b in s.branches.items()), zero)

    @on_client
    def recall(self, me: Client[Memory], got: Node) -> Recalled:
        """J_i; 0 before the first round."""
        return Recalled(torch.zeros_like(got.x) if me.memory.J is None else me.memory.J)

    def round_of_sums(self, s: Server, clients: Cohort) -> None:
        """One round with flows at the clients: the server sees sums of replies only."""
        rho = float(s.steady) if self.steady else 1.0
        replies = clients.ask(self.change_flow, Star(s.x, s.S, rho, s.times.common(float(self.q))))
        up, q = replies.sum(), float(self.q)
        if min(float(up.T), float(up.square), float(up.trust), float(up.slope)) <= 0:
            # A private run's noise can outweigh the times. The flows are in the sum; the node waits for a known window.
            s.S = s.S + up.flow
            return
        share, trust, slope = replies.share, float(up.trust), float(up.slope)
        scale = window(share, float(up.square), float(up.T), slope, q) / share
        S, s.S = s.S, s.S + up.flow
        s.times = s.times.then(share, trust, slope)
        s.steady = min(float(steadiness(*torch.tensor([up.changed, up.size], dtype=torch.float64))), 1.0)
        self.move(s, (S, s.S), scale * up.ahead, scale * trust, clients, replies.count)

    @on_client(vectorized=True)
    def change_flow(self, me: Client[Memory], got: Star) -> Change:
        """Local descent with the client's own flow, which becomes the mean gradient that it met."""
        J = torch.zeros_like(got.x) if me.memory.J is None else me.memory.J
        net = (J - got.S) * (1.0 if me.memory.J is None else got.steady)
        went = self.descend(me, got.x, net)
        me.memory.J = net - went.step / went.T
        change, trust = me.memory.J - J, went.T ** float(self.q)
        slope = trust / went.T
        changed, size = (number(v.square().sum(-1, keepdim=True)) for v in (change, me.memory.J))
        rest = (1 - got.steady) * (trust - got.common)
        return Change(change, -slope * went.step - rest * me.memory.J, went.T, went.T**2, trust, slope, changed, size)

    def descend(self, me: Client[Memory], x: Vec, net: Vec) -> LocalUpdate:
        """dx_i/dt = n_i − ∇f_i(x_i). Raises Unsupported under other optimizers than SGD."""
        if me.pace.optimizer != "sgd":
            name = getattr(me.pace.optimizer, "__name__", me.pace.optimizer)
            raise Unsupported(
                f"FedECADO measures gradients as displacement over time, which Pace(optimizer={name!r}) does not give:"
                " the fixed point would be lost. Leave optimizer out; momentum is fine. form='J' runs, without that"
                " fixed point",
                method="FedECADO",
                need="sgd",
            )
        if self.gamma is None:
            return passive(me, x, net) if self.shorten else me.descend(x, shift=-net)
        a = rate(me, x, net, self.gamma)
        went = me.descend(x, scale=a, shift=-a * net)
        return dataclasses.replace(went, T=a * went.T)
