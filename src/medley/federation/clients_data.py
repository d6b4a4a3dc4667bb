"""Puts the data of a user's own clients into one data set."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family, Place, RecipeError, name_clients
from ..datasets import Dataset
from ..datasets.checks import refuse_other_targets, weights_of
from ..datasets.ingest.keys import client_names
from ..datasets.ingest.labels import RawTargets, is_plain, raw, warn_of_missing
from ..datasets.ingest.raw import as_key, features_of, is_items, is_table, pair_of, target_of
from ..datasets.readers.folders import refuse_parts
from ..rows.columns import TARGETS, cells, columns_of, differ, in_order, is_frame, names_of
from ..rows.fields import Fields, described, layout
from ..rows.lazy import joined
from ..rows.tensors import as_tensor, check_finite
from .alike import TEST, check_bytes, check_index, common_features
from .labels import joined_tests, numbered

log = logging.getLogger("medley")

WHOLE = "Federation(data=...)"
"""The name of a user's data in errors, if it does not come from their own clients."""

FORMS = "give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter and weights"


class ClientData(NamedTuple):
    """One client's rows: X [n, ...], targets, weights [n] or None, and test rows or None."""

    X: Tensor
    y: RawTargets
    w: Tensor | None = None
    X_test: Tensor | None = None
    y_test: RawTargets | None = None


def pooled(
    problem: Family,
    clients: Sequence[Any],
    test: Any,
    classes: int | None,
    names: Sequence[str] = (),
    whole: tuple[str, str | None] | None = None,
) -> tuple[Dataset, list[int]]:
    """One data set of the clients' rows in order, and the number of rows of each.

    Args:
        problem: the model, for the labels that it accepts
        clients: each client's (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter with weights
        classes: the number of classes; None counts the labels that occur
        names: the clients' names, in errors
        whole: if these are rows to divide: what errors call them, and a column that is not an input, or None

    ``test_keys["client"]`` has the client's id for each test row that belongs to a client. Raises BadData, naming
    client, row and column, for data that cannot be used.
    """
    if not isinstance(clients, Iterable) or isinstance(clients, str):
        raise BadData(f"Federation(clients={clients!r}): {_of_text(clients)}give a list of pairs (X, y)")
    if isinstance(clients, tuple) and clients and hasattr(clients[0], "shape"):
        raise BadData("Federation(clients=(X, y)): it is one pair; give a list, [(X, y)] for one client")
    if not (clients := list(clients)):
        raise BadData("Federation(clients=[]): there are no clients")
    places = [Place.of(i, names) if whole is None else Place(whole[0]) for i in range(len(clients))]
    aside = None if whole is None else whole[1]
    clients = [_taken_apart(given) for given in clients]
    refuse_by_client(test)
    test = _taken_apart(test)
    check_bytes(clients, test, places)
    features, wanted = common_features(clients, test, aside, places)
    rows = [_rows(p, _pair_of(p, given, aside, wanted)) for p, given in zip(places, clients, strict=True)]
    for r, place in zip(rows[1:], places[1:], strict=True):
        _check_alike(r, rows[0], place)
    shared = _test(None if test is None else _test_pair(test, aside, wanted), rows[0])
    owned = [i for i, r in enumerate(rows) if r.y_test is not None]
    if owned and shared is not None:
        raise BadData("Federation(test=...): clients have their own test rows; pass either those or test=")
    tests = [shared] if shared is not None else [rows[i] for i in owned]
    Xs = [X for t in tests if (X := t.X_test if owned else t.X) is not None]
    parts = [*(r.y for r in rows), *(y for t in tests if (y := t.y_test if owned else t.y) is not None)]
    ys, classes, labels = _targets(problem, parts, classes, rows[0].X)
    sizes = [len(r.X) for r in rows]
    X = joined([r.X for r in rows])
    owner = {"client": np.repeat(owned, [len(X) for X in Xs])} if owned else {}
    return Dataset(
        X,
        joined(ys[: len(rows)]),
        joined(Xs) if Xs else None,
        joined(ys[len(rows) :]) if Xs else None,
        classes=classes,
        name="own data",
        weights=_weights(rows),
        test_keys=owner,
        labels=labels,
        features=features if layout(X) == (len(features),) else (),
        inferred=bool(labels),
    ), sizes


def _targets(
    problem: Family, parts: Sequence[RawTargets], classes: int | None, X: Tensor
) -> tuple[list[Tensor], int | None, tuple[Any, ...]]:
    """All targets as data sets store them, the number of classes, and their names if they are not 0..classes-1.

    Args:
        X: rows of one client; if they have several inputs by place, an error says which tensor counted as the label
    """
    try:
        coded = numbered(problem, parts, classes)
        labels = () if is_plain(coded.labels) else coded.labels
        ys = coded.parts
        if not labels:
            ys = [_canonical(problem, y, p.place, coded.classes or classes) for y, p in zip(ys, parts, strict=True)]
    except BadData as e:
        if not isinstance(X, Fields) or X.names is not None or e.stands is None:
            raise
        said = f"Of the {len(X.parts) + 1} tensors the last was taken as the label, the others as inputs; if it "
        said += "has weights of rows, pass the client as (X, y, weights)"
        raise BadData(f"{e.stands[1]}. {said}", place=e.stands[0]) from None
    if labels:
        warn_of_missing(labels, torch.cat([y.reshape(-1) for y in ys]), "Federation(clients=...)")
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


def _weights(rows: Sequence[ClientData]) -> Tensor | None:
    """The weights of all rows; None without weights. Raises BadData if only some clients have weights."""
    weights = [r.w for r in rows if r.w is not None]
    if weights and len(weights) < len(rows):
        raise BadData(
            "Federation(clients=...): only some clients' rows have weights; give weights to all clients, or to none"
        )
    return torch.cat(weights) if weights else None


def _check_alike(r: ClientData, first: ClientData, place: Place) -> None:
    """Raise BadData, naming the client, for rows or targets of another shape than the first client's."""
    whose = first.y.place.whose
    if layout(r.X) != layout(first.X):
        said = f"rows have the shape {described(r.X)}, but those of {whose} {described(first.X)}: all must agree"
        raise BadData(said, place=place)
    refuse_other_targets(r.y.values, first.y.values, place, f"those of {whose}")


def named_clients(clients: Any) -> tuple[Any, tuple[str, ...]]:
    """The clients' data as a list, and the clients' names; no names if ``clients`` is not a mapping."""
    if not isinstance(clients, Mapping):
        return clients, ()
    return list(clients.values()), client_names(clients, "Federation(clients=...)")


@contextlib.contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """A context in which errors about clients' data name the clients instead of giving their numbers."""
    try:
        yield
    except BadData as e:
        name_clients(e, names)
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
        return replace(pooled(problem, [data], test, classes, whole=(WHOLE, key))[0], keys=keys)
    if test is None or not isinstance(data, Dataset):
        return data
    if data.X_test is not None:
        raise RecipeError("Federation(test=...): the data set already has test rows; leave one of them out", "test")
    refuse_by_client(test)
    X, y, keys = _tests_like(data, test, key)
    rows = _test((X, y), ClientData(data.X, RawTargets(data.y.numpy(), Place(data.name))))
    assert rows is not None
    return joined_tests(data, rows.X, rows.y, keys, isinstance(test, Dataset) or is_table(test))


def _tests_like(data: Dataset, test: Any, key: str | None) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Test rows of any kind with the columns and the scale of ``data``, targets as the user has them, and keys."""
    if isinstance(test, Dataset):
        test = test.ordered(data.features, str(TEST))
        if (data.scaling is not None or test.scaling is not None) and not (
            data.scaling is not None and data.scaling.same(test.scaling)
        ):
            raise BadData(
                "the training rows are standardised, but the test rows are not, or differently; "
                "give test=rows.standardise(like=data)",
                place=TEST,
            )
        return test.X, raw(test.y, test.labels), {name: test.keys[name] for name in data.keys if name in test.keys}
    columns = columns_of(test, str(TEST)) if is_table(test) else {}
    coding = None if data.scaling is None or not columns else data.scaling.coding
    is_raw = coding is not None and ({*coding.names} <= {*columns} or not {*data.features} <= {*columns})
    if is_raw and data.scaling is not None:
        target = target_of(columns, TEST)
        if target is None:
            raise BadData(f"the frame has no column called {', '.join(TARGETS)}; rename the target's", place=TEST)
        y = RawTargets.of(cells(test, columns[target]), TEST.at(column=target))
        return data.scaling.of_table(test, columns, str(TEST)), y, {}
    named = bool(features_of(test, key)) and bool(data.features)
    if named and (said := differ(features_of(test, key), data.features)):
        raise BadData(f"the frame {said}; give the columns of the training rows", place=TEST)
    X, y = _test_pair(test, key, data.features if named else ())
    if data.scaling is not None and named:
        X = data.scaling(as_tensor(X, TEST))
    elif data.scaling is not None:
        log.warning(
            "%s: the training rows are standardised; Medley assumes that these rows are already scaled in the same way",
            TEST,
        )
    return X, y, {}


def _rows(place: Place, given: Any) -> ClientData:
    """A client's rows, checked."""
    if not isinstance(given, tuple | list) or not 2 <= len(given) <= 5:
        raise BadData(_of_text(given) + FORMS, place=place)
    if len(given) == 2 and is_frame(given[1]) and (np.ndim(given[0]) == 0 or isinstance(given[0], tuple)):
        said = "it is a name and a frame, as groupby makes them; give clients=dict(groups), or one frame of all "
        raise BadData(f"{said}clients' rows, datasets.frame(frame, target=..., client=...)", place=place)
    if len(given) == 4 and np.ndim(given[1]) > 1 and np.ndim(given[2]) == 1:
        raise BadData("these look like (X, X_test, y, y_test); give (X, y, X_test, y_test)", place=place)
    X, y = _pair(place, given[0], given[1])
    if len(X) == 0:
        raise BadData("there are no rows; leave it out", place=place)
    X_test = y_test = None
    if len(given) > 3 and (given[2] is None) != (given[3] is None):
        raise BadData("pass both X_test and y_test, or None for both", place=place)
    if len(given) > 3 and given[2] is not None and not _is_empty(given[2]):
        tests = replace(place, part="test")
        X_test, y_test = _pair(tests, given[2], given[3])
        refuse_other_targets(y_test.values, y.values, tests, "those of the training rows")
        if layout(X_test) != layout(X):
            said = f"rows have the shape {described(X_test)}, but training rows {described(X)}: both must agree"
            raise BadData(said, place=tests)
    w = None if len(given) in (2, 4) or given[-1] is None else weights_of(given[-1], len(X), place)
    return ClientData(X, y, w, X_test, y_test)


def _of_text(given: Any) -> str:
    """The remedy if rows are the name of a file; else empty."""
    is_path = isinstance(given, str | Path)
    return "it is a text; read the file, datasets.csv(path, target=..., client=...), or " if is_path else ""


def _taken_apart(given: Any) -> Any:
    """A client's data set as a tuple of arrays, with targets as the user had them; anything else unchanged."""
    if not isinstance(given, Dataset):
        return given
    rows = [given.X, raw(given.y, given.labels)]
    if given.X_test is not None and given.y_test is not None:
        rows += [given.X_test, raw(given.y_test, given.labels)]
    return (*rows, *([] if given.weights is None else [given.weights]))


def _pair_of(place: Place, given: Any, aside: str | None, features: Sequence[str]) -> Any:
    """Inputs and targets of a client's data set of another library, or its tuple of arrays; columns by these names."""
    if is_items(given):
        return pair_of(given, place, aside, features)
    if isinstance(given, Mapping):
        refuse_parts([*map(str, given)], f"{place} has {{}}")
    if isinstance(given, tuple | list):
        check_index(given, place)
    if not features or not isinstance(given, tuple | list):
        return given
    return tuple(in_order(v, features) if k in (0, 2) and names_of(v) else v for k, v in enumerate(given))


def _pair(place: Place, X: Any, y: Any) -> tuple[Tensor, RawTargets]:
    """A client's inputs as a tensor, and its targets, checked."""
    X = as_tensor(X, place)
    if not isinstance(y, RawTargets) and hasattr(y, "__len__") and getattr(y, "shape", None) != ():
        y = RawTargets.of(y, place)
    shape = list(y.values.shape) if isinstance(y, RawTargets) else []
    if X.ndim < 2 or not shape or len(X) != shape[0]:
        remedy = (
            "X[:, None] for one feature"
            if shape and X.numel() == y.values.size
            else "(X, y) in this order"
            if shape[1:] and shape[0] == len(X)
            else "(X[None], y[None]) for one row"
        )
        raise BadData(
            f"X is {list(X.shape)} and y is {shape}; give one row per sample in both"
            f"{f', so {remedy}' if X.ndim == 1 else ''}",
            place=place,
        )
    if 0 in X.shape[1:]:
        raise BadData(f"X is {list(X.shape)}, rows without columns; give at least one", place=place)
    check_finite(X, place)
    return X, y


def _test_pair(given: Any, aside: str | None, features: Sequence[str]) -> Any:
    """Inputs and targets of test rows that belong to no client. Raises BadData for rows of another form."""
    pair = _pair_of(TEST, given, aside, features)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        what = type(given).__name__ + (f" of {len(given)}" if isinstance(given, tuple | list) else "")
        raise BadData(f"its type is {what}; give a pair (X, y), a frame or a data set", place=TEST)
    return pair


def refuse_by_client(test: Any) -> None:
    """Raise BadData for test rows in a mapping by client's name, or in a list of pairs, frames or data sets."""
    if isinstance(test, Mapping):
        refuse_parts([*map(str, test)], f"{TEST} has {{}}")
    kinds = [isinstance(v, tuple | Dataset) or is_items(v) for v in test] if isinstance(test, list) else [False]
    if isinstance(test, Mapping) or (kinds and all(kinds)):
        raise BadData(
            "these are test rows by client, and test= is one pair (X, y) for all clients; to measure each on rows of "
            "its own, give it as (X, y, X_test, y_test) in clients=",
            place=TEST,
        )


def _test(given: Any, like: ClientData) -> ClientData | None:
    """Test rows, checked; their targets have the form of the training rows'."""
    if given is None:
        return None
    if any(map(_is_empty, given)):
        raise BadData("there are no rows; leave test= out", place=TEST)
    X, y = _pair(TEST, *given)
    refuse_other_targets(y.values, like.y.values, TEST, "those of the training rows")
    return ClientData(X, y)


def _is_empty(part: Any) -> bool:
    """Whether a part has no rows; a sparse matrix has no length."""
    part = part.values if isinstance(part, RawTargets) else part
    return bool(part.shape[:1] == (0,)) if hasattr(part, "shape") else hasattr(part, "__len__") and not len(part)
