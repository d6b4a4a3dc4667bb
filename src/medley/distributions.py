"""Distributions of quantities in which clients differ: ``Pace(lr=LogUniform(0.001, 0.1), epochs=Integers(1, 10))``.

Side: the server's, which draws each client's values from them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import scipy

from .contract import Checked, RecipeError, at_least, positive
from .contract.place import name_of
from .contract.public import public

__all__ = [
    "Bandwidth", "Choice", "Constant", "Distribution", "Integers", "LogUniform", "Normal", "Rayleigh", "Uniform",
]  # fmt: skip

Number = float | int


@runtime_checkable
class Distribution(Protocol):
    """A distribution of a number."""

    def draw(self, rng: np.random.Generator) -> Number:
        """One number, from ``rng`` alone."""


Spread = Number | Sequence[Number] | np.ndarray | Distribution
"""A quantity over clients: one number for all, one per client, or a distribution that each client draws from."""


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite real number; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    return bool(abs(number) <= sys.float_info.max)  # a whole number may be too large for a float


def is_distribution(value: object) -> bool:
    """Whether ``value`` can draw. isinstance with the Protocol gives the same answer, fifty times slower."""
    return hasattr(value, "draw")


def plain(value: Any) -> Any:
    """``value`` with lists, arrays and tensors turned into tuples of plain numbers, so that a frozen setting stays
    fixed."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(value) if isinstance(value, list) else value


def of_client(
    value: Number | Sequence[Number | None] | Distribution,
    key: str,
    client: int,
    stream: Callable[[], np.random.Generator],
) -> Number | None:
    """The value of one client.

    Args:
        value: One number for all, one per client, or a distribution.
        stream: Opens the generator that a distribution draws from; called only for a distribution.

    Raises RecipeError if ``value`` lists fewer clients.
    """
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Sequence):
        if not 0 <= client < len(value):
            raise RecipeError(f"{key} lists {len(value)} values, {name_of(client)} has none: give one per client.", key)
        return value[client]
    return value.draw(stream())


def check_lengths(setting: Any, clients: int) -> None:
    """Raise RecipeError unless every list among the fields of ``setting`` has one entry per client."""
    for key in (field.name for field in fields(setting)):
        value = getattr(setting, key)
        if isinstance(value, tuple) and len(value) != clients:
            short = "short" if len(value) < clients else "long"
            raise RecipeError(
                f"{type(setting).__name__}({key}=...) lists {len(value)} values for {clients} clients, which is "
                f"too {short}: give one per client, one number for all, or a distribution to draw from.",
                key,
            )


@dataclass(frozen=True)
class Constant(Checked):
    """Always ``v``."""

    v: Number

    def draw(self, rng: np.random.Generator) -> Number:
        """``v``."""
        return self.v


@dataclass(frozen=True)
class Uniform(Checked):
    """The uniform distribution on [``low``, ``high``]."""

    low: Number
    high: Number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise RecipeError(f"{self!r}: low is above high; swap them.", "low")

    def draw(self, rng: np.random.Generator) -> float:
        """A float in [low, high]."""
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform(Uniform):
    """The log-uniform distribution on [``low``, ``high``], 0 < low: the logarithm is uniform."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise RecipeError(f"{self!r}: low must be above 0, since its logarithm is taken; or use Uniform.", "low")

    def draw(self, rng: np.random.Generator) -> float:
        """A float in [low, high]."""
        x = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return float(min(max(x, self.low), self.high))  # exp(log(high)) may round above high


@dataclass(frozen=True)
class Integers(Uniform):
    """The uniform distribution on the whole numbers ``low``, ..., ``high``, both included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low != int(self.low) or self.high != int(self.high):
            raise RecipeError(f"{self!r}: low and high must be whole numbers; or use Uniform.", "low")
        if self.high >= 2**63 - 1:
            raise RecipeError(f"{self!r}: high must be below 2^63 - 1.", "high")

    def draw(self, rng: np.random.Generator) -> int:
        """An int in low, ..., high."""
        return int(rng.integers(int(self.low), int(self.high), endpoint=True))


@dataclass(frozen=True)
class Choice(Checked):
    """One of ``values`` [k], with probabilities ``p`` [k]; by default all are equally likely."""

    values: Sequence[Number]
    p: Sequence[Annotated[Number, at_least(0)]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", plain(self.values))
        object.__setattr__(self, "p", plain(self.p))
        super().__post_init__()
        if not self.values:
            raise RecipeError("Choice(values=[]): there is nothing to choose from.", "values")
        if self.p is not None:
            if len(self.p) != len(self.values):
                raise RecipeError(f"{self!r}: {len(self.values)} values need {len(self.values)} probabilities.", "p")
            if abs(sum(self.p) - 1) > 1e-6:
                raise RecipeError(f"{self!r}: probabilities must sum to 1.", "p")

    def draw(self, rng: np.random.Generator) -> Number:
        """One of the values, as given."""
        if self.p is None:
            return self.values[int(rng.integers(len(self.values)))]
        edges = np.cumsum(self.p)
        return self.values[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))]


@dataclass(frozen=True)
class Normal(Checked):
    """A normal distribution, conditioned on [low, high] if these are given.

    It is drawn by inversion in the log domain: every draw uses one number of the stream, with any bounds, and intervals
    far out in a tail work.

    Attributes:
        mean: The mean before conditioning.
        std: The standard deviation before conditioning, above 0.
        low: The lower bound; default none.
        high: The upper bound; default none.
    """

    mean: Number
    std: Number
    low: Number | None = None
    high: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std <= 0:
            raise RecipeError(f"{self!r}: std must be above 0; for no spread use Constant({self.mean!r}).", "std")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise RecipeError(f"{self!r}: low must be below high.", "low")

    def draw(self, rng: np.random.Generator) -> float:
        """A float in [low, high]."""
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        a = (low - self.mean) / self.std
        b = (high - self.mean) / self.std
        sign = 1.0
        if a > 0:
            # In the upper tail the distribution function has no digits left: draw from the mirror image.
            a, b = -b, -a
            sign = -1.0
        u = max(rng.random(), 2.0**-54)
        log_below = scipy.special.log_ndtr
        top = float(log_below(b))
        z = scipy.special.ndtri_exp(top + math.log(u + (1 - u) * math.exp(float(log_below(a)) - top)))
        return float(min(max(self.mean + sign * self.std * float(z), low), high))  # against rounding only


@dataclass(frozen=True)
class Rayleigh(Checked):
    """A distribution: ⌊d0·log2(1 + γΓ)⌋ pairs, the capacity of a Rayleigh fading channel with gain γ ~ Exp(1).

    With the defaults, from SHED, eq. (38), it draws 3.814 pairs on average, and none in 8 of 100 rounds.

    Attributes:
        d0: Pairs per bit/s/Hz; default 2.
        snr: Γ, the mean signal-to-noise ratio; default 5.
    """

    d0: Annotated[float, positive] = 2
    snr: Annotated[float, positive] = 5

    def draw(self, rng: np.random.Generator) -> int:
        """A whole number, from 0."""
        return math.floor(self.d0 * math.log2(1 + self.snr * rng.exponential()))


@dataclass(frozen=True)
class Bandwidth(Checked):
    """A distribution: how many eigenpairs fit into a budget of bytes after the gradient; 0 if none do.

    With budget B it is ⌊(B − dw − 16) / (dw + 8)⌋: the gradient has d numbers of w bytes, ρ and a count 16 bytes, an
    eigenvector d numbers of w bytes and its eigenvalue 8 bytes.

    Attributes:
        bytes: B, the budget of a round: a number, or a distribution if it varies.
        d: The length of the model.
        width: w, the bytes of one number; default 8.
    """

    bytes: Annotated[Number, at_least(0)] | Distribution
    d: Annotated[int, at_least(1)]
    width: Annotated[int, at_least(1)] = 8

    def draw(self, rng: np.random.Generator) -> int:
        """A whole number, from 0."""
        budget = self.bytes.draw(rng) if isinstance(self.bytes, Distribution) else self.bytes
        vector = self.d * self.width
        return max(0, math.floor((budget - vector - 16) / (vector + 8)))


public(__name__)
