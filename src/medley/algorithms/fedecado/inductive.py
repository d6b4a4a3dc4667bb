"""FedECADO's inductive forms: J, and for ablation I and the paper's Algorithm 2. Equation numbers are the paper's.

The server's node x_c (capacitor C_c) feeds one branch per client, an inductor; J_i is the flow in it:

    C_c dx_c/dt = −Σ_i p_i J_i      ℓ dJ_i/dt = x_c − x_i      dx_i/dt = J_i − ∇f_i(x_i)            (41), (42), (43)

- J: flows in units of a gradient (J_i = I_i/p_i), so that the client trains on its own mean loss. The inductance is
  ℓ = λ·Tw², without a scale of its own. One backward-Euler step runs over the whole window of max T_i.
- I: the paper's variables, with clients' losses scaled by N·p_i.
- paper: Algorithm 2 as printed but for its signs. Clients go on from their own old states, all weights are equal,
  G_i = 1/Δt + p_i H̄_i with the server's own step, L = λ.

A sensitivity in the J form is bounded, so that no branch gives energy to the circuit whatever curvatures a client has:
β_i ρ_i T_i ≤ 3/2 and ρ_i min(1, T_i tr H_i) ≤ 2, see `passive`, and C_c ≥ 2 Tw Σ p_j tr(H_j)/d over the absent clients,
as much damping as their branches would give. Without these bounds a flat direction's flow, or an absent client's, runs
away.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...contract.algorithm import on_client
from ...contract.client import Client
from ...contract.cohort import Cohort
from ...contract.types import Num, Vec, number
from ...numerics.circuit.branch import conductance, flow, passive, passivity
from ...numerics.circuit.central import Elements, Windows, central_step
from ...numerics.circuit.window import Circuit, Controller, integrate
from ...numerics.krylov import hutchinson
from . import forms
from .messages import Center, Flow, InductiveWindow, Memory, Move, Sensitivity, Server, Settled
from .settings import Settings


def tensor(value: float | Tensor) -> Tensor:
    """A number as a tensor of float64; a tensor as it is."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


class Inductive(Settings):
    """The rounds and the client methods of the forms J, I and paper."""

    def inductive_round(self, s: Server, clients: Cohort) -> None:
        """Algorithm 2, steps 9-16."""
        h, none = self.sense(s, clients), torch.zeros_like(s.x)
        at_server = self.flows == "server"
        own = {i: Flow(s.J.get(i, none) if at_server else None) for i in clients.ids}
        center = Center(s.x, self.unit(clients.population))
        got = clients.ask(self.simulate, center, own, late="deliver" if at_server else "drop").each()  # steps 9-11
        if not got:
            return
        S, J = self.limited(s, clients, got)
        T, p = s.x.new_tensor([[w.T, clients.p[i]] for i, w in got.items()], dtype=torch.float64).T
        curvature, cap = self.passive(T, self.stacked(h, got), len(s.x))
        windows = Windows([w.delta for w in got.values()], T, p, curvature)
        absent = sum(clients.p[i] * float(tensor(h_i).mean()) for i, h_i in h.items() if i not in got)
        elements = self.elements(clients, cap, 2 * float(T.max()) * absent)
        if self.form == "J" and self.delta is None:
            step = central_step(S, windows, elements, J=J or None)
            dx, S, J = step.dx, step.S, [*(step.J or [])]
        else:
            dx, S, J = self.substeps(s, clients, got, windows, elements, S, J)  # steps 12-16
        s.x, s.S, Tw = s.x + dx, S, float(T.max())
        if at_server:
            s.J = s.J | dict(zip(got, J, strict=True))
        else:
            self.settle_all(s, clients, got, Move(dx, Tw))
        clients.note(Tw=Tw, limited=sum(float(w.s) < 1 for w in got.values()) / len(got))

    @on_client(vectorized=True)
    def simulate(self, me: Client[Memory], got: Center, own: Flow) -> InductiveWindow:
        """Forward Euler on dx_i/dt = J_i − ∇f_i(x_i), (43): local descent with the flow as a constant shift."""
        m = me.memory
        J = own.J if own.J is not None else torch.zeros_like(got.x) if m.J is None else m.J
        w_i = 1.0 if got.unit is None else got.unit * me.p
        s: Num = 1.0
        if self.kappa is not None:
            # Weight decay is part of the local gradient, and so of the flow that balances it at the fixed point.
            resists = me.problem.grad(got.x, me.first_batch) + me.pace.weight_decay * got.x
            s = number(passivity(resists, J, float(self.kappa) * w_i))
        limited = s * J
        if self.form == "paper":
            return forms.go_on(me, got.x, w_i, limited, s)
        w, cut = me.descend(got.x, scale=w_i, shift=-limited), None
        if self.flows == "client":
            m.J, m.delta, m.T = limited, w.step, w.T
            cut = None if self.kappa is None else J - limited
        return InductiveWindow(w.step, w.T, s, cut, None)

    def limited(self, s: Server, clients: Cohort, got: dict[int, InductiveWindow]) -> tuple[Vec, list[Vec]]:
        """The sum S without the flows' parts that the limiter took; the active flows that are kept here."""
        none, J = torch.zeros_like(s.x), list[Vec]()
        S = s.S.clone() if any(w.s < 1 or w.cut is not None for w in got.values()) else s.S
        for i, w in got.items():
            weight = clients.p[i] if self.form == "J" else 1.0
            if self.flows == "server":
                J_i = s.J.get(i, none)
                J.append(J_i if w.s == 1 else float(w.s) * J_i)
                if w.s < 1 and i in s.J:
                    S.sub_(J_i, alpha=weight * (1 - float(w.s)))
            elif w.cut is not None:
                S.sub_(w.cut, alpha=weight)
        return S, J

    # Flows at the clients

    def settle_all(self, s: Server, clients: Cohort, got: dict[int, InductiveWindow], move: Move) -> None:
        """Send the clients the move of x_c, so that each brings its flow up to date."""
        done = clients.ask(self.settle, move, ids=tuple(got)).each()
        for i in sorted(got.keys() - done.keys()):  # its flow stays the same, and so must its part of the sum
            s.S = s.S - clients.p[i] * self.moved(0.0, move, got[i].delta, got[i].T, s.h.get(i))

    @on_client(vectorized=True)
    def settle(self, me: Client[Memory], got: Move) -> Settled:
        """ℓ dJ_i/dt = x_c − x_i, (42), over the window."""
        m = me.memory
        assert m.J is not None
        assert m.delta is not None
        m.J, m.delta = self.moved(m.J, got, m.delta, m.T, m.h), None
        return Settled()

    def moved(self, J: Vec | float, move: Move, D: Vec, T: Num, h: Num | Vec | None) -> Vec:
        """J_i + β_i (x_c − Γ_i), with the Γ operator (28) at the window's end."""
        lam, q, rho = float(self.lam), float(self.q), move.Tw / T
        if h is None:
            return flow(J, D, move.dx, rho, conductance(T, move.Tw, lam, q))
        h, cap = self.passive(tensor(T), tensor(h), D.shape[-1])
        beta = conductance(T, move.Tw, lam, q, h, cap)
        return flow(J, D, move.dx, tensor(rho).clamp(max=cap).to(D), beta)

    # Aggregate sensitivity

    def sense(self, s: Server, clients: Cohort) -> dict[int, Num | Vec]:
        """Ask clients that are new, or due for a refresh, for their curvature: H̄_i of (14), (22)."""
        if self.sensitivity != "off":
            known = {i for i, t in s.sensed.items() if not self.refresh or clients.round - t < self.refresh}
            if due := tuple(i for i in clients.ids if i not in known):
                got = clients.ask(self.curvature, Center(s.x), ids=due).each()
                s.h = s.h | {i: r.h for i, r in got.items()}
                s.sensed = s.sensed | dict.fromkeys(got, clients.round)
        return s.h

    @on_client
    def curvature(self, me: Client[Memory], got: Center) -> Sensitivity:
        """The diagonal of H_i, or its mean, by Hutchinson's estimate. Negative curvature counts as none."""
        diagonal = hutchinson(lambda v: me.problem.hvp(got.x, v), got.x, self.probes, me.rng("hutchinson"))
        scalar = self.sensitivity == "scalar"
        h: Num | Vec = max(0.0, float(diagonal.mean())) if scalar else diagonal.clamp(min=0)
        me.memory.h = h
        return Sensitivity(h)

    def stacked(self, h: dict[int, Num | Vec], got: dict[int, InductiveWindow]) -> torch.Tensor | None:
        """The active clients' curvatures [a] or [a, d]; 0 where the answer was lost."""
        if self.sensitivity == "off":
            return None
        like = next(iter(got.values())).delta
        if self.sensitivity == "scalar":
            return like.new_tensor([h.get(i, 0.0) for i in got], dtype=torch.float64)
        return torch.stack([torch.as_tensor(h.get(i, torch.zeros_like(like))) for i in got])

    def passive(self, T: Tensor, h: Tensor | None, d: int) -> tuple[Tensor | None, float | Tensor]:
        """Curvatures, and bounds on the extrapolation, with which the J form's branches are passive.

        Args:
            T: simulated times; of the server's replies [a].
            h: their curvatures; None for none.
            d: the number of parameters.
        """
        if h is None or self.form != "J":
            return h, math.inf
        if self.sensitivity == "scalar":
            return passive(T, h, d * h)
        trace, one = h.sum(-1, keepdim=True), T.ndim == 1 and h.ndim == 2
        h, cap = passive(T[:, None].to(h) if one else T.to(h), h, trace)
        return h, cap[:, 0] if one else cap

    # Elements

    def elements(self, clients: Cohort, cap: float | Tensor = math.inf, least: float = 0.0) -> Elements:
        """λ, q and C_c. Under partial participation C_c = a/n: without it the extrapolation to max T is noisy.

        ``cap`` bounds the extrapolation, ``least`` is the least capacitance.
        """
        C_c = self.C_c
        if C_c == "auto":
            C_c = clients.fraction if len(clients) < clients.population else 0.0
        return Elements(float(self.lam), float(self.q), max(C_c, least), cap)

    # Ablation

    def unit(self, n: int) -> float | None:
        """w_i/p_i, w_i the weight inside the local gradient; None where w_i = 1, as where p_i stands in the sum."""
        if self.form != "I" or self.weights == "uniform":
            return None
        return 1.0 if self.weights == "p" else float(n)

    def substeps(
        self,
        s: Server,
        clients: Cohort,
        got: dict[int, InductiveWindow],
        windows: Windows,
        elements: Elements,
        S: Vec,
        J: list[Vec],
    ) -> tuple[Vec, Vec, list[Vec]]:
        """Algorithm 1 through the window, in any of the forms: dx, S, and the flows after it.

        Args:
            got, windows: the replies, and their stack.
            S, J: Kirchhoff's sum [d] and the active flows, after the limiter.
        """
        Tw, lam, n, start = float(windows.T.max()), float(self.lam), clients.population, None
        s.T_ref = max(s.T_ref, Tw)
        if self.form == "J":
            circuit = Circuit.j_form(windows.T, windows.p, elements, windows.curvature)
        elif self.form == "I":
            circuit = forms.i_form(windows, self.unit(n), forms.inductance(lam, s.T_ref, n))
        else:
            circuit = forms.as_printed(windows, (s.step or 0.2) * Tw, lam)
            start = torch.stack([w.start for w in got.values() if w.start is not None])
        controller = Controller(self.delta or 1e-2)
        sol = integrate(circuit, S, windows.D, windows.T, start=start, controller=controller, h=s.step)
        s.step = sol.h
        clients.note(substeps=sol.steps)
        return sol.dx, sol.S, [j + k for j, k in zip(J, sol.K, strict=True)]
