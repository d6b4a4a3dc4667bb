"""Fixed-point numbers in the ring Z_2^q: the form in which replies are masked and summed.

An entry v of weight w becomes round(w·v·s) mod 2^q. The scale s is the largest power of two with which the sum of all
clients' entries stays below 2^(q−1), if entries are within their bound. So nothing overflows, and the sum of n clients
differs from the exact one by at most n/(2s). A reply whose entries are small beside 1/s is noted or refused, see
`Rounding`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..contract import MedleyError, Packed, RecipeError, WireError
from ..contract.place import name_of
from ..wire.clip import LEVELS as LEVELS_OF_NOISE
from ..wire.clip import Clip

LEVELS = 128
"""The fewest levels of a bound that an average client must have."""

TAIL = 8.0
"""The ring has room for this many standard deviations of noise."""

SHARE = 0.01
"""A run notes once that rounding changes a reply, if it is by more than this share of the reply's norm."""

MOST = 0.5
"""A first reply of which rounding changes more than this share is refused: less than half of it would arrive."""

WITHIN = "within its bound"
"""The name of the entry that counts clients within their bound, under a `Clip`."""

log = logging.getLogger("medley")

Shape = tuple[int, ...] | None
"""The shape of a tensor; None for a number."""


@dataclass(frozen=True)
class Field:
    """One field of a message in the ring.

    Attributes:
        bound: the largest magnitude of an entry
        scale: s, levels per unit; 0 for an optional field that no client sends
        dtype: the type in which the sum is returned
    """

    name: str
    shape: Shape
    bound: float
    scale: float
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Number of entries."""
        return 0 if self.scale == 0 else 1 if self.shape is None else math.prod(self.shape)


class Rounding:
    """Judges how much of the replies of one run is lost when they become whole numbers."""

    def __init__(self) -> None:
        self.noted = False

    def judge(self, i: int, field: Field, v: np.ndarray, steps: np.ndarray, first: bool, clipped: bool) -> None:
        """Log once that rounding changes a field of client i's reply by more than `SHARE` of its norm.

        Args:
            v: the entries of the reply
            steps: the same in steps of the fixed-point numbers, before they are rounded
            first: whether this is the first round; later replies may shrink to nothing because a run converges
            clipped: whether the bound is the clip of a private method

        Raises MedleyError if it is more than `MOST` of a reply of the first round.
        """
        size = float(np.linalg.norm(steps))
        share = float(np.linalg.norm(steps - np.rint(steps))) / size if size else 0.0
        if share <= SHARE or (self.noted and not (first and share > MOST)):
            return
        top = float(np.abs(v).max())
        effect = (
            f"{name_of(i)}: rounding changes {field.name!r} by {min(100 * share, 100):.3g} % of its norm: its largest "
            f"entry is {top:.3g}, only {float(np.abs(steps).max()):.2g} steps of the fixed-point numbers that "
            f"SecureSum has for entries up to {field.bound:g}"
        )
        remedy = f"SecureSum(bound={2.0 ** math.ceil(math.log2(4 * top)):.3g}), if no client's entries are larger"
        remedy = f"give {'' if clipped else f'{remedy}, or '}more bits, SecureSum(bits=64)"
        if first and share > MOST:
            raise MedleyError(f"{effect}, so most of it would not arrive; {remedy}")
        log.warning("%s; %s. If the run has converged, this is as close as it gets", effect, remedy)
        self.noted = True


@dataclass(frozen=True)
class Ring:
    """The ring of one sum.

    Attributes:
        bits: q
        bound: the bound of a field's entries, or of all
        weights: the weight of each client that was asked
        clip: bounds each reply before it is summed; None for no bound
        stay: t, the number of clients whose shares complete the noise: the threshold of a neighbourhood, because a
            malicious server could open a sum of so few. Default 1
        rounding: judges what rounding changes; None for no judgement
        first: whether this is the first round
    """

    bits: int
    bound: float | Mapping[str, float]
    weights: Mapping[int, float]
    clip: Clip | None = None
    stay: int = 1
    rounding: Rounding | None = None
    first: bool = True

    @property
    def noise(self) -> float:
        """z of the noise that clients add."""
        return 0.0 if self.clip is None else self.clip.noise

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of the ring's elements."""
        return np.dtype(f"uint{self.bits}")

    def scale(self, bound: float, total: float | None = None) -> float:
        """s for entries with this bound and weights that sum to ``total``. Raises RecipeError for too few levels."""
        n = len(self.weights)
        total = sum(map(abs, self.weights.values())) if total is None else total
        room = 2 ** (self.bits - 1) - 1 - n
        if self.noise:
            most = LEVELS_OF_NOISE * (n + TAIL * self.noise * math.sqrt(n / self.stay))
            if most > room:
                raise RecipeError(
                    f"SecureSum(bits={self.bits}): noise in shares takes {LEVELS_OF_NOISE} levels of a bound, and with "
                    f"{n} clients and noise={self.noise:g} the sum goes up to {most:.3g}; give bits={2 * self.bits}",
                    "bits",
                )
            return LEVELS_OF_NOISE / (bound * (max(map(abs, self.weights.values()), default=0.0) or 1.0))
        if room < LEVELS * n:
            raise RecipeError(
                f"SecureSum(bits={self.bits}): a sum of {n} clients leaves each {max(room, 0) // n} levels to round "
                f"to, and fewer than {LEVELS} are too coarse; set bits={2 * self.bits}",
                "bits",
            )
        return 2.0 ** math.floor(math.log2(room / (bound * (total or 1.0))) - 1e-9)

    def error(self, bound: float) -> float:
        """The largest error of an entry of the sum, for entries with this bound: n/(2s)."""
        return len(self.weights) / (2 * self.scale(bound))

    def layout(self, packed: Packed) -> tuple[Field, ...]:
        """The fields of a reply in the ring. It depends on names and shapes, not on values.

        Raises MedleyError for a bool and for a field without a bound.
        """
        fields = []
        for name, v in packed.items():
            if isinstance(v, bool):
                raise MedleyError(f"{name!r} is a bool and has no sum; secure aggregation takes tensors and numbers")
            if v is None:
                fields.append(Field(name, (), 1.0, 0.0, torch.float64))
                continue
            bound = self.clip.scale(name) if self.clip is not None else self._bound(name)
            float_tensor = isinstance(v, Tensor) and v.is_floating_point()
            dtype = v.dtype if float_tensor and isinstance(v, Tensor) else torch.float64
            shape = tuple(v.shape) if isinstance(v, Tensor) else None
            fields.append(Field(name, shape, bound, self.scale(bound), dtype))
        if self.clip is not None and not self.noise:  # the count of clients within their bound would have no noise
            fields.append(Field(WITHIN, None, 1.0, self.scale(1.0, float(len(self.weights))), torch.float64))
        return tuple(fields)

    def _bound(self, name: str) -> float:
        if not isinstance(self.bound, Mapping):
            return float(self.bound)
        if name not in self.bound:
            raise RecipeError.unknown(name, self.bound, "SecureSum(bound=...): a reply's field")
        return float(self.bound[name])

    def encoded(self, i: int, packed: Packed, layout: tuple[Field, ...]) -> np.ndarray:
        """Client i's reply times its weight, as elements of the ring.

        Raises MedleyError, with client and field, for an entry beyond its bound and for a reply that rounding would
        empty, see `Rounding.judge`; WireError for another layout.
        """
        if self.layout(packed) != layout:
            raise WireError(f"{name_of(i)}'s reply has other fields or shapes than the other clients' replies")
        weight = self.weights[i]
        parts = list[np.ndarray]()
        if self.clip is not None:
            norm = self.clip.norm(packed)
            weight /= max(1.0, norm)
            packed = packed if self.noise else {**packed, WITHIN: float(norm <= 1)}
        for f in layout:
            if f.size == 0:
                continue
            v = packed[f.name]
            entries = (
                v.detach().to("cpu", torch.float64) if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64)
            )
            flat = entries.reshape(-1).numpy()
            top = float(np.abs(flat).max(initial=0.0))
            if not top <= f.bound and self.clip is None:
                raise MedleyError(
                    f"{name_of(i)}: {f.name!r} has an entry of magnitude {top:.6g}, beyond SecureSum(bound={f.bound:g})"
                    f": the sum would not fit into the ring; set bound={{{f.name!r}: ...}} or one number, large enough "
                    "for every round"
                )
            steps = flat * (f.scale * (1.0 if f.name == WITHIN else weight))
            if self.rounding is not None and not self.noise:
                self.rounding.judge(i, f, flat, steps, first=self.first, clipped=self.clip is not None)
            parts.append(np.rint(steps).astype(np.int64).astype(self.dtype))
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def share_of_noise(self, layout: tuple[Field, ...], rng: np.random.Generator) -> np.ndarray:
        """One client's noise, as elements of the ring: Sk((z·u)²/t) for each entry, see `medley.privacy.skellam`."""
        half = (self.noise * LEVELS_OF_NOISE) ** 2 / self.stay / 2
        count = sum(f.size for f in layout)
        return (rng.poisson(half, count) - rng.poisson(half, count)).astype(self.dtype)

    def decoded(self, total: np.ndarray, layout: tuple[Field, ...], device: torch.device | str = "cpu") -> Packed:
        """The sum of clients' elements, as a message; under a `Clip` with the count under `WITHIN`."""
        out: Packed = {}
        start = 0
        signed = total.view(np.dtype(f"int{self.bits}"))
        for f in layout:
            if f.scale == 0:
                out[f.name] = None
                continue
            flat = signed[start : start + f.size].astype(np.float64) / f.scale
            start += f.size
            value = float(flat[0]) if f.shape is None else torch.from_numpy(flat).to(device, f.dtype).reshape(f.shape)
            out[f.name] = value
        return out
