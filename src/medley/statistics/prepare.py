"""Prepare: preprocessing that is fitted to the rows of all sites, for models that are trained on them.

**Reference**: this library's own; the figures are those of scikit-learn's StandardScaler, SimpleImputer and
OneHotEncoder on all rows together.

**One round sends** what `Describe` sends of the columns that need figures of the sites, under the same rules.

**Departures**: means and deviations use the values that are present, before clipping: sums of clipped values, together
with sums of all values, would reveal the few rows beyond the bounds. A median comes from a histogram, with its largest
error. If a category has fewer rows at each site than the site's least number, it is not named and counts as unknown.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..contract import BadData, Checked, RecipeError
from ..contract.arguments import known_keywords
from ..contract.text import shown
from ..numerics.scaling import Scaling
from ..rows.coding import Coding, Column
from ..rows.columns import columns_of
from ..storage.atomic import write
from .cells import is_text
from .describe import Cell, Describe
from .extra import InNotebooks, needed
from .fit import Cost

log = logging.getLogger("medley")

STEPS = {
    "mean": 0, "median": 0, "mode": 0, "fill": 1, "indicator": 0, "clip": 2, "standardise": 0, "encode": 0,
}  # fmt: skip
"""Steps, with the number of their values."""

MOST = 20
"""The most categories that count as categories, however few rows there are."""

FILLS = ("mean", "median", "mode", "fill")

Plan = dict[str, tuple[str, ...]]
"""Steps of a column, with their values as texts."""


def plans(columns: Sequence[str]) -> dict[str, Plan]:
    """The steps of each column, of texts such as "age: median, clip(0, 110), standardise".

    Raises RecipeError, naming the text, for steps that do not exist or do not go together.
    """
    out = dict[str, Plan]()
    for text in columns:
        name, colon, rest = (part.strip() for part in text.rpartition(":"))
        parts = re.findall(r"(\w+)(?:\(([^()]*)\))?\s*(?:,|$)", rest)
        plan = {step: tuple(v.strip() for v in values.split(",") if v.strip()) for step, values in parts}
        problem = ""
        if not colon or not name or re.sub(r"\w+(\([^()]*\))?\s*(,|$)|\s", "", rest) or not plan:
            problem = "write a column, a colon and its steps: 'age: median, standardise', 'ward: encode'"
        elif odd := [step for step, values in plan.items() if len(values) != STEPS.get(step)]:
            steps = ", ".join(k + {1: "(value)", 2: "(least, largest)"}.get(n, "") for k, n in STEPS.items())
            problem = f"{odd[0]} is not understood; steps are {steps}"
        elif len(fills := [step for step in FILLS if step in plan]) > 1:
            problem = f"{fills[0]} and {fills[1]} both fill in; give one of both"
        elif "encode" in plan and (odd := [k for k in ("mean", "median", "clip", "standardise") if k in plan]):
            problem = f"{odd[0]} is for numbers, and encode for categories"
        elif "encode" not in plan and "mode" in plan:
            problem = "mode is for categories; add encode, or take the median"
        elif "encode" not in plan and "indicator" in plan and not fills:
            problem = "indicator goes with mean, median or fill(value)"
        elif name in out:
            problem = f"{name} is there twice"
        if problem:
            raise RecipeError(f"prepare({text!r}): {problem}", "columns")
        try:
            bounds = [float(v) for v in (*plan.get("clip", ()), *(() if "encode" in plan else plan.get("fill", ())))]
            if not all(map(math.isfinite, bounds)) or ("clip" in plan and bounds[0] >= bounds[1]):
                raise ValueError
        except ValueError:
            raise RecipeError(f"prepare({text!r}): give numbers, the smaller bound first", "columns") from None
        out[name] = plan
    return out


def steps_for(frames: Mapping[str, Any], leave_out: Sequence[str] = ()) -> list[str]:
    """Steps for every column by its type, as `Prepare` takes them: numbers are standardised, texts encoded.

    If cells are missing at a site, numbers get the median, and texts the mode.

    Args:
        frames: each site's frame of pandas, by name
        leave_out: columns that are no inputs, such as the outcome

    Raises RecipeError for a column of texts that differ in most rows, such as an identifier, and for an unknown name.
    """
    columns = list(dict.fromkeys(chain.from_iterable(frame.columns for frame in frames.values())))
    for name in leave_out:
        if name not in columns:
            raise RecipeError.unknown(name, columns, "prepare(leave_out=...)")
    out = list[str]()
    for name in columns:
        having = {site: frame for site, frame in frames.items() if name in frame.columns}
        if name in ("site", *leave_out):
            continue
        texts = [is_text(frame, name, site) for site, frame in having.items()]
        cells = [v for frame in having.values() for v in frame[name].dropna().tolist()]
        if any(texts) and len({*cells}) > max(MOST, len(cells) / 2):
            raise RecipeError(
                f"prepare: {name} has {len({*cells})} different texts in {len(cells)} rows, as an identifier has; "
                f"leave it out, leave_out=[{name!r}], or name the columns",
                "leave_out",
            )
        has_gaps = any(bool(frame[name].isna().any()) for frame in having.values())
        fill = ("mode, " if any(texts) else "median, ") if has_gaps else ""
        out.append(f"{name}: {fill}{'encode' if any(texts) else 'standardise'}")
    return out


@dataclass(frozen=True)
class Prepare(Describe):
    """Preprocessing, fitted across sites.

    Attributes:
        columns: a text for each, "age: median, clip(0, 110), standardise" or "ward: mode, indicator, encode"; steps are
            mean, median, mode, fill(value), indicator, clip(least, largest), standardise and encode
        where: the rows that it is fitted to; empty for all
    """

    call = "prepare"

    by: str = field(default="", init=False)
    quantiles: Sequence[float] = field(default=(0.5,), init=False)
    ranks: Sequence[str] = field(default=(), init=False)
    whole: Sequence[str] = field(default=(), init=False)
    smd: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        Checked.__post_init__(self)  # before the columns are read
        middle = (0.5,) if any("median" in plan for plan in plans(self.columns).values()) else ()
        object.__setattr__(self, "quantiles", middle)
        super().__post_init__()

    @property
    def named(self) -> dict[str, bool]:
        """See `Describe.named`: the columns that need figures of the sites."""
        fitted = {"mean", "median", "standardise", "encode"}
        return {c: "encode" in plan for c, plan in plans(self.columns).items() if fitted & plan.keys()}

    @property
    def numeric(self) -> tuple[str, ...]:
        """See `Analysis.numeric`: columns without categories."""
        return tuple(c for c, categorical in self.named.items() if not categorical)

    def curved(self, column: str) -> bool:
        """See `Describe.curved`: columns with a median."""
        return "median" in plans(self.columns)[column]


class Preparation(InNotebooks):
    """Preprocessing, fitted to all sites' rows.

    Attributes:
        analysis, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        scaling: columns as features, with their means and deviations; data sets and results store this
        errors: the largest error of each median, by column
    """

    def __init__(self, analysis: Prepare, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        self.analysis = analysis
        self.sites = sites
        self.cost = cost
        self.errors = dict[str, float]()
        cells = result[1]
        columns = list[Column]()
        means = list[float]()
        deviations = list[float]()
        for name, plan in plans(analysis.columns).items():
            cell: Cell | None = cells[name][""] if name in cells else None
            if cell is not None and cell.n is None and cell.counts is None:
                raise BadData(
                    f"prepare: a site withholds the sums of {name}: too few rows, or other sums of it have left "
                    "before; leave the column out, or give your own numbers"
                )
            coded = self._column(name, plan, cell)
            columns.append(coded)
            mean = 0.0
            deviation = 1.0
            if "standardise" in plan and cell is not None and cell.mean is not None:
                mean = cell.mean
                n = cell.n or 1
                spread = (cell.sd or 0.0) * math.sqrt((n - 1) / n)
                deviation = spread if spread > 1e-10 * abs(mean) else 1.0
                if deviation != spread:
                    log.warning("prepare: %s has no spread at all sites together, so it is not divided by one", name)
            k = len(coded.features) - (coded.levels is None)  # a column of numbers has one feature, and its indicator
            means += [*([mean] if coded.levels is None else []), *[0.0] * k]
            deviations += [*([deviation] if coded.levels is None else []), *[1.0] * k]
        mean_row, deviation_row = (torch.tensor([v], dtype=torch.float64) for v in (means, deviations))
        self.scaling = Scaling(mean_row, deviation_row, True, Coding(tuple(columns)))

    def _column(self, name: str, plan: Plan, cell: Cell | None) -> Column:
        """One column, with the value that fills its gaps."""
        fill: Any = plan["fill"][0] if "fill" in plan else None
        levels = None if cell is None or cell.counts is None else tuple(cell.counts)
        if levels is not None and "encode" not in plan:
            raise BadData(
                f"prepare: {name} is text at a site, and its steps are for numbers; write encode, or recode it"
            )
        if levels == ():
            raise BadData(f"prepare: {name} has no category that may leave a site; leave the column out")
        if cell is not None and cell.counts is not None and "mode" in plan:
            if None in cell.counts.values():
                raise BadData(f"prepare: the mode of {name} is withheld by a site in a category; name it, fill(value)")
            fill = max(cell.counts.items(), key=lambda item: item[1] or 0)[0]
        elif levels is None and fill is not None:
            fill = float(fill)
        if "mean" in plan and cell is not None:
            fill = cell.mean
        if "median" in plan and cell is not None:
            fill, error = (cell.quantiles or {}).get(0.5, (None, math.inf))
            if not math.isfinite(error):
                raise BadData(
                    f"prepare: the median of {name} is withheld by a site, because another curve of these rows "
                    "has left, its rules keep quantiles, or the median lies among the outermost rows; take the "
                    "mean, or fill(value)"
                )
            self.errors[name] = error
        if levels is None and fill is None and {"mean", "median"} & plan.keys():
            raise BadData(f"prepare: no site has a value of {name}; leave the column out")
        low, high = map(float, plan["clip"]) if "clip" in plan else (0.0, 0.0)
        return Column(name, levels, (low, high) if "clip" in plan else None, fill, "indicator" in plan)

    @known_keywords
    def frame(self, table: Any) -> Any:
        """The features of a table, a pandas frame of float64. Raises BadData for cells that it cannot read."""
        of = self.scaling
        call = "preparation.frame(table)"
        assert of.coding is not None
        cells = {name: np.asarray(table[column]) for name, column in columns_of(table, call).items()}
        X = (of.coding(cells, call) - of.mean.numpy()) / of.deviation.numpy()
        return needed("pandas").DataFrame(X, columns=[*of.coding.features])

    @known_keywords
    def save(self, path: str | Path) -> Path:
        """Write it as JSON, for `prepared` of data sets and recipes."""
        write(Path(path), json.dumps(self.scaling.plain(), ensure_ascii=False) + "\n")
        return Path(path)

    def summary(self) -> str:
        """What each column becomes, as text."""
        assert self.scaling.coding is not None
        lines = list[str]()
        at = 0
        for c in self.scaling.coding.columns:
            mean = float(self.scaling.mean[0, at])
            deviation = float(self.scaling.deviation[0, at])
            description = (
                f"categories {', '.join(map(shown, c.levels))}, else 0 in each" if c.levels is not None else "a number"
            )
            description += "" if c.clip is None else f", within {c.clip[0]:g} and {c.clip[1]:g}"
            error = f" ± {self.errors[c.name]:.2g}" if c.name in self.errors else ""
            description += (
                ""
                if c.fill is None
                else f", {shown(c.fill) if c.levels is not None else f'{c.fill:.6g}'}{error} where missing"
            )
            description += f", less {mean:.6g}, by {deviation:.6g}" if (mean, deviation) != (0.0, 1.0) else ""
            lines.append(f"{shown(c.name)}: {description}" + (", with an indicator" if c.indicator else ""))
            at += len(c.features)
        return "\n".join(lines)
