"""Checks the data of a user's own clients and puts it into one data set."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family, RecipeError, with_names
from ..datasets import Dataset
from ..datasets.arrays import as_tensor, names_of
from ..datasets.checks import refuse_other_targets
from ..datasets.folders import refuse_parts
from ..datasets.sources import as_key, features_of, is_items, is_table, pair_of
from ..rows.columns import differ, in_order
from ..rows.fields import described, layout, tensors
from ..rows.lazy import Lazy, joined
from ..rows.sparse import Sparse, not_finite
from .client_labels import Canonical, all_labels, counted, in_tests, numbered_labels, renumbered, signed_labels

log = logging.getLogger("medley")

WHOLE = "Federation(data=...)"
"""The name of a user's data in errors, if it does not come from their own clients."""


class OwnRows(NamedTuple):
    """One client's rows: X [n, ...], y [n, ...], weights [n] or None, and test rows or None."""

    X: Tensor
    y: Tensor
    w: Tensor | None
    X_test: Tensor | None
    y_test: Tensor | None


def pooled(
    problem: Family,
    clients: Sequence[Any],
    test: Any,
    classes: int | None,
    aside: str | None = None,
    called: Sequence[str] = (),
) -> tuple[Dataset, list[int]]:
    """One data set of the clients' rows in order, and the number of rows of each.

    Args:
        problem: the model, for the labels that it accepts
        clients: each client's (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter with weights
        classes: the number of classes; None counts the labels that occur
        aside: a column of other libraries' data sets that is not an input; default none
        called: the name of each client in errors about its data set, also during the run; default "client 0", ...

    ``test_keys["client"]`` has the client's id for each test row that belongs to a client. Raises BadData, naming
    client, row and column, for data that cannot be used.
    """
    if not isinstance(clients, Iterable):
        raise BadData(f"Federation(clients={clients!r}): give a list of pairs (X, y)")
    if not (clients := list(clients)):
        raise BadData("Federation(clients=[]): there are no clients")
    _check_bytes(clients, test)
    features, wanted = _features(clients, test, aside)
    said = called or [f"client {i}" for i in range(len(clients))]
    clients = [_pair_of(i, given, aside, said[i], wanted) for i, given in enumerate(clients)]
    test = _pair_of(None, test, aside, "Federation(test=...)", wanted)
    clients, test, names = numbered_labels(clients, test)
    canonical: Canonical = (lambda y, _: y) if names else problem.canonical
    rows = [_rows(i, given) for i, given in enumerate(clients)]
    _check_alike(rows)
    sizes = [len(r.X) for r in rows]
    X_test, y_test = _test(canonical, test, classes, rows[0].y)
    owner: dict[str, np.ndarray] = {}
    if tested := [i for i, r in enumerate(rows) if r.X_test is not None]:
        if test is not None:
            raise BadData("Federation(test=...): clients have their own test rows; pass either those or test=")
        X_test, y_test, owner = _own_tests(canonical, rows, tested, classes)
    given = joined([r.y for r in rows])
    y = all_labels(canonical, given, sizes, classes, rows[0].X)
    numbered: Callable[[Tensor], bool] = getattr(problem, "labelled", lambda y: not y.is_floating_point())
    if classes is None and (names or numbered(y)):
        classes = counted(y, y_test, sizes, owner.get("client"), getattr(problem, "ignore_index", None))
    X = joined([r.X for r in rows])
    return Dataset(
        X,
        y,
        X_test,
        y_test,
        classes=classes,
        name="own data",
        weights=_weights(rows),
        test_keys=owner,
        labels=names or signed_labels(problem, given, classes),
        features=features if layout(X) == (len(features),) else (),
    ), sizes


def _weights(rows: Sequence[OwnRows]) -> Tensor | None:
    """The weights of all rows; None without weights. Raises BadData if only some clients have weights."""
    weights = [r.w for r in rows if r.w is not None]
    if weights and len(weights) < len(rows):
        raise BadData(
            "Federation(clients=...): only some clients' rows have weights; give weights to all clients, or to none"
        )
    return torch.cat(weights) if weights else None


def _check_alike(rows: Sequence[OwnRows]) -> None:
    """Raise BadData, naming the client, for rows or targets of another shape than the first client's."""
    for i, (X, y, *_) in enumerate(rows):
        if layout(X) != layout(rows[0].X):
            raise BadData(
                f"client {i} has rows of shape {described(X)}, but client 0 of {described(rows[0].X)}: all must agree",
                client=i,
            )
        refuse_other_targets(y, rows[0].y, f"client {i}", "client 0", i)


def _check_bytes(clients: Sequence[Any], test: Any) -> None:
    """Raise BadData, naming the client, if some rows are bytes and others floats, usually bytes divided by 255."""
    pairs = [*enumerate(clients), (None, test)]
    found: dict[str, tuple[str, int | None]] = {}
    for i, given in pairs:
        for k, part in ((0, "X"), (2, "X_test")):
            if isinstance(given, tuple | list) and len(given) > (3 if k else 0):
                kind = str(getattr(given[k], "dtype", "")).removeprefix("torch.")
                whose = "the test" if i is None else f"client {i}'s"
                found.setdefault("floats" if "float" in kind else kind, (f"{whose} {part}", i))
    if "floats" in found and "uint8" in found:
        (what, client), (other, _) = found["uint8"], found["floats"]
        raise BadData(
            f"{what} is uint8, from 0 to 255, and {other} has floats; give all rows on one scale and in one dtype, "
            "such as (X / 255).astype('float32')",
            client=client,
        )


def _features(clients: Sequence[Any], test: Any, aside: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the features, empty if any client has arrays; and the first names that any client has.

    Raises BadData, naming the client, for frames with other columns, and for an array beside frames with names: its
    columns may be in another order.
    """
    own = [(f"client {i}", features_of(given, aside)) for i, given in enumerate(clients)]
    tests = [(f"client {i}'s X_test", names_of(g[2])) for i, g in enumerate(clients) if isinstance(g, tuple) and g[3:]]
    whole = [*own, *tests, ("Federation(test=...)", features_of(test, aside))]
    first = next((names for _, names in own if names), ())
    for what, names in whole:
        if names and first and (said := differ(names, first)):
            raise BadData(f"{what} {said}, of the columns {', '.join(first)}; give all clients the same columns")
    bare = [i for i, (_, names) in enumerate(own) if not names and isinstance(clients[i], tuple | list)]
    if bare and first != tuple(map(str, range(len(first)))):
        raise BadData(
            f"client {bare[0]}'s X has no names of columns, and other clients' have: {', '.join(first[:8])}"
            f"{', ...' if first[8:] else ''}; give a frame with these columns, or X.to_numpy() at every client",
            client=bare[0],
        )
    return first if all(names for _, names in own) else (), first


def named_clients(clients: Any) -> tuple[Any, tuple[str, ...]]:
    """The clients' data as a list, and the clients' names; no names if ``clients`` is not a mapping."""
    if not isinstance(clients, Mapping):
        return clients, ()
    names = tuple(str(name).strip() for name in clients)  # as in a column of names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadData(
            f"Federation(clients=...): two clients are called {twice!r}; names are "
            "compared as text without spaces at their ends, so rename one"
        )
    return list(clients.values()), names


@contextlib.contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """A context in which errors about clients' data name the clients instead of giving their numbers."""
    try:
        yield
    except BadData as e:
        e.args = (with_names(str(e), names),)
        raise


def whole_data(problem: Family, data: Any, test: Any, classes: int | None, key: str | None) -> Any:
    """``data`` with its test rows as a data set, if it is a pair (X, y), a frame or another library's data set.

    Args:
        problem: the model, for the labels that it accepts
        data: what the user passed; a data set, None and other values are returned unchanged
        classes: the number of classes; None counts the labels that occur
        key: the column that names each row's client, or None

    Raises RecipeError for a mapping of splits, and for test rows if ``data`` already has some.
    """
    if isinstance(data, Mapping):
        raise RecipeError(
            f"Federation(data=...) has the parts {', '.join(map(str, data))}; pass one, as data=parts['train'], "
            "test=parts['test']",
            "data",
        )
    if is_items(data) or (isinstance(data, tuple) and len(data) in (2, 3)):
        keys = {} if key is None or isinstance(data, tuple) else {key: as_key(data, key)}
        try:
            made, _ = pooled(problem, [data], test, classes, key, (WHOLE,))
        except BadData as e:  # there are no clients yet
            e.args, e.client = (re.sub(r"\bclient 0\b", lambda _: WHOLE, str(e)),), None
            raise
        return replace(made, keys=keys)
    if test is None or not isinstance(data, Dataset):
        return data
    if data.X_test is not None:
        raise RecipeError("Federation(test=...): the data set already has test rows; leave one of them out", "test")
    if isinstance(test, Dataset):
        return _joined(data, test.ordered(data.features, "Federation(test=...)"))
    rows = _test(problem.canonical, _raw(data, test, key), data.classes, data.y)
    return replace(data, X_test=rows[0], y_test=rows[1])


def _raw(data: Dataset, test: Any, key: str | None) -> Any:
    """Raw test rows (X, y) prepared like ``data``: a frame's columns by name, scaled, and with numbered labels."""
    where = "Federation(test=...)"
    named = bool(features_of(test, key)) and bool(data.features)
    if named and (said := differ(features_of(test, key), data.features)):
        raise BadData(f"{where} {said}; give the columns of the training rows")
    table = is_table(test)
    pair = _pair_of(None, test, key, where, data.features if named else ())
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return pair
    X, y = pair
    if data.scaling is not None and named:
        X = data.scaling(as_tensor(X, "the test X"))
    elif data.scaling is not None:
        log.warning(
            "%s: the training rows are standardised; Medley assumes that these rows are already scaled in the same way",
            where,
        )
    return X, renumbered(y, data, table, where)


def _joined(data: Dataset, test: Dataset) -> Dataset:
    """``data`` with the rows of ``test`` as its test rows, labels by their names, and columns for natural clients."""
    y = test.y
    if test.labels != data.labels and (test.labels or data.labels != (*range(data.classes or 0),)):
        unknown = [repr(name) for name in test.labels if name not in data.labels]
        if unknown or not test.labels:
            raise BadData(
                f"Federation(test=...) has the labels {', '.join(unknown) or 'of numbers'}, but the training rows have "
                f"{', '.join(map(repr, data.labels)) or 'numbers'}; give both the same kind of labels, without new "
                "ones in test="
            )
        y = torch.tensor([data.labels.index(name) for name in test.labels])[y]
    if (data.scaling is not None or test.scaling is not None) and not _same_scale(data, test):
        raise BadData(
            "Federation(test=...): the training rows are standardised, but the test rows are not, or differently; "
            "give test=rows.standardise(like=data)"
        )
    keys = {name: test.keys[name] for name in data.keys if name in test.keys}
    return replace(data, X_test=test.X, y_test=y, test_keys=keys)


def _same_scale(data: Dataset, test: Dataset) -> bool:
    return data.scaling is not None and data.scaling.same(test.scaling)


def _rows(i: int, given: Any) -> OwnRows:
    """Client i's rows, checked."""
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= 5:
        raise BadData(
            f"client {i}: give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the "
            "latter and weights",
            client=i,
        )
    X, y = _pair(i, given[0], given[1], "")
    if len(X) == 0:
        raise BadData(f"client {i} has no rows; leave it out", client=i)
    X_test = y_test = None
    if len(given) > 3 and (given[2] is None) != (given[3] is None):
        raise BadData(f"client {i}: pass both X_test and y_test, or None for both", client=i)
    if len(given) > 3 and given[2] is not None and len(given[2]):
        X_test, y_test = _pair(i, given[2], given[3], "_test")
        refuse_other_targets(y_test, y, f"client {i}'s test set", "its training rows", i)
        if layout(X_test) != layout(X):
            raise BadData(
                f"client {i} has test rows of shape {described(X_test)}, but rows of {described(X)}: both must agree",
                client=i,
            )
    if len(given) in (2, 4):
        return OwnRows(X, y, None, X_test, y_test)
    w = as_tensor(given[-1], f"client {i}'s weights", i).double()
    if w.shape != y.shape[:1] or not bool(((w >= 0) & w.isfinite()).all()):
        raise BadData(f"client {i}: give one weight per row, finite and at least 0", client=i)
    return OwnRows(X, y, w, X_test, y_test)


def _pair_of(i: int | None, given: Any, aside: str | None, called: str, features: Sequence[str]) -> Any:
    """Inputs and targets of client i's data set of another library, or its tuple of arrays; columns by these names."""
    try:
        if is_items(given):
            return pair_of(given, called, aside, features)
    except BadData as e:
        e.client = i
        raise
    if isinstance(given, Mapping):
        refuse_parts([*map(str, given)], f"{called} has {{}}")
    if isinstance(given, tuple | list):
        _check_index(i, given, called)
    if not features or not isinstance(given, tuple | list):
        return given
    return tuple(in_order(v, features) if k in (0, 2) and names_of(v) else v for k, v in enumerate(given))


def _check_index(i: int | None, given: Sequence[Any], called: str) -> None:
    """Raise BadData if the pandas indices of X and of the targets have the rows in different orders."""
    for k, v in enumerate(given):
        X = given[2 if k == 3 or (k == 2 and len(given) > 3) else 0]
        if not all(hasattr(t, "iloc") for t in (X, v)) or len(X) != len(v) or X.index.equals(v.index):
            continue
        if Counter(X.index) == Counter(v.index):
            row = int(np.flatnonzero(X.index != v.index)[0])
            raise BadData(
                f"{called}: row {row} of X has the index {X.index[row]}, but row {row} "
                f"of {'y' if k in (1, 3) else 'the weights'} has {v.index[row]}; Medley pairs rows by position, so "
                "pass y.loc[X.index], or reset_index(drop=True) of both if the positions are right",
                client=i,
                row=row,
            )


def _pair(i: int, X: Any, y: Any, part: str) -> tuple[Tensor, Tensor]:
    """Client i's inputs and targets as tensors, checked; ``part`` is the suffix of their names."""
    X, y = as_tensor(X, f"client {i}'s X{part}", i), as_tensor(y, f"client {i}'s y{part}", i, labels=True)
    if X.ndim < 2 or not y.ndim or len(X) != len(y):
        remedy = "X[:, None] for one feature" if X.numel() == y.numel() else "(X[None], y[None]) for one row"
        raise BadData(
            f"client {i}: X{part} is {list(X.shape)} and y{part} is {list(y.shape)}; give one row per sample in both"
            f"{f', so {remedy}' if X.ndim == 1 else ''}",
            client=i,
        )
    if 0 in X.shape[1:]:
        raise BadData(f"client {i}: X{part} is {list(X.shape)}, rows without columns; give at least one", client=i)
    for t, name in tensors(X, ""):
        check_finite(t, i, f"{name} column".strip())
    check_finite(y[:, None] if y.ndim == 1 else y, i, "target")
    return X, y


def _own_tests(
    canonical: Canonical, rows: Sequence[OwnRows], tested: Sequence[int], classes: int | None
) -> tuple[Tensor, Tensor, dict[str, np.ndarray]]:
    """The test rows of the clients ``tested``, in order, with each row's client as a key."""
    Xs = [X for i in tested if (X := rows[i].X_test) is not None]
    y = joined([y for i in tested if (y := rows[i].y_test) is not None])
    owner = np.repeat(tested, [len(X) for X in Xs])
    try:
        return joined(Xs), canonical(y, classes), {"client": owner}
    except BadData as e:
        if e.row is None:
            raise
        raise in_tests(e, e.row, owner) from None


def _test(
    canonical: Canonical, test: tuple[Any, Any] | None, classes: int | None, like: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Test rows, checked; their targets have the form of the training rows' targets ``like``."""
    if test is None:
        return None, None
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise BadData("Federation(test=...): give a pair (X, y); if data= is a data set, test= may be one too")
    X, y = (as_tensor(t, f"the test {k}", labels=k == "y") for t, k in zip(test, "Xy", strict=True))
    if not len(X) or not len(y):
        raise BadData("Federation(test=...): there are no rows; leave test= out")
    refuse_other_targets(y, like, "the test set", "the training rows")
    try:
        return X, canonical(y, classes)
    except BadData as e:
        raise BadData(f"the test set: {e}", row=e.row) from None


def check_finite(t: Tensor, client: int, what: str) -> None:
    """Raise BadData for nan and infinity, naming the client and the first row with one."""
    if isinstance(t, Lazy) or not t.is_floating_point() or bool(torch.isfinite(t.sum())):
        return
    if (found := not_finite(t if isinstance(t, Sparse) else t.reshape(len(t), -1))) is not None:
        (row, column), value = found
        raise BadData(
            f"client {client} has {value} in row {row}, {what} {column}; remove or fill such rows first",
            client=client,
            row=row,
            column=column,
        )
