"""iCaRL: FedAvg for new classes: clients keep exemplars of old ones; a row gets the class of the nearest exemplar mean.

**Reference**: Rebuffi, Kolesnikov, Sperl & Lampert, "iCaRL: Incremental Classifier and Representation Learning", CVPR
2017, Algorithms 1-5.

**Status**: published with corrections

**Needs**: a stream of tasks, labels in classes, and features (a network whose last layer is linear). Clients are the
same from the first round to the last.

**One round sends** (floats per client; c classes, f features):

- train (if in the first task): d down, d up
- train (if in a later one): 2d down, d up
- choose: d down, cf + c + 2 up; at the end of a task, to everybody
- choose (if its last layer has no bias): d down, cf + c + 1 up

**Departures**: exemplars stay with their client. The server gets sums of their normalised features and computes each
class's mean over all clients' exemplars. The loss of the labels is the cross-entropy over the classes that they are
compared with, and the previous task's model is distilled at temperature 2 with weight 1; the paper uses a sigmoid per
output for both. A client's budget is the federation's replay capacity per task, unless you pass ``capacity``, the
paper's K. The client divides it among the classes that it has rows of. In the paper a class comes in one task only. If
a class comes again, the client here chooses its exemplars again, from the old exemplars and the new rows together, so
that their mean is near the mean of all its rows so far. In that mean the old exemplars count for as many rows as they
were chosen from.

The nearest mean is a linear layer, because with features φ and means μ_c of unit length, argmin_c ‖φ/‖φ‖ − μ_c‖ is
argmax_c ⟨φ, μ_c⟩. So the model that is evaluated at the end of a task has the means as its last layer's weights, with
bias 0, and its loss is the loss of these scores. Training continues from the trained layer, and before a task's end the
history's rows also evaluate that layer.

**Missing replies**: a lost reply is left out of the mean. If a client's choice at a task's end is lost, it has no
exemplars of that task, and the classes' means do not include them.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="class")
>>> fed = md.Federation(net, data=digits, partition=dealt, stream=split, pace=md.scenarios.Pace(lr=0.1, batch=16))
>>> md.run(md.ICaRL(capacity=100), fed, rounds=10, progress=False).summary["acc"] > 0.7
True
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..contract import Algorithm, Batch, Client, Cohort, Message, Need, RecipeError, Vec, at_least, on_client, positive
from ..contract.messages import Model, Step, TaughtModel
from ..contract.place import name_of
from ..numerics.distillation import distillation
from ..numerics.herding import herd


class Exemplars(Message):
    """Up: a client's exemplars.

    Attributes:
        features: by class, the sum of their normalised features [c, f].
        counts: by class, their number [c].
        weight, bias: indices in x of the first weight and the first bias of the last linear layer; bias is None if
            it has none.
    """

    features: Float[Tensor, "c f"]
    counts: Float[Tensor, " c"]
    weight: int
    bias: int | None


@dataclass
class Server:
    """The server.

    Attributes:
        x: the model [d].
        teacher: the model at the end of the last task [d]; None in the first.
        nearest: the model with the classes' means as its last layer [d]; None once x has changed.
    """

    x: Vec
    teacher: Vec | None = None
    nearest: Vec | None = None


@dataclass
class Memory:
    """A client.

    Attributes:
        exemplars: by class, the client's row numbers in the order of herding, int64.
        met: by class, the number of rows so far.
    """

    exemplars: dict[int, Tensor] = field(default_factory=dict)
    met: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ICaRL(Algorithm[Server, Memory]):
    """Incremental classifier and representation learning: new classes come task by task.

    Attributes:
        capacity: the number of exemplars that a client keeps in all, the paper's K; with None it is the capacity of the
            federation's replay memory for each task so far
        lam: λ, the distillation's weight; 0 for none
        T: the distillation's temperature
        predict: the last layer of the model evaluated at a task's end: the classes' "means", or the trained "head"
    """

    capacity: Annotated[int, at_least(0)] | None = None
    lam: Annotated[float, at_least(0)] = 1.0
    T: Annotated[float, positive] = 2.0
    predict: Literal["means", "head"] = "means"
    needs = frozenset({Need.STREAM, Need.CLASSES, Need.FEATURES, Need.REPLIES})

    def __post_init__(self) -> None:
        """Check the settings: the means need exemplars."""
        super().__post_init__()
        if self.capacity == 0 and self.predict == "means":
            raise RecipeError(
                "ICaRL(capacity=0, predict='means'): the means are of stored rows; pass capacity= of at least 1, or "
                "predict='head'",
                "capacity",
            )

    def requires(self) -> frozenset[str]:
        """A replay memory, if ``capacity`` comes from there."""
        return self.needs | ({Need.REPLAY} if self.capacity is None else set())

    def start(self, x: Vec) -> Server:
        """x₀, without a teacher."""
        return Server(x)

    def model(self, s: Server) -> Vec:
        """x; right after a task, with the classes' means as its last layer."""
        return s.x if s.nearest is None else s.nearest

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, TaughtModel(s.x, s.teacher)).mean().delta
        s.nearest = None

    def end_task(self, s: Server, clients: Cohort) -> None:
        """All clients choose exemplars at x, the next task's teacher. μ_c is the mean over all clients' exemplars."""
        chosen = list(clients.ask(self.choose, Model(s.x), ids=tuple(clients.p)).each().values())
        s.teacher = s.x
        if self.predict == "means" and chosen:
            mu = F.normalize(torch.stack([e.features for e in chosen]).sum(0))
            s.nearest = s.x.clone()
            s.nearest[chosen[0].weight :][: mu.numel()] = mu.reshape(-1)
            if chosen[0].bias is not None:
                s.nearest[chosen[0].bias :][: len(mu)] = 0

    @on_client
    def train(self, me: Client[Memory], request: TaughtModel) -> Step:
        """Local descent on new rows and exemplars together (Algorithm 3)."""
        if request.teacher is None:
            return Step(me.descend(request.x).step)
        task = me.task
        new = me.task.first + torch.arange(me.problem.n)
        both = me.recall(torch.cat([new, *me.memory.exemplars.values()]))
        taught = both.outputs(request.teacher)

        def loss(batch: Batch) -> Tensor:
            z = batch.outputs
            target = taught if batch.rows is None else taught[batch.rows]
            z = z[:, : len(task.now)]  # a network may have more outputs than classes
            target = target[:, : len(task.now)]
            return batch.loss() + self.lam * sum(distillation(z[:, c], target[:, c], self.T) for c in task.kept)

        return Step(dataclasses.replace(me, problem=both).descend(request.x, loss=loss).step)

    @on_client
    def choose(self, me: Client[Memory], request: Model) -> Exemplars:
        """Herd exemplars of new classes, and cut old classes' exemplars, to m each (Algorithms 2, 4, 5)."""
        exemplars = dict(me.memory.exemplars)
        counts = dict(me.memory.met)
        y = me.problem.y
        new = me.problem.counts().nonzero()[:, 0].tolist()
        classes = len(exemplars | dict.fromkeys(new))
        m = self.budget(me) // max(1, classes)
        if classes and not m and self.predict == "means":
            raise RecipeError(
                f"ICaRL: {name_of(me.id)} may keep {self.budget(me)} exemplars, too few for one of each of its "
                f"{classes} classes, and a class without exemplars has no mean; pass a larger capacity=, or "
                "predict='head'",
                "capacity",
            )
        for c in new:
            new_rows = me.task.first + (y == c).nonzero()[:, 0].cpu()
            old = exemplars.get(c, new_rows[:0])
            rows = torch.cat([old, new_rows])
            phi = F.normalize(me.recall(rows).features(request.x))
            stands = torch.ones(len(rows)).to(phi)  # how many rows each is one of
            stands[: len(old)] = counts.get(c, 0) / max(1, len(old))
            exemplars[c] = rows[herd(phi, m, stands / stands.sum()).cpu()]
            counts[c] = counts.get(c, 0) + len(new_rows)
        exemplars = {c: rows[:m] for c, rows in exemplars.items()}
        me.memory.exemplars = exemplars
        me.memory.met = counts
        chosen = me.recall(torch.cat([torch.zeros(0, dtype=torch.int64), *exemplars.values()]))
        phi = F.normalize(chosen.features(request.x))
        one = F.one_hot(chosen.y, len(me.task.now)).to(request.x)
        return Exemplars(one.T @ phi, one.sum(0), *chosen.last())

    def budget(self, me: Client[Memory]) -> int:
        """The number of exemplars that this client may keep in all."""
        if self.capacity is not None:
            return self.capacity
        assert me.replay is not None, "a run without a replay memory is refused"
        return me.replay.capacity * (me.task.index + 1)
