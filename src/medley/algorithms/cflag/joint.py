r"""This library's form of C-FLAG: one loop over the memory's and the current rows together. No paper lists it.

**Reference**: Keshri, Shah & Prasad, "On the Convergence of Continual Federated Learning Using Incrementally Aggregated
Gradients", AISTATS 2025. The proof of its Lemma 3 analyses this loop; Algorithms 1–3 are `CFLAG`.

**Status**: this library's own

**Needs**: a stream of tasks with a replay memory, and every client in every round. Between a round's two exchanges a
client keeps x and its gradients, up to 3d floats.

**Equations**, in which g_i is the loss on client i's rows of the task, f_i the loss on the rows in its memory, q_i its
share of the rows in all memories, and λ_f the share of past rows in all rows so far. Client i begins at z₀ = x:

$$\begin{aligned}
w_i &= \lambda_g p_i + \lambda_f q_i, \quad \lambda_g = 1 - \lambda_f && \text{weights of (3)} \\
h_i &= (\lambda_g p_i \nabla g_i + \lambda_f q_i \nabla f_i) / w_i && \text{gradient of all rows of client } i \\
H &= \textstyle\sum_i w_i h_i(x) && \text{gradient of all clients} \\
z_{k+1} &= z_k - \beta\,(h'_i + H - h_i(x)) && \text{E steps; } h'_i \text{ is an estimate of } h_i(z_k) \\
x &\leftarrow x + \textstyle\sum_i w_i (z_E^i - x) / \sum_i w_i && \text{the server's step}
\end{aligned}$$

**One round sends** (floats per client; k parameters of the last layer):

- snapshot (if past rows are held): d down, 2d + 4 up
- snapshot (if none are, or only the memory is asked): d down, d + 4 up
- snapshot (if correct is off): d down, 4 up
- snapshot (if correct is "head" and past rows are held): d down, 2k + 4 up
- snapshot (if correct is "head" and none are): d down, k + 4 up
- descend (if all layers are corrected): d + 2 down, d up
- descend (if correct is off): 2 down, d up
- descend (if correct is "head"): k + 2 down, d up

**Departures**: the loop contains the memory's rows, while Algorithms 1–3 make one step on the memory per round. So the
method comes to rest at the minimum of (3). The server asks all clients, even if they have only past rows. Rates are
fixed. For networks h′_i is h_i(x) + ∇_b(z) − ∇_b(x) on a mini-batch b, which needs no table; a step is then
∇_b(z) + (H − ∇_b(x)), and ``clip`` bounds the bracket. ``form="iag"`` is the paper's table (5); it does not allow the
pace's momentum, weight_decay and clip. Past and current rows share a pass through the network, unless it has
BatchNorm.

``correct="head"`` steers the last layer only. With its inputs φ_j and slopes R_j = softmax − e_y at x, a client's
gradient there is Σ s_j R_j φ_jᵀ over its rows. One forward pass per round makes a table of all rows. A step on rows b
adds H − Σ_{j∈b} s_j R_j φ_jᵀ to that layer, without another pass. The layers below keep their drift.

**Missing replies**: if a client's gradients are lost, it takes no part in the round, and the weights are shared among
the other clients. If its step is lost, the server leaves it out of the mean.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(5),
...     pace=md.scenarios.Pace(lr=0.3, epochs=2),
...     stream=md.tasks.Split(tasks=5, mode="class"), replay=md.replay.Ring(capacity=40),
... )
>>> last = md.run(md.CFLAG.joint(), fed, rounds=5, progress=False).summary
>>> last["acc"] > 0.85 and last["fgt"] < 0.05
True
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ...contract import Algorithm, Client, Cohort, Model, Need, RecipeError, Step, Vec, WireError, on_client, positive
from ...contract.place import name_of
from ...numerics.sums import weighted
from . import head
from .head import HeadCorrection, block
from .messages import Head, Memory, Server, Share, Snapshot, Target
from .walk import Form, Walk, common_steps, counted, suited


@dataclass(frozen=True)
class Joint(Algorithm[Server, Memory]):
    """C-FLAG in this library's form; β is the pace's lr.

    Attributes:
        correct: how H − h_i steers every client. True or "full": in all layers. "head": in the last layer only, which
            must be linear, with softmax cross-entropy. False: not at all; the weights and the memory stay (a control).
        clip: bound on the norm of the correction, as a share of the norm of the vector that it corrects: h′_i of the
            table, or the mini-batch's gradient (of the last layer, for "head"); None is the exact correction.
        form: how clients estimate h′_i: "iag" keeps a table of component gradients, "svrg" keeps d floats; "auto" is
            "iag" if the problem is convex, else "svrg". With correct="head" there is no table.
    """

    needs = frozenset({Need.STREAM, Need.REPLAY, Need.EVERYONE, Need.REPLIES})
    call = "CFLAG.joint"

    correct: bool | Literal["full", "head"] = True
    clip: Annotated[float, positive] | None = 0.25
    form: Form = "auto"

    def __post_init__(self) -> None:
        """Check what the settings' types cannot say: the last layer's correction has no table of gradients."""
        super().__post_init__()
        if self.form == "iag" and self.correct == "head":
            raise RecipeError(
                f"{self.name}(form='iag', correct='head'): correct='head' needs mini-batches, and form='iag' has none; "
                "leave form= out",
                "correct",
            )

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings().items())})"

    @property
    def name(self) -> str:
        """The name of the constructor."""
        return self.call

    def suited(self, gives: frozenset[str]) -> Joint:
        """``form="auto"`` resolved: the table if the problem is convex and all layers are corrected."""
        return replace(self, form="svrg" if self.correct == "head" else suited(self.form, gives))

    def requires(self) -> frozenset[str]:
        """Also classes and a linear last layer, if only that layer is corrected."""
        return self.needs | ({Need.CLASSES, Need.FEATURES} if self.correct == "head" else set())

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: a memory lasts only from a round's first exchange to its second."""

    def round(self, s: Server, clients: Cohort) -> None:
        """Every client sends its gradients at x, even if it has only past rows; then each makes E steps.

        x ← x + Σ w_i (z_E^i − x), w_i = λ_g p_i + λ_f q_i.
        """
        snapshots = clients.ask(self.snapshot, Model(s.x), ids=tuple(clients.p)).each()
        E = common_steps(snapshots.values(), clients.round)
        P = sum(up.past for up in snapshots.values())
        C = sum(up.n for up in snapshots.values())
        M = sum(up.m for up in snapshots.values())
        share = sum(clients.p[i] for i in snapshots)
        lf = P / (P + C) if M else 0.0  # (3)
        new = {i: (1 - lf) * clients.p[i] / share for i in snapshots}
        old = {i: lf * up.m / M if M else 0.0 for i, up in snapshots.items()}
        w = {i: new[i] + old[i] for i in snapshots if new[i] + old[i] > 0}
        H = top = None
        if self.correct == "head":
            top = head_of(snapshots, new, old)
        elif self.correct:
            H = weighted([(new[i], snapshots[i].g) for i in w] + [(old[i], snapshots[i].f) for i in w])
        replies = clients.ask(self.descend, Target(H, E, top), {i: Share(new[i] / w[i]) for i in w}, ids=tuple(w))
        step = replies.sum(w).delta
        s.x = s.x + step / sum(w[i] for i in replies.ids)
        clients.note(memory_weight=lf)

    @on_client
    def snapshot(self, me: Client[Memory], request: Model) -> Snapshot:
        """∇g_i and ∇f_i at x, on all rows; only their blocks of the last layer if only that layer is corrected."""
        if self.correct == "head":
            return counted(me, None, None, *head.snapshot(me, request.x))
        g = me.problem.grad(request.x) if me.problem.n and self.correct else None
        f = me.replay.problem.grad(request.x) if me.replay and self.correct else None
        me.memory = Memory(request.x, g, f)
        return counted(me, g, f)

    @on_client
    def descend(self, me: Client[Memory], request: Target, share: Share) -> Step:
        """E steps of z ← z − β(h′_i + H − h_i) on this task's rows and the memory's together."""
        memory = me.memory
        x = me.memory.x
        assert x is not None
        parts = []
        tables = []
        if share.current > 0:
            parts.append((me.problem, share.current))
            tables.append((memory.now, share.current))
        if me.replay and share.current < 1:
            parts.append((me.replay.problem, 1 - share.current))
            tables.append((memory.held, 1 - share.current))
        me.memory = Memory()
        if request.head is not None:
            slopes = [(s, weight) for s, weight in tables if s is not None]
            layer = HeadCorrection(block(me.problem, slopes[0][0]), request.head, slopes, self.clip)
            return Step(Walk(me, parts, x, h=None, H=None, steps=request.steps, clip=None, head=layer).go(self.form))
        h = None if request.H is None else weighted([(share.current, memory.g), (1 - share.current, memory.f)])
        return Step(Walk(me, parts, x, h=h, H=request.H, steps=request.steps, clip=self.clip).go(self.form))


def head_of(snapshots: Mapping[int, Snapshot], new: Mapping[int, float], old: Mapping[int, float]) -> Head:
    """The last layer's block of H [k]. Raises WireError if a client's block has another length."""
    terms = []
    for i, up in snapshots.items():
        terms += [(i, new[i], up.head_g), (i, old[i], up.head_f)]
    lengths = {i: len(v) for i, _, v in terms if v is not None}
    usual = statistics.mode(lengths.values())
    odd = next((i for i, k in lengths.items() if k != usual), None)
    if odd is not None:
        raise WireError(
            f"CFLAG.joint(correct='head'): {name_of(odd)} sent {lengths[odd]} entries of the last layer, and others "
            f"{usual}; give all clients the same network"
        )
    return weighted([(a, v) for _, a, v in terms])
