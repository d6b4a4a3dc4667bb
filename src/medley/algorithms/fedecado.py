r"""FedECADO: the server follows the circuit of all clients' flows, by backward-Euler steps with a bounded error.

**Reference**: Agarwal, Joshi & Pileggi, "FedECADO: A Dynamical System Model of Federated Learning", ICML 2025,
Algorithms 1 and 2. Equation numbers are the paper's.

**Status**: published with corrections

**Needs**: Hessian-vector products, SGD at the clients (with or without momentum), every reply within its round, and the
same clients from the first round to the last.

**One round sends** (floats per client):

- curvature: d down, 1 up; when a client takes part for the first time
- simulate: 2d down, d + 1 up

**The method.** A client is a branch of a circuit. Its flow from the server's node x_c is N p_i J_i, where N p_i is its
number of rows divided by the mean client's, and J_i has the units of a gradient. At rest x_i = x_c and
J_i = ∇f_i(x_c), so Kirchhoff's sum says that the gradient of Σ p_i f_i vanishes.

The circuit, where each client's line is its share of (41)-(43):

$$\dot x_c = -\sum_{i=1}^{N} N p_i J_i \qquad (29), (41)$$

$$L \dot J_i = x_c - x_i \qquad (18), (42)$$

$$\dot x_i = J_i - \nabla f_i(x_i) \qquad (17), (43)$$

A client simulates its line for the time T_i, the sum of its learning rates over its steps:

$$x_i \leftarrow x_i - \Delta t_i\,(\nabla f_i(x_i) - J_i), \qquad T_i = \sum \Delta t_i \qquad (9), (27)$$

The client's aggregate sensitivity says how its state responds to its flow; T is the window, the longest T_i:

$$\hat G_i = \frac{1}{T} + \bar H_i, \qquad \bar H_i = \mathrm{tr}\,\nabla^2 f_i / d \qquad (22)$$

Multi-rate integration: the server brings all clients to one time, by interpolation and extrapolation:

$$\Gamma_i(\tau) = x_i(0) + \frac{\tau}{T_i}\,(x_i(T_i) - x_i(0)) \qquad (28)$$

The server solves its own lines by backward Euler, as the linear system (33). Client i trained with the flow J_i^k:

$$x_c(\tau + \Delta t) = x_c(\tau) - \Delta t \sum_{i=1}^{N} N p_i J_i(\tau + \Delta t) \qquad (31)$$

$$J_i(\tau + \Delta t) = J_i(\tau) + \frac{\Delta t}{L}\,v_i(\tau + \Delta t) \qquad (32)$$

$$v_i = x_c - \Gamma_i - \hat G_i^{-1}\,(J_i - J_i^k) \qquad (24), (30)$$

The step is shortened, Δt ← Δt δ/max|ε|, until the truncation error is at most δ (Algorithm 1):

$$\varepsilon_C = \frac{\Delta t}{2} \sum_i N p_i\,[J_i(\tau + \Delta t) - J_i(\tau)] \qquad (34)$$

$$\varepsilon_L = \frac{\Delta t}{2 L}\,[v_i(\tau + \Delta t) - v_i(\tau)] \qquad (35)$$

$$\max(|\varepsilon_C|, |\varepsilon_L|) \le \delta \qquad (36)$$

**Departures** (``docs/decisions/fedecado.md`` shows what the results are without each of them):

- Signs: as in (41)-(43). (5)-(33) print both; if the client's and the node's are reversed, even quadratics diverge,
  whatever L is.
- Weights: p_i is on the client's capacitor and inductor (N p_i and L/(N p_i)), not on its gradient. With p_i ∇f_i as in
  (17) a client's learning rate is divided by N; without p_i, as in Algorithm 2, the plain mean is minimised.
- Kirchhoff's sum is over all clients, as in (29), not over the active ones of (33), which moves the optimum.
- A client starts from x_c, not from its own last state, which is old after rounds without it.
- T_i sums over SGD steps; (27) sums over epochs, and so gets other times if clients differ in numbers of rows. With the
  pace's momentum ρ, T_i is FedNova's lr·‖a‖₁, up to 1/(1 − ρ) times the sum of the learning rates.
- H̄_i is measured at x_c of the client's first round, not of all clients before round 1. It is of the problem's loss on
  one batch, without the pace's weight decay, and a negative H̄_i counts as 0, so that Ĝ_i > 0.
- ``L`` is in units of the window squared, so that it does not depend on the scale of the learning rates.

Where the paper contradicts itself: Γ is taken at τ + Δt and flows are carried on, as in (31) and (32), not (33);
Algorithm 1 goes on while the error is above δ; 1/Ĝ multiplies J − J^k in (35), as in (30); the Δt of (22) is the
window. Algorithm 1 first tries the rest of the window as its step, and accepts 1/64 of a window whatever the error.

**Not in the paper**, so Medley raises an error before round 1: late replies, clients that join or leave, secure sums,
privacy. `FedNorton`, this library's own rule, has these.

**Missing replies**: a lost reply leaves the client's flow as it was, a constant source in Kirchhoff's sum. If a
client's curvature is lost, it counts as flat, H̄_i = 0, until the server asks again.

**Example**

>>> import medley as md
>>> q = md.problems.synthetic_quadratics(clients=10, d=5, seed=1)
>>> lr = md.distributions.Uniform(0.01, 0.1)
>>> pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(q.problem, clients=q.clients, pace=pace, participation=0.4)
>>> run = md.run(md.FedECADO(), fed, rounds=300, progress=False)
>>> float((run.x - q.x_star).norm() / q.x_star.norm()) < 1e-8
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch

from ..contract import Algorithm, Client, Cohort, Message, Model, Need, TimedStep, Vec, on_client, positive
from ..numerics.circuit.step import Window, integrate
from ..numerics.krylov import hutchinson

PROBES = 8
"""Products with the Hessian for one estimate of its trace."""

REMOVED = (
    *("form", "flows", "lam", "C_c", "q", "kappa", "sensitivity", "refresh"),
    *("weights", "probes", "reach", "inertia", "steady", "shorten", "gamma"),
)
"""Settings of the method that had this name before."""


class Flow(Message):
    """Down to one client: the flow in its branch, J_i [d]."""

    J: Vec


class Curvature(Message):
    """Up: H̄_i, the mean curvature tr(∇²f_i)/d of a batch; at least 0."""

    h: float


@dataclass
class Server:
    """The server's circuit.

    Attributes:
        x: the node x_c [d]
        S: Kirchhoff's sum Σ N p_i J_i over all clients [d]
        J: flows of the clients that took part
        h: their H̄_i
    """

    x: Vec
    S: Vec
    J: dict[int, Vec] = field(default_factory=dict)
    h: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedECADO(Algorithm[Server]):
    """The method as published, with the corrections that it needs to work.

    Attributes:
        L: inductance of a mean client's branch, in units of the window squared; the paper gives no value. A
            larger L damps more: try 3 or 10 if a network's training is unstable
        delta: δ, the bound on the truncation error, in the units of x and of a gradient; the paper gives no value.
            With a large δ a round is one step
    """

    L: Annotated[float, positive] = 1.0
    delta: Annotated[float, positive] = 0.1

    needs = frozenset({Need.HESSIAN, Need.SGD, Need.PROMPT, Need.REPLIES, Need.FIXED})
    sums_as = "FedNorton(flows='client')"
    instead: ClassVar[Mapping[str, str]] = dict.fromkeys((Need.HESSIAN, Need.PROMPT, Need.FIXED), "FedNorton()")
    gone: ClassVar[Mapping[str, str]] = {
        key: f"FedECADO({key}=...) is gone: FedECADO is now the published method, with L and delta; this "
        "library's own rule, which had the name before, is FedNorton"
        for key in REMOVED
    }

    def start(self, x: Vec) -> Server:
        """Steps 1-4 of Algorithm 2: x_c = x(0), and no flows."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """Steps 5-16 of Algorithm 2: new clients' curvature, then the clients' ODEs, then the server's."""
        self.sense(s, clients)  # 5
        none = torch.zeros_like(s.x)
        flows = {i: Flow(s.J.get(i, none)) for i in clients.ids}
        replies = clients.ask(self.simulate, Model(s.x), flows).each()  # 9-11
        if not replies:
            return
        window = self.window(s, clients, replies)
        end = integrate(window, self.delta)  # 12-16
        s.x = s.x + end.u
        s.S = s.S + window.column(window.w)[:, 0] @ end.K
        s.J = s.J | {i: flows[i].J + K_i for i, K_i in zip(replies, end.K, strict=True)}
        clients.note(steps=len(end.times))

    def sense(self, s: Server, clients: Cohort) -> None:
        """Ask each new client for its curvature, once."""
        new = tuple(i for i in clients.ids if i not in s.h)
        if new:
            s.h = s.h | {i: up.h for i, up in clients.ask(self.curvature, Model(s.x), ids=new).each().items()}

    def window(self, s: Server, clients: Cohort, replies: dict[int, TimedStep]) -> Window:
        """The circuit of this round, for the clients that replied."""
        T = [float(up.T) for up in replies.values()]
        w = [clients.population * clients.p[i] for i in replies]
        G = [1 / max(T) + s.h.get(i, 0.0) for i in replies]  # (22)
        D = [up.delta for up in replies.values()]
        return Window(S=s.S, D=D, T=T, w=w, G=G, L=self.L * max(T) ** 2)

    @on_client(vectorized=True)
    def simulate(self, me: Client, request: Model, flow: Flow) -> TimedStep:
        """Forward Euler on dx_i/dt = J_i − ∇f_i(x_i): local descent from x_c with the flow as a shift."""
        update = me.descend(request.x, shift=(-1.0, flow.J))
        return TimedStep(update.step, update.T)

    @on_client
    def curvature(self, me: Client, request: Model) -> Curvature:
        """H̄_i by Hutchinson's estimate at x_c, on one batch; 0 if it is negative, so that Ĝ_i > 0."""
        product = lambda v: me.problem.hvp(request.x, v, me.first_batch)
        return Curvature(max(0.0, float(hutchinson(product, request.x, PROBES, me.seed).mean())))
