"""SVG text: the figure's frame, text, rules and paths. Lengths are in px."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

from ..units import Real

CHAR = 6.1
"""Width of a character in px at a font size of 11.5 px, estimated generously."""


class Markup(str):
    """HTML or SVG text that goes into a page unchanged. Text from users is already escaped in it."""

    __slots__ = ()

    def __html__(self) -> str:
        """The text itself: templates ask for this, and then escape nothing."""
        return self


@dataclass(frozen=True)
class Box:
    """The rectangle of a figure in which data is drawn, in px; y grows downwards."""

    left: Real
    top: Real
    right: Real
    bottom: Real


def figure(width: Real, height: Real, title: str, desc: str, body: str, data: str = "") -> Markup:
    """A whole SVG figure.

    Args:
        desc: Its description for screen readers, escaped here.
        body: SVG text, as it is.
        data: Further attributes of the outer element, as they are; none by default.
    """
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" font-family="system-ui,sans-serif" font-size="11.5" {data}>'
        f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>{body}</svg>"
    )


def empty(width: Real, title: str) -> Markup:
    """A figure 60 px high that says that there is no data."""
    return figure(width, 60, title, "Nothing to draw.", text(width / 2, 34, "no figures to draw", "middle"))


def text(
    x: Real, y: Real, words: str, anchor: str = "start", size: Real = 11.5, strong: bool = False, rotate: bool = False
) -> str:
    """A line of text in the surrounding text's colour.

    Args:
        words: The text, escaped here.
        strong: Whether it has full contrast; default False, 72 %.
    """
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotate else ""
    faint = "" if strong else ' fill-opacity=".72"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" fill="currentColor"{faint}{turn}>'
        f"{escape(words)}</text>"
    )


def rule(x0: Real, y0: Real, x1: Real, y1: Real, opacity: Real = 0.13) -> str:
    """A straight line from (x0, y0) to (x1, y1) in px; ``opacity`` is in [0, 1], 0.13 by default."""
    return f'<path d="M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}" stroke="currentColor" stroke-opacity="{opacity}"/>'


def path(x: Float[np.ndarray, " k"], y: Float[np.ndarray, " k"]) -> str:
    """The ``d`` of a path through these points in px."""
    return "M" + " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def short(name: str, most: int = 26) -> str:
    """``name`` in at most ``most`` characters; the last of a cut name is an ellipsis."""
    return name if len(name) <= most else name[: most - 1] + "…"
