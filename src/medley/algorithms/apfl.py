"""APFL: personal models: each client mixes the server's model with its own, which it trains on the mixture's loss.

**Reference**: Deng, Kamani & Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461, 2020, Algorithm 1,
and equation 10 for adaptive weights.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements w_i − x instead of end points, after all local steps of a pace. The mean is
weighted by rows. Adaptive weights change at the first step of a round and stay in [0, 1]. The pace's momentum and
optimizer are not used. If a network shares only a part of its parameters, APFL trains that part only.

**Missing replies**: a lost reply is left out of the mean, and its client's own model and weight stay as they were. A
client that never took part has the server's model.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> s = md.run(md.APFL(), fed, rounds=5, progress=False).summary
>>> s["personal_accuracy"] > s["accuracy"]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, in_range, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The client's own model v_i and its weight α_i; None before its first round, when the model is x and the weight
    ``alpha``.
    """

    v: Vec | None = None
    alpha: float | None = None


@dataclass(frozen=True)
class APFL(Algorithm[Server, Memory]):
    """Adaptive personalized federated learning. A client uses α v_i + (1 − α) x: v_i is its own model, x the server's.

    Attributes:
        alpha: α, the weight of the client's own model; 0 is FedAvg, 1 is training alone; 0.25 to 0.75 in the paper
        adaptive: whether each client's α descends too, α ← α − lr ⟨∇f_i(v̄), v − w⟩ with v̄ the mixture; default False
    """

    alpha: Annotated[float, in_range(0, 1)] = 0.5
    adaptive: bool = False

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (w_i − x): the server adds the mean displacement of the shared models w_i."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        """For each batch w ← w − lr ∇f_i(w) (shared), v ← v − lr α ∇f_i(αv + (1 − α)w) (own)."""
        lr = me.pace.lr
        w = request.x
        v, a = self._mixture(me.memory, request.x)
        for k, rows in enumerate(me.batches()):
            g = me.gradient(a * v + (1 - a) * w, rows)
            if self.adaptive and k == 0:
                a = min(1.0, max(0.0, a - lr * float(g @ (v - w))))
            v = v - lr * a * g
            w = w - lr * me.gradient(w, rows)
        me.memory.v = v
        me.memory.alpha = a
        return Step(w - request.x)

    def _mixture(self, memory: Memory, x: Vec) -> tuple[Vec, float]:
        """v_i and α_i."""
        v = x if memory.v is None else memory.v
        alpha = self.alpha if memory.alpha is None else memory.alpha
        return v, alpha

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: the server does not know the clients' own models."""

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """α v_i + (1 − α) x."""
        v, a = self._mixture(me.memory, x)
        return a * v + (1 - a) * x
