"""`SecureSum`: the settings of secure aggregation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ..contract import Checked, RecipeError, WireError, at_least, in_range, positive
from ..contract.place import name_of
from ..numerics.shares import least_of
from ..runtime.versions import install

SPARSE = 50
"""From this size of a cohort on, a client agrees on masks with some of the others instead of all."""

LEAVE = 0.2
"""The share of a large cohort that may leave at random, with a probability of `FAILS` that the sum fails."""

FAILS = 1e-4
"""The probability that a client of a large cohort loses half of its neighbours, and the sum fails."""


@dataclass(frozen=True)
class SecureSum(Checked):
    """Secure aggregation: the server learns sums of replies, and no reply by itself.

    Attributes:
        bits: q of the ring Z_2^q in which sums are taken; an entry travels in q/8 bytes. Default 32
        bound: the largest magnitude of an entry of a reply, before its weight; one number for all fields, or one by
            field. A client refuses to send a larger one, and far smaller entries lose their digits. Default 16, or 1/16
            with 16 bits, which have too few levels for a range of 16
        threshold: how many clients of a cohort must stay until the end, as a share or as a number; with fewer, nobody
            can open the sum. It must be above one half, so that no server can open one client's mask in two ways.
            Default 0.6
        neighbours: how many clients each one agrees on masks with, an even number. In a sparse graph the majority of
            each neighbourhood must stay, too. None, the default, means all others in a cohort below 50. In a larger
            cohort it means enough for neighbourhoods to keep their majority, except with probability 1e-4, if a fifth
            of the clients leaves at random
        share: the largest share of one client in a sum that a node will open, by weights and by p_i. Default 0.9
    """

    bits: Literal[16, 32, 64] = 32
    bound: Annotated[float, positive] | Mapping[str, float] = None  # type: ignore[assignment]
    threshold: Annotated[float, positive] = 0.6
    neighbours: Annotated[int, at_least(2)] | None = None
    share: Annotated[float, in_range(0.0, 1.0)] = 0.9

    def __post_init__(self) -> None:
        bound: object = self.bound
        if bound is None:
            object.__setattr__(self, "bound", 0.0625 if self.bits == 16 else 16.0)
        super().__post_init__()
        if isinstance(self.bound, Mapping) and not all(
            isinstance(v, int | float) and 0 < v < math.inf for v in self.bound.values()
        ):
            raise RecipeError(f"SecureSum(bound={dict(self.bound)}): bounds must be finite numbers above 0", "bound")
        t = self.threshold
        if not (0.5 < t <= 1 and isinstance(t, float)) and not (t == int(t) and t >= 2):
            raise RecipeError(
                f"SecureSum(threshold={t!r}): must be a share above 0.5 and at most 1.0, or a whole number from 2 on",
                "threshold",
            )
        if self.neighbours is not None and self.neighbours % 2:
            raise RecipeError(
                f"SecureSum(neighbours={self.neighbours}): must be even, half on either side in the circle",
                "neighbours",
            )

    def needed(self, members: int) -> int:
        """How many of ``members`` clients must stay until the sum is opened.

        Raises RecipeError for a threshold above their number, or one that only half of them reach.
        """
        t = self.threshold
        count = max(2, least_of(t, members)) if isinstance(t, float) and t <= 1 else int(t)
        if count > members:
            raise RecipeError(
                f"SecureSum(threshold={t!r}): {count} clients must stay, but the cohort has {members}; ask more "
                "clients, or set a lower threshold",
                "threshold",
            )
        if 2 * count <= members:
            raise RecipeError(
                f"SecureSum(threshold={t!r}): {count} of {members} are not a majority: two halves could open a "
                "client's mask in two ways; use a share above 0.5",
                "threshold",
            )
        return count

    def check_weights(self, i: int, name: str, weights: Mapping[int, float], least: int) -> None:
        """Raise WireError for weights with which a sum of ``least`` clients could be almost one client's reply.

        Args:
            weights: by client, for the whole cohort
            least: the smallest number of clients in a sum; the server may claim that the others have left
        """
        if not all(0 < w < math.inf for w in weights.values()):
            j, w = next((j, w) for j, w in weights.items() if not 0 < w < math.inf)
            raise WireError(
                f"{name_of(i)} refuses: in the server's {name} {name_of(j)} has {w:g}, but each must be above 0"
            )
        top = max(weights, key=lambda j: weights[j])
        others = math.fsum(sorted(w for j, w in weights.items() if j != top)[: least - 1])
        share = weights[top] / (weights[top] + others)
        if share > self.share:
            raise WireError(
                f"{name_of(i)} refuses: with the server's {name} {name_of(top)} may have a share of {share:.4g} in a "
                f"sum of {least} clients, so the sum is nearly its reply; [secure] has share = {self.share:g}: "
                "set a larger one on all sides, or weights = 'uniform' under [federation], or leave that client "
                "out"
            )

    def within(self, members: int, cohort: int) -> int:
        """How many of the ``members`` of a client's neighbourhood must stay: in a sparse graph, the majority."""
        return self.needed(cohort) if members == cohort else members // 2 + 1

    def least(self, cohort: int) -> int:
        """The threshold of a client's neighbourhood in a cohort; a client accepts no lower one."""
        return self.within(self.degree(cohort) + 1, cohort)

    def degree(self, cohort: int) -> int:
        """The number of each client's neighbours in a cohort."""
        if self.neighbours is not None:
            return min(self.neighbours, cohort - 1)
        if cohort < SPARSE:
            return cohort - 1
        from scipy.stats import hypergeom  # heavy

        leave = min(cohort - self.needed(cohort), math.ceil(LEAVE * cohort))
        for k in range(8, cohort - 1, 2):
            # The client itself stays; t − 1 of its k neighbours must.
            t = self.within(k + 1, cohort)
            if cohort * float(hypergeom.cdf(t - 2, cohort - 1, cohort - 1 - leave, k)) < FAILS:
                return k
        return cohort - 1

    def neighbourhoods(self, circle: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Each client's neighbours: the nearest in a circle, half of them on either side; ascending."""
        n = len(circle)
        k = self.degree(len(circle))
        if k >= n - 1:
            return {i: tuple(sorted(set(circle) - {i})) for i in circle}
        steps = [*range(-(k // 2), 0), *range(1, k // 2 + 1)]
        out = dict[int, tuple[int, ...]]()
        for at, i in enumerate(circle):
            out[i] = tuple(sorted({circle[(at + s) % n] for s in steps}))
        return out


def check_installed() -> None:
    """Raise RecipeError unless the packages that secure sums need are installed."""
    try:
        from . import party  # noqa: F401
    except ImportError as e:
        raise RecipeError(
            f"secure= needs the packages cryptography and pycryptodome ({e}): {install('secure')}", "secure"
        ) from e


def installed() -> bool:
    """Whether the packages that secure sums need are installed."""
    try:
        check_installed()
    except RecipeError:
        return False
    return True
