"""C-FLAG's messages and states."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ...contract import Message, Vec

Head = Float[Tensor, " k"]
"""Entries of the last layer: the weights of each output, followed by its bias if there is one [k]."""


class Snapshot(Message):
    """Up: a client's gradients and counts.

    Attributes:
        g, f: ∇g_i(x) on this task's rows, ∇f_i(x) on the memory's [d]; None without such rows, or if it is not needed.
        head_g, head_f: their blocks of the last layer [k], if only this layer is corrected.
        n, m: number of rows of this task, and of rows in the memory.
        past: number of past rows, in the memory or not.
        steps: optimizer steps of this round's pace.
    """

    g: Vec | None
    f: Vec | None
    n: int
    m: int
    past: int
    steps: int
    head_g: Head | None = None
    head_f: Head | None = None


class Target(Message):
    """Down, in the joint form: the gradient of all clients and the number of steps.

    Attributes:
        H: λ_g Σp_i∇g_i + λ_f Σq_i∇f_i [d]; None unless all layers are corrected.
        steps: E.
        head: the last layer's block of H [k]; None unless only that layer is corrected.
    """

    H: Vec | None
    steps: int
    head: Head | None = None


class Share(Message):
    """Down to one client, in the joint form: λ_g p_i/w_i, the current rows' share of h_i."""

    current: float


class Anchor(Message):
    """Down, in the published form: ∇g and ∇f of all clients [d], E, and the number of clients N."""

    g: Vec | None
    f: Vec | None
    steps: int
    N: int


class Update(Message):
    """Up, in the published form: Δ_i [d], the client's term Γ_i of the bound on forgetting, and its α."""

    delta: Vec
    gamma: float
    alpha: float


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Slopes:
    """Rows at the last layer, at x_t. The loss of row j has the gradient R_j φ_jᵀ by the weights, and R_j by the bias.

    Attributes:
        R: ∂l_j/∂z_j [n, o].
        phi: φ_j, followed by 1 if there is a bias [n, w].
    """

    R: Float[Tensor, "n o"]
    phi: Float[Tensor, "n w"]


@dataclass
class Memory:
    """A client's state between a round's two exchanges: x_t, and the client's own gradients there.

    Attributes:
        x: x_t [d].
        g, f: ∇g_i and ∇f_i there [d]; None without such rows, or if it is not needed.
        now, held: this task's rows and the memory's rows at the last layer; None unless only that layer is corrected.
    """

    x: Vec | None = None
    g: Vec | None = None
    f: Vec | None = None
    now: Slopes | None = None
    held: Slopes | None = None
