"""FedExP: FedAvg for clients whose data differ: the server takes a longer step if they pull in different directions.

**Reference**: Jhunjhunwala, Wang & Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d + 1 up

**Departures**: every client also sends ‖Δ_i‖², so that replies can be summed on their way; the paper's server computes
the norms itself, and has to keep the displacements apart. By default (``rule="official"``) the step is the one in the
authors' code: means are weighted by p̃_i, and ε is multiplied by the size of the cohort. The paper's step,
``rule="paper"``, gives every client the same weight and leaves ε as it is. As in both, the model that Medley evaluates
and returns is the mean of the last two iterates. After round 1 that is (x₀ + x₁)/2 here. In the authors' code it is x₁.

**Missing replies**: a lost reply is left out of both means, which are over the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedExP(), fed, rounds=3, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..contract import Algorithm, Client, Cohort, Message, Model, Num, Vec, above, at_most, number, on_client, positive


class MeasuredStep(Message):
    """Up: the displacement Δ_i = y_i − x [d], and ‖Δ_i‖²."""

    delta: Vec
    squared: Num


@dataclass
class Server:
    """The model and the one before it."""

    x: Vec
    before: Vec


@dataclass(frozen=True)
class FedExP(Algorithm[Server]):
    """Federated averaging with an extrapolated server step η_g ≥ 1.

    Attributes:
        eps: ε, in units of a squared displacement: it bounds η_g if the mean displacement vanishes. If the clients'
            lr is smaller, choose a smaller ε.
        decay: ε is multiplied by decay² every round; 1 keeps ε constant; the authors' code uses 0.998, as for lr
        rule: the step: "official", as in the authors' code, or "paper"
    """

    eps: Annotated[float, positive] = 1e-3
    decay: Annotated[float, above(0), at_most(1)] = 1.0
    rule: Literal["official", "paper"] = "official"

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x, x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η_g Δ̄ with Δ̄ the mean displacement, η_g = max{1, mean‖Δ_i‖² / 2(‖Δ̄‖² + ε)}."""
        replies = clients.ask(self.train, Model(s.x))
        eps = self.eps * self.decay ** (2 * clients.round)
        if self.rule == "official":
            up = replies.sum()
            weight = replies.share
            eps = eps * replies.count
        else:
            up = replies.sum(dict.fromkeys(clients.p, 1.0))
            weight = replies.count
        delta = up.delta / weight
        eta = max(1.0, float(up.squared) / weight / (2 * (float(delta @ delta) + eps)))
        clients.note(server_step=eta)
        s.before = s.x
        s.x = s.x + eta * delta

    def model(self, s: Server) -> Vec:
        """The mean of the last two iterates, because single iterates swing from side to side."""
        return (s.x + s.before) / 2

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> MeasuredStep:
        """Local descent from x; Δ_i is its displacement."""
        delta = me.descend(request.x).step
        return MeasuredStep(delta, number(delta.square().sum(-1, keepdim=True)))
