"""FedTrack: clients follow the mean gradient at the server's x, corrected by the change of their own since.

**Reference**: Mitra, Jaafar, Pappas & Hassani, "Federated Learning with Incrementally Aggregated Gradients", CDC 2021;
C-FLAG (AISTATS 2025) without memory and adaptive rates.

**Status**: published with corrections

**Needs**: nothing. Clients keep 2d floats from one exchange of a round to the next.

**One round sends** (floats per client):

- gradient: d down, d up
- train: d down, d up

**Departures**: the paper keeps a table with the last gradient of each of a client's mini-batches, and steps along the
table's mean. Here a step takes ∇g_i(x_t) + ∇g_B(z) − ∇g_B(x_t), B its mini-batch: that is the table's mean where every
mini-batch is met once, it has the same fixed point, and it needs two vectors where the table has one for each
mini-batch. With the full batch both are FedLin. The paper's clients weigh the same; here they weigh p_i.

**Missing replies**: a client whose gradient is lost is not asked to train; both means are over those who answered.

**Example**

>>> import medley as md
>>> toy = md.problems.quadratics(clients=10)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=md.scenarios.Pace(lr=0.05, epochs=5))
>>> md.run(md.FedTrack(), fed, rounds=200, progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.algorithm import Algorithm, on_client
from ..contract.client import Client
from ..contract.cohort import Cohort
from ..contract.messages import Gradient, Model, Step
from ..contract.types import Rows, Vec


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """x_t and ∇g_i(x_t) between a round's two exchanges."""

    x: Vec
    g: Vec


@dataclass(frozen=True)
class FedTrack(Algorithm[Server, Memory]):
    """Federated gradient tracking. With one full-batch step at each client it is gradient descent."""

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """Nothing yet."""
        return Memory(x, x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: memories last from one exchange of a round to the next."""

    def round(self, s: Server, clients: Cohort) -> None:
        """∇g ← Σ p̃_i ∇g_i(x), then x ← x + Σ p̃_i (z_i − x)."""
        slopes = clients.ask(self.gradient, Model(s.x))
        g = slopes.mean()
        s.x = s.x + clients.ask(self.train, g, ids=slopes.ids).mean().delta

    @on_client
    def gradient(self, me: Client[Memory], got: Model) -> Gradient:
        """∇g_i(x_t) on all rows."""
        me.memory.x, me.memory.g = got.x, me.problem.grad(got.x)
        return Gradient(me.memory.g)

    @on_client
    def train(self, me: Client[Memory], got: Gradient) -> Step:
        """z ← z − lr·(∇g(x_t) − ∇g_i(x_t) + g'_i(z))."""
        x, drift = me.memory.x, got.g - me.memory.g
        if me.full_batch:
            return Step(me.descend(x, shift=drift).step)

        def follow(z: Vec, g: Vec, rows: Rows) -> Vec:
            return g + got.g - me.problem.grad(x, rows)

        return Step(me.descend(x, correct=follow).step)
