"""Metrics of test rows, which you pass to a run as ``metrics=["auroc"]``, or as ``{"auc": AUROC(bins=500)}``.

A metric is a function of the outputs and the targets. One that is a function of sums over rows, `Summed`, gives the
figure of all rows from the sites' sums. A metric that you write in this file has a name, its own in lower case.

Side: both: a node computes its sums, and the server the figure of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .contract import Checked, RecipeError, at_least, at_most
from .contract.public import public
from .runtime import streams

__all__ = ["AUROC", "Dice", "Hausdorff", "Interval", "Summed", "bootstrap", "concordance"]


@runtime_checkable
class Summed(Protocol):
    """A metric that is a function of sums over rows. Sites send the sums, and the total gives the figure of all
    rows.
    """

    def __call__(self, outputs: Tensor, y: Tensor, /) -> float:
        """The figure of these rows."""

    def sums(self, outputs: Tensor, y: Tensor, /) -> Tensor:
        """The sums [k] over these rows."""

    def fits(self, sums: Tensor, rows: int, /) -> bool:
        """Whether this many rows can have these sums; Medley rejects a site's impossible sums."""

    def figure(self, sums: Tensor, /) -> tuple[float, float]:
        """The figure of the summed rows and its standard error; nan for a value that does not exist."""


@dataclass(frozen=True)
class AUROC(Checked):
    """The area under the ROC curve of two classes, from counts of rows by the logit of the second class.

    It counts rows of both classes in bins of asinh(4 logit), so that rare classes and sure models have their bins,
    too; the sites' counts add up to the counts of all rows. Two rows in one bin are a tie: `within` has the largest
    error that this can make, and the history's column ``<name>_within``.

    Attributes:
        bins: the number of bins; logits beyond ±1,000 share the outer ones

    Standard error: DeLong, DeLong and Clarke-Pearson, Comparing the areas under two or more correlated receiver
    operating characteristic curves, Biometrics 44 (1988).
    """

    bins: Annotated[int, at_least(2)] = 2000

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The area; nan without rows of both classes."""
        return self.figure(self.sums(outputs, y))[0]

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Rows of the first class in each bin, then those of the second [2 bins]. Raises RecipeError for other outputs.

        Outputs are margins [n] or [n, 1], or one output for each of two classes [n, 2].
        """
        z = outputs.detach().double().cpu().reshape(len(outputs), -1)
        if z.shape[1] not in (1, 2):
            raise RecipeError(f"AUROC needs two classes, but the outputs are {list(outputs.shape)}", "metrics")
        logit = z[:, -1] - (z[:, 0] if z.shape[1] == 2 else 0.0)
        share = torch.asinh(4 * logit.nan_to_num()) / math.asinh(4 * 1000)  # of the way from 0 to the outer bins
        place = torch.clamp((self.bins * (1 + share) / 2).long(), 0, self.bins - 1)
        second = (y.cpu().reshape(-1) > 0).long()
        return torch.bincount(second * self.bins + place, minlength=2 * self.bins).double()

    def fits(self, sums: Tensor, rows: int) -> bool:
        """Whether this many rows can have these sums: whole numbers that add up to the number of rows."""
        return bool((sums >= 0).all() and (sums == sums.round()).all()) and float(sums.sum()) == rows

    def figure(self, sums: Tensor) -> tuple[float, float]:
        """The area and its standard error."""
        n, p = (part.numpy() for part in sums.double().reshape(2, self.bins))
        N = n.sum()
        P = p.sum()
        if not N or not P:
            return math.nan, math.nan
        below = np.cumsum(n) - n / 2
        above = np.cumsum(p[::-1])[::-1] - p / 2
        area = float(p @ below / (P * N))
        spread = (p @ (below / N - area) ** 2 / max(P - 1, 1) / P, n @ (above / P - area) ** 2 / max(N - 1, 1) / N)
        return area, math.sqrt(float(sum(spread)))

    def within(self, sums: Tensor) -> float:
        """The largest error of the area: half the share of pairs of rows of both classes that are in one bin."""
        n, p = sums.double().reshape(2, self.bins)
        return float(n @ p / (2 * n.sum() * p.sum())) if n.sum() and p.sum() else math.nan


@dataclass(frozen=True)
class Dice(Checked):
    """The Dice coefficient of label maps: the mean over classes c ≥ 1 of D_c = 2|A_c ∩ B_c| / (|A_c| + |B_c|).

    A_c are the pixels predicted as class c, B_c those that have it, both counted over all rows; class 0 is the
    background. Pixels with a negative label count nowhere. A class that is neither predicted nor there is left out.

    Attributes:
        classes: the number of classes with the background; default 2
        only: the one class that counts, from 1; default 0, all of them

    Standard error: of a ratio of sums over rows, linearised; rows of one patient count as independent, see `bootstrap`.
    """

    classes: Annotated[int, at_least(2)] = 2
    only: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        foreground(self)

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The coefficient; nan if no class but the background is there."""
        return self.figure(self.sums(outputs, y))[0]

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Σ v and Σ v vᵀ over rows, with v = (2|A_c ∩ B_c|, |A_c| + |B_c|) of a row for each class c ≥ 1.

        Outputs are [n, classes, ...], or with two classes margins [n, 1, ...] or [n, ...]. Raises RecipeError for
        others.
        """
        predicted = predicted_map(outputs, y, self.classes, "Dice")
        classes = torch.tensor(foreground(self), device=y.device).view(-1, 1, 1)
        counted = (y >= 0).reshape(1, len(y), -1)
        A = (predicted.to(y.device).reshape(1, len(y), -1) == classes) & counted
        B = (y.reshape(1, len(y), -1) == classes) & counted
        v = torch.cat([2 * (A & B).sum(-1), A.sum(-1) + B.sum(-1)]).double().cpu()
        return torch.cat([v.sum(1), (v @ v.T).reshape(-1)])

    def fits(self, sums: Tensor, rows: int) -> bool:
        """Whether rows can have these sums: whole numbers from 0, with no intersection above its union."""
        k = len(foreground(self))
        whole = bool(sums.isfinite().all() and (sums >= 0).all() and (sums == sums.round()).all())
        total = sums[: 2 * k]
        squares = sums[2 * k :].reshape(2 * k, 2 * k).diagonal()
        # Σv² of rows lies between (Σv)²/rows, where all are alike, and (Σv)², where one row has all.
        of_rows = bool((squares * rows >= total**2).all() and (squares <= total**2).all())
        return whole and bool((total[:k] <= total[k:]).all()) and of_rows and (rows > 0 or not sums.any())

    def figure(self, sums: Tensor) -> tuple[float, float]:
        """The coefficient and its standard error."""
        k = len(foreground(self))
        total = sums.double().numpy()
        moments = total[2 * k :].reshape(2 * k, 2 * k)
        present = total[k : 2 * k] > 0
        if not present.any():
            return math.nan, math.nan
        size = np.where(present, total[k : 2 * k], 1.0)
        D = np.where(present, total[:k] / size, 0.0)
        slope = np.concatenate([present / size, -D / size]) / present.sum()
        return float(D.sum() / present.sum()), math.sqrt(max(0.0, float(slope @ moments @ slope)))


@dataclass(frozen=True)
class Hausdorff(Checked):
    """The Hausdorff distance of borders in label maps, in pixels: the mean over rows and classes c ≥ 1.

    Of a row and a class it is the larger of two percentiles: of the distances from each pixel of the predicted border
    to the nearest one of the true border, and of those the other way. A border has the pixels of a class that touch
    another class, or the edge of the map. Pixels with a negative label count nowhere. A row and a class that is in only
    one of the two maps has no distance and is left out, so look at `Dice` beside it.

    Attributes:
        classes: the number of classes with the background; default 2
        percentile: of the distances; default 95, and 100 for the largest
        only: the one class that counts, from 1; default 0, all of them

    Standard error: of a mean, with the distances as independent; see `bootstrap` for rows of one patient.
    """

    classes: Annotated[int, at_least(2)] = 2
    percentile: Annotated[float, at_least(0), at_most(100)] = 95.0
    only: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        foreground(self)

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The distance; nan if no row has a class in both maps. Raises RecipeError as `Dice` does."""
        return self.figure(self.sums(outputs, y))[0]

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Σ d, Σ d² and the number of distances d of these rows [3]. Raises RecipeError as `Dice` does."""
        from scipy.ndimage import binary_erosion, distance_transform_edt  # many modules for one metric

        predicted = predicted_map(outputs, y, self.classes, "Hausdorff").cpu()
        labels = y.cpu()
        predicted = torch.where(labels < 0, -1, predicted)
        distances = list[float]()
        for c in foreground(self):
            for A, B in zip((predicted == c).numpy(), (labels == c).numpy(), strict=True):
                if A.any() and B.any():
                    A &= ~binary_erosion(A)
                    B &= ~binary_erosion(B)
                    ways = distance_transform_edt(~B)[A], distance_transform_edt(~A)[B]
                    distances.append(max(float(np.percentile(way, self.percentile)) for way in ways))
        d = torch.tensor(distances, dtype=torch.float64)
        return torch.stack([d.sum(), (d**2).sum(), torch.tensor(float(len(d)), dtype=torch.float64)])

    def fits(self, sums: Tensor, rows: int) -> bool:
        """Whether rows can have these sums: at most one distance for each row and class, none below 0."""
        total, squares, count = sums.double().tolist()
        possible = 0 <= count <= rows * len(foreground(self)) and count == round(count)
        # Σd² of distances lies between (Σd)²/count, where all are alike, and (Σd)², where one is not 0.
        slack = 1e-9 * total**2
        return bool(possible and total >= 0 and total**2 <= count * squares + slack and squares <= total**2 + slack)

    def figure(self, sums: Tensor) -> tuple[float, float]:
        """The distance and its standard error."""
        total, squares, count = sums.double().tolist()
        if not count:
            return math.nan, math.nan
        mean = total / count
        variance = max(0.0, squares / count - mean**2) / max(count - 1, 1)
        return mean, math.sqrt(variance) if count > 1 else math.nan


def foreground(metric: Dice | Hausdorff) -> list[int]:
    """The classes that count. Raises RecipeError if the only one is not a class."""
    if metric.only >= metric.classes:
        raise RecipeError(
            f"{type(metric).__name__}(classes={metric.classes}, only={metric.only}): classes are 1 to "
            f"{metric.classes - 1}, and 0 is the background",
            "only",
        )
    return [metric.only] if metric.only else [*range(1, metric.classes)]


class Interval(NamedTuple):
    """A figure with its confidence interval.

    Attributes:
        value: the figure of all rows
        low, high: the ends of the interval
        units: the number of patients, or of whatever the rows were drawn by
    """

    value: float
    low: float
    high: float
    units: int


def bootstrap(
    metric: Summed,
    outputs: Tensor,
    y: Tensor,
    by: Sequence[Any] | np.ndarray,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """A metric with its percentile bootstrap interval over patients: each draw takes all rows of a patient, or none.

    Slices of one patient resemble each other, so an interval that counts slices as independent is too narrow. With
    fewer than some 20 patients this one is too narrow, too.

    Args:
        metric: `AUROC`, `Dice`, `Hausdorff`, or one of yours with sums over rows, see `Summed`
        outputs: the model's outputs [n, ...]
        y: the targets [n, ...]
        by: the patient of each row [n], such as ``data.test_keys["patient"]``
        level: the share of intervals that contain the figure; default 0.95
        draws: default 2000; a draw in which the figure does not exist is left out
        seed: of the stream (seed, "bootstrap"); default 0

    Raises RecipeError for a metric without sums, for other lengths, one patient, or a level outside (0, 1).
    """
    if not isinstance(metric, Summed):
        raise RecipeError(
            f"bootstrap(): {metric!r} has no sums over rows; give AUROC, Dice, Hausdorff, or a metric with `sums`, "
            "`fits` and `figure`",
            "metric",
        )
    names = np.asarray(by).astype(str)
    if names.shape != (len(y),) or len(outputs) != len(y):
        raise RecipeError(
            f"bootstrap(): {len(outputs)} outputs, {len(y)} targets and by= of the shape {list(names.shape)}; give one "
            "of each for each row",
            "by",
        )
    if not 0 < level < 1 or draws < 1:
        raise RecipeError(f"bootstrap(level={level}, draws={draws}): level is in (0, 1), and draws at least 1", "level")
    units, unit = np.unique(names, return_inverse=True)
    if len(units) < 2:
        raise RecipeError(f"bootstrap(): all {len(y)} rows are of one patient; an interval needs two at least", "by")
    rows_of = [torch.from_numpy(np.flatnonzero(unit == k)) for k in range(len(units))]
    sums = torch.stack([metric.sums(outputs[rows], y[rows]).double() for rows in rows_of])
    times = streams.rng(seed, "bootstrap").multinomial(len(units), np.full(len(units), 1 / len(units)), size=draws)
    figures = np.array([metric.figure(total)[0] for total in torch.from_numpy(times).double() @ sums])
    exist = figures[~np.isnan(figures)]
    ends = np.quantile(exist, [(1 - level) / 2, (1 + level) / 2]).tolist() if len(exist) else [math.nan, math.nan]
    return Interval(metric.figure(sums.sum(0))[0], ends[0], ends[1], len(units))


def predicted_map(outputs: Tensor, y: Tensor, classes: int, metric: str) -> Tensor:
    """The class of each pixel in the shape of ``y``: of the largest output, or with two classes of a margin above 0.

    Raises RecipeError for outputs that are neither [n, classes, ...] nor margins [n, 1, ...] or [n, ...].
    """
    z = outputs.detach()
    if classes == 2 and (z.shape == y.shape or z.shape == (len(y), 1, *y.shape[1:])):
        return (z.reshape(y.shape) > 0).long()
    if z.shape != (len(y), classes, *y.shape[1:]):
        raise RecipeError(
            f"{metric}(classes={classes}): the outputs are {list(z.shape)} for labels {list(y.shape)}, not "
            f"{[len(y), classes, *y.shape[1:]]}; give {metric}(classes=...) with the background",
            "metrics",
        )
    return z.argmax(1)


def concordance(outputs: Float[Tensor, "n 1"], y: Float[Tensor, "n 2"]) -> float:
    """Harrell's C: the share of comparable pairs in which the earlier event has the larger log-hazard s.

    Pairs with equal s count ½. A pair (i, j) is comparable if i has an event, and either T_i < T_j, or T_i = T_j and j
    has no event. The result is 0.5 if no pair is comparable (Harrell et al., "Evaluating the Yield of Medical Tests",
    1982).
    """
    s = outputs[:, 0]
    time, event = y.unbind(1)
    earlier = (time[:, None] < time[None, :]) | ((time[:, None] == time[None, :]) & (event[None, :] == 0))
    pairs = earlier & (event[:, None] > 0) & ~torch.eye(len(s), dtype=torch.bool, device=s.device)
    right = (s[:, None] > s[None, :]).double() + 0.5 * (s[:, None] == s[None, :]).double()
    count = int(pairs.sum())
    return float(right[pairs].sum()) / count if count else 0.5


METRICS: dict[str, Any] = {name.lower(): globals()[name] for name in __all__ if name != "Summed"}
"""Every metric by its name; a class has its defaults."""


def named(metrics: Any) -> Any:
    """The metrics of a run by their columns: names become the metrics that they name.

    Args:
        metrics: names, or metrics and names by the name of their column; anything else stays as it is

    Raises RecipeError for a name that no metric has.
    """
    if isinstance(metrics, list | tuple) and all(isinstance(name, str) for name in metrics):
        metrics = {name.lower(): name for name in metrics}
    if not isinstance(metrics, Mapping):
        return metrics
    return {
        column: (_named(f[0]), *f[1:]) if isinstance(f, tuple) and f else _named(f) for column, f in metrics.items()
    }


def _named(metric: Any) -> Any:
    """The metric of this name; any other value unchanged."""
    if not isinstance(metric, str):
        return metric
    if metric.lower() not in METRICS:
        raise RecipeError.unknown(metric, METRICS, "run(metrics=...)", in_recipe=False)
    kind = METRICS[metric.lower()]
    return kind() if isinstance(kind, type) else kind


public(__name__)
