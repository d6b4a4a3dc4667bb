r"""C-FLAG: clients descend along the gradient of all clients on the new task, with one step on the memory per round.

**Reference**: Keshri, Shah & Prasad, "On the Convergence of Continual Federated Learning Using Incrementally Aggregated
Gradients", AISTATS 2025, Algorithms 1–3.

**Status**: published with corrections

**Needs**: a stream of tasks with a replay memory, and every client in every round. Between the two exchanges of a round
a client keeps x and its gradients, up to 3d floats.

**Equations**, in which g is the loss on the task's rows and f the loss on the memory's rows. Client i begins at z₀ = x:

$$\begin{aligned}
z_{k+1} &= z_k - \beta\,(g'_i + \nabla g(x) - \nabla g_i(x)) && \text{(4): E steps; } g'_i \text{ from the table (5)} \\
\Delta_i &= \alpha_i \nabla f(x) + s_i (x - z_E) && \text{Algorithm 3; fixed rates: } \alpha_i = \alpha,\ s_i = 1 \\
x &\leftarrow x - \textstyle\sum_i p_i \Delta_i && \text{Algorithm 1, line 12}
\end{aligned}$$

**One round sends** (floats per client):

- snapshot (if past rows are held): d down, 2d + 4 up
- snapshot (if none are, or correct is off): d down, d + 4 up
- snapshot (if none are and correct is off): d down, 4 up
- learn: 2d + 2 down, d + 2 up
- learn (if it is the first task, or correct is off): d + 2 down, d + 2 up
- learn (if it is the first task and correct is off): 2 down, d + 2 up

**Departures**:

- Signs are as in (25): x⁺ = x − α∇f − β Σp_i Σ_k g′_i. Line 2 of Algorithm 3 and (7) print z_E instead of x − z_E.
- Adaptive rates use u_i = β Σ_k g′_i and s_i = β_i/β, because lines 4–13 mix quantities with and without β. Under
  interference α_i = α − ⟨∇f, u_i⟩/‖∇f‖². Table 1 has α instead of the β in u_i. This is the same for α = β, the only
  case that the paper derives. With Adam or momentum, u_i is the whole displacement.
- ``bounded``, the default, keeps α_i ≤ 1/L and β_i ≤ β. Table 1 as printed breaks the paper's own bound on α in (14),
  and the model then hardly learns.
- All clients take E steps, the mean of their paces' steps, because (22) fails otherwise.
- For networks g′_i is ∇g_i(x) + ∇_b(z) − ∇_b(x) on a mini-batch b, which needs no table. ``form="iag"`` is the paper's
  table; it does not allow the pace's momentum, weight_decay and clip.
- ``correct=False`` leaves out ∇g − ∇g_i, as a control.

**Kept as printed**:

- With α = β the method is stationary for f + E·g, not for (3).
- ∇f = Σ p_i∇f_i uses the p_i of ∇g. So clients without rows of the task have p_i = 0: the server does not ask them, and
  their memories do not count.
- The paper's experiments have L = 5. The paper does not say which of them ran with adaptive rates; its listing has the
  worst case.

**Checked against**: the authors' code, SatishKeshri/Continual_FL at 3c5484f. Its scripts run another method than the
listing, which `papers/cflag/scripts.py` runs too:

- A step goes along ∇g − ∇g_i and the gradient of a mini-batch at z; there is no table.
- Steps are Adam's, whose state begins anew in every round and for the step on the memory. That step is therefore lr
  times the sign of each entry of ∇f_i.
- Each entry of a gradient is clamped to ±0.5.
- The factors of Table 1 are computed for every mini-batch, from means over each layer's entries, and scale the gradient
  before Adam, which takes out a constant factor.
- In the class-incremental scripts there is no step on the memory unless ``--add_f_adapt`` is given.

`CFLAG.joint` is this library's own form of the method. It has its own card.

**Missing replies**: if a client's gradients are lost, it takes no part in the round, and the weights are shared among
the other clients. If its step is lost, the server leaves it out of the mean.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(5),
...     pace=md.scenarios.Pace(lr=0.1, epochs=2),
...     stream=md.tasks.Split(tasks=5, mode="task"), replay=md.replay.Ring(capacity=40),
... )
>>> last = md.run(md.CFLAG(), fed, rounds=5, progress=False).summary
>>> last["acc"] > 0.85 and last["fgt"] < 0.05
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from ...contract import Algorithm, Client, Cohort, Model, Need, RecipeError, Vec, on_client, positive
from . import paper
from .joint import Joint
from .messages import Anchor, Memory, Server, Snapshot, Update
from .walk import Form, common_steps, counted, suited


@dataclass(frozen=True)
class CFLAG(Algorithm[Server, Memory]):
    """Continual federated learning with aggregated gradients; β is the pace's lr.

    Attributes:
        alpha: α, the step size on the memory; None, the default, is β.
        adaptive: the rates of Table 1, in the "average" or the "worst" case; "off", the default, for fixed rates.
        L: the smoothness, for adaptive rates; 5 in the paper.
        bounded: whether adaptive rates keep α_i ≤ 1/L and β_i ≤ β.
        form: how clients estimate g′: "iag" keeps a table of component gradients, "svrg" keeps d floats; "auto" is
            "iag" if the problem is convex, else "svrg".
        correct: whether ∇g − ∇g_i steers every client; False is a control.
    """

    needs = frozenset({Need.STREAM, Need.REPLAY, Need.EVERYONE, Need.REPLIES})
    gone: ClassVar[Mapping[str, str]] = {
        "mode": "CFLAG(mode=...) is gone: CFLAG() is the published method, and CFLAG.joint() is this library's form",
        "clip": "CFLAG(clip=...) is gone: clip is now a setting of CFLAG.joint",
    }
    joint: ClassVar[type[Joint]] = Joint
    """This library's form: one loop over the memory's and the current rows."""

    alpha: Annotated[float, positive] | None = None
    adaptive: Literal["off", "average", "worst"] = "off"
    L: Annotated[float, positive] = 5.0
    bounded: bool = True
    form: Form = "auto"
    correct: bool = True

    def __post_init__(self) -> None:
        """Check what the settings' types cannot say: adaptive rates need L·α < 1."""
        if str(self.correct) == "head":
            raise RecipeError("CFLAG(correct='head'): only CFLAG.joint takes correct='head'", "correct")
        super().__post_init__()
        if self.adaptive != "off" and self.alpha is not None and self.L * self.alpha >= 1:
            raise RecipeError(f"CFLAG(alpha={self.alpha}, L={self.L}): adaptive rates need L·alpha < 1", "alpha")

    def suited(self, gives: frozenset[str]) -> CFLAG:
        """``form="auto"`` resolved: the table if the problem is convex."""
        return replace(self, form=suited(self.form, gives))

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: a memory lasts only from a round's first exchange to its second."""

    def round(self, s: Server, clients: Cohort) -> None:
        """Gradients at x (lines 2–3), local steps (4–11), and the server's step (12)."""
        snapshots = clients.ask(self.snapshot, Model(s.x)).each()
        E = common_steps(snapshots.values(), clients.round)
        paper.advance(s, clients, snapshots=snapshots, E=E, L=self.L, learn=self.learn)

    @on_client
    def snapshot(self, me: Client[Memory], request: Model) -> Snapshot:
        """∇g_i and ∇f_i at x_t, on all rows."""
        g = me.problem.grad(request.x) if me.problem.n and self.correct else None
        f = me.replay.problem.grad(request.x) if me.replay else None
        me.memory = Memory(request.x, g, f)
        return counted(me, g, f)

    @on_client
    def learn(self, me: Client[Memory], request: Anchor) -> Update:
        """E steps on this task's rows, then one on the memory."""
        return paper.learn(me, request, self.form, self.alpha, self.rates)

    @property
    def rates(self) -> paper.Rates:
        """Table 1 under these settings."""
        return paper.Rates(self.adaptive, self.L, self.bounded)
