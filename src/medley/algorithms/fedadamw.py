r"""FedAdamW: clients run AdamW, begin with the mean of their second moments, and lean towards the last mean step.

A client starts a round with m = 0 and, in each block of parameters, v = v̄, the clients' mean. In the symbols of
torch's AdamW, its step k is:

$$
\begin{aligned}
m &\leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2
  && g \text{ is the gradient of a batch} \\
\hat m &= m / (1 - \beta_1^{t + k}), \quad \hat v = v / (1 - \beta_2^{t + k})
  && t \text{ is the number of steps of earlier rounds} \\
y &\leftarrow y - \eta \big( \hat m / (\sqrt{\hat v} + \epsilon) + \lambda y \big) \\
y &\leftarrow y + \alpha \eta \, \Delta
  && \text{leans to } \Delta \text{, the clients' mean displacement of the last round per unit of time}
\end{aligned}
$$

**Reference**: Liu, Shang, Liu, Tian, Liu, Liu, Zhu & Lin, "FedAdamW: A Communication-Efficient Optimizer with
Convergence and Generalization Guarantees for Federated Large Models", AAAI 2026; arXiv:2510.27486.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client; b: parameter tensors of the network, such as a layer's weights; or 1):

- train (if it is round 1): 2d + 1 down, d + b + 2 up
- train: 2d + b + 1 down, d + b + 2 up

**Departures**: means are weighted by p̃_i. t counts the clients' mean number of steps, and Δ is divided by their mean
time; in the paper these are K and Kη. FedAdamW does not use the pace's optimizer. The pace's weight decay and clip
change g, as elsewhere (the authors' code has ``clip=10``); λ is the method's own ``weight_decay``.

**Checked against**: the authors' code; of the paper we had the abstract and the introduction only. A block of v is one
parameter tensor of the network, as in their code for language models; their code for images sends all of v. As in the
code, both bias corrections count the steps of all rounds, while m begins each round at 0, so the first steps of a later
round are short. The code for images steps by η with α = 0.5, as here; the code for language models steps by (1 − α)η.

**Missing replies**: a lost reply is left out of all means.

**Example**

>>> import medley as md
>>> problem, pace = md.problems.Network(md.models.mlp(64, 10)), md.scenarios.Pace(lr=0.01)
>>> fed = md.Federation(problem, data=md.datasets.digits(), partition=md.partitions.IID(10), pace=pace)
>>> md.run(md.FedAdamW(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, Vec, at_least, below, on_client, positive


class Start(Message):
    """Down: x and Δ [d], t, and the mean of v in each block [b], which is None in the first round."""

    x: Vec
    Delta: Vec
    t: float
    v: Float[Tensor, " b"] | None


class Trained(Message):
    """Up: the displacement [d], its simulated time T and its steps, and the mean of v in each block [b]."""

    delta: Vec
    T: float
    steps: float
    v: Float[Tensor, " b"]


@dataclass
class Server:
    """The model, Δ, t, and v̄ for each block."""

    x: Vec
    Delta: Vec
    t: float = 0.0
    v: Tensor | None = None


@dataclass(frozen=True)
class FedAdamW(Algorithm[Server]):
    """Federated AdamW.

    Attributes:
        alpha: α, the share of the last mean displacement that a client repeats; default 0.5, as in the authors' code
        weight_decay: λ, which AdamW applies to the parameters, not to gradients; default 0.01
        beta1: β₁, the decay of m; default 0.9
        beta2: β₂, the decay of v; default 0.999
        eps: ε; default 1e-8
    """

    alpha: Annotated[float, at_least(0)] = 0.5
    weight_decay: Annotated[float, at_least(0)] = 0.01
    beta1: Annotated[float, at_least(0), below(1)] = 0.9
    beta2: Annotated[float, at_least(0), below(1)] = 0.999
    eps: Annotated[float, positive] = 1e-8

    def start(self, x: Vec) -> Server:
        """x₀, Δ = 0 and t = 0."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x), v̄ ← Σ p̃_i v̄_i, Δ ← Σ p̃_i (y_i − x)/Σ p̃_i T_i."""
        up = clients.ask(self.train, Start(s.x, s.Delta, s.t, s.v)).mean()
        s.x = s.x + up.delta
        s.Delta = up.delta / up.T
        s.v = up.v
        s.t = s.t + up.steps

    @on_client
    def train(self, me: Client, request: Start) -> Trained:
        """AdamW's steps from x, each followed by one along Δ."""
        shapes = getattr(me.problem, "shapes", None) or [request.x.shape]
        sizes = [shape.numel() for shape in shapes]
        v = request.x.new_zeros(len(sizes)) if request.v is None else request.v
        state: dict[str, Tensor] = {}
        for j, shape in enumerate(shapes):
            state[f"{j}.step"] = torch.tensor(request.t, dtype=torch.float64)
            state[f"{j}.exp_avg"] = request.x.new_zeros(shape)
            state[f"{j}.exp_avg_sq"] = v[j].expand(shape).clone()

        def adamw(params: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
            params = [*params]
            betas = (self.beta1, self.beta2)
            optimizer = torch.optim.AdamW(params, lr=lr, betas=betas, eps=self.eps, weight_decay=self.weight_decay)

            def lean(*hook_arguments: Any) -> None:
                with torch.no_grad():
                    for p, part in zip(params, torch.split(request.Delta, sizes), strict=True):
                        p.add_(part.view(p.shape), alpha=self.alpha * lr)

            optimizer.register_step_post_hook(lean)
            return optimizer

        pace = replace(me.pace, optimizer_state="kept")
        worker = replace(me, pace=pace, optimizer_state=state)
        update = worker.descend(request.x, optimizer=adamw)
        final = worker.optimizer_state or {}
        v = torch.stack([final[f"{j}.exp_avg_sq"].mean() for j in range(len(shapes))])
        return Trained(update.step, float(update.T), float(update.steps), v)
