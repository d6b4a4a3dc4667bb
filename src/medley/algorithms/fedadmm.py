"""FedADMM: ADMM under partial participation: clients send the change of their augmented model w_i + y_i/ρ_i.

**Reference**: Gong, Li & Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity", ICDE 2022, Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. Clients keep 2d floats between rounds.

**One round sends** (floats per client):

- train: d + 1 down, d + 1 up

**Departures**: the paper gives all clients the same weight. Here means are unweighted and ρ_i = prox/(N p_i), so that
the fixed point is the minimum of Σ p_i f_i even if clients differ in size. Clients descend on the local problem from
the server's θ for the pace's steps, as in the authors' code; nothing checks Algorithm 1's accuracy ε_i. All w_i start
at θ⁰ and are kept, as in the paper. The authors' code uses θ instead of the last w_i. A client in its first round does
not know θ⁰: it sends its change from θ, and the server adds θ − θ⁰. Adam descends on the corrected loss too, so x ends
near the minimum, within a few steps of size lr.

**Checked against**: the authors' code. The gradient of a local step, the dual variable, the message (with θ instead of
the last w_i), the server's step and ρ agree. The code's η falls from 1 to 1/2 after round 60. Its SGD applies momentum
0.5 to the whole gradient, including the pull ρ(w − θ); ``Pace(momentum=0.5)`` adds the pull after the momentum. For the
code's step, pass torch's SGD: ``Pace(optimizer=partial(torch.optim.SGD, momentum=0.5))``. The two differ by more if ρ
is larger.

**Missing replies**: a lost reply is left out of the mean; w_i and y_i stay as they were.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=5)
>>> pace = md.scenarios.Pace(lr=0.1, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace, participation=0.6)
>>> md.run(md.FedADMM(prox=3.0, server_lr="share"), fed, rounds=60, progress=False).summary["gap"] < 1e-8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..contract import Algorithm, Client, Cohort, Message, ModelAndPull, Vec, on_client, positive


class Change(Message):
    """Up: the change of the client's augmented model w_i + y_i/ρ_i [d]; 1 in its first round, else 0."""

    delta: Vec
    first: float


@dataclass
class Server:
    """The model θ, and θ⁰, the first one."""

    x: Vec
    x0: Vec


@dataclass
class Memory:
    """The client's last model w_i [d], and h_i = y_i/ρ_i [d]; zeros in its ``first`` round."""

    w: Vec
    h: Vec
    first: bool = True


@dataclass(frozen=True)
class FedADMM(Algorithm[Server, Memory]):
    """ADMM with inexact local solves and partial participation.

    Attributes:
        prox: ρ, the weight of the proximal term; 0.01 in the paper's experiments
        server_lr: η: 1 in the paper's experiments; "share" is |S|/N, where |S| clients replied

    With "share", θ is the mean of w_i + y_i/ρ_i over all clients, and the only fixed point is the minimum. With a
    number and partial participation, clients can agree on another point. If all take part, 1 and "share" are the same,
    and both are FedDyn(alpha=prox).
    """

    prox: Annotated[float, positive] = 0.01
    server_lr: Annotated[float, positive] | Literal["share"] = 1.0

    def start(self, x: Vec) -> Server:
        """θ⁰."""
        return Server(x, x)

    def remember(self, x: Vec) -> Memory:
        """y_i = 0, and no model yet."""
        return Memory(x, x)

    def round(self, s: Server, clients: Cohort) -> None:
        """θ ← θ + (η/|S|) Σ_S Δ_i: the server adds the changes of the clients S that replied."""
        replies = clients.ask(self.train, ModelAndPull(s.x, self.prox / clients.population))
        up = replies.sum(dict.fromkeys(clients.p, 1.0))
        eta = replies.count / clients.population if self.server_lr == "share" else self.server_lr
        s.x = s.x + eta / replies.count * (up.delta + up.first * (s.x - s.x0))

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: ModelAndPull) -> Change:
        """Local descent on f_i(w) + ⟨y_i, w − θ⟩ + (ρ_i/2)‖w − θ‖², then y_i ← y_i + ρ_i (w_i − θ)."""
        rho_i = request.weight / me.p
        h_i = me.memory.h
        first = me.memory.first
        last = request.x if first else me.memory.w
        step = me.descend(request.x, pull=(rho_i, request.x), shift=rho_i * h_i).step
        me.memory.w = request.x + step
        me.memory.h = h_i + step
        me.memory.first = False
        return Change(request.x - last + 2 * step, float(first))
