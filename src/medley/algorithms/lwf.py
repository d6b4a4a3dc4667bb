"""LwF: FedAvg for a stream of tasks: on new rows, clients keep to the outputs of the last task's model.

**Reference**: Li & Hoiem, "Learning without Forgetting", ECCV 2016 (TPAMI 2018), Figure 3.

**Status**: published

**Needs**: a stream of tasks, and labels in classes. No memory of rows.

**One round sends** (floats per client):

- train (if in the first task): d down, d up
- train (if in a later one): 2d down, d up

**Departures**: the teacher is the server's model at the end of the last task. The temperature is 2, as in the paper.
With ``mode="task"`` the distilled softmax is over each past task's own classes, otherwise over all past classes. As in
the paper, labels are compared with the new classes only, even with ``mode="class"``. With BatchNorm the teacher uses
the current running statistics.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="task")
>>> fed = md.Federation(net, data=digits, partition=dealt, stream=split, pace=md.scenarios.Pace(lr=0.1, batch=16))
>>> md.run(md.LwF(), fed, rounds=10, progress=False).summary["acc"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..contract import Algorithm, Batch, Client, Cohort, Need, Step, TaughtModel, Vec, at_least, on_client, positive
from ..numerics.distillation import distillation


@dataclass
class Server:
    """The model, and the model at the end of the last task."""

    x: Vec
    teacher: Vec | None = None


@dataclass(frozen=True)
class LwF(Algorithm[Server]):
    """Learning without forgetting.

    Attributes:
        lam: λ, the distillation's weight; 0 for none
        T: the distillation's temperature, 2 in the paper
    """

    lam: Annotated[float, at_least(0)] = 1.0
    T: Annotated[float, positive] = 2.0
    needs = frozenset({Need.STREAM, Need.CLASSES})

    def start(self, x: Vec) -> Server:
        """x₀, without a teacher."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, TaughtModel(s.x, s.teacher)).mean().delta

    def end_task(self, s: Server, clients: Cohort) -> None:
        """The model is the next task's teacher."""
        s.teacher = s.x

    @on_client
    def train(self, me: Client, request: TaughtModel) -> Step:
        """Local descent on the labels' loss + λ × the distillation of the teacher's outputs for past classes."""
        if request.teacher is None:
            return Step(me.descend(request.x).step)
        task = me.task
        taught = me.problem.outputs(request.teacher)

        def loss(batch: Batch) -> Tensor:
            z = batch.outputs[:, : len(task.now)]  # a network may have more outputs than classes
            target = (taught if batch.rows is None else taught[batch.rows])[:, : len(task.now)]
            new = batch.loss(z.masked_fill(~task.now, -torch.inf))
            return new + self.lam * sum(distillation(z[:, c], target[:, c], self.T) for c in task.kept)

        return Step(me.descend(request.x, loss=loss).step)
