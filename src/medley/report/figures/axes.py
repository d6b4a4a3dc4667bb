"""Axes: from data to pixels, round ticks, and the frame around a figure's box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..units import UNITS, Real, unit_of
from .svg import Box, rule, text

Numbers = Float[np.ndarray, "..."]
"""An array of any shape."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A map from data in [low, high] to pixels in [start, end], linear or logarithmic.

    Attributes:
        low: Data at ``start``; above 0 on a logarithmic axis.
        high: Data at ``end``, above ``low``.
        kind: Kind of numbers: ``count``, ``bytes``, ``seconds``, ``percent``, ``points`` or ``number``, the default.
    """

    low: Real
    high: Real
    start: Real
    end: Real
    kind: str = "number"
    log: bool = False

    def __call__(self, v: Numbers | Real) -> Numbers:
        """Pixels of ``v``; numbers that are not positive lie at the low end of a logarithmic axis."""
        a = self.low
        b = self.high
        u = np.asarray(v, dtype=np.float64)
        if self.log:
            a, b, u = math.log10(a), math.log10(b), np.log10(np.maximum(u, a))
        return np.asarray(self.start + (u - a) / (b - a) * (self.end - self.start))

    @property
    def scale(self) -> tuple[float, str]:
        """Size and name of the unit that ticks are written in; (1, "") if there is none."""
        if self.kind in ("percent", "points"):
            return 0.01, "%" if self.kind == "percent" else "pp"
        return (1.0, "") if self.log else unit_of(self.kind, self.high)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """About ``most`` round values of the data and their text."""
        if self.log and self.kind in UNITS:
            ticks = [(v, unit_of(self.kind, v)) for v, _ in _log_ticks(self.low, self.high, most)]
            return [(v, f"{v / size:g} {unit}") for v, (size, unit) in ticks]
        if self.log:
            return _log_ticks(self.low, self.high, most)
        size = self.scale[0]
        rough = (self.high - self.low) / size / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * 0.8)
        if self.kind == "count":
            step = max(step, 1.0)
        # Rounding must not cost the axis a tick at its end; whole steps may be longer than the axis.
        near = 1e-9 * min(1.0, (self.high - self.low) / size / step)
        first = math.ceil(self.low / size / step - near)
        last = math.floor(self.high / size / step + near)
        places = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(k * step * size, _tick(k * step, places)) for k in range(first, last + 1)]


def span(v: Float[np.ndarray, " k"], kind: str, tight: bool = False) -> tuple[float, float]:
    """Low and high of a linear axis for the data ``v``, which holds at least one number.

    Args:
        kind: Kind of the axis; ``percent`` is kept within [-0.01, 1.01].
        tight: Whether the axis ends at the data, and begins at 0 if that is near; default False, with 6 % of room.
    """
    low = float(v.min())
    high = float(v.max())
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        return (low, low + pad) if tight else (low - pad, low + pad)
    if tight:
        return (0.0 if 0 <= low < 0.2 * high else low), high
    pad = 0.06 * (high - low)
    a = low - pad
    b = high + pad
    return (max(a, -0.01), min(b, 1.01)) if kind == "percent" else (a, b)


def frame(X: Axis, Y: Axis | None, box: Box, xlabel: str, ylabel: str) -> str:
    """Ticks, rules and labels around ``box``, SVG text.

    Args:
        Y: Vertical axis; None draws vertical rules at the ticks of ``X`` instead.
        xlabel: Below the box, with the unit of ``X``; may be empty.
        ylabel: Above the box, with the unit of ``Y``; may be empty.
    """
    parts = []
    across = max(2, int((box.right - box.left) / 55))
    for v, words in X.ticks(across):
        x = float(X(v))
        parts.append(text(x, box.bottom + 15, words, "middle", 10.5))
        parts.append(rule(x, box.bottom, x, box.bottom + 4, 0.5) if Y else rule(x, box.top, x, box.bottom))
    if Y:
        for v, words in Y.ticks(max(2, int((box.bottom - box.top) / 34))):
            y = float(Y(v))
            parts.append(text(box.left - 7, y + 3.7, words, "end", 10.5) + rule(box.left, y, box.right, y))
    parts.append(rule(box.left, box.bottom, box.right, box.bottom, 0.5))
    unit = X.scale[1]
    over = Y.scale[1] if Y else ""
    if xlabel or unit:
        words = f"{xlabel} [{unit}]" if unit else xlabel
        parts.append(text((box.left + box.right) / 2, box.bottom + 31, words, "middle"))
    if ylabel:
        parts.append(text(box.left - 7, 12, f"{ylabel} [{over}]" if over else ylabel, size=11.5, strong=True))
    return "".join(parts)


def _log_ticks(low: Real, high: Real, most: int) -> list[tuple[float, str]]:
    a = math.log10(low)
    b = math.log10(high)
    stride = max(1, math.ceil((b - a) / most))
    exponents = [k for k in range(math.ceil(a - 1e-9), math.floor(b + 1e-9) + 1) if k % stride == 0]
    plain = a > -3.01 and b < 4.01
    ticks = [(10.0**k, f"{10.0**k:g}" if plain else "10" + str(k).translate(_SUPERSCRIPT)) for k in exponents]
    if len(ticks) < 3:
        between = [m * 10.0**k for k in range(math.floor(a), math.ceil(b) + 1) for m in (1, 2, 5)]
        ticks = [(v, f"{v:g}") for v in between if low <= v <= high]
    if len(ticks) < 2:
        ticks = [(v, f"{v:.3g}") for v in (low, math.sqrt(low * high), high)]
    return ticks


def _tick(v: Real, places: int) -> str:
    return f"{v:,.{places}f}".replace("-", "−")
