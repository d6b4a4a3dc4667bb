"""Final figures and their differences as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .numbers import Paired, Stat, is_share
from .targets import COLUMNS
from .units import DASH, FORMATS, column, one_unit, plus_minus, three, unit_of

FEW = 4
"""With fewer seeds than this, an interval that leaves the possible range is replaced by the seeds' figures."""


def kind_of(metric: str) -> str:
    """The kind of a metric's numbers, a key of `units.FORMATS`."""
    if is_share(metric):
        return "percent"
    kinds = {"bytes_to_target": "bytes", "seconds_to_target": "seconds"}
    return kinds.get(metric, "count" if metric in COLUMNS else "number")


def beyond(stats: Sequence[Stat], metric: str) -> bool:
    """Whether an interval of few seeds leaves the metric's range, so that it says nothing.

    Shares lie in [0, 1], forgetting in [-1, 1]; a metric without any negative figure lies above 0.
    """
    positive = all(v >= 0 for s in stats for v in s.values)
    low = -1.0 if metric == "fgt" else 0.0 if positive else -math.inf
    high = 1.0 if is_share(metric) else math.inf
    return any(2 <= s.n < FEW and (s.low < low or s.high > high) for s in stats)


def worths(stats: Sequence[Stat], metric: str) -> list[str]:
    """The figures of one metric as text, alike for all ``stats``: intervals, or seeds if an interval says nothing."""
    seeds = beyond(stats, metric)
    unit = one_unit(kind_of(metric), [s.mean for s in stats])
    return [worth(s, metric, seeds, unit) for s in stats]


def worth(stat: Stat, metric: str, seeds: bool = False, unit: tuple[float, str] = (0.0, "")) -> str:
    """A figure as text, shares in per cent; with the seeds' figures instead of an interval if ``seeds``."""
    if not stat.n:
        return DASH
    if seeds and 2 <= stat.n < FEW and stat.half > 0:
        one = unit if unit[0] else one_unit(kind_of(metric), [stat.mean])
        first, *each = column(kind_of(metric), [stat.mean, *stat.values], one)
        end = f" {first.partition(' ')[2]}"
        return f"{first} ({', '.join(v.removesuffix(end) for v in each)})".replace("-", "−")
    if kind_of(metric) in ("count", "seconds", "bytes"):
        return with_units(stat.mean, stat.half, metric, unit=unit)
    text = plus_minus(stat.mean, stat.half, is_share(metric))
    return f"{text} %" if is_share(metric) else text


def impossible(pair: Paired) -> bool:
    """Whether the interval of a difference of shares, over few seeds, reaches beyond 100 percentage points."""
    d = pair.diff
    return 2 <= d.n < FEW and is_share(pair.metric) and (d.low < -1 or d.high > 1)


def difference(pair: Paired | None) -> str:
    """A paired difference as text, shares in percentage points; a dash if there is none.

    "± ?" if an interval cannot be estimated because all seeds have the same difference.
    """
    if pair is None or not pair.n:
        return DASH
    if kind_of(pair.metric) in ("count", "seconds", "bytes"):
        return with_units(pair.diff.mean, pair.half, pair.metric, signed=True) + (" ± ?" if unsure(pair) else "")
    share = is_share(pair.metric)
    if impossible(pair):
        seeds = (plus_minus(v, math.nan, share, signed=True) for v in pair.diff.values)
        return f"{plus_minus(pair.diff.mean, math.nan, share, signed=True)} pp ({', '.join(seeds)})"
    text = plus_minus(pair.diff.mean, pair.half, share, signed=True) + (" ± ?" if unsure(pair) else "")
    return f"{text} pp" if share else text


def unsure(pair: Paired) -> bool:
    """Whether several seeds have the same difference, and it is not 0."""
    return pair.diff.equal and pair.diff.mean != 0


def with_units(mean: float, half: float, metric: str, signed: bool = False, unit: tuple[float, str] = (0.0, "")) -> str:
    """``mean ± half`` in one unit: the column's if ``unit`` is given, otherwise the larger one's."""
    form = FORMATS[kind_of(metric)]
    sign = "−" if mean < 0 else "+" if signed and mean > 0 else ""
    if unit[0]:
        text, spread = (f"{three(v / unit[0])} {unit[1]}" for v in (abs(mean), half))
        text = sign + text
    else:
        text = sign + form(abs(mean))
        spread = form(half)
    if not math.isfinite(half) or not float(spread.partition(" ")[0].replace(",", "")):
        return text
    value, _, suffix = text.partition(" ")
    spread, _, same = spread.partition(" ")
    if suffix == same:
        return f"{value} ± {spread} {suffix}".rstrip()
    size, suffix = unit_of(kind_of(metric), max(abs(mean), half))
    return f"{plus_minus(mean / size, half / size, signed=signed)} {suffix}"
