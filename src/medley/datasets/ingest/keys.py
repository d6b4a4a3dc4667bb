"""Columns that are neither inputs nor targets: names of clients, other keys, and indices of rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...contract import BadData, Place, RecipeError
from ...rows.coding import are_trimmed
from ...rows.numbers import is_missing
from ...rows.tensors import plain

DROP = "leave it out, frame.drop(columns=...)"

PARTS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval", "holdout"}
"""Names of the parts of one data set; they are neither clients nor classes."""

INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")
"""Names under which pandas writes and reads rows' index where it has none."""


def refuse_index(columns: Iterable[str], place: Place, remedy: str) -> None:
    """Raise BadData, ending in ``remedy``, for an input column that is the index of a frame."""
    names = [*columns]
    for k, name in enumerate(names):
        if not INDEX.fullmatch(name):
            continue
        if k and not all(map(INDEX.fullmatch, names[k:])):
            raise BadData(f"the column {name!r} after {names[k - 1]!r} has no name; give it one", place=place)
        if k and not name.startswith("__"):
            raise BadData(
                f"the column {name!r} after the others has no name, as if each line ended in a "
                "delimiter; remove that delimiter, or drop the column, frame.drop(columns=...)",
                place=place,
            )
        raise BadData(
            f"the column {name!r} is a frame's index as pandas writes it, which follows the order of rows; "
            f"{remedy}, or give it a name if it is a feature",
            place=place,
        )


def all_keys(target: str, client: object, keys: Sequence[object], call: str) -> tuple[str, ...]:
    """The key columns, with the column of clients first. Raises RecipeError if the target is one, and for a mere
    text.
    """
    if isinstance(keys, str):
        raise RecipeError(f"{call}: keys={keys!r}; give a list of columns, or client={keys!r} for one", "keys")
    if isinstance(client, list | tuple):
        raise RecipeError(f"{call}: client={client!r}; client= is one column, give several as keys=[...]", "client")
    names = tuple(dict.fromkeys(map(str, [*([] if client is None else [client]), *keys])))
    if target in names:
        role = "client" if str(client) == target else "key"
        raise RecipeError(f"{call}: {target!r} cannot be both target and {role}", "client" if client else "keys")
    return names


def refuse_absent(columns: Collection[str], named: Sequence[str], client: object, call: str) -> None:
    """Raise RecipeError, naming the argument, if a target or one of `all_keys`, in this order, is not there."""
    for k, name in enumerate(named):
        if name not in columns:
            argument = "target" if not k else "client" if k == 1 and client is not None else "keys"
            raise RecipeError.unknown(name, columns, f"{call}: {argument}=: the header")


def key_column(cells: np.ndarray | Sequence[Any], place: Place) -> np.ndarray:
    """A column of clients or other keys, text without spaces around it. Raises BadData for a row that has none."""
    if np.ndim(cells) != 1:
        raise BadData(f"it has the shape {[*np.shape(cells)]}; give one name a row", place=place)
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "U" and are_trimmed(cells):
        return cells
    values = cells.tolist() if isinstance(cells, np.ndarray) else [*cells]
    kinds = {*values}
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biufM":
        out = cells
    else:
        spelt = {v: decoded(v, place) for v in kinds}
        if all(isinstance(v, str) and v for v in spelt.values()):
            out = np.array([spelt[v] for v in values])
        else:
            out = np.empty(len(values), object)
            out[:] = [spelt[v] for v in values]
    gone = {v for v in kinds if is_missing(v) or (not isinstance(v, str) and v in (np.inf, -np.inf))}
    missing = [k for k, v in enumerate(values) if v in gone or v != v] if gone else []
    if missing:
        fault = "it is infinite" if values[missing[0]] in (np.inf, -np.inf) else "it is empty"
        raise BadData(
            f"{fault}, and names no client (in {len(missing)} rows in all); fill it in or drop the row, "
            f"frame.dropna(subset=[{place.column!r}])",
            place=place.at(missing[0]),
        )
    return out


def decoded(value: Any, place: Place) -> Any:
    """A name as text without spaces around it, numbers and what is missing as they are.

    Raises BadData for bytes that are no text.
    """
    if isinstance(value, bool | int | float | np.number) or is_missing(value):
        return value
    try:
        return (value.decode() if isinstance(value, bytes) else str(value)).strip()
    except UnicodeDecodeError as e:
        raise BadData(f"it has bytes that are no text in UTF-8: {e}", place=place) from None


def names_in(texts: Sequence[str]) -> np.ndarray:
    """A text file's column of names: as numbers, for their order, where that changes no name, else as text.

    So "1" and "01" are two names, and so are numbers of 20 digits, which floats would round.
    """
    for kind in (int, float):
        try:
            spelt = {t: kind(t) for t in {*texts}}
            if all(str(v) == t for t, v in spelt.items()):
                return np.array([spelt[t] for t in texts], np.int64 if kind is int else np.float64)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)


def as_column(values: Any, place: Place) -> np.ndarray:
    """A column [n, ...] of any values as an array, bytes as text. Raises BadData for a single value instead of a
    column, and for masked values.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadData(f"it is no column: {e}", place=place) from None
    if not array.ndim:
        raise BadData(f"it is {values!r}; give a value for each row", place=place)
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        plain(values, place, str(place.column))
    text = array.dtype.kind == "U"
    real = array.dtype.kind == "f"
    if real and bool(np.isfinite(array).all() and (array % 1 == 0).all() and (np.abs(array) <= 2**53).all()):
        array = array.astype(np.int64)  # pandas makes floats of whole numbers beside a gap; a client is "1", not "1.0"
    if isinstance(values, list | tuple) and (text or real):
        # NumPy makes one text of 1 and "1", floats of large numbers
        odd = (not isinstance(v, str) if text else isinstance(v, int) and abs(v) > 2**53 for v in values)
        array = np.array(values, object) if any(odd) else array
    if array.dtype.kind == "S":
        array = np.array([decoded(v, place) for v in array.ravel().tolist()]).reshape(array.shape)
    elif array.dtype.kind == "O" and not {*map(type, array.flat)} <= {str, bool, int, float, type(None)}:
        array = np.array([decoded(v, place) for v in array.ravel().tolist()], object).reshape(array.shape)
    return array


def client_names(values: Iterable[Any], call: str) -> tuple[str, ...]:
    """The keys of a mapping of clients as names. Raises BadData for an empty one, and for two that are alike."""
    values = [*values]
    odd = [v for v in values if is_missing(v) or isinstance(v, tuple)]
    if odd:
        how = ", such as '_'.join(map(str, key))" if isinstance(odd[0], tuple) else ""
        raise BadData(f"{call}: {odd[0]!r} is no client's name; give each client a text{how}")
    if all(isinstance(v, float | int) and v % 1 == 0 for v in values):
        values = [v if isinstance(v, bool) else int(v) for v in values]
    names = tuple(str(decoded(v, Place(call))) for v in values)  # as in a column of names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadData(
            f"{call}: two clients are called {twice!r}; names are compared as text without spaces at their ends, so "
            "rename one"
        )
    return names


def refuse_parts(names: Sequence[str], text: str) -> None:
    """Raise BadData, with a message that starts with ``text``, if the names are those of one data set's parts."""
    if len(names) > 1 and {name.lower().strip() for name in names} <= PARTS:
        raise BadData(
            f"{text.format(', '.join(names))}, which are parts of one data set, so that test rows would be trained on; "
            "give the first as data=, the last as test=, or other names"
        )


def only_key(keys: Mapping[str, Any], what: str) -> str:
    """The only key of a data set, which names its clients. Raises RecipeError for none, or several."""
    if len(keys) == 1:
        return next(iter(keys))
    raise RecipeError(
        f"Federation(clients={what}): the data set has {len(keys)} keys, and Medley cannot choose which one names the "
        "clients; pass data= and partition=partitions.ByKey(...)",
        "clients",
    )
