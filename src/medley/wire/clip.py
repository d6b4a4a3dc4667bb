"""Clipping of replies to a norm before they are summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ..contract import MedleyError, Packed

LEVELS = 1 << 16
"""Whole levels of a field's bound, if clients add noise to whole numbers.

Few enough that the log-probabilities with which NumPy samples Poisson's distribution are off by only 4.9e-6 at z = 1
with 2 shares, and by 2.5e-5 at z = 6 with 24; and enough that rounding d = 10⁶ entries moves a norm by only 0.8 %.
"""


@dataclass(frozen=True)
class Clip:
    """A bound on the norm of a reply.

    The norm is √(Σ_f ‖m_f‖²/s_f²) over the reply's fields f. If it is above 1, the reply is scaled down.

    Attributes:
        scales: s_f by field, above 0; a single number applies to all fields
        noise: z of the noise that clients add to a secure sum: its standard deviation divided by the bound of one
            reply; default 0
    """

    scales: Mapping[str, float] | float
    noise: float = 0.0

    def scale(self, field: str) -> float:
        """s_f of a field. Raises MedleyError for a field without one."""
        if not isinstance(self.scales, Mapping):
            return float(self.scales)
        try:
            return float(self.scales[field])
        except KeyError:
            raise MedleyError(
                f"a reply has a field {field!r}, but clip= bounds only {sorted(self.scales)}. A field without a "
                "bound cannot be made private: pass clip= a bound for every field of the reply, or one number "
                "for all"
            ) from None

    def norm(self, packed: Packed) -> float:
        """The norm of a reply, in double precision; ∞ if it overflows, and such a reply is clipped to 0.

        Raises MedleyError for a field that has no bound or no norm.
        """
        sizes = []
        for name, v in packed.items():
            if v is None:
                continue
            if isinstance(v, bool):
                raise MedleyError(f"{name!r} is a bool and has no norm")
            if isinstance(v, Tensor):
                v = float(vector_norm(v if v.is_floating_point() else v.double(), dtype=torch.float64))
            sizes.append(v / self.scale(name))
        return math.hypot(*sizes)
