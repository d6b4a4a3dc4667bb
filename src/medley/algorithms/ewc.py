"""EWC: FedAvg for a stream of tasks: the more past tasks depend on a parameter, the nearer it stays to its old value.

**Reference**: Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", PNAS 2017, equation 3; with
one sum of Fisher informations and one anchor for all tasks, as in Schwarz et al., "Progress & Compress", ICML 2018.

**Status**: published with corrections

**Needs**: a stream of tasks, but no memory of rows.

**One round sends** (floats per client):

- train (if in the first task): d down, d up
- train (if in a later one): 3d down, d up
- fisher: d down, d up; at the end of a task

**Departures**: clients estimate the Fisher information together, F = Σ p_i F_i at the task's final model. It is the
empirical one: F_i is the mean square of each row's own gradient, with the labels as they are. (A mini-batch's squared
gradient would be too small by a factor of about the batch's size.) A step is implicit in the penalty: z⁺ = z −
lr·(∇g_i(z) + M(z⁺ − x̄)), with M = λ diag F and x̄ the anchor. So no λ is too large for a step size, and the point of
rest is the same. The penalty does not hold BatchNorm statistics.

**Missing replies**: a lost reply is left out of the mean of steps and, at a task's end, of the Fisher information.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="task")
>>> fed = md.Federation(net, data=digits, partition=dealt, stream=split, pace=md.scenarios.Pace(lr=0.1, batch=16))
>>> md.run(md.EWC(), fed, rounds=10, progress=False).summary["acc"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Message, Need, Rows, Step, Vec, at_least, on_client


class AnchoredModel(Message):
    """Down: the server's x; in later tasks also the diagonal of M = λF and the anchor x̄."""

    x: Vec
    M: Vec | None = None
    anchor: Vec | None = None


class Fisher(Message):
    """Up: the diagonal of the Fisher information on the client's rows of the task."""

    F: Vec


@dataclass
class Server:
    """The model, the sum of the past tasks' F, and the last task's final model."""

    x: Vec
    F: Vec | None = None
    anchor: Vec | None = None


@dataclass(frozen=True)
class EWC(Algorithm[Server]):
    """Elastic weight consolidation. ``lam`` is λ, the weight of the past; 0 is `FineTune`."""

    lam: Annotated[float, at_least(0)] = 100.0
    needs = frozenset({Need.STREAM, Need.ROWS})

    def start(self, x: Vec) -> Server:
        """x₀, without a penalty."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        M = None if s.F is None else self.lam * s.F
        s.x = s.x + clients.ask(self.train, AnchoredModel(s.x, M, s.anchor)).mean().delta

    def end_task(self, s: Server, clients: Cohort) -> None:
        """F ← F + Σ p_i F_i, x̄ ← x."""
        F = clients.ask(self.fisher, AnchoredModel(s.x)).mean().F
        s.F = F if s.F is None else s.F + F
        s.anchor = s.x

    @on_client
    def train(self, me: Client, request: AnchoredModel) -> Step:
        """Local descent on g_i(z) + ½ Σ_j M_j (z_j − x̄_j)²: the task's loss, and the penalty for leaving x̄."""
        M = request.M
        anchor = request.anchor
        lr = me.pace.lr
        if M is None or anchor is None:
            return Step(me.descend(request.x).step)

        def penalised(z: Vec, g: Vec, rows: Rows) -> Vec:
            # z⁺ = (z − lr·g + lr·M x̄)/(1 + lr·M), written as the direction (z − z⁺)/lr.
            return (g + M * (z - anchor)) / (1 + lr * M)

        return Step(me.descend(request.x, correct=penalised).step)

    @on_client
    def fisher(self, me: Client, request: AnchoredModel) -> Fisher:
        """F_i at x, the diagonal of the client's Fisher information."""
        return Fisher(me.problem.squares(request.x))
