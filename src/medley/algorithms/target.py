"""TARGET: for a stream of tasks, the server makes up rows of past ones, and clients distil the last model on them.

**Reference**: Zhang, Chen, Zhuang & Lyu, "TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation",
ICCV 2023.

**Status**: published with corrections

**Needs**: a stream of tasks, and a network whose architecture the server has. No memory of real rows. Clients are the
same from the first round to the last.

**One round sends** (floats per client):

- train: d down, d up
- keep: k down, 0 up; at the end of a task, to all clients: k is all numbers of the made-up rows and of the teacher's
  outputs for them, m(r + c)

**Departures**: the temperatures (2 for the clients, 20 for the student), the generator's weights and its learning rates
come from the authors' code; its kd = 25 goes with a learning rate of 0.01. With ``mode="task"`` a made-up row has a
label of a past task, and each task's outputs are distilled separately. Here clients get the teacher's outputs together
with the rows. In the authors' code clients have the old model and run it on rows that are cropped and mirrored anew
each time. Means are weighted by p̃_i; in the authors' code they are unweighted.

**Checked against**: the authors' code, which makes rows differently in these points:

- The generator is trained by a meta-learner (FOMAML for CIFAR-100, Reptile for the others) around Adam with β₁ = 0.5.
  Here it is trained by plain Adam with β₁ = 0.9, from its first weights at every task.
- The student is trained by SGD at lr 0.2, momentum 0.9, weight decay 1e-4 and a cosine schedule, for 400 steps on each
  batch of rows. Here it is trained by Adam at 1e-3 for ``steps``.
- The student and the generator's third loss begin after 20 batches; with the 10 batches for CIFAR-100 they do not begin
  at all. Here both begin after the first batch.
- The student's first weights are Xavier's with normal biases. Here they are the layers' own.
- In the generator's loss the student is in evaluation mode. Here it is in training mode.
- The student's loss has the factor T² = 400. Here it has none, which hardly changes Adam's steps.
- It keeps the rows of least loss among the generator's steps. Here the rows of the last step are kept.
- Rows are cropped and mirrored before the teacher sees them, and kept as 8-bit images. Here they are the generator's
  outputs.
- Wanted labels are drawn at random. Here each class comes equally often.
- BatchNorm's statistics are compared with a moving mean over batches of rows, of factor 0.9 and biased variance. Here
  they are compared with the batch's own, unbiased.

**Missing replies**: a lost reply is left out of the mean. If a client does not confirm the rows that the server made at
a task's end, it keeps the rows that it had.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, maker = md.models.mlp(64, 10), md.models.generator((64,))
>>> split, pace = md.tasks.Split(tasks=2, mode="class"), md.scenarios.Pace(lr=0.1, batch=16)
>>> fed = md.Federation(md.problems.Network(net), data=digits, partition=dealt, stream=split, pace=pace)
>>> md.run(md.TARGET(net, maker, rows=128), fed, rounds=5, progress=False).summary["acc"] > 0.55
True
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..contract import Batch, Client, Cohort, Message, Model, Need, Rows, State, Step, Task, Vec, at_least
from ..contract.algorithm import Algorithm, on_client
from ..contract.errors import Diverged, RecipeError
from ..numerics.distillation import distillation
from ..numerics.dreams import Dreamer, drawing, passes
from ..numerics.initial_weights import redrawn


class Dreams(Message):
    """Down: made-up rows, and the outputs that the model at the end of the task gives for them."""

    rows: Float[Tensor, "m ..."]
    said: Float[Tensor, "m c"]


class Kept(Message):
    """Up: nothing."""


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The last made-up rows [m, ...], and the teacher's outputs for them [m, c]."""

    rows: Tensor | None = None
    said: Tensor | None = None


Count = Annotated[int, at_least(1)]

Weight = Annotated[float, at_least(0)]


@dataclass(frozen=True)
class TARGET(Algorithm[Server, Memory]):
    """Exemplar-free distillation.

    Attributes:
        network: the network that clients train.
        generator: maps noise [b, latent] to rows.
        latent: length of the noise.
        rows: the number of rows made at the end of each task.
        batch: the number of rows made at a time.
        steps: the generator's steps for each batch; the student then takes as many.
        kd: weight of the distillation at the clients.
        oh: weight of the generator's first loss: the teacher sees the wanted label.
        bn: weight of its second loss: BatchNorm's inputs are as in training.
        adv: weight of its third loss: the student differs from the teacher where their classes agree.
    """

    network: nn.Module
    generator: nn.Module
    latent: Count = 64
    rows: Count = 256
    batch: Count = 64
    steps: Count = 50
    kd: Weight = 5.0
    oh: Weight = 0.5
    bn: Weight = 10.0
    adv: Weight = 1.0
    needs = frozenset({Need.STREAM, Need.CLASSES, Need.NETWORK, Need.REPLIES})

    def settings(self) -> dict[str, Any]:
        """Hyperparameters by name, with networks as text."""
        return {**super().settings(), "network": str(self.network), "generator": str(self.generator)}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that decides a run's bits. Weights that are drawn, or that the server's model replaces, don't count."""
        return {**super().settings(), "network": redrawn(self.network), "generator": redrawn(self.generator)}

    def start(self, x: Vec) -> Server:
        """x₀. Raises RecipeError if ``network`` is not the network that clients train, or cannot take the
        generator's rows.
        """
        d = sum(p.numel() for p in self.network.parameters() if p.requires_grad)
        if d != x.numel():
            raise RecipeError(
                f"TARGET(network=...): it has {d} parameters, the clients' network {x.numel()}; give the same network",
                "network",
            )
        network, maker = (copy.deepcopy(m).to(x).eval() for m in (self.network, self.generator))
        try:
            network(maker(torch.zeros(2, self.latent).to(x)))
        except (RuntimeError, ValueError, IndexError) as e:
            raise RecipeError(
                f"TARGET(generator=...): the network cannot read the rows that this generator makes from noise "
                f"[b, {self.latent}]: {e}",
                "generator",
            ) from None
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    def end_task(self, s: Server, clients: Cohort) -> None:
        """Make rows of all classes so far, and send them to all clients."""
        with drawing(clients.rng("dreams"), s.x.device):
            rows, outputs = self.dream(s.x, clients.buffers, clients.task)
        if not bool(torch.isfinite(rows).all() and torch.isfinite(outputs).all()):
            raise Diverged("TARGET's model has outputs that are not finite: the run diverges; try a smaller kd or lr")
        clients.ask(self.keep, Dreams(rows, outputs), ids=tuple(clients.p)).each()

    @on_client
    def keep(self, me: Client[Memory], request: Dreams) -> Kept:
        """Made-up rows replace those held before, because the last teacher knows all classes."""
        me.memory.rows = request.rows
        me.memory.said = request.said
        return Kept()

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        """Local descent on the loss among new classes + kd × the distillation on made-up rows."""
        dreams = me.memory.rows
        taught = me.memory.said
        task = me.task
        if dreams is None or taught is None:
            return Step(me.descend(request.x).step)
        objective = me.problem.like(dreams, torch.zeros(len(dreams)).to(me.problem.y))
        current = task.now
        size = -(-len(dreams) * (me.pace.batch or me.problem.n) // me.problem.n)
        draws = passes(len(dreams), size, me.rng("dreams"))

        def new(batch: Batch) -> Tensor:
            return batch.loss(batch.outputs[:, : len(current)].masked_fill(~current, -torch.inf))

        def old(batch: Batch) -> Tensor:
            z = batch.outputs[:, : len(current)]
            target = taught[batch.rows][:, : len(current)]
            return self.kd * sum((distillation(z[:, c], target[:, c], 2.0) for c in task.kept), z.new_zeros(()))

        def both(z: Vec, g: Vec, rows: Rows) -> Vec:
            return g + objective.grad(z, next(draws), old)

        return Step(me.descend(request.x, loss=new, correct=both).step)

    def dream(self, x: Vec, buffers: State | None, task: Task) -> tuple[Tensor, Tensor]:
        """Rows that the network with parameters x assigns to the classes seen, and its outputs for them."""
        sizes = (self.latent, self.rows, self.batch, self.steps, self.oh, self.bn, self.adv)
        return Dreamer(self.network, self.generator, *sizes).dream(x, buffers, task.seen, task.compared)
