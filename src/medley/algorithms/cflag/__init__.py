"""C-FLAG: local descent along all clients' gradient on the new task, corrected so that the memory is kept.

**Reference**: Keshri, Shah & Prasad, "On the Convergence of Continual Federated Learning Using Incrementally Aggregated
Gradients", AISTATS 2025, Algorithms 1–3.

**Needs**: a stream of tasks with a replay memory; every client in every round. Between a round's two exchanges clients
keep x and its gradients, up to 3d floats.

**One round sends** (floats per client):

- snapshot (if past rows are held): d down, 2d + 4 up
- snapshot (if none are, or only the memory is asked): d down, d + 4 up
- snapshot (if correct is off): d down, 4 up
- snapshot (if correct is "head" and past rows are held): d down, 2k + 4 up; k parameters of the last layer
- snapshot (if correct is "head" and none are): d down, k + 4 up
- descend (if the mode is joint): d + 2 down, d up
- descend (if the mode is joint and correct is off): 2 down, d up
- descend (if correct is "head"): k + 2 down, d up
- learn (if the mode is paper): 2d + 2 down, d + 2 up
- learn (if the mode is paper, in the first task or with correct off): d + 2 down, d + 2 up
- learn (if the mode is paper, in the first task with correct off): 2 down, d + 2 up

**Departures**: ``mode="paper"`` has the paper's one memory step a round. Its signs are those of (25), x⁺ = x − αf −
βΣp_iΣ_k g′_i: Algorithm 3's line 2 and (7) contradict it. Adaptive rates are written in u_i = β Σ_k g′_i and
s_i = β_i/β, since lines 4–13 mix quantities with and without β. With α = β it is stationary for f + E·g, not for (3).
``mode="joint"``, the default, is the algorithm that the proof of Lemma 3 analyses: one loop over memory and current
rows together, with the weights of (3). p_i and E are the same wherever they occur, since (22) fails otherwise: E comes
down. For networks g′ is h_i(x_t) + ∇_b(x_k) − ∇_b(x_t), which needs no table; a step is then
∇_b(x_k) + (H − ∇_b(x_t)), and ``clip`` bounds that bracket. Under Adam and momentum u_i is the whole displacement.
Rows of both kinds share a pass, but under BatchNorm. The table has neither the pace's weight_decay nor its clip.
``correct="head"``, which no paper has, steers the last layer only. With its inputs φ_j and slopes R_j = softmax − e_y
at x_t, a client's gradient there is Σ s_j R_j φ_jᵀ over its rows. One forward pass a round makes a table of all rows; a
step on rows b adds H − Σ_{j∈b} s_j R_j φ_jᵀ to that layer, without another pass. The layers below keep their drift.
In ``mode="paper"`` ∇f = Σp_i∇f_i has the p_i of ∇g, as printed: clients without rows of the task have p_i = 0, are not
asked, and their memories count for nothing. ``mode="joint"`` asks all clients, and weighs ∇f_i by q_i, the share of the
rows held.

**Missing replies**: a client whose gradients are lost takes no part in the round, and shares are those of the others;
a lost step is left out of the mean.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.scenarios.IID(5),
...     pace=md.scenarios.Pace(lr=0.3, epochs=2),
...     stream=md.scenarios.Split(tasks=5, mode="class"), replay=md.replay.Ring(capacity=40),
... )
>>> last = md.run(md.CFLAG(), fed, rounds=5, progress=False).summary
>>> last["acc"] > 0.85 and last["fgt"] < 0.05
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ...contract.algorithm import Algorithm, on_client
from ...contract.client import Client
from ...contract.cohort import Cohort
from ...contract.errors import RecipeError, TooFewReplies
from ...contract.messages import Model, Step
from ...contract.needs import Need
from ...contract.settings import positive
from ...contract.types import Vec
from . import head, joint, paper
from .messages import Anchor, Memory, Server, Share, Snapshot, Target, Update


@dataclass(frozen=True)
class CFLAG(Algorithm[Server, Memory]):
    """Continual federated learning with aggregated gradients; β is the pace's lr.

    Attributes:
        mode: "joint": one loop over memory and current rows; "paper": one memory step a round.
        correct: steer every client by H − h_i: True or "full", all of it; "head", the last layer only (joint, softmax
            cross-entropy of a linear last layer); False, only the weights and the memory are left (the control).
        clip: joint: bound of the correction, as a share of the norm of the corrected vector, h′_i of the table or the
            mini-batch's gradient (the last layer's, for "head"); None is the exact correction of (22).
        form: of g′: "iag" keeps a table of component gradients, "svrg" d floats; "auto" is the table for convex
            problems. The table is not of "head".
        alpha: paper: the memory's step; None for β.
        adaptive: paper: the rates of Table 1, in the average or the worst case.
        L: paper: the smoothness, 5 in the paper.
        bounded: paper: keep α_i ≤ 1/L and β_i ≤ β.
    """

    needs = frozenset({Need.STREAM, Need.REPLAY, Need.EVERYONE, Need.REPLIES})

    mode: Literal["joint", "paper"] = "joint"
    correct: bool | Literal["full", "head"] = True
    clip: Annotated[float, positive] | None = 0.25
    form: Literal["auto", "iag", "svrg"] = "auto"
    alpha: Annotated[float, positive] | None = None
    adaptive: Literal["off", "average", "worst"] = "off"
    L: Annotated[float, positive] = 5.0
    bounded: bool = True

    def __post_init__(self) -> None:
        """Beside the declared settings: those of the other mode are left out, and adaptive rates need L·α < 1."""
        super().__post_init__()
        if self.mode == "paper" and self.correct == "head":
            raise RecipeError("CFLAG(mode='paper', correct='head'): it belongs to mode='joint'", "correct")
        if self.form == "iag" and self.correct == "head":
            raise RecipeError("CFLAG(form='iag', correct='head'): it takes mini-batches; leave form= out", "correct")
        other, keys = ("joint", ("clip",)) if self.mode == "paper" else ("paper", ("alpha", "adaptive", "L", "bounded"))
        for key in keys:
            if getattr(self, key) not in (None, getattr(CFLAG, key)):
                raise RecipeError(f"CFLAG(mode={self.mode!r}): {key}= belongs to mode={other!r}; leave it out", key)
        if self.adaptive != "off" and self.alpha is not None and self.L * self.alpha >= 1:
            raise RecipeError(f"CFLAG(alpha={self.alpha}, L={self.L}): adaptive rates need L·alpha < 1", "alpha")

    def suited(self, gives: frozenset[str]) -> CFLAG:
        """The table where the problem is convex."""
        table = "convex" in gives and self.correct != "head"
        return replace(self, form="iag" if table else "svrg") if self.form == "auto" else self

    def requires(self) -> frozenset[str]:
        """Classes and a linear last layer, where that layer is corrected."""
        return self.needs | ({Need.CLASSES, Need.FEATURES} if self.correct == "head" else set())

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: memories last from one exchange of a round to the next."""

    def round(self, s: Server, clients: Cohort) -> None:
        """Gradients at x (lines 2–3), local steps (4–11), and the server's (12).

        Jointly, all clients are asked: one whose classes do not come now may still hold past ones.
        """
        ids = tuple(clients.p) if self.mode == "joint" else clients.ids
        found = clients.ask(self.snapshot, Model(s.x), ids=ids).each()
        present = [up.steps for up in found.values() if up.n]
        if not present:
            raise TooFewReplies(f"nobody with rows of the task answered in round {clients.round}")
        E = max(1, round(sum(present) / len(present)))
        if self.mode == "joint":
            correct: Literal["full", "head"] | None = "full" if self.correct is True else self.correct or None
            joint.advance(s, clients, found, E, correct, self.descend)
        else:
            paper.advance(s, clients, found, E, self.L, self.learn)

    @on_client
    def snapshot(self, me: Client[Memory], got: Model) -> Snapshot:
        """∇g_i and ∇f_i at x_t, of all rows."""
        n, m, past = me.problem.n, len(me.replay or ()), me.replay.past if me.replay else 0
        if self.correct == "head":
            return Snapshot(None, None, n, m, past, me.steps, *head.snapshot(me, got.x))
        g = me.problem.grad(got.x) if n and self.correct else None
        wanted = self.correct or self.mode == "paper"
        f = me.replay.problem.grad(got.x) if me.replay and wanted else None
        me.memory = Memory(got.x, g, f)
        return Snapshot(g, f, n, m, past, me.steps)

    @on_client
    def descend(self, me: Client[Memory], got: Target, own: Share) -> Step:
        """Joint: E steps on this task's rows and the memory's together."""
        return joint.descend(me, got, own, self.form, self.clip)

    @on_client
    def learn(self, me: Client[Memory], got: Anchor) -> Update:
        """Paper: E steps on this task's rows, then the memory's."""
        return paper.learn(me, got, self.form, self.alpha, self.rates)

    @property
    def rates(self) -> paper.Rates:
        """Table 1 under these settings."""
        return paper.Rates(self.adaptive, self.L, self.bounded)
