"""Numbers as text, in suitable units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

Real = float | int
"""A real number of either type."""

DASH = "–"
"""The text of a missing figure."""

UNITS = {
    "bytes": (("TB", 0.9995e12, 1e12), ("GB", 0.9995e9, 1e9), ("MB", 0.9995e6, 1e6), ("kB", 999.5, 1e3), ("B", 0, 1)),
    "seconds": (("d", 172800, 86400), ("h", 5400, 3600), ("min", 90, 60), ("s", 0.9995, 1), ("ms", 0, 1e-3)),
}
"""Units by kind, largest first: name, the smallest value that takes it, size."""


def unit_of(kind: str, v: Real) -> tuple[float, str]:
    """Size and name of the unit in which ``v`` is written; (1, "") if the kind has none."""
    return next(((size, name) for name, least, size in UNITS.get(kind, ()) if v >= least), (1.0, ""))


def nbytes(b: Real) -> str:
    """Bytes in decimal units: 999 B, 12.3 kB, 4.56 MB."""
    size, unit = unit_of("bytes", b)
    if size > 1:
        return f"{three(b / size)} {unit}"
    return f"{b:.0f} B" if math.isfinite(b) else DASH


def duration(s: Real) -> str:
    """Seconds in a suitable unit: 350 ms, 12.3 s, 4.50 min, 7.80 h, 3.20 d."""
    if not math.isfinite(s):
        return DASH
    size, unit = unit_of("seconds", s)
    return f"{three(s / size)} {unit}" if s >= 1e-4 else "0 s"


def count(k: Real) -> str:
    """A whole number, or a mean of whole numbers."""
    if not math.isfinite(k):
        return DASH
    return f"{k:,.0f}" if k == round(k) or k >= 1000 else f"{k:.1f}"


def number(v: Real) -> str:
    """A number to three or four digits."""
    if not math.isfinite(v):
        return DASH
    return f"{v:.2e}" if v != 0 and not 1e-3 <= abs(v) < 1e5 else f"{v:.4g}"


def percent(v: Real) -> str:
    """A share in [0, 1] in per cent."""
    return f"{100 * v:.1f} %" if math.isfinite(v) else DASH


def points(v: Real) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * v:+.1f} pp".replace("-", "−") if math.isfinite(v) else DASH


Format = Callable[[Real], str]

FORMATS: dict[str, Format] = {
    "count": count,
    "bytes": nbytes,
    "seconds": duration,
    "percent": percent,
    "points": points,
    "number": number,
}
"""Formats by the kind of an axis."""


def one_unit(kind: str, values: Iterable[Real]) -> tuple[float, str]:
    """Size and name of a column's unit, chosen by its largest figure; (0, "") if some figures are below a hundredth of
    that unit.
    """
    sizes = [abs(v) for v in values if math.isfinite(v) and v]
    size, unit = unit_of(kind, max(sizes, default=0.0))
    return (size, unit) if sizes and unit not in ("", "B") and min(sizes) >= size / 100 else (0.0, "")


def column(kind: str, values: Sequence[Real], one: tuple[float, str] | None = None) -> list[str]:
    """A column of bytes or seconds as text, in the unit ``one``; by default in one unit if that suits all."""
    size, unit = one_unit(kind, values) if one is None else one
    return [f"{three(v / size)} {unit}" if size and v and math.isfinite(v) else FORMATS[kind](v) for v in values]


def plus_minus(mean: Real, half: Real, share: bool = False, signed: bool = False) -> str:
    """``mean ± half``, both to the digits that ``half`` makes significant.

    Args:
        mean: Nan gives a dash.
        half: Half-width of the interval; if nan, or if it rounds to zero, ± is left out.
        share: Whether both are in per cent; default False.
    """
    if not math.isfinite(mean):
        return DASH
    scale = 100.0 if share else 1.0
    m = scale * mean
    h = scale * half if math.isfinite(half) else 0.0
    size = max(abs(m), h)
    if size and not share and not 0.01 <= size < 1e4:
        spec = ".2e"
        spec_h = ".1e"
    else:
        h = h if h > 1e-6 * size else 0.0
        places = 1 if share else 3 - (math.floor(math.log10(size)) if size else 0)
        if h > 0:
            digits = -math.floor(math.log10(h))
            places = max(places, digits) if share else digits + 1
        spec = spec_h = f".{min(max(places, 0), 6)}f"
    text = f"{abs(m):{spec}}"
    zero = not float(text)
    text = ("−" if m < 0 and not zero else "+" if signed and not zero else "") + text
    return f"{text} ± {h:{spec_h}}" if math.isfinite(half) and float(f"{h:{spec_h}}") else text


def three(v: Real) -> str:
    """A number below 1000 with three figures, or three decimals if it is small."""
    return f"{v:.{0 if v >= 99.95 else 1 if v >= 9.995 else 2 if v >= 0.9995 else 3}f}"


def plural(n: Real, noun: str) -> str:
    """``n`` and the noun: "1 run", "2 runs"."""
    return f"{n:,.0f} {noun}" if n == 1 else f"{n:,.0f} {noun}s"
