"""FedTrack: gradient tracking: clients follow the mean gradient at x, plus the change of their own gradient since then.

**Reference**: Mitra, Jaafar, Pappas & Hassani, "Federated Learning with Incrementally Aggregated Gradients", CDC 2021;
C-FLAG (AISTATS 2025) without memory and adaptive rates.

**Status**: published with corrections

**Needs**: nothing. Clients keep 2d floats from one exchange of a round to the next.

**One round sends** (floats per client):

- gradient: d down, d up
- train: d down, d up

**Departures**: the paper keeps a table with the last gradient of each of a client's mini-batches, and steps along the
table's mean: ∇g_i(x_t) + Σ_B (n_B/n_i)(∇g_B(z_B) − ∇g_B(x_t)), with z_B the point of the last step on B. By default a
step here takes ∇g_i(x_t) + ∇g_B(z) − ∇g_B(x_t), with B its own mini-batch (SVRG). That needs two vectors; the table
needs one for each mini-batch. Such a step counts the change of B in full and forgets the changes of the batches before.
Both have the same fixed point, and with the full batch both are FedLin. ``form="iag"`` is the table; its mini-batches
are cut once a round and used in turn. The paper gives all clients the same weight. Here the weights are p_i. We had
neither the paper's listing nor code by its authors, so the table follows equation (5) of C-FLAG's paper, which takes it
from there; C-FLAG draws the component of each step at random.

**Missing replies**: if a client's gradient is lost, the server does not ask it to train. Both means are over the
clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=md.scenarios.Pace(lr=0.05, epochs=5))
>>> md.run(md.FedTrack(), fed, rounds=200, progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from ..contract import Algorithm, Client, Cohort, Gradient, Model, RecipeError, Rows, Step, Vec, on_client
from ..numerics.iag import Table


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
    """Federated gradient tracking. With one full-batch step at each client it is gradient descent.

    Attributes:
        form: how a client estimates its gradient. "svrg" corrects each mini-batch's gradient at z by its gradient at
            x_t; "iag" is the paper's table, with d floats per mini-batch, for plain SGD
    """

    form: Literal["svrg", "iag"] = "svrg"

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """Nothing yet."""
        return Memory(x, x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: memories last from one exchange of a round to the next."""

    def round(self, s: Server, clients: Cohort) -> None:
        """∇g ← Σ p̃_i ∇g_i(x), the mean gradient; then x ← x + Σ p̃_i (z_i − x)."""
        slopes = clients.ask(self.gradient, Model(s.x))
        g = slopes.mean()
        s.x = s.x + clients.ask(self.train, g, ids=slopes.ids).mean().delta

    @on_client
    def gradient(self, me: Client[Memory], request: Model) -> Gradient:
        """∇g_i(x_t) on all rows."""
        me.memory.x = request.x
        me.memory.g = me.problem.grad(request.x)
        return Gradient(me.memory.g)

    @on_client
    def train(self, me: Client[Memory], request: Gradient) -> Step:
        """z ← z − lr·(∇g(x_t) − ∇g_i(x_t) + g'_i(z)), with g'_i(z) the estimate of ∇g_i(z) by ``form``."""
        x = me.memory.x
        drift = request.g - me.memory.g
        if self.form == "iag":
            return Step(self.tabled(me, x, drift) - x)
        if me.full_batch:
            return Step(me.descend(x, shift=drift).step)

        def follow(z: Vec, g: Vec, rows: Rows) -> Vec:
            return g + request.g - me.problem.grad(x, rows)

        return Step(me.descend(x, correct=follow).step)

    def tabled(self, me: Client[Memory], x: Vec, drift: Vec) -> Vec:
        """z after this round's steps, with g'_i the table's mean. Raises RecipeError unless the steps are plain SGD."""
        pace = me.pace
        f = me.problem
        if pace.optimizer != "sgd" or pace.momentum or pace.weight_decay or pace.clip is not None:
            raise RecipeError(
                'FedTrack(form="iag"): the table takes plain SGD steps; leave form= out for Adam, momentum, '
                "weight_decay= and clip= of the pace",
                "form",
            )
        parts = torch.split(next(me.orders()), pace.batch or f.n)
        table = Table([partial(f.grad, rows=rows) for rows in parts], [len(rows) / f.n for rows in parts], x)
        z = x
        for step in range(me.steps):
            table.visit(step % len(parts), z)
            z = z - pace.lr * (table.total + drift)
        return z
