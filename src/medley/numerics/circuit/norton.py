"""The star with a floating neutral: branches as Norton equivalents, and the window that goes on along Kirchhoff's sum.

A branch that is not at work is a source J_i in parallel with a conductance h_i, both measured at x̄_i:

    Ĵ_i(x) = J_i + m h_i (x − x̄_i)        S(x) = Σ_i p_i Ĵ_i(x)        C ẋ = −S(x)

The client descends with the net flow n_i = ρ (J_i − S), so the common current S is not pushed into it, and of J_i the
share ρ that lasts, see `steadiness`. The mean gradient that it meets on the way is its new flow, J_i⁺ = n_i − D_i/T_i,
and ε_i = Ĵ_i⁺(x) − Ĵ_i(x) is the innovation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...contract.types import Vec
from ..chunks import spans
from .branch import PerClient, positive

AHEAD = 1.25
"""The largest mean of w_i/T_i, by which replies are extrapolated; beyond 2 descents that end at minima overshoot."""


def window(share: float, square: float, T: float, slope: float, q: float) -> float:
    """w_i/T_i^q = T̄^(1−q), T̄ = Σ p_i T_i²/Σ p_i T_i, or less: the mean of w_i/T_i over the replies is at most `AHEAD`.

    Args:
        share, square, T, slope: Σ p_i, Σ p_i T_i², Σ p_i T_i and Σ p_i T_i^(q−1) over the replies.
        q: the trust in replies by their length.
    """
    scale: float = (square / T) ** (1 - q)
    return min(scale, AHEAD * share / slope)


@dataclass(frozen=True)
class Reach:
    """The time for which each reply counts, w_i = `window` T_i^q.

    A reply is extrapolated by (T̄/T_i)^(1−q): a client of few or small steps is trusted less, one of many is cut. T̄ is
    the mean of T_i over simulated time. The longest T_i in its place would put one client's time on all the others.

    Attributes:
        T, p, w: T_i, p_i and w_i [a].
        share, trust, slope: Σ p_i, Σ p_i T_i^q and Σ p_i T_i^(q−1) over the replies.
        Te: Σ p_i w_i/Σ p_i, the length of the window.
        scale: w_i/T_i^q.
    """

    T: list[float]
    p: Sequence[float]
    w: list[float]
    share: float
    trust: float
    slope: float
    Te: float
    scale: float

    @classmethod
    def of(cls, T: PerClient, p: Sequence[float], q: float) -> Reach:
        """Of simulated times ``T`` [a] and weights ``p``. Raises RecipeError for a T_i that is not positive."""
        times, share = positive(T, "FedECADO()"), sum(p)
        square, mean, trust, slope = (
            sum(p_i * T_i**k for p_i, T_i in zip(p, times, strict=True)) for k in (2, 1, q, q - 1)
        )
        scale = window(share, square, mean, slope, q)
        return cls([*times], p, [scale * T_i**q for T_i in times], share, trust, slope, scale * trust / share, scale)


LONGEST = 3.0
"""The longest step of the node, in units of the harmonic mean of the clients' times. The bound is 2 where all branches
saturate. Measured, 2 and 2.5 are slower or less steady on mildly unequal times, and 4 lets five clients run away."""


@dataclass(frozen=True)
class Times:
    """Sums over rounds with decay .9: of 1, and of Σ p_i, Σ p_i T_i^q and Σ p_i T_i^(q−1) over the replies."""

    rounds: float = 0.0
    share: float = 0.0
    trust: float = 0.0
    slope: float = 0.0

    def then(self, share: float, trust: float, slope: float) -> Times:
        """The moments after another round."""
        seen = (self.rounds, 1.0), (self.share, share), (self.trust, trust), (self.slope, slope)
        return Times(*(0.9 * old + new for old, new in seen))

    @property
    def mean_share(self) -> float:
        """The mean of Σ p_i over the replies of a round."""
        return self.share / self.rounds

    @property
    def harmonic(self) -> float:
        """The harmonic mean of the times by q = ½, as if they were log-normal: 1/(E[1/√T]³ E[√T]).

        At most E[√T]/E[1/√T], by Cauchy and Schwarz. Clipped sums of a private run are too small, in the mean by one
        factor. It cancels in this bound, while 1/(E[1/√T]³ E[√T]) would be too large by its fourth power.
        """
        return min((self.share / self.slope) ** 3 * self.share / self.trust, self.trust / self.slope)

    def common(self, q: float) -> float:
        """T_h^q, the window of flows that do not last in units of w_i/T_i^q; 0 before the first replies."""
        if self.share == 0:
            return 0.0
        return math.sqrt(self.harmonic) if q == 0.5 else self.trust / self.share

    def reach(self, q: float, Te: float) -> float:
        """The longest extension of a window of length ``Te``, in windows: the whole is at most `LONGEST` T_h.

        Other q than ½ do not tell T_h, and have no bound.

        The mean gradient of a descent answers to x by at most 1/T_i, whatever the curvature, since the descent
        saturates. So the star's conductance is at most Σ p_i/T_i = 1/T_h. A longer explicit step overshoots the flows
        of the clients with short times.
        """
        return max(0.0, LONGEST * self.harmonic / Te - 1) if q == 0.5 and Te > 0 else math.inf


@dataclass(frozen=True)
class Refreshed:
    """Flows after a window.

    Attributes:
        J: J_i⁺ of every reply, a list of a vectors [d].
        S: Σ p_i J_i over all clients, after the window [d].
        ahead: Σ p_i (u_i J_i⁺ − w_i n_i) [d]; of late ones see `late.refresh`.
        steady: ρ, see `steadiness`; it stays on its device.
    """

    J: list[Vec]
    S: Vec
    ahead: Vec
    steady: float | Tensor


def refresh(
    S: Vec,
    nets: Sequence[Vec],
    D: Sequence[Vec],
    J: Sequence[Vec | None],
    reach: Reach,
    rho: float | Tensor = 1.0,
    common: float = 0.0,
) -> Refreshed:
    """J_i⁺ = n_i − D_i/T_i and ε_i = J_i⁺ − J_i of clients that began at x, a piece of the coordinates at a time.

    Args:
        S: Σ p_i J_i over all clients [d].
        nets: net flows n_i of the descents, a vectors [d].
        D: displacements, a vectors [d].
        J: flows before; None for a client without one, whose flow is 0.
        reach: T_i, p_i and w_i of the replies.
        rho: ρ, with which net flows were made.
        common: `Times.common`, the window of what does not last in units of the scale of w_i.
    """
    sums, ahead, after = S.clone(), torch.zeros_like(S), [torch.empty_like(S) for _ in nets]
    powers, fresh = S.new_zeros(2), 1 - torch.as_tensor(rho, dtype=S.dtype, device=S.device)
    for c in spans(S.numel(), S.device):
        s, v = sums[c], ahead[c]
        for n, D_i, J_i, J1, T_i, p_i, w_i in zip(nets, D, J, after, reach.T, reach.p, reach.w, strict=True):
            met = torch.add(n[c], D_i[c], alpha=-1 / T_i, out=J1[c])
            innovation = met if J_i is None else met - J_i[c]
            s.add_(innovation, alpha=p_i)
            v.add_(D_i[c], alpha=-p_i * w_i / T_i)
            v.addcmul_(met, fresh, value=-p_i * (w_i - reach.scale * common))
            powers += p_i * torch.stack([innovation @ innovation, met @ met])
    return Refreshed(after, sums, ahead, steadiness(*powers))


def steadiness(changed: Tensor, size: Tensor) -> Tensor:
    """ρ = max(0, 1 − ½ Σ p_i |ε_i|²/Σ p_i |J_i⁺|²), the share of the flows that lasts; 1 where all is 0.

    Where a flow has a fixed part and one that is drawn anew at each visit, this is the fixed part's share of the power:
    the factor on J_i with which it predicts J_i⁺ best. Without flows before it is ½, and 0 for flows beyond floats. A
    ratio of sums: a client whose flow is nearly 0 at rest has one of its own that never goes to 1.

    Args:
        changed, size: Σ p_i |ε_i|² and Σ p_i |J_i⁺|² over the replies [].
    """
    still = torch.where(changed > 0, 0.0, 1.0)
    return torch.where(size > 0, 1 - changed / (2 * size), still).nan_to_num(0.0).clamp_min(0)


class Sizes(NamedTuple):
    """Sizes of the sum and of the node's last move, read from a device at once.

    Attributes:
        change: |S⁺ − S|.
        after: |S⁺|.
        move: |v|; 0 where there was none.
        along: ⟨S⁺, v⟩; 0 where there was none.
    """

    change: float
    after: float
    move: float = 0.0
    along: float = 0.0

    @classmethod
    def of(cls, before: Vec, after: Vec, v: Vec | None = None) -> Sizes:
        """Of S and S⁺ [d], and of the node's last move v [d]; None for none."""
        found = [(after - before).norm(), after.norm(), *([] if v is None else [v.norm(), after @ v])]
        return cls(*torch.stack(found).tolist())


def extension(f: float, sizes: Sizes, last: float = 0.0, most: float = 1.0, due: float = 0.0) -> float:
    """e: the time by which the window goes on after the clients stop, in units of the window.

    e = max( min(1, 1/f − 1), min( (1 + e⁻) f |S⁺|/|S⁺ − S| − 1, 1 ), 0 ), at most ``most`` in the place of both ones.

    The first is the lead that cures the lag of the clients that sit out. The second controls the step by the local
    truncation error of S. S changed by |S⁺ − S|/f over the last step, of 1 + e⁻ windows. The next step lasts until S
    would have changed by its own size.

    Args:
        f: the share of the clients that replied, in (0, 1].
        sizes: of S and S⁺.
        last: e⁻, the extension of the last window; default 0.
        most: the longest extension; default 1.
        due: the share of the clients that are at work and did not reply, which do not sit out; default 0.
    """
    change = sizes.change
    steady = (1 + last) * f * sizes.after / change - 1 if change > 0 else most
    return max(min(max(min(1.0, 1 / (f + due) - 1), steady), most), 0.0)


def controlled(
    f: float, sizes: Sizes, last: float, gamma: float, most: float = 1.0, due: float = 0.0
) -> tuple[float, float]:
    """The extension e, and the share c of the node's way that is taken, by a tolerance of the local truncation error.

    Backward Euler errs by half the step times the change of the derivative. Relative to the step that is
    |S⁺ − S|/(2 f |S⁺|) over the last one, of 1 + e⁻ windows, and in proportion to the length. The next step is so long
    that the error is γ: at most 1 + ``most`` windows and twice the last one, at least half of it and an eighth of a
    window. A shorter step than a window takes a share c of the way. γ = ½ asks for `extension`'s length.

    Args:
        f: the share of the clients that replied, in (0, 1].
        sizes: of S and S⁺.
        last: e⁻, the length of the last step less 1, in windows.
        gamma: γ, the tolerance.
        most: the longest extension; default 1.
        due: as in `extension`; default 0.
    """
    error = sizes.change / (2 * f * sizes.after) if sizes.after > 0 else 1.0
    ratio = min(max(gamma / error, 0.5), 2.0) if error > 0 else 2.0
    length = min(max((1 + last) * ratio, 0.125), 1 + most)
    return max(min(1.0, 1 / (f + due) - 1, most), length - 1), min(length, 1.0)


def critical(f: float, tau: float, h: float) -> float:
    """β = f (1 − √min(1, τh))²: the share of an inductor's current that is left, at the damping that is critical for h.

    ẍ + 2√h ẋ + hx = 0 by backward Euler is v⁺ = β(v − Δt hx) with β = 1/(1 + Δt√h)², and moves x by βΔt² = τ times hx.

    Args:
        f: the share of the clients that replied, in (0, 1].
        tau: the time of gradient flow in one step.
        h: the conductance along the motion.
    """
    return f * (1 - math.sqrt(min(1.0, max(0.0, tau * h)))) ** 2  # a sum of conductances may round below 0


def inertia(f: float, sizes: Sizes, age: float) -> tuple[float, float]:
    """b, the share of the node's last move that goes on where S has no noise, and the age t of the motion.

    t = (t⁻ + 1) (1 − max(0, cos(S, v)))        b = f t/(t + 3)

    An inductor in the node's branch, with the resistor 3/t of Nesterov's method. Motion against Kirchhoff's sum is
    older than it ought to be: its age is set back by the cosine between the two.

    Args:
        f: the share of the clients that replied, in (0, 1].
        sizes: of Kirchhoff's sum after the window, and of the node's last move.
        age: t⁻.
    """
    size = sizes.after * sizes.move
    against = min(max(sizes.along / size, 0.0), 1.0) if size > 0 else 0.0
    age = (age + 1) * (1 - against)
    return f * age / (age + 3), age


def noise_bound(f: float, sizes: Sizes) -> float:
    """1 − ½ min(1, N/|S⁺|²), N = |S⁺ − S|²/2f: the largest share of the node's last move that goes on.

    N is the power of the noise in S⁺, as if S changed by noise alone: what mini-batches put into the flows of the share
    f that replied is new in each round, and makes up |S⁺ − S|² = 2fN. The motion sums S up over 1/(1 − β) rounds: at
    most 2|S⁺|²/N, and two where S is all noise. A sum that really changes so fast wants a short motion too.

    Args:
        f: the share of the clients that replied, in (0, 1].
        sizes: of S and S⁺.
    """
    power = sizes.after * sizes.after  # by products: a float's power raises where it overflows
    noise = sizes.change * sizes.change / (2 * f)
    return 1 - 0.5 * min(1.0, noise / power) if power > 0 else 0.5


def advance(x: Vec, Te: float, S: Vec, ahead: Vec, e: float, h: float = 0.0) -> Vec:
    """x after the window and its extension, by backward Euler where branches have a conductance.

    x⁺ = x − ( Σ p_i (u_i J_i⁺ − w_i n_i)/Σ p_i + e Te S⁺ ) / (1 + (1 + e) Te h)

    Args:
        x: the node [d].
        Te: length of the window.
        S: Kirchhoff's sum at x after the replies [d].
        ahead: Σ p_i (u_i J_i⁺ − w_i n_i)/Σ p_i over the replies [d].
        e: the extension, in windows.
        h: conductance of the whole star, m Σ p_i h_i; default 0.
    """
    damped = 1 + (1 + e) * Te * h
    x = torch.add(x, ahead, alpha=-1 / damped)
    return x.add_(S, alpha=-e * Te / damped) if e else x


FORGET = 0.01
"""Mean rounds under way below which, if no reply is due, all count as in time again, and conductances are forgotten."""


@dataclass
class Branch:
    """The conductance of a branch, measured by secants.

    Attributes:
        at: x̄_i, where its flow was measured [d].
        rise, way: E⟨ΔJ_i, Δx̄_i⟩ and E|Δx̄_i|² over its visits, averages of decay ½.
        flow, error: |J_i| and |ε_i| at the last visit.
    """

    at: Vec
    rise: float = 0.0
    way: float = 0.0
    flow: float = 0.0
    error: float = 0.0

    @property
    def h(self) -> float:
        """max(0, rise/way); 0 at the first visit."""
        return max(0.0, self.rise / self.way) if self.way > 0 else 0.0

    def moved(self, at: Vec, dJ: Tensor) -> Branch:
        """The branch after a visit that measured a change of flow ``dJ`` [d] at ``at`` [d]."""
        dx = at - self.at
        return Branch(at, self.rise / 2 + float(dJ @ dx), self.way / 2 + float(dx @ dx))
