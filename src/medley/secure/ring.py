"""Fixed-point numbers in the ring Z_2^q: the form in which replies are masked and summed.

An entry v of weight w becomes round(w·v·s) mod 2^q. The scale s is the largest power of two with which the sum of all
clients' entries stays below 2^(q−1), if entries are within their bound. So nothing overflows, and the sum of n clients
differs from the exact one by at most n/(2s). A reply whose entries are small beside 1/s is noted or refused, see
`Rounding`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

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

HEADROOM = 256.0
"""How many times larger than the entries seen so far a remedy lets those of other clients and later rounds be."""

STEPS = 16
"""The coarsest steps with which a remedy leaves entries that were beyond the bound, 2**-STEPS: a study needs them."""

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
        self.top = 0.0  # the largest entry so far

    def judge(
        self, i: int, field: Field, v: np.ndarray, steps: np.ndarray, first: bool, remedy: Callable[[], str]
    ) -> None:
        """Log once that rounding changes a field of client i's reply by more than `SHARE` of its norm.

        Args:
            v: the entries of the reply
            steps: the same in steps of the fixed-point numbers, before they are rounded
            first: whether this is the first round; later replies may shrink to nothing because a run converges
            remedy: makes the end of the sentence

        Raises MedleyError if it is more than `MOST` of a reply of the first round.
        """
        share = _rounded_share(steps)
        if share <= SHARE or (self.noted and not (first and share > MOST)):
            return
        top = float(np.abs(v).max())
        effect = (
            f"{name_of(i)}: rounding changes {field.name!r} by {min(100 * share, 100):.3g} % of its norm: its largest "
            f"entry is {top:.3g}, only {float(np.abs(steps).max()):.2g} steps of the fixed-point numbers that "
            f"SecureSum has for entries up to {field.bound:g}"
        )
        if first and share > MOST:
            raise MedleyError(f"{effect}, so most of it would not arrive; {remedy()}")
        log.warning("%s; %s. If the run has converged, this is as close as it gets", effect, remedy())
        self.noted = True


def _rounded_share(steps: np.ndarray) -> float:
    """What rounding changes of these numbers, as a share of their norm."""
    size = float(np.linalg.norm(steps))
    return float(np.linalg.norm(steps - np.rint(steps))) / size if size else 0.0


def _entries(v: Any) -> np.ndarray:
    """The entries of a field as float64 [n]."""
    tensor = v.detach().to("cpu", torch.float64) if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64)
    entries: np.ndarray = tensor.reshape(-1).numpy()
    return entries


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
                enough = next((f"bits={q}" for q in (32, 64) if most <= 2 ** (q - 1) - 1 - n), "a smaller noise=")
                raise RecipeError(
                    f"SecureSum(bits={self.bits}): noise in shares takes {LEVELS_OF_NOISE} levels of a bound, and with "
                    f"{n} clients and noise={self.noise:g} the sum goes up to {most:.3g}; give {enough}",
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
            bound = self.clip.scale(name) if self.clip is not None else self._bound(name, packed)
            float_tensor = isinstance(v, Tensor) and v.is_floating_point()
            dtype = v.dtype if float_tensor and isinstance(v, Tensor) else torch.float64
            shape = tuple(v.shape) if isinstance(v, Tensor) else None
            fields.append(Field(name, shape, bound, self.scale(bound), dtype))
        if self.clip is not None and not self.noise:  # the count of clients within their bound would have no noise
            fields.append(Field(WITHIN, None, 1.0, self.scale(1.0, float(len(self.weights))), torch.float64))
        return tuple(fields)

    def _bound(self, name: str, packed: Packed) -> float:
        if not isinstance(self.bound, Mapping):
            return float(self.bound)
        if name not in self.bound:
            error = RecipeError.unknown(name, self.bound, "SecureSum(bound=...): a reply's field")
            error.args = (f"{error} Each field needs a bound; {self.remedy(packed, fits=False)}", *error.args[1:])
            raise error
        return float(self.bound[name])

    def remedy(self, packed: Packed, fits: bool) -> str:
        """The end of a sentence with settings under which such replies fit and keep their digits.

        Args:
            fits: whether entries are within the bound, which then stays as it is if more bits are enough
        """
        if self.clip is not None and self.bits == 64:
            return "give a smaller clip="
        values = {name: _entries(v) for name, v in packed.items() if v is not None}
        top = max((float(np.abs(v).max(initial=0.0)) for v in values.values()), default=0.0)
        if not 0 < top < math.inf:
            return "give one bound for all fields, larger than any entry"
        if self.rounding is not None:
            top = max(top, self.rounding.top)
        near = 2.0 ** math.ceil(math.log2(HEADROOM * top))
        if fits:
            rings = [replace(self, bits=bits) for bits in (32, 64) if bits > self.bits]
        else:
            near = max(near, *map(float, self.bound.values() if isinstance(self.bound, Mapping) else [self.bound]))
            if self.rounding is None:  # a study, which has sums of all sizes
                near = max(near, widest(self.weights))
            rings = [replace(self, bits=bits, bound=near) for bits in (16, 32) if bits >= self.bits]
        last = replace(self, bits=64, bound=near)
        ring = next((ring for ring in rings if ring.suits(values, 0.0 if fits else 2.0**STEPS)), last)
        bound = dict(ring.bound) if isinstance(ring.bound, Mapping) else float(ring.bound)
        return f"give SecureSum(bits={ring.bits}, bound={bound!r})"

    def suits(self, values: Mapping[str, np.ndarray], levels: float) -> bool:
        """Whether rounding changes little of an average client's reply, with at least so many levels per unit."""
        weight = sum(map(abs, self.weights.values())) / max(len(self.weights), 1)
        try:
            scales = [self.scale(self.clip.scale(name) if self.clip else self._bound(name, {})) for name in values]
        except RecipeError:  # too few levels
            return False
        shares = [_rounded_share(v * scale * weight) for v, scale in zip(values.values(), scales, strict=True)]
        return min(scales) >= levels and max(shares) < SHARE / 10

    def encoded(self, i: int, packed: Packed, layout: tuple[Field, ...]) -> np.ndarray:
        """Client i's reply times its weight, as elements of the ring.

        Raises MedleyError, with client and field, for an entry beyond its bound and for a reply that rounding would
        empty, see `Rounding.judge`; WireError for another layout.
        """
        if self.layout(packed) != layout:
            raise WireError(f"{name_of(i)}'s reply has other fields or shapes than the other clients' replies")
        weight = self.weights[i]
        parts = list[np.ndarray]()
        reply = packed
        if self.clip is not None:
            norm = self.clip.norm(packed)
            weight /= max(1.0, norm)
            packed = packed if self.noise else {**packed, WITHIN: float(norm <= 1)}
        for f in layout:
            if f.size == 0:
                continue
            flat = _entries(packed[f.name])
            top = float(np.abs(flat).max(initial=0.0))
            if not top <= f.bound and self.clip is None:
                raise MedleyError(
                    f"{name_of(i)}: {f.name!r} has an entry of magnitude {top:.6g}, beyond SecureSum(bound={f.bound:g})"
                    f": the sum would not fit into the ring; {self.remedy(packed, fits=False)}"
                )
            steps = flat * (f.scale * (1.0 if f.name == WITHIN else weight))
            if self.rounding is not None and not self.noise:
                self.rounding.top = max(self.rounding.top, top)
                remedy = functools.partial(self.remedy, reply, fits=True)
                self.rounding.judge(i, f, flat, steps, first=self.first, remedy=remedy)
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


def widest(weights: Mapping[int, float]) -> float:
    """The largest bound, up to 2**40, under which a sum in 64 bits has steps of 2**-STEPS."""
    return 2.0 ** min(40, int(math.log2(Ring(64, 1.0, weights).scale(1.0))) - STEPS)
