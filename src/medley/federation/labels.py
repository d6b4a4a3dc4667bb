"""How a problem reads targets: as classes, as values, or as its own loss wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..contract import BadData, Family, Place
from ..datasets import Dataset
from ..datasets.ingest.labels import SOME_LABELS, Coded, Label, RawTargets, code, count_kinds, is_plain, placed
from ..problems import LeastSquares, Logistic, Network, Softmax
from ..problems.network.own_loss import fits_values
from ..rows.fields import Fields
from ..rows.numbers import refuse_inexact
from ..rows.tensors import check_finite


def fits(problem: Family, classes: int = 2) -> Literal["values", "classes", "loss"]:
    """What a problem fits; "loss" if its own loss may take either."""
    if (kind := getattr(problem, "fits", None)) is not None:
        return kind  # type: ignore[no-any-return]
    if isinstance(problem, LeastSquares) or (isinstance(problem, Network) and fits_values(problem.loss, classes)):
        return "values"
    if isinstance(problem, Logistic | Softmax) or getattr(problem, "loss", None) == "cross_entropy":
        return "classes"
    return "loss"


def takes_missing(problem: Family) -> bool:
    """Whether a problem reads NaN in X as a missing value."""
    return getattr(problem, "missing", False) is True


def refuse_missing(problem: Family, missing: bool, place: Place) -> None:
    """Raise BadData for rows that may have missing values, unless the problem reads them."""
    if missing and not takes_missing(problem):
        raise BadData(
            f"the rows may have missing values, which this {type(problem).__name__} does not read; give "
            "problems.Trees(..., missing=True), or fill them in, for example by "
            "medley.statistics.Study(...).prepare(['age: median'])",
            place=place,
        )


def numbered(problem: Family, parts: Sequence[RawTargets], classes: int | None, named: Sequence[Label] = ()) -> Coded:
    """Targets of all clients' training and test rows, as the problem reads them, numbered together.

    Raises BadData, naming client and row, for labels that the problem does not take, and if all rows have one label.
    """
    text = any(p.are_text for p in parts)
    plain = not text and all(p.values.ndim == 1 for p in parts if p.values.size)
    kind = fits(problem)
    if kind == "loss" and plain and all(p.values.dtype.kind in "biu" for p in parts):
        kind = fits(problem, count_kinds([p.values for p in parts if p.values.size]))
    if kind == "values" and not text:
        for p in parts:
            refuse_inexact(p.values, p.place)
        return Coded(as_values(problem, [p.tensor() for p in parts]))
    if kind == "loss" and plain and any(p.values.size and p.values.min() < 0 for p in parts):
        return Coded([p.tensor() for p in parts])  # its loss may ignore these
    padding = getattr(problem, "ignore_index", None)
    for p in parts if plain and padding is not None else ():
        bad = p.values == padding
        if bad.any():
            message = (
                f"{type(problem).__name__}(ignore_index={padding}) is for sequences and maps, and these rows have one "
                "label each; leave out the rows without a label, X[y != ignore_index]"
            )
            raise p.refuse(int(bad.argmax()), message)
    signed = isinstance(problem, Logistic) and plain and any((p.values == -1).any() for p in parts)
    class_count = None if signed and classes == 2 else classes
    coded = code(
        parts, None if named else class_count, named if text else (), floats="whole" if kind == "classes" else "values"
    )
    if named and not text:
        return _placed(coded, named)
    if coded.classes is not None and class_count is None:
        refuse_other_number(coded.labels, classes)
    return coded


def _placed(coded: Coded, named: Sequence[Label]) -> Coded:
    """Numbers by their places among the names of all classes. Raises BadData for a label that has none."""
    others = [v for v in coded.labels if v not in named]
    if others:
        raise BadData(f"the label {others[0]!r} is not among labels={(*named,)}, as a client's data set names them")
    return Coded([placed(y, coded.labels, named) for y in coded.parts], len(named), tuple(named))


def stored(
    problem: Family, parts: Sequence[RawTargets], classes: int | None, X: Tensor, named: Sequence[Label] = ()
) -> tuple[list[Tensor], int | None, tuple[Any, ...]]:
    """All targets as data sets store them, the number of classes, and their names if they are not 0..classes-1.

    Args:
        named: the names of all classes, if the user says them
        X: rows of one client; if they have several inputs by place, an error says which tensor counted as the label
    """
    try:
        coded = numbered(problem, parts, classes, named)
        labels = () if is_plain(coded.labels) else coded.labels
        ys = coded.parts
        if not labels:
            ys = [_canonical(problem, y, p.place, coded.classes or classes) for y, p in zip(ys, parts, strict=True)]
    except BadData as e:
        if not isinstance(X, Fields) or X.names is not None or e.stands is None:
            raise
        message = f"Of the {len(X.parts) + 1} tensors the last was taken as the label, the others as inputs; if it "
        message += "has weights of rows, pass the client as (X, y, weights)"
        raise BadData(f"{e.stands[1]}. {message}", place=e.stands[0]) from None
    is_labelled: Callable[[Tensor], bool] = getattr(problem, "labelled", lambda y: not y.is_floating_point())
    if not labels and (classes is not None or not is_labelled(ys[0])):
        return ys, classes, ()
    if coded.classes is None:  # a few texts or maps may lack some classes
        ignored = getattr(problem, "ignore_index", None)
        most = max(int((y if ignored is None else y.masked_fill(y == ignored, 0)).max()) for y in ys if y.numel())
        return ys, max(2, most + 1), ()
    return ys, coded.classes, labels


def _canonical(problem: Family, y: Tensor, place: Place, classes: int | None) -> Tensor:
    """Targets as data sets store them. Raises BadData, naming client and row."""
    try:
        y = problem.canonical(y, classes)
    except BadData as e:
        raise e.at(place.at(e.row) if e.row is not None else replace(place, column=None)) from None
    check_finite(y, place)
    return y


def as_values(problem: Family, ys: Sequence[Tensor]) -> list[Tensor]:
    """Numbers of all parts, each [n] or [n, ...], as the values that a problem fits.

    Medley decides over all rows together whether whole numbers look like classes, because one client or the test rows
    may have only some of the classes. Raises BadData if they do.
    """
    if all(y.ndim == 1 and not y.is_floating_point() for y in ys):
        joined = problem.canonical(torch.cat([*ys]), None)
        values = [y.clone() for y in torch.split(joined, [len(y) for y in ys])]
    else:
        values = [problem.canonical(y, None) for y in ys]
    return [y if y.is_floating_point() else y.float() for y in values]


def refuse_other_number(labels: Sequence[Any], classes: int | None) -> None:
    """Raise BadData if all rows have the same label or, if ``classes`` is given, if they have another number of
    labels.
    """
    if classes is not None and len(labels) != classes:
        message = f"classes={classes}, and the rows have the labels {', '.join(map(repr, labels[:8]))}"
        raise BadData(f"{message}; {SOME_LABELS}")
    if len(labels) == 1:
        others = SOME_LABELS if isinstance(labels[0], str) else "pass classes= if the others have no rows here"
        raise BadData(f"all labels are {labels[0]!r}; there must be at least two: {others}")


def refuse_renumbered(data: Dataset, call: str) -> None:
    """Raise BadData if the labels that happen to occur have other numbers than their own, for a model that is trained.

    Its outputs have classes already, and these rows may lack some.
    """
    if data.inferred and data.classes and data.labels and set(data.labels) != {False, True}:
        shown = ", ".join(map(repr, data.labels[:8])) + (", …" if data.labels[8:] else "")
        raise BadData(
            f"{call} begins at trained weights, whose outputs stand for classes already, but the labels {shown} would "
            "be numbered as they occur in these rows; pass classes= if labels are the outputs' numbers, or "
            "Dataset(X, y, labels=...) with all names in the order of the outputs"
        )


def recorded_labels(problem: Family, data: Dataset) -> dict[str, Any]:
    """Number and names of the classes, as results store them. Whole floats are classes of a logistic regression."""
    classes = 2 if isinstance(problem, Logistic) and data.classes is None else data.classes
    signed = isinstance(problem, Logistic) and classes == 2 and bool((data.y == -1).any())
    labels = data.labels or ((-1, 1) if signed else ())
    return {"classes": classes, **({"labels": list(labels)} if labels else {})}
