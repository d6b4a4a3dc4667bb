"""The files of a study: each analysis as text, tables in LaTeX, and preparations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..storage.atomic import write
from .analysis import Analysis
from .balance import BalanceTable
from .fit import Coefficients
from .margins import MarginsFit
from .prepare import Preparation
from .tables import TableOne

RATIOS = ("logit", "log", "cox")
"""The links for which exp(coefficient) is an odds, rate or hazard ratio."""


def save_last(folder: Path, analysis: Analysis, results: Sequence[Any]) -> str:
    """Write the last of a study's results so far, of this analysis. Returns the name of a preparation, or ""."""
    result = results[-1]
    number = len(results)
    write(folder / f"{number}.txt", f"{result.summary()}\n\n{result.pooling}\n", owner_only=True)
    if isinstance(result, Coefficients | TableOne | BalanceTable):
        is_ratio = getattr(analysis, "uses", "") in RATIOS and not isinstance(result, MarginsFit)
        ratios = {"exp": True} if is_ratio else {}
        write(folder / f"{number}.tex", result.latex(**ratios) + "\n", owner_only=True)
    if not isinstance(result, Preparation):
        return ""
    before = sum(isinstance(earlier, Preparation) for earlier in results[:-1])
    name = f"prepared{before + 1 if before else ''}.json"
    result.save(folder / name)
    return name
