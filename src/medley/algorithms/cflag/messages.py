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
        g, f: ∇g_i(x) on this task's rows, ∇f_i(x) on those held [d]; None where there are none, or none wanted.
        head_g, head_f: their blocks of the last layer [k], where these alone are wanted.
        n, m: number of rows of this task, and of rows held.
        past: number of past rows, held or not.
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
    """Down, joint: all clients' gradient and the number of steps.

    Attributes:
        H: λ_g Σp_i∇g_i + λ_f Σq_i∇f_i [d]; None for no correction of all layers.
        steps: E.
        head: the last layer's block of H [k]; None for no correction of that layer alone.
    """

    H: Vec | None
    steps: int
    head: Head | None = None


class Share(Message):
    """Down, joint, to each its own: λ_g p_i/w_i, the current rows' share of h_i."""

    current: float


class Anchor(Message):
    """Down, paper: all clients' ∇g and ∇f [d], E, and the number of clients N."""

    g: Vec | None
    f: Vec | None
    steps: int
    N: int


class Update(Message):
    """Up, paper: Δ_i [d], the client's term Γ_i of the forgetting's bound, and its α."""

    delta: Vec
    gamma: float
    alpha: float


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Slopes:
    """Rows at the last layer, at x_t: R_j φ_jᵀ is the gradient of row j's loss by its weights, R_j that by its bias.

    Attributes:
        R: ∂l_j/∂z_j [n, o].
        phi: φ_j, followed by 1 where there is a bias [n, w].
    """

    R: Float[Tensor, "n o"]
    phi: Float[Tensor, "n w"]


@dataclass
class Memory:
    """x_t and the client's own gradients there [d], between a round's two exchanges.

    Attributes:
        x: x_t.
        g, f: ∇g_i and ∇f_i there; None where there are no rows, or none are wanted.
        now, held: the rows of this task and those held at the last layer; None unless it alone is corrected.
    """

    x: Vec | None = None
    g: Vec | None = None
    f: Vec | None = None
    now: Slopes | None = None
    held: Slopes | None = None
