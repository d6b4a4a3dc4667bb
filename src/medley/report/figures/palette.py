"""Colours and markers of methods.

A method has one slot, a number from 0, in every figure of a page. The slot fixes its colour and its marker. The marker
carries the same information as the colour, for readers who do not see the colour.
"""

from __future__ import annotations

from ..units import Real
from .svg import Markup

LIGHT = ("#1355c6", "#b93f04", "#00a78e", "#903976", "#b48d00", "#5581bc", "#212229", "#68036a")
"""Colours on a light background, by slot.

A search that started from the Okabe-Ito hues found them: they are far apart in OKLab with normal, protan, deutan and
tritan vision.
"""

DARK = ("#2573fa", "#cd5c1f", "#00ce79", "#c48fd7", "#ffe638", "#c1d4ff", "#ffffe4", "#8c6a91")
"""Colours on a dark background, by slot, found in the same way."""

# Paths of about one unit's radius: circle, square, triangle, diamond, triangle upside down, plus, pentagon, cross.
_MARKS = (
    "M-1,0A1,1 0 1 1 1,0A1,1 0 1 1 -1,0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.15L1.1,.85H-1.1Z",
    "M0-1.3L1.15,0L0,1.3L-1.15,0Z",
    "M0,1.15L1.1-.85H-1.1Z",
    "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "M0-1.25L1.2-.37L.74,1.05H-.74L-1.2-.37Z",
    "M-1.2-.65L-.65-1.2L0-.55L.65-1.2L1.2-.65L.55,0L1.2,.65L.65,1.2L0,.55L-.65,1.2L-1.2,.65L-.55,0Z",
)


def colour(slot: int) -> str:
    """The CSS colour of a slot: the page's variable ``--c0`` to ``--c7``, with the light palette as fallback."""
    return f"var(--c{slot % len(LIGHT)},{LIGHT[slot % len(LIGHT)]})"


def dash(slot: int) -> str:
    """CSS that makes a line dashed for every second cycle through the palette, else nothing."""
    return ";stroke-dasharray:7 3" if slot % (2 * len(LIGHT)) >= len(LIGHT) else ""


def mark(slot: int, x: Real = 0.0, y: Real = 0.0, r: Real = 4.0, hollow: bool = False) -> Markup:
    """The marker of a slot, an SVG path."""
    paint = f"fill:none;stroke:{colour(slot)};stroke-width:{1.3 / r:.2f}" if hollow else f"fill:{colour(slot)}"
    return Markup(
        f'<path d="{_MARKS[slot % len(_MARKS)]}" transform="translate({x:.1f},{y:.1f}) scale({r:g})" style="{paint}"/>'
    )


def swatch(slot: int) -> Markup:
    """The key of a legend: a short line and the slot's marker, 24 by 14 px."""
    size = 'viewBox="0 0 24 14" width="24" height="14"'
    line = f'<path d="M1,7H23" style="stroke:{colour(slot)};stroke-width:2{dash(slot)}"/>'
    return Markup(f'<svg class="key" {size} aria-hidden="true">{line}{mark(slot, 12, 7)}</svg>')
