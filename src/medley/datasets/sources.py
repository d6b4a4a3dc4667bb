"""Rows of other libraries: data sets of PyTorch and Hugging Face and mapped arrays, read when used; pandas frames."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from ..contract.errors import BadData, RecipeError
from ..numerics.scaling import Scaling
from ..rows.columns import (
    TARGETS,
    as_row,
    cells,
    columns_of,
    is_frame,
    is_hugging_face,
    is_transformed,
    kept_apart,
    numbers,
)
from ..rows.fields import Fields
from ..rows.lazy import Lazy, Mapped
from .arrays import SOME_LABELS, as_column, given_labels, names_of, refuse_mixed
from .dataset import Dataset
from .loaders import item_of, loaded, plain_tensors
from .prepared import preparation, refuse_special
from .table_cells import coded, refuse_index

CALL = "datasets.frame(...)"
"""The call, for messages."""

DROP = "leave it out, frame.drop(columns=...)"

AGAIN = 32
"""How many items of a data set are read twice, to detect targets that are drawn at random. Two random labels agree this
often once in four thousand million times; labels of which a tenth is flipped, once in six hundred times."""

Path = tuple[str | int, ...]
"""Names and places that lead from an item of a data set to one input."""


def target_of(names: Collection[str], where: str) -> str | None:
    """The one of these names that is a target's, or None. Raises BadData, naming ``where``, for several.

    A "y" next to an "x" counts as a coordinate if there is another candidate.
    """
    found = [name for name in TARGETS if name in names]
    if found[1:] and (found[1:] != ["y"] or "x" not in names):
        raise BadData(
            f"{where} has {' and '.join(map(repr, found))}, and either could be the target; keep one of these "
            "names and rename or drop the others, or for a frame give datasets.frame(table, "
            f"target={found[0]!r})"
        )
    return found[0] if found else None


def read_item(items: Any, i: int, where: str) -> Any:
    """Item i of the data set ``where``. Raises BadData, naming data set and row, if the data set raises."""
    try:
        return item_of(items, i)
    except Exception as e:
        raise BadData(f"{where}, row {i} cannot be read, {type(e).__name__}: {e}", row=i, placed=True) from e


class Shelf:
    """Items of a data set, read together; the last call's items are kept, so that each is read once for all inputs."""

    def __init__(self, items: Any, where: str) -> None:
        self.items, self.where = items, where
        self._last: tuple[list[int], list[Any]] = ([], [])

    def read(self, rows: list[int]) -> list[Any]:
        """These items."""
        if self._last[0] != rows:
            self._last = rows, [read_item(self.items, i, self.where) for i in rows]
        return self._last[1]

    def __reduce__(self) -> Any:
        return Shelf, (self.items, self.where)


class Items:
    """One input of a data set's items: ``path`` leads to it from an item, by names or places."""

    cheap = False

    def __init__(self, shelf: Shelf, path: Path) -> None:
        self.shelf, self.path = shelf, path
        first = as_row(_at(shelf.read([0])[0], path), path)
        self.shape = (len(shelf.items), *first.shape)
        self.dtype = first.dtype

    def read(self, rows: np.ndarray) -> Tensor:
        """These rows. Raises BadData, naming the row, for a row of another shape."""
        numbers = rows.tolist()
        out = []
        for i, item in zip(numbers, self.shelf.read(numbers), strict=True):
            try:
                row = as_row(_at(item, self.path), self.path)
            except BadData as e:
                raise BadData(f"{self.shelf.where}, row {i}: {e}", row=i, placed=True) from None
            if row.shape != self.shape[1:]:
                said = f"row {i} has shape {list(row.shape)}, row 0 {list(self.shape[1:])}; pad or crop"
                raise BadData(f"{self.shelf.where}, {said}", row=i, placed=True)
            if row.is_floating_point() and not self.dtype.is_floating_point:
                said = f"row {i} has floats, row 0 whole numbers; give floats in all rows"
                raise BadData(f"{self.shelf.where}, {said}", row=i, placed=True)
            out.append(row.to(self.dtype))
            if row.dtype != self.dtype and not torch.equal(out[-1].to(row.dtype), row):
                a, b = (str(d).removeprefix("torch.") for d in (row.dtype, self.dtype))
                said = f"row {i} has {a}, and row 0's {b} does not hold its numbers; give one dtype in all rows"
                raise BadData(f"{self.shelf.where}, {said}", row=i, placed=True)
        return torch.stack(out) if out else torch.empty(0, *self.shape[1:], dtype=self.dtype)


def _at(item: Any, path: Path) -> Any:
    for key in path:
        item = item[key]
    return item


def is_items(value: object) -> bool:
    """Whether a value is a data set of PyTorch or Hugging Face, PyTorch's loader of one, or a frame."""
    return isinstance(value, TorchDataset | DataLoader) or is_hugging_face(value) or is_frame(value)


def pair_of(
    value: Any, where: str, aside: str | None = None, features: Sequence[str] = ()
) -> tuple[Tensor, np.ndarray | Tensor]:
    """Inputs and targets of a data set of another library: inputs are read when they are used, targets now.

    Both come from the data set's items. A loader counts as the rows that it yields; the pace sets the batches. Items of
    several inputs become `Fields`.

    Args:
        aside: a column that is not an input, such as each row's client; default none
        features: the names of a frame's columns of inputs, in the wanted order; default the frame's order

    Raises BadData, naming ``where``, for a data set without numbered items, and for items that are not pairs.
    """
    items: Any = loaded(value, where) if isinstance(value, DataLoader) else value
    if is_frame(items):
        return _of_frame(items, where, aside, features)
    if plain_tensors(items) and items.tensors[1:]:
        *inputs, y = items.tensors
        return inputs[0] if len(inputs) == 1 else Fields(inputs), y
    if isinstance(items, IterableDataset) or not hasattr(items, "__len__"):
        raise BadData(f"{where}: an iterable data set has no numbered rows; give one with __len__ and __getitem__")
    if not len(items):
        raise BadData(f"{where} has no rows; leave it out")
    paths, names, target = _places(read_item(items, 0, where), where, aside)
    if is_table(items) and names:
        return _of_frame(items, where, aside, features)
    shelf = Shelf(items, where)
    inputs = [Lazy([Items(shelf, path)]) for path in paths]
    return inputs[0] if len(inputs) == 1 else Fields(inputs, names), column(items, target, where)


def is_table(items: Any) -> bool:
    """Whether a value is a frame, or a Hugging Face data set whose rows are numbers and texts by name."""
    if not is_hugging_face(items) or not len(items):
        return is_frame(items)
    return all(np.isscalar(v) or (isinstance(v, Tensor) and not v.ndim) for v in items[0].values())


def column(items: Any, target: str | int, where: str) -> np.ndarray:
    """One column of a data set of another library, such as its targets, in memory; ``where`` is its name in errors.

    It is read from the items; attributes of the data set such as ``targets`` are ignored.
    """
    items = loaded(items, where) if isinstance(items, DataLoader) else items
    if is_frame(items) or (is_hugging_face(items) and not is_transformed(items)):
        return cells(items, columns_of(items, where)[str(target)])

    def read(i: int) -> Any:
        v = read_item(items, i, where)[target]
        if np.ma.is_masked(v):
            raise BadData(f"{where}, row {i} has a masked target; fill it in or leave the item out", row=i, placed=True)
        return v.detach().cpu().numpy() if isinstance(v, Tensor) else v

    found = [read(i) for i in range(len(items))]
    with torch.random.fork_rng(devices=[]):
        for i in np.linspace(0, len(items) - 1, AGAIN).astype(int).tolist() if found else []:
            if str(again := read(i)) != str(found[i]):
                said = f"row {i} has the target {str(found[i])[:40]}, and read again {str(again)[:40]}"
                fixed = "inputs and targets are read apart, so an item must have the same target always"
                raise BadData(f"{where}, {said}; {fixed}: draw them first, as arrays", row=i, placed=True)
    if odd := [i for i, v in enumerate(found) if np.shape(v) != np.shape(found[0])]:
        said = f"row {odd[0]} has a target of shape {list(np.shape(found[odd[0]]))}, row 0 {list(np.shape(found[0]))}"
        raise BadData(f"{where}, {said}; give all the same", row=odd[0], placed=True)
    refuse_mixed(found, where)
    return np.asarray(found)


def as_key(items: Any, key: str) -> np.ndarray:
    """The column that names each row's client. Raises RecipeError if there is none."""
    where = "ByKey: the data"
    if (is_frame(items) or is_hugging_face(items)) and key not in (names := columns_of(items, where)):
        raise RecipeError.unknown(key, names, where)
    return as_column(column(items, key, where), f"{where}'s {key!r}")


def _places(item: Any, where: str, aside: str | None) -> tuple[list[Path], list[str] | None, str | int]:
    """The places of inputs in an item, the inputs' names, and the place of the target."""
    if isinstance(item, Mapping):
        target = target_of(item, f"{where}: an item")
        inputs = [name for name in item if name not in (target, aside)]
        refuse_client(inputs, where)
        if target is not None and inputs:
            return [(name,) for name in inputs], inputs, target
        raise BadData(
            f"{where}: its rows have {list(item)}; want inputs and a target called {', '.join(TARGETS)}: "
            "select or rename columns"
        )
    if isinstance(item, tuple | list) and len(item) > 2:
        return [(k,) for k in range(len(item) - 1)], None, len(item) - 1
    if isinstance(item, tuple | list) and len(item) == 2:
        first = item[0]
        if isinstance(first, Mapping):
            return [(0, name) for name in first], [str(name) for name in first], 1
        if isinstance(first, tuple):
            return [(0, k) for k in range(len(first))], None, 1
        return [(0,)], None, 1
    raise BadData(
        f"{where}: an item is a {type(item).__name__}; want (input, target), (inputs ..., target), or a mapping"
    )


def _of_frame(table: Any, where: str, aside: str | None, features: Sequence[str] = ()) -> tuple[Tensor, np.ndarray]:
    """Inputs and targets of a frame, whose target has one of the usual names."""
    names = columns_of(table, where)
    target = target_of(names, where)
    if target is None:
        raise BadData(
            f"{where} is a frame without a column called {', '.join(TARGETS)}: rename the target's, "
            "frame.rename(columns={'died': 'label'}), or give datasets.frame(table, target='died', client='site')"
        )
    special = [target, *([] if aside is None else [aside])]
    refuse_index([n for n in names if n not in special], where, DROP)
    refuse_client([n for n in names if n not in special], where)
    return _inputs(table, special, features or None)[1], cells(table, names[target])


def refuse_client(inputs: Collection[str], where: str) -> None:
    """Raise BadData, naming ``where``, if an input has the name of the column of each row's client."""
    if "client" in inputs:
        raise BadData(
            f"{where} has a column 'client', which would be an input; leave it out, frame.drop(columns='client'), "
            "rename it if it is one, or give one frame of all clients' rows, Federation(clients=frame)"
        )


def by_client(value: Any) -> Dataset:
    """A frame of all clients' rows as a data set with the key "client". Raises BadData without that column."""
    names = [str(name) for name in value.columns]
    target = target_of(names, "Federation(clients=...)")
    if target is None or "client" not in names:
        raise BadData(
            f"Federation(clients=...) is a frame with the columns {', '.join(names)}: say which are the client's and "
            "the target's, clients=datasets.frame(table, target='died', client='hospital')"
        )
    return frame(value, target, "client")


def frame(
    table: Any,
    target: str | int,
    client: str | int | None = None,
    features: Sequence[str | int] | None = None,
    regression: bool | None = None,
    name: str = "frame",
    prepared: Any = None,
) -> Dataset:
    """The data set of a pandas frame, a Hugging Face data set, or any table with columns by name, read into memory.

    Args:
        table: the frame
        target: the column of labels, numbers or text, or of values
        client: the column of each row's client; `scenarios.ByKey` deals by it. Default None
        features: the columns of inputs, numbers or booleans; default None: all others
        regression: whether targets are values; by default fractions are values, and everything else is labels
        name: the data set's name in messages and reports
        prepared: what `Study.prepare` found, or its file; its columns are the inputs. Default none

    Numbers that name columns become text: the key of ``client=3`` is "3". Raises RecipeError for a column that is not
    there, BadData for a table without rows or with two columns of one name, and, naming column and row, for cells that
    are no numbers.
    """
    if not is_hugging_face(table) and not is_frame(table):
        kind = type(table).__name__
        raise RecipeError(f"datasets.frame(table) is a {kind}; give a frame, such as pandas.DataFrame(table)", "table")
    target, client = str(target), None if client is None else str(client)
    if target == client:
        raise RecipeError(f"{CALL}: {target!r} cannot be both target and client", "client")
    special = [target, *([] if client is None else [client])]
    if missing := [column for column in special if column not in (columns := columns_of(table, CALL))]:
        raise RecipeError.unknown(missing[0], columns, f"{CALL}: the table")
    if both := [str(name) for name in features or () if str(name) in special]:
        role = "target" if both[0] == target else "client"
        raise RecipeError(
            f"{CALL}: features= has {both[0]!r}, the column of the {role}; leave it out there", "features"
        )
    scaling = None if prepared is None else preparation(prepared, CALL)
    names, X = _inputs(table, special, features, scaling)
    keys = {} if client is None else {client: _names(table, client)}
    given = cells(table, columns_of(table, CALL)[target])
    if regression is None:
        regression = given.dtype.kind == "f" and bool((given[np.isfinite(given)] % 1 != 0).any())
    if regression:
        y = kept_apart(numbers(given, f"{CALL}: column {target!r}", "leave regression=True out, for classes"))
        return Dataset(X, torch.from_numpy(y), keys=keys, name=name, features=names, scaling=scaling)
    given = _names(table, target)
    if given.dtype.kind == "O" and all(isinstance(v, int | float) for v in given.tolist()):
        given = np.array([v if isinstance(v, bool) or v % 1 else int(v) for v in given.tolist()])  # 1 is 1.0
    texts = given.astype(str) if given.dtype.kind in "OUS" else given
    kinds, first, y = np.unique(texts, return_index=True, return_inverse=True)
    if (odd := np.array([type(a) is not type(b) for a, b in zip(given, given[first][y], strict=True)], bool)).any():
        row = int(odd.argmax())
        raise BadData(f"{CALL}: {target!r} is {given[row]!r} in row {row} and also {given[first][y][row]!r}", row=row)
    if len(kinds) < 2:
        raise BadData(f"{CALL}: all rows have the same {target!r}, {kinds.tolist()[0]!r}; {SOME_LABELS}")
    labels = given_labels(given[first], tuple(map(str, kinds)))
    targets = torch.from_numpy(y.astype(np.int64))
    return Dataset(X, targets, None, None, len(labels), keys, name, labels, features=names, scaling=scaling)


def features_of(given: Any, aside: str | None = None) -> tuple[str, ...]:
    """Names of the inputs of one client's frame, or of the frame X in its pair (X, y, ...); none for other data."""
    if isinstance(given, tuple | list):
        return names_of(given[0]) if given else ()
    names = tuple(columns_of(given, CALL)) if is_table(given) else ()
    target = next((name for name in TARGETS if name in names), None)
    return tuple(name for name in names if name not in (target, aside))


def _inputs(
    table: Any, special: Sequence[str], features: Sequence[str | int] | None = None, scaling: Scaling | None = None
) -> tuple[tuple[str, ...], Tensor]:
    """Names of the columns ``features``, and they as float32 [n, columns]; None: all but the ``special`` ones.

    A preparation has columns of its own.
    """
    columns = columns_of(table, CALL)
    if scaling is not None and scaling.coding is not None:
        refuse_special(scaling, special, CALL)
        if features is not None:
            raise RecipeError(f"{CALL}: prepared= says which columns are inputs; leave features= out", "features")
        return scaling.coding.features, scaling.of_table(table, columns, CALL)
    wanted = tuple(n for n in columns if n not in special) if features is None else tuple(map(str, features))
    if features is None:
        refuse_index(wanted, CALL, DROP)
    for name in wanted:
        if name not in columns:
            raise RecipeError.unknown(name, columns, f"{CALL}: the table")
    if not wanted:
        raise BadData(f"{CALL}: the table has only the columns {', '.join(special)}; add columns for the inputs")
    given = {name: cells(table, columns[name]) for name in wanted}
    if not all(map(len, given.values())):
        raise BadData(f"{CALL}: the table has no rows")
    X = np.stack([numbers(c, f"{CALL}: column {n!r}", coded(given)) for n, c in given.items()], 1)
    return wanted, torch.from_numpy(kept_apart(X))


def only_key(data: Dataset) -> str:
    """The one key of a data set that stands for its clients. Raises RecipeError for none, or several."""
    if len(data.keys) == 1:
        return next(iter(data.keys))
    raise RecipeError(
        f"Federation(clients={data!r}): it has {len(data.keys)} keys and one must name the clients; give data= and "
        "partition=scenarios.ByKey(...)",
        "clients",
    )


def _names(table: Any, column: str) -> np.ndarray:
    """A column of clients or labels, text without blanks around it. Raises BadData for a row that has none."""
    found = cells(table, columns_of(table, CALL)[column])
    if found.dtype.kind in "OU":
        found = np.array([v.strip() or None if isinstance(v, str) else v for v in found.tolist()], object)
    missing = np.array([v is None or v != v or v in (np.inf, -np.inf) for v in found.tolist()], bool)
    if missing.any():
        row = int(missing.argmax())
        said = "infinite" if found[row] in (np.inf, -np.inf) else "missing"
        raise BadData(
            f"{CALL}: {column!r} is {said} in row {row} (counted from 0), and in {int(missing.sum())} in all: "
            f"fill it in, or frame.dropna(subset=[{column!r}])",
            row=row,
        )
    return found


def lazy(array: Any) -> Tensor:
    """A mapped array (``np.load(path, mmap_mode="r")``) as rows that are read when they are used."""
    return Lazy([Mapped(array)])
