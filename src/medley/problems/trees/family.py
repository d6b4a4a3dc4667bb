"""`Trees`: gradient-boosted trees before they have seen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...contract import BadData, Data, Place, Problem, RecipeError
from ...numerics.forest import LOSSES, Layout
from ...rows.fields import Fields, described
from ...rows.sparse import Sparse
from ..labels import refuse_classes
from .loss import LIKE, TreesLoss
from .problem import TreesProblem


@dataclass(frozen=True)
class Trees(TreesLoss):
    """Gradient-boosted trees, which `medley.Boost` grows from sums over clients: one for each output and round.

    Attributes:
        loss: "squared", ½(F − y)²; "logistic", two classes; "softmax", several; "poisson", exp(F) − yF for counts y,
            with F the logarithm of the rate
        trees: rounds for which the vector has room; `Boost` needs as many rounds, or fewer
        depth: levels of splits in a tree
        missing: whether NaN in X is a missing value, for which each split learns the side; otherwise NaN is refused
    """

    @property
    def fits(self) -> Literal["values", "classes"]:
        """What targets are."""
        return "classes" if self.classification else "values"

    def ready(self, X: Data, y: Data, classes: int | None, dtype: torch.dtype | None, device: str) -> Problem:
        """The problem for X's columns, in float32 by default.

        Raises BadData unless X is [rows, columns], dense, and y is [rows], and RecipeError for another device.
        """
        if isinstance(X, Fields | Sparse):
            what = f"several inputs per row ({described(X)})" if isinstance(X, Fields) else "sparse rows"
            raise BadData(f"Trees needs X as one dense table [rows, columns], not {what}; join or fill it in first")
        if X.ndim != 2 or y.ndim != 1:
            name, t, form = ("X", X, "[rows, columns]") if X.ndim != 2 else ("y", y, "[rows]")
            raise BadData(f"Trees needs {name} as {form}, but this {name} is {list(t.shape)}; flatten it first")
        if device != "cpu":
            raise RecipeError(f"run(device={device!r}): trees grow on the CPU; leave device= out", "device")
        if self.loss == "logistic" and (classes or 2) != 2:
            raise BadData(f"Trees('logistic') has two classes, and these rows have {classes}; use Trees('softmax')")
        outputs = LIKE["softmax"].width(classes) if self.loss == "softmax" else 1
        layout = Layout(X.shape[1], outputs, self.trees, self.depth, LOSSES.index(self.loss), int(self.missing))
        return TreesProblem(self, layout, classes, dtype or torch.float32)

    def canonical(self, y: Data, classes: int | None) -> Data:
        """Labels in the form that data sets have: int64 of classes, or floats."""
        if not self.classification:
            return self.targets(y, classes)
        self._refuse_third(y)
        return LIKE[self.loss].canonical(y, classes)

    def _refuse_third(self, y: Data) -> None:
        """Raise BadData with the first label that is not one of two, if there are to be two."""
        bad = ~torch.isin(y, torch.tensor([-1, 0, 1], dtype=y.dtype))
        if self.loss == "logistic" and bad.any():
            row = int(bad.nonzero()[0])
            raise BadData(
                f"Trees('logistic') has two classes, 0 and 1, but this label is {y[row].item():g}; use "
                "Trees('softmax') for more of them",
                place=Place(row=row),
            )

    def targets(self, y: Data, classes: int | None) -> Data:
        """Labels as the loss takes them: 0 and 1, 0..C−1, or floats. Raises BadData with the first bad row."""
        if self.classification:
            self._refuse_third(y)
            labels = LIKE[self.loss].targets(y, classes)
            return (labels > 0).float() if self.loss == "logistic" else labels
        if self.loss == "poisson":
            if (y < 0).any():
                row = int((y < 0).nonzero()[0])
                raise BadData(f"Trees('poisson') needs counts, but this is {y[row].item():g}", place=Place(row=row))
            return y.float() if not y.is_floating_point() else y
        refuse_classes(y, "Trees('squared')")
        return y.float() if not y.is_floating_point() else y

    def settings(self) -> dict[str, Any]:
        """The model's name and shape, for the record."""
        settings = {"problem": "Trees", "loss": self.loss, "trees": self.trees, "depth": self.depth}
        return settings | ({"missing": True} if self.missing else {})
