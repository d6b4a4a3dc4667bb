"""SHED's messages and states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ...contract import Message, Vec
from ...numerics.curvature import Sketch, Spectrum, Values, Vectors
from ...numerics.quasinewton import Curve


class Point(Message):
    """Down: the server's θ [d], and the number of Hessian renewals due so far."""

    x: Vec
    renewals: int


class Report(Message):
    """Up: a client's gradient and next eigenpairs on the wire, encoded from an `Instalment`.

    Attributes:
        g: ∇f_i(θ) [d]; if coded, its change, with ``g_scale``.
        V, lam: eigenvectors by rows [q, d], and eigenvalues [q]; if coded, with ``V_scale``.
        fine: if rounding would drown the curvature of some directions, what the codes of the first eigenvectors and of
            g leave out, in codes of 16 bits with ``fine_scale`` [f, d]; otherwise no rows.
        unit: for each column, the exponent of the power of 2 that is one step of its codes from this report on; None if
            unchanged.
        rho: ρ_i.
        held: the number of this client's pairs that the server holds, without these. If its own count differs, the
            server rejects the report.
        lift: what to add to Ĥ_i's diagonal so that Ĥ_i ⪰ H_i; None for nothing.
        bits, packed: under ``budget``, the bits that each eigenvector sent so far gets more, and these bits, eight to a
            byte; V is then None.
    """

    exact: ClassVar[frozenset[str]] = frozenset({"g_scale", "V_scale", "fine_scale", "lam"})
    g: Vec | Int[Tensor, " d"]
    g_scale: Float[Tensor, ""] | None
    V: Vectors | Int[Tensor, "q d"] | None
    V_scale: Values | None
    fine: Int[Tensor, "f d"]
    fine_scale: Float[Tensor, " f"]
    unit: Int[Tensor, " d"] | None
    lam: Values
    rho: float
    held: int
    lift: float | None
    bits: Int[Tensor, " Q"] | None
    packed: UInt8[Tensor, " n"] | None


class AttemptedPoint(Message):
    """Down: the point θ − p to try [d]; or p in codes with ``scale``, counted from the client's last report."""

    x: Vec | Int[Tensor, " d"]
    scale: Float[Tensor, ""] | None
    renewals: int


class Attempt(Report):
    """Up: the losses on the way to θ − p, and the report of that point."""

    exact: ClassVar[frozenset[str]] = frozenset({"g_scale", "V_scale", "fine_scale", "lam", "f"})
    f: Float[Tensor, " K"]


@dataclass
class Server:
    """The server.

    Attributes:
        x, t: θ, and the number of the iteration.
        held: all clients' eigenpairs.
        curve: moves and changes of gradient, for L-BFGS; ``before``: θ and g of the round before.
        renewals, renewed_in: the number of renewals due so far, and the round of the last one.
        norms: ‖g‖ of the last three rounds.

    - By client: ``g`` its last gradient, ``rho`` ρ_i, ``lift`` see `Report`, ``unit`` the units of its
      codes [d], ``renewed`` its renewals, ``at`` the round of the θ of its last report; under ``budget``, ``depth`` the
      bits [q] and ``codes`` the codes [q, d] of its eigenvectors.
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
    depth: dict[int, Int[Tensor, " q"]] = field(default_factory=dict)
    codes: dict[int, Int[Tensor, "q d"]] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    before: list[Vec] = field(default_factory=list)


@dataclass
class Memory:
    """A client.

    Attributes:
        x, g: θ of its last report [d], and the gradient as the server decoded it.
        spectrum, delta: the eigenpairs of the Hessian without δI, and δ; ``of`` is the point at which it was taken.
        renewals, sent: renewals so far, and the number of pairs sent since the last one.
        V, lam: for ``difference``, the pairs that the server holds, report by report; ``base`` counts the pairs of
            earlier Hessians. Under ``budget``, V has the eigenvectors as they are, and ``depth`` the bits sent of each.
        diagonal: the Hessian's diagonal [d].
        unit, same: units of the codes by column, and whether they are all the same.
        fine: whether changes of gradients have 16 bits more, because an eigenvector needed more than ``bits``.
        soft: the mean curvature per direction after v_1, if the Hessian's diagonal is scaled to ones.
        off: bounds on rounding, for the lift under ``above``: for each v sent as v̂, an a with v̂v̂ᵀ + aI ⪰ vvᵀ [s].
        lost: a lower bound on ρ that accounts for rounding, once no pair is left to send: Σ|λ_j|‖v̂_j − v_j‖².
    """

    x: Vec
    g: Vec
    V: list[Float[Tensor, "_ d"]]
    lam: Values
    off: Float[Tensor, " s"]
    diagonal: Vec
    unit: Vec
    depth: Int[Tensor, " b"]
    same: bool = True
    fine: bool = False
    soft: float = 0.0
    spectrum: Spectrum | None = None
    of: Vec | None = None
    delta: float = 0.0
    lost: float = 0.0
    renewals: int = 0
    base: int = 0
    sent: int = 0
