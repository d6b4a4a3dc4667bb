"""Labels of a user's own clients: numbers text labels, then checks and counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family
from ..datasets import Dataset
from ..datasets.arrays import is_text, numbered, refuse_mixed, text_labels
from ..problems import Logistic
from ..rows.fields import Fields

Canonical = Callable[[Tensor, int | None], Tensor]
"""(labels y, number of classes or None) -> the labels as data sets store them; for example `Family.canonical`."""

PLACES = (1, 3)
"""The positions of y and y_test in a client's tuple."""


def numbered_labels(clients: Sequence[Any], test: Any) -> tuple[list[Any], Any, tuple[str, ...]]:
    """Clients and test rows with text labels numbered from 0 in alphabetical order, and the labels' names.

    If no label is text, the labels stay as they are, without names. Raises BadData if only some labels are text, naming
    a client with the rarer kind, and if all labels are the same text.
    """
    whole = [*clients, test]
    called = [*(f"client {i}" for i in range(len(clients))), "the test set"]
    given = {
        (i, k): g[k]
        for i, g in enumerate(whole)
        if isinstance(g, tuple | list)
        for k in PLACES
        if k < len(g) and hasattr(g[k], "__len__") and getattr(g[k], "shape", None) != () and len(g[k]) > 0
    }
    for (i, k), y in given.items():
        refuse_mixed(y, f"{called[i]}'s {'y_test' if k == PLACES[1] else 'y'}", i if i < len(clients) else None)
    if not (names := text_labels(given.values())):
        return list(clients), test, ()
    texts = {i for (i, _), y in given.items() if is_text(y)}
    if others := {i for (i, _), y in given.items() if not is_text(y)}:
        odd, rest = (texts, others) if len(texts) < len(others) else (others, texts)
        kinds = ("texts", "no texts") if odd is texts else ("no texts", "texts")
        i = min(odd)
        raise BadData(
            f"{called[i]} has {kinds[0]} as labels, but {called[min(rest - {i}, default=i)]} has {kinds[1]}; give all "
            "the same kind, such as y.astype(str)",
            client=i if i < len(clients) else None,
        )
    if len(names) == 1:
        raise BadData(f"all labels are {names[0]!r}; there must be at least two")
    made = [
        tuple(numbered(v, names, called[i]) if (i, k) in given else v for k, v in enumerate(g))
        if isinstance(g, tuple | list)
        else g
        for i, g in enumerate(whole)
    ]
    return made[:-1], made[-1], names


def renumbered(y: Any, data: Dataset, raw: bool, where: str) -> Any:
    """Targets of raw test rows, numbered like those of ``data``.

    Args:
        raw: whether they come from a table, so that they are labels; otherwise whole numbers may be labels or class
            numbers

    Raises BadData, naming the row, for a label that the training rows do not have, and for whole numbers that may be
    either.
    """
    labels, numbers = {*data.labels}, {*range(len(data.labels))}
    if labels and labels != numbers and not raw and not is_text(y):
        given = {*np.unique(np.asarray(y)).tolist()}
        raw = bool(given) and given <= labels
        if raw and given <= numbers:
            raise BadData(
                f"{where}: the targets may be the labels {', '.join(map(str, data.labels))}, or their numbers from 0; "
                "pass a frame if they are labels, or a data set, datasets.Dataset(X, y, labels=...)"
            )
    if not labels or not (raw or is_text(y)):
        return y
    places = {str(name): k for k, name in enumerate(data.labels)}
    spelt: Callable[[Any], str] = lambda v: str(int(v) if isinstance(v, float) and v.is_integer() else v)
    found = [places.get(spelt(v)) for v in np.asarray(y).tolist()]
    if None in found:
        row = found.index(None)
        raise BadData(
            f"{where}: row {row} has the label {np.asarray(y)[row]!s}, but the training rows have "
            f"{', '.join(map(repr, data.labels))}; the test rows may have no new labels",
            row=row,
        )
    return np.array(found)


def signed_labels(problem: Family, y: Tensor, classes: int | None) -> tuple[int, ...]:
    """The names −1 and 1 if these targets of a logistic regression are −1 and 1; none if they are 0 and 1."""
    return (-1, 1) if isinstance(problem, Logistic) and classes == 2 and bool((y == -1).any()) else ()


def recorded_labels(problem: Family, data: Dataset) -> dict[str, Any]:
    """Number and names of the classes, as results store them. Whole floats are classes of a logistic regression."""
    classes = 2 if isinstance(problem, Logistic) and data.classes is None else data.classes
    labels = data.labels or signed_labels(problem, data.y, classes)
    return {"classes": classes, **({"labels": list(labels)} if labels else {})}


def all_labels(canonical: Canonical, y: Tensor, sizes: list[int], classes: int | None, X: Tensor) -> Tensor:
    """All clients' labels as data sets store them. Raises BadData, naming the client and its row.

    Args:
        X: rows of one client; if they have several inputs by place, the error says which tensor counted as the label
    """
    try:
        return canonical(y, classes)
    except BadData as e:
        if isinstance(X, Fields) and X.names is None:
            e.args = (
                f"{e}. Of the {len(X.parts) + 1} tensors the last was taken as the label, the others as inputs; if it "
                "has weights of rows, pass the client as (X, y, weights)",
            )
        if e.row is None:
            raise
        raise in_rows(e, e.row, sizes) from None


def counted(
    y: Tensor, y_test: Tensor | None, sizes: list[int], owner: np.ndarray | None, ignored: int | None = None
) -> int:
    """The number of classes. Each class from 0 to the largest label must have rows, and there are two at least.

    Args:
        sizes: rows of each client
        owner: the client of each test row; None if they belong to no client
        ignored: the label in sequences and maps that is not a class, such as padding, or None

    Raises BadData for other labels [n], with the first row of the label after a gap.
    """
    together = y if y_test is None else torch.cat([y.flatten(), y_test.flatten()])
    if y.ndim > 1:  # a few texts or maps may lack some classes
        kept = together if ignored is None else together.masked_fill(together == ignored, 0)
        return max(2, int(kept.max()) + 1)
    found = torch.unique(together)
    if len(found) == 1:
        others = "pass classes= if the others have no rows here"
        raise BadData(f"all labels are {int(found[0])}; there must be at least two: {others}")
    low, high, gaps = int(found[0]), int(found[-1]), (found != torch.arange(len(found))).nonzero()
    if low > 0 and high > 1:
        raise BadData(
            f"the clients' y holds whole numbers, {low} to {high}. If they are labels, number them from 0, or pass "
            "classes= if no client here has 0; if they are values, pass floats, y.astype('float32')"
        )
    if low == 0 and len(gaps):
        missing = int(gaps[0])
        raise _stray(y, y_test, sizes, owner, int(found[missing]), missing)
    return max(2, high + 1)


def _stray(
    y: Tensor, y_test: Tensor | None, sizes: list[int], owner: np.ndarray | None, label: int, missing: int
) -> BadData:
    """The error for a label if no row has the smaller label ``missing``; for the other arguments see `counted`."""
    e = BadData(
        f"its label is {label}, but no row has {missing}. If they are labels, number them from 0 without gaps, or pass "
        "classes= if some classes have no rows; if they are values, pass floats, y.astype('float32')"
    )
    if len(rows := (y == label).nonzero()):
        return in_rows(e, int(rows[0]), sizes)
    assert y_test is not None
    row = int((y_test == label).nonzero()[0])
    return BadData(f"the test set, row {row}: {e}", row=row) if owner is None else in_tests(e, row, owner)


def in_rows(e: BadData, row: int, sizes: list[int]) -> BadData:
    """The error about a row of all clients' rows together, rewritten for its client."""
    client = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
    return _of_client(e, client, row - sum(sizes[:client]), "row")


def in_tests(e: BadData, row: int, owner: np.ndarray) -> BadData:
    """The error about a row of all clients' test rows together, rewritten for its client."""
    client = int(owner[row])
    return _of_client(e, client, row - int(np.argmax(owner == client)), "test row")


def _of_client(e: BadData, client: int, row: int, part: str) -> BadData:
    """The error about a row of all clients' rows together, with the client and the row's number at that client."""
    said = str(e).replace(f"; row {e.row} has", "; it has")
    return BadData(f"client {client}, {part} {row}: {said}", client=client, row=row)
