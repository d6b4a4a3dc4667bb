"""Rows of a user as inputs and targets, unconverted: frames, and data sets of PyTorch and Hugging Face.

Inputs of such data sets are read when they are used, targets at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from ...contract import BadData, Place, RecipeError
from ...rows.columns import TARGETS, cells, columns_of, is_frame, is_hugging_face, is_transformed, names_of
from ...rows.fields import Fields
from ...rows.lazy import Lazy, Mapped
from ...rows.numbers import refuse_inexact, table
from ...rows.precision import kept_apart
from ...rows.sparse import not_finite
from ...rows.tensors import as_row
from .keys import DROP, refuse_index
from .labels import RawTargets
from .loaders import item_of, loaded, plain_tensors

AGAIN = 32
"""How many items of a data set are read twice, to detect targets that are drawn at random. Two random labels agree this
often once in four thousand million times; labels of which a tenth is flipped, once in six hundred times."""

Path = tuple[str | int, ...]
"""Names and places that lead from an item of a data set to one input."""


def target_of(names: Collection[str], place: Place) -> str | None:
    """The one of these names that is a target's, or None. Raises BadData for several.

    A "y" next to an "x" counts as a coordinate if there is another candidate.
    """
    usual = [name for name in TARGETS if name in names]
    if usual[1:] and (usual[1:] != ["y"] or "x" not in names):
        raise BadData(
            f"it has {' and '.join(map(repr, usual))}, and either could be the target; keep one of these "
            f"names and rename or drop the others, or for a frame give datasets.frame(table, target={usual[0]!r})",
            place=place,
        )
    return usual[0] if usual else None


def read_item(items: Any, i: int, place: Place) -> Any:
    """Item i of a data set. Raises BadData, naming data set and row, if the data set raises."""
    try:
        return item_of(items, i)
    except Exception as e:
        raise BadData(f"it cannot be read, {type(e).__name__}: {e}", place=place.at(i)) from e


class Shelf:
    """Items of a data set, read together; the last call's items are kept, so that each is read once for all inputs."""

    def __init__(self, items: Any, place: Place) -> None:
        self.items = items
        self.place = place
        self._last: tuple[list[int], list[Any]] = ([], [])

    def read(self, rows: list[int]) -> list[Any]:
        """These items."""
        if self._last[0] != rows:
            self._last = rows, [read_item(self.items, i, self.place) for i in rows]
        return self._last[1]

    def __reduce__(self) -> Any:
        return Shelf, (self.items, self.place)


class Items:
    """One input of a data set's items: ``path`` leads to it from an item, by names or places.

    Args:
        missing: whether NaN stands for a missing value; default False
    """

    cheap = False

    def __init__(self, shelf: Shelf, path: Path, missing: bool = False) -> None:
        self.shelf = shelf
        self.path = path
        self.missing = missing
        try:
            first = as_row(_at(shelf.read([0])[0], path), path)
        except BadData as e:
            raise e.at(shelf.place.at(0)) from None
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
                raise e.at(self.shelf.place.at(i)) from None
            out.append(row.to(self.dtype))
            message = self._differs(row, out[-1])
            if message:
                raise BadData(message, place=self.shelf.place.at(i))
        if not out:
            return torch.empty(0, *self.shape[1:], dtype=self.dtype)
        X = torch.stack(out)
        if X.dtype == torch.int64 and X.numel() and max(int(X.max()), -int(X.min())) > 2**53:
            refuse_inexact(X.numpy(), self.shelf.place)
        bad = not_finite(X, self.missing) if X.is_floating_point() and not bool(X.sum().isfinite()) else None
        if bad is not None:
            at, value = bad
            message = f"{value} is not finite; remove such items, or fill them in"
            raise BadData(message, place=self.shelf.place.at(numbers[at[0]], *at[1:2]))
        return X

    def _differs(self, row: Tensor, converted: Tensor) -> str:
        """How a row is unlike row 0, so that they make no tensor; empty if it is like it."""
        if row.shape != self.shape[1:]:
            return f"it has shape {list(row.shape)}, row 0 {list(self.shape[1:])}; pad or crop"
        if row.is_floating_point() and not self.dtype.is_floating_point:
            return "it has floats, row 0 whole numbers; give floats in all rows"
        if row.dtype == self.dtype or torch.equal(converted.to(row.dtype), row):
            return ""
        a, b = (str(d).removeprefix("torch.") for d in (row.dtype, self.dtype))
        return f"it has {a}, and row 0's {b} does not hold its numbers; give one dtype in all rows"


def _at(item: Any, path: Path) -> Any:
    for key in path:
        item = item[key]
    return item


def is_items(value: object) -> bool:
    """Whether a value is a data set of PyTorch or Hugging Face, PyTorch's loader of one, or a frame."""
    return isinstance(value, TorchDataset | DataLoader) or is_hugging_face(value) or is_frame(value)


def is_table(items: Any) -> bool:
    """Whether a value is a frame, or a Hugging Face data set whose rows are numbers and texts by name."""
    if not is_hugging_face(items) or not len(items):
        return is_frame(items)
    return all(v is None or np.isscalar(v) or (isinstance(v, Tensor) and not v.ndim) for v in items[0].values())


def features_of(data: Any, place: Place, aside: str | None = None) -> tuple[str, ...]:
    """Names of the inputs of one client's frame, or of the frame X in its pair (X, y, ...); none for other data."""
    if isinstance(data, tuple | list):
        return names_of(data[0], str(place)) if len(data) else ()
    names = names_of(data, str(place)) if is_table(data) else ()
    target = next((name for name in TARGETS if name in names), None)
    return tuple(name for name in names if name not in (target, aside))


def pair_of(
    value: Any, place: Place, aside: str | None = None, features: Sequence[str] = (), missing: bool = False
) -> tuple[Tensor, RawTargets | Any]:
    """Inputs and targets of a data set of another library.

    Both come from the data set's items. A loader counts as the rows that it yields; the pace sets the batches. Items of
    several inputs become `Fields`.

    Args:
        aside: a column that is not an input, such as each row's client; default none
        features: the names of a frame's columns of inputs, in the wanted order; default the frame's order
        missing: whether NaN and empty cells stand for missing values; default False

    Raises BadData for a data set without numbered items, and for items that are not pairs.
    """
    items: Any = loaded(value, place) if isinstance(value, DataLoader) else value
    if is_frame(items):
        return _of_frame(items, place, aside, features, missing)
    if plain_tensors(items) and items.tensors[1:]:
        *inputs, y = items.tensors
        return inputs[0] if len(inputs) == 1 else Fields(inputs), y
    if isinstance(items, IterableDataset) or not hasattr(items, "__len__"):
        raise BadData("an iterable data set has no numbered rows; give one with __len__ and __getitem__", place=place)
    if not len(items):
        raise BadData("it has no rows; leave it out", place=place)
    paths, names, target = _places(read_item(items, 0, place), place, aside)
    if is_table(items) and names:
        return _of_frame(items, place, aside, features, missing)
    shelf = Shelf(items, place)
    inputs = [Lazy([Items(shelf, path, missing)]) for path in paths]
    return inputs[0] if len(inputs) == 1 else Fields(inputs, names), column(items, target, place)


def column(items: Any, target: str | int, place: Place) -> Any:
    """One column of a data set of another library, such as its targets, in memory.

    It is read from the items; attributes of the data set such as ``targets`` are ignored.
    """
    items = loaded(items, place) if isinstance(items, DataLoader) else items
    if is_frame(items) or (is_hugging_face(items) and not is_transformed(items)):
        return cells(items, columns_of(items, str(place))[str(target)], place)

    def read(i: int) -> Any:
        v = read_item(items, i, place)[target]
        if np.ma.is_masked(v):
            raise BadData("its target is masked; fill it in or leave the item out", place=place.at(i))
        return v.detach().cpu().numpy() if isinstance(v, Tensor) else v

    values = [read(i) for i in range(len(items))]
    with torch.random.fork_rng(devices=[]):
        for i in np.linspace(0, len(items) - 1, AGAIN).astype(int).tolist() if values else []:
            again = read(i)
            if str(again) != str(values[i]):
                text = f"it has the target {str(values[i])[:40]}, and read again {str(again)[:40]}; inputs and targets "
                text += "are read apart, so an item must have the same target always: draw them first, as arrays"
                raise BadData(text, place=place.at(i))
    odd = [i for i, v in enumerate(values) if np.shape(v) != np.shape(values[0])]
    if odd:
        message = f"its target has shape {list(np.shape(values[odd[0]]))}, row 0's {list(np.shape(values[0]))}"
        raise BadData(f"{message}; give all the same", place=place.at(odd[0]))
    return [v[()] if isinstance(v, np.ndarray) and not v.ndim else v for v in values]


def as_key(items: Any, key: str) -> np.ndarray:
    """The column that names each row's client. Raises RecipeError if there is none."""
    if (is_frame(items) or is_hugging_face(items)) and key not in (names := columns_of(items, "ByKey: the data")):
        raise RecipeError.unknown(key, names, "ByKey: the data")
    return np.asarray(column(items, key, Place("ByKey: the data")))


def _places(item: Any, place: Place, aside: str | None) -> tuple[list[Path], list[str] | None, str | int]:
    """The places of inputs in an item, the inputs' names, and the place of the target."""
    if isinstance(item, Mapping):
        target = target_of(item, place.at(0))
        inputs = [name for name in item if name not in (target, aside)]
        refuse_client(inputs, place)
        if target is not None and inputs:
            return [(name,) for name in inputs], inputs, target
        message = f"its rows have {list(item)}; want inputs and a target called {', '.join(TARGETS)}"
        raise BadData(f"{message}: select or rename columns", place=place)
    if isinstance(item, tuple | list) and len(item) > 2:
        return [(k,) for k in range(len(item) - 1)], None, len(item) - 1
    if isinstance(item, tuple | list) and len(item) == 2:
        first = item[0]
        if isinstance(first, Mapping):
            return [(0, name) for name in first], [str(name) for name in first], 1
        if isinstance(first, tuple):
            return [(0, k) for k in range(len(first))], None, 1
        return [(0,)], None, 1
    message = f"an item is a {type(item).__name__}; want (input, target), (inputs ..., target), or a mapping"
    raise BadData(message, place=place)


def _of_frame(
    value: Any, place: Place, aside: str | None, features: Sequence[str], missing: bool
) -> tuple[Tensor, RawTargets]:
    """Inputs and targets of a frame, whose target has one of the usual names."""
    names = columns_of(value, str(place))
    target = target_of(names, place)
    if target is None:
        raise BadData(
            f"a frame needs a column called {', '.join(TARGETS)}: rename the target's, frame.rename(columns={{'died': "
            "'label'}), or give datasets.frame(table, target='died', client='site')",
            place=place,
        )
    inputs = [n for n in names if n not in (target, aside)]
    refuse_index(inputs, place, DROP)
    refuse_client(inputs, place)
    X = inputs_of(value, features or inputs, place, missing)
    return X, RawTargets.of(cells(value, names[target], place), place.at(column=target))


def inputs_of(value: Any, features: Sequence[str], place: Place, missing: bool) -> Tensor:
    """These columns of a table as a tensor [n, columns]; NaN in empty cells, if they may be ``missing``."""
    columns = columns_of(value, str(place))
    for name in features:
        if name not in columns:
            raise RecipeError.unknown(name, columns, f"{place}: the table")
    by_name = {name: cells(value, columns[name], place) for name in features}
    if not by_name:
        raise BadData("the table has no columns for the inputs; add some", place=place)
    if not all(map(len, by_name.values())):
        raise BadData("the table has no rows; leave it out", place=place)
    return torch.from_numpy(kept_apart(table(by_name, place, missing)))


def refuse_client(inputs: Collection[str], place: Place) -> None:
    """Raise BadData if an input has the name of the column of each row's client."""
    if "client" in inputs:
        raise BadData(
            "it has a column 'client', which would be an input; leave it out, frame.drop(columns='client'), "
            "rename it if it is one, or give one frame of all clients' rows, Federation(clients=frame)",
            place=place,
        )


def lazy(array: Any) -> Tensor:
    """A mapped array (``np.load(path, mmap_mode="r")``) as rows that are read when they are used."""
    return Lazy([Mapped(array)])
