"""Predictions of a generalised linear model for rows of the caller's, from its coefficients and their covariance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import BadData, RecipeError
from .analysis import unpacked
from .cells import numbers, table, texts
from .extra import needed
from .families import LINKS, Link
from .formulas import check_columns, complete, design, parsed


def predicted(fit: Any, rows: Any, alpha: float) -> Any:
    """The table of `GLMFit.predict`."""
    from scipy.stats import norm

    g = fit.glm
    call = "predict(rows)"
    X, frame = design_of(call, g, unpacked(fit.point["terms"]), rows, tuple(filter(None, (g.offset, g.exposure))))
    offset = numbers(frame, g.offset, call) if g.offset else np.zeros(len(X))
    offset = offset + (np.log(numbers(frame, g.exposure, call)) if g.exposure else 0.0)
    p = X.shape[1]
    link: Link = LINKS[g.uses]
    eta = X @ fit.b[:p] + offset
    se = np.sqrt(np.einsum("ij,jk,ik->i", X, fit.covariance[:p, :p], X))
    half = norm.isf(alpha / 2) * se
    mean = link.mean(eta)
    ends = np.sort([link.mean(eta - half), link.mean(eta + half)], axis=0)
    figures = {"mean": mean, "se": np.abs(link.slope(mean)) * se, "lower": ends[0], "upper": ends[1]}
    return needed("pandas").DataFrame(figures)


def design_of(
    call: str, analysis: Any, levels: dict[str, list[str]], rows: Any, further: tuple[str, ...] = ()
) -> tuple[np.ndarray, Any]:
    """The design [n, p] of a caller's rows, and their frame, for an analysis with ``formula`` and ``sites``.

    Raises RecipeError if sites have effects, and BadData, naming the row or the category, for rows that lack one of the
    fit's columns; ``further`` are needed, too.
    """
    if analysis.sites:
        raise RecipeError(f"{call}: each site has an effect of its own in this fit; fit without sites='fixed'", "sites")
    f = parsed(analysis.formula)
    frame = table(rows, call)
    columns = [*f.columns[1:], *further]
    check_columns(frame, columns, call)
    gaps = ~complete(frame, columns)
    if gaps.any():
        raise BadData(f"{call}: row {int(gaps.argmax())} has a missing value; fill it in, or leave the row out")
    for c in f.categorical:
        unknown = {*texts(frame, c, call)} - {*levels[c]}
        if unknown:
            raise BadData(f"{call}: {c} has {min(unknown)!r}, and the fit has {', '.join(levels[c])}")
    return design(f, frame, levels, call)[1], frame
