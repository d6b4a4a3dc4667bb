"""Splines in formulas: formulaic's ``bs`` and ``cr`` with knots that all sites know, and which rows are between knots.

``bs(age, knots=[50, 65], lower_bound=0, upper_bound=120)`` is a cubic B-spline, ``cr`` a natural cubic one, linear
beyond its bounds. Both have a column less than their basis, which is the intercept's.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..contract import BadData, RecipeError
from .extra import needed

KINDS = ("bs", "cr")

MOST_KNOTS = 20

EXAMPLE = "bs(age, knots=[50, 65], lower_bound=0, upper_bound=120)"

BEYOND = 0.01
"""How far beyond its bounds a B-spline still is the value at them, as a share of their distance: for differences."""

COLUMN = re.compile(r"(bs|cr)\(([^,()]+), ([^()]*)\)\[(\d+)\]")
"""The name of a column of a spline in a design."""


class Spline(NamedTuple):
    """A spline of a column, with its knots between its bounds."""

    kind: str
    column: str
    knots: tuple[float, ...]
    lower: float
    upper: float

    @property
    def edges(self) -> tuple[float, ...]:
        """Between which another polynomial holds: knots, and the bounds of a natural spline."""
        return (self.lower, *self.knots, self.upper) if self.kind == "cr" else self.knots

    def check(self, x: np.ndarray, site: str) -> None:
        """Raise BadData for a value beyond the bounds of a B-spline."""
        far = BEYOND * (self.upper - self.lower)
        if self.kind == "bs" and ((x < self.lower - far) | (x > self.upper + far)).any():
            raise BadData(
                f"{site}: {self.column} has values beyond {self.lower:g} and {self.upper:g}, the bounds of its spline; "
                "give wider ones, or cr(), which goes on as a line"
            )

    def between(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The rows between each knot and the next: 1 or 0 [n], by a name."""
        ends = [-math.inf, *self.edges, math.inf]
        place = np.searchsorted(self.edges, x, side="right")
        names = [f"{self.column} from {a:g} to {b:g} (or give fewer knots)" for a, b in itertools.pairwise(ends)]
        return {name: 1.0 * (place == k) for k, name in enumerate(names)}


def spline_of(text: str) -> Spline | None:
    """The spline that a factor of a formula is; None if it is no call of ``bs`` or ``cr``.

    Raises RecipeError for another form of such a call.
    """
    if not text.startswith(tuple(f"{kind}(" for kind in KINDS)):
        return None
    try:
        call: Any = ast.parse(text, mode="eval").body
        given = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        knots = tuple(float(v) for v in given.pop("knots"))
        lower, upper = (float(given.pop(key)) for key in ("lower_bound", "upper_bound"))
        steps = np.diff([lower, *knots, upper])
        right = 0 < len(knots) <= MOST_KNOTS and bool((steps > 0).all()) and not given
        (column,) = [a.id for a in call.args]
    except (SyntaxError, ValueError, KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise RecipeError(
            f"formula: {text} is not understood; write a spline with its knots in ascending order and within its "
            f"bounds: {EXAMPLE}. study.spline('age', 3) has one whose knots all sites agree on"
        )
    return Spline(call.func.id, column, knots, lower, upper)


def b_spline(x: Any, knots: Any, lower_bound: float, upper_bound: float) -> Any:
    """``bs`` of formulas."""
    transforms = needed("formulaic.transforms")
    bounds = {"lower_bound": lower_bound, "upper_bound": upper_bound}
    return transforms.basis_spline(x, knots=knots, **bounds, extrapolation="clip")


def natural_spline(x: Any, knots: Any, lower_bound: float, upper_bound: float) -> Any:
    """``cr`` of formulas, without its first column: with the intercept they span the same."""
    cubic = needed("formulaic.transforms.cubic_spline")
    values = needed("formulaic.materializers.types").FactorValues
    basis = cubic.natural_cubic_spline(x, knots=knots, lower_bound=lower_bound, upper_bound=upper_bound)
    rest = {k: v for k, v in basis.items() if k != 1}
    return values(rest, kind="numerical", spans_intercept=False, format="{name}[{field}]")


def spline_column(name: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """One column of a spline, by its name in a design, from columns of numbers."""
    text, _, number = name.removesuffix("]").rpartition("[")
    spline: Any = spline_of(text)
    basis = {"bs": b_spline, "cr": natural_spline}[spline.kind]
    values = basis(columns[spline.column], [*spline.knots], spline.lower, spline.upper)
    return np.asarray(values[int(number)])


def agreed_spline(kind: str, column: str, quantiles: list[float], mean: float, sd: float) -> str:
    """A spline as a formula has it, with knots at these quantiles: the outer ones are the bounds of a natural one."""
    digits = 2 - math.floor(math.log10(sd))
    knots = [round(q, digits) for q in quantiles]
    wide = 6 * sd
    lower, upper = (round(v, digits) for v in (mean - wide, mean + wide))
    if kind == "cr":
        lower, *knots, upper = knots
    name = column if column.replace(".", "_").isidentifier() else f"`{column}`"
    return f"{kind}({name}, knots={knots}, lower_bound={lower}, upper_bound={upper})"
