"""SHED's messages and states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from ...contract import Message, Vec
from ...numerics.curvature import Sketch, Spectrum, Values, Vectors
from ...numerics.quasinewton import Curve


class Point(Message):
    """Down: the server's θ [d], and the number of renewals of Hessians that are due by now."""

    x: Vec
    renewals: int


class Report(Message):
    """Up: a client's gradient and next eigenpairs on the wire, encoded from an `Instalment`.

    Attributes:
        g: ∇f_i(θ) [d]; in codes its change, with ``g_scale``.
        V, lam: eigenvectors by rows [q, d], and eigenvalues [q]; in codes with ``V_scale``.
        unit: exponents of the powers of 2 that codes count in from this report on, by column; None for no change.
        rho: ρ_i.
        held: number of this client's pairs that the server holds beside these; the server compares it with its own
            count and refuses a report that differs.
        lift: addition to Ĥ_i's diagonal that keeps it above H_i; None for none.
    """

    exact: ClassVar[frozenset[str]] = frozenset({"g_scale", "V_scale", "lam"})
    g: Vec | Int[Tensor, " d"]
    g_scale: Float[Tensor, ""] | None
    V: Vectors | Int[Tensor, "q d"]
    V_scale: Values | None
    unit: Int[Tensor, " d"] | None
    lam: Values
    rho: float
    held: int
    lift: float | None


class AttemptedPoint(Message):
    """Down: the point θ − p to try [d]; or p in codes with ``scale``, from the client's last report on."""

    x: Vec | Int[Tensor, " d"]
    scale: Float[Tensor, ""] | None
    renewals: int


class Attempt(Report):
    """Up: the losses on the way to θ − p, and the report of that point."""

    exact: ClassVar[frozenset[str]] = frozenset({"g_scale", "V_scale", "lam", "f"})
    f: Float[Tensor, " K"]


@dataclass
class Server:
    """The server.

    Attributes:
        x, t: θ, and the number of the iteration.
        held: all clients' eigenpairs.
        curve: moves and changes of gradient, for L-BFGS; ``before``: θ and g of the round before.
        renewals, renewed_in: renewals that are due, and the round of the last.
        norms: ‖g‖ of the last three rounds.

    - ``whole``: some client's numbers travel as they are, and so do directions.
    - By client: ``g`` its last gradient, ``rho`` ρ_i, ``lift`` see `Report`, ``unit`` the units of its
      codes [d], ``renewed`` its renewals, ``at`` the round of the θ of its last report.
    """

    x: Vec
    held: Sketch
    curve: Curve
    t: int = 0
    renewals: int = 1
    renewed_in: int = 1
    g: dict[int, Vec] = field(default_factory=dict)
    rho: dict[int, float] = field(default_factory=dict)
    lift: dict[int, float] = field(default_factory=dict)
    unit: dict[int, Vec] = field(default_factory=dict)
    renewed: dict[int, int] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    before: list[Vec] = field(default_factory=list)
    whole: bool = False


@dataclass
class Memory:
    """A client.

    Attributes:
        x, g: θ of its last report [d], and the gradient as the server has it.
        spectrum, delta: the Hessian's eigenpairs without its δI, and δ; ``of`` is its point.
        renewals, sent: renewals so far, and the pairs sent since the last.
        V, lam: for differences, the pairs that the server holds, a report's each; ``base`` counts those of earlier
            Hessians.
        diagonal: the Hessian's diagonal [d].
        unit, same: units of the codes by column, and whether they are all the same.
        whole: whether codes would drown the curvature, so that numbers travel as they are.
        off: bounds on rounding, for the lift under ``above``: for each pair v sent as v̂ an a with v̂v̂ᵀ + aI ⪰ vvᵀ [s].
        lost: a lower bound of ρ that stands for rounding, once no pair is left to send: Σ|λ_j|‖v̂_j − v_j‖².
    """

    x: Vec
    g: Vec
    V: list[Float[Tensor, "_ d"]]
    lam: Values
    off: Float[Tensor, " s"]
    diagonal: Vec
    unit: Vec
    same: bool = True
    whole: bool = False
    spectrum: Spectrum | None = None
    of: Vec | None = None
    delta: float = 0.0
    lost: float = 0.0
    renewals: int = 0
    base: int = 0
    sent: int = 0
