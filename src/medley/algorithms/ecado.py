"""ECADO: consensus ADMM with inexact local solves, as a circuit that the server solves for its steady state.

**Reference**: Agarwal & Pileggi, "Equivalent Circuit Approach to Distributed Optimization" (ECADO), 2023, as
described in section 3 of FedECADO's arXiv version, which also has the equation numbers.

**Status**: published

**Needs**: every client in every round, and the same clients from the first round to the last.

**One round sends** (floats per client):

- simulate: 2d + 1 down, d + 1 up

**Departures**: the server computes the steady state in closed form. The paper takes backward-Euler steps until x_c
stands still (28); this state is their limit. Losses are scaled by N·p_i, so that the fixed point is the minimiser of
Σ p_i f_i even if clients differ in size.

**Missing replies**: if a reply is lost, the client's current stays the same, a constant source in Kirchhoff's sum.

**Example**

>>> import medley as md
>>> q = md.problems.synthetic_quadratics(clients=5, d=4, seed=2)
>>> fed = md.Federation(q.problem, clients=q.clients, pace=md.scenarios.Pace(lr=0.02, batch=None, epochs=5))
>>> run = md.run(md.ECADO(), fed, rounds=300, progress=False)
>>> float((run.x - q.x_star).norm()) < 1e-8
True
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..contract import Algorithm, Client, Cohort, Message, Need, TimedStep, Vec, on_client
from ..numerics.circuit.steady import steady_state


class Center(Message):
    """Down to all clients: the server's node [d], and the number of clients."""

    x: Vec
    n: int


class Flow(Message):
    """Down to one client: the current in its branch [d]."""

    I: Vec


@dataclass
class Server:
    """The node, the sum of all currents, and the currents of the clients that took part."""

    x: Vec
    S: Vec
    I: dict[int, Vec] = field(default_factory=dict)


@dataclass(frozen=True)
class ECADO(Algorithm[Server]):
    """Consensus by a circuit at rest. All clients have G_i = 1/Δt with the same Δt, the longest window."""

    needs = frozenset({Need.EVERYONE, Need.REPLIES, Need.FIXED})

    def start(self, x: Vec) -> Server:
        """x₀, and no currents."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """Simulate the clients, then solve the server: I_i ← I_i + G_i(x_c − x_i), after which Σ I_i = 0."""
        flows = {i: Flow(s.I.get(i, torch.zeros_like(s.x))) for i in clients.ids}
        replies = clients.ask(self.simulate, Center(s.x, clients.population), flows).each()
        if not replies:
            return
        G = s.x.new_full((len(replies),), 1 / max(float(w.T) for w in replies.values()))
        dx, s.S, I = steady_state(s.S, [w.delta for w in replies.values()], G, [flows[i].I for i in replies])
        s.x = s.x + dx
        s.I = s.I | dict(zip(replies, I, strict=True))

    @on_client(vectorized=True)
    def simulate(self, me: Client, request: Center, flow: Flow) -> TimedStep:
        """Forward Euler on the client's line, dx_i/dt = I_i − w_i ∇f_i(x_i) with w_i = N p_i."""
        w = me.descend(request.x, scale=me.p * request.n, shift=(-1.0, flow.I))
        return TimedStep(w.step, w.T)
