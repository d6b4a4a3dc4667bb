"""Heat maps: a matrix as shaded cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ..units import FORMATS, Real
from .palette import colour
from .svg import Markup, figure, short, text

_CELL_W, _CELL_H, _LEFT, _TOP = 46, 28, 48, 30  # px


def heat(
    matrix: Float[np.ndarray, "r c"],
    *,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    rows: Sequence[object] | None = None,
    columns: Sequence[object] | None = None,
    kind: str = "percent",
    slot: int = 0,
) -> Markup:
    """A matrix as shaded cells with their values. Shades run from min(0, least) to the greatest; nan stays blank.

    Args:
        matrix: The values [r, c].
        rows: Names of the r rows; default their numbers, from 1.
        columns: Names of the c columns; default their numbers, from 1.
        kind: Of the values: ``percent`` (default), ``count``, ``bytes``, ``seconds`` or ``number``.
    """
    R, C = matrix.shape
    finite = matrix[np.isfinite(matrix)]
    low = min(float(finite.min()), 0.0) if len(finite) else 0.0
    high = float(finite.max()) if len(finite) and finite.max() > low else low + 1.0
    foot = _TOP + R * _CELL_H
    body = []
    for i in range(R):
        name = str(rows[i]) if rows is not None else str(i + 1)
        body.append(text(_LEFT - 6, _TOP + _CELL_H * (i + 0.5) + 4, short(name, 6), "end", 10))
        for j in range(C):
            v = float(matrix[i, j])
            if math.isfinite(v):
                # Half opacity at most: text keeps its contrast on either ground.
                shade = 0.04 + 0.46 * (v - low) / (high - low)
                words = f"{100 * v:.1f}" if kind == "percent" else FORMATS[kind](v)
                body.append(_cell(_LEFT + _CELL_W * j, _TOP + _CELL_H * i, words, shade, slot))
    for j in range(C):
        name = str(columns[j]) if columns is not None else str(j + 1)
        body.append(text(_LEFT + _CELL_W * (j + 0.5) - 1, foot + 12, short(name, 7), "middle", 10))
    body.append(text(_LEFT + C * _CELL_W / 2, foot + 27, xlabel, "middle"))
    body.append(text(12, _TOP + R * _CELL_H / 2, ylabel, "middle", rotate=True))
    body.append(text(_LEFT, 18, title, strong=True))
    desc = "No values."
    if len(finite):
        desc = f"{R} by {C}, from {FORMATS[kind](float(finite.min()))} to {FORMATS[kind](high)}."
    return figure(_LEFT + C * _CELL_W + 10, foot + 34, title, desc, "".join(body))


def _cell(x: Real, y: Real, words: str, shade: float, slot: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{_CELL_W - 1.5}" height="{_CELL_H - 1.5}" rx="2" '
        f'style="fill:{colour(slot)};fill-opacity:{shade:.3f}"/>'
        + text(x + _CELL_W / 2 - 1, y + _CELL_H / 2 + 3, words, "middle", 10.5, strong=True)
    )
