"""Puts the data of a user's own clients into one data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family, Place
from ..datasets import Dataset
from ..datasets.checks import refuse_other_form
from ..rows.lazy import joined
from .alike import check_bytes, common_classes, common_features, common_scaling
from .client_rows import FILE, ClientRows, refuse_by_client
from .labels import stored, takes_missing


def pooled(
    problem: Family,
    clients: Iterable[Any],
    test: Any,
    classes: int | None,
    whole: tuple[str, str | None] | None = None,
) -> tuple[Dataset, list[int]]:
    """One data set of the clients' rows in order, and the number of rows of each.

    Args:
        problem: the model, for the labels that it accepts
        clients: each client's rows, in one of the forms of `ClientRows.of`
        classes: the number of classes; None counts the labels that occur
        whole: if these are rows to divide: what errors call them, and a column that is not an input, or None

    ``test_keys["client"]`` has the client's id for each test row that belongs to a client. Raises BadData, naming
    client, row and column, for data that cannot be used.
    """
    listed = _listed(clients)
    places = [Place.of(i) if whole is None else Place(whole[0]) for i in range(len(listed))]
    aside = None if whole is None else whole[1]
    refuse_by_client(test)
    check_bytes(listed, test, places)
    features, columns = common_features(listed, test, aside, places)
    scaling = common_scaling(listed, test, places)
    classes, named = common_classes(listed, test, classes, places)
    missing = takes_missing(problem)
    rows = [ClientRows.of(client, place, aside, columns, missing) for client, place in zip(listed, places, strict=True)]
    first = rows[0]
    for r, place in zip(rows[1:], places[1:], strict=True):
        refuse_other_form((r.X, r.y.values), (first.X, first.y.values), place, f"those of {places[0]}")
    shared = None if test is None else ClientRows.of_tests(test, (first.X, first.y.values), aside, columns, missing)
    tests = {i: (r.X_test, r.y_test) for i, r in enumerate(rows) if r.X_test is not None and r.y_test is not None}
    if tests and shared is not None:
        raise BadData("Federation(test=...): clients have their own test rows; pass either those or test=")
    test_sets = [*tests.values()] if shared is None else [(shared.X, shared.y)]
    parts = [*(r.y for r in rows), *(y for _, y in test_sets)]
    ys, classes, labels = stored(problem, parts, classes, first.X, named)
    X = joined([r.X for r in rows])
    data = Dataset(
        X,
        joined(ys[: len(rows)]),
        joined([X for X, _ in test_sets]) if test_sets else None,
        joined(ys[len(rows) :]) if test_sets else None,
        classes=classes,
        name="own data",
        weights=_weights(rows),
        test_keys={"client": np.repeat([*tests], [len(X) for X, _ in test_sets])} if tests else {},
        labels=labels,
        features=features if X.shape[1:] == (len(features),) else (),
        scaling=scaling,
        inferred=bool(labels) and not named,
        missing=missing,
    )
    return data, [len(r.X) for r in rows]


def _listed(clients: Any) -> list[Any]:
    """The clients' values. Raises BadData for no list of them."""
    if not isinstance(clients, Iterable) or isinstance(clients, str):
        raise BadData(f"Federation(clients={clients!r}): {FILE * isinstance(clients, str)}give a list of pairs (X, y)")
    if isinstance(clients, tuple) and clients and hasattr(clients[0], "shape"):
        raise BadData("Federation(clients=(X, y)): it is one pair; give a list, [(X, y)] for one client")
    listed = [*clients]
    if not listed:
        raise BadData("Federation(clients=[]): there are no clients")
    return listed


def _weights(rows: Sequence[ClientRows]) -> Tensor | None:
    """The weights of all rows; None without weights. Raises BadData if only some clients have weights."""
    weights = [r.w for r in rows if r.w is not None]
    if weights and len(weights) < len(rows):
        raise BadData(
            "Federation(clients=...): only some clients' rows have weights; give weights to all clients, or to none"
        )
    return torch.cat(weights) if weights else None
