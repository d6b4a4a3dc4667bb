"""Tables with columns by name: frames of pandas and polars, and Hugging Face data sets.

Numbers that name columns become text: a column 3 is "3". Cells are read through the table's own library; a Hugging Face
transform has then been applied to them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..contract.errors import BadData
from ..contract.place import Place

TARGETS = ("label", "labels", "target", "y")
"""Names of the target in rows that are mappings, and in frames."""


def is_hugging_face(value: object) -> bool:
    """Whether a value is a Hugging Face `Dataset`. The test does not load the package: a data set has loaded it."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(value, getattr(module, "Dataset", ()))


def is_transformed(value: Any) -> bool:
    """Whether a value is a Hugging Face data set whose rows come from a user's function, ``with_transform``."""
    return is_hugging_face(value) and value.format["type"] == "custom"


def is_frame(value: object) -> bool:
    """Whether a value is a table with columns by name, such as a frame of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and not isinstance(value, Tensor)


def columns_of(table: Any, call: str = "the frame") -> dict[str, Any]:
    """The columns of a table by name, without spaces around it.

    Raises BadData, naming the call, if two have one name, and for names of several levels.
    """
    if is_hugging_face(table) and len(table):
        columns = [*table[0]]  # the columns of its format
    else:
        columns = list(getattr(table, "column_names", None) or table.columns)
    levels = next((c for c in columns if isinstance(c, tuple)), None)
    if levels is not None:
        raise BadData(
            f"{call}: the column {levels} has a name of {len(levels)} levels; give each column one text, "
            "frame.columns = ['_'.join(map(str, c)) for c in frame.columns]"
        )
    names = [str(c).strip() for c in columns]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise BadData(
            f"{call}: the table has two columns {twice!r}; drop or rename one, "
            "frame.loc[:, ~frame.columns.duplicated()]"
        )
    return dict(zip(names, columns, strict=True))


def names_of(table: Any, call: str = "the frame") -> tuple[str, ...]:
    """Names of the columns of a frame, or of a Hugging Face data set; none for anything else."""
    return tuple(columns_of(table, call)) if is_frame(table) or is_hugging_face(table) else ()


def class_names(table: Any) -> tuple[str, ...]:
    """Names of the target's classes, as a Hugging Face data set says them; none for anything else."""
    features = table.features or {} if is_hugging_face(table) else {}
    target = next((name for name in TARGETS if name in features), None)
    return tuple(getattr(features.get(target), "names", None) or ())


def in_order(table: Any, names: Sequence[str]) -> Any:
    """The frame with its own columns in the order of these names."""
    columns = columns_of(table)
    return table if tuple(columns) == tuple(names) else table[[columns[name] for name in names]]


def cells(table: Any, column: Any, place: Place | None = None) -> np.ndarray:
    """A column of a table, as its own ``columns_of`` calls it. Raises BadData if it cannot be read as an array."""
    if is_transformed(table):
        values = [table[i][column] for i in range(len(table))]
        return np.asarray([v.numpy(force=True) if isinstance(v, Tensor) else v for v in values])
    try:
        return np.asarray(table.with_format(None)[column][:] if is_hugging_face(table) else table[column])
    except Exception as e:  # each library has errors of its own
        lazy = "read it, frame.collect()" if hasattr(table, "collect") else "give it another type"
        reason = str(e).partition("\n")[0]
        problem = f"it cannot be read as an array, {type(e).__name__}: {reason}; {lazy}"
        raise BadData(problem, place=(place or Place("the table")).at(column=str(column).strip())) from None


def differ(names: Collection[str], wanted: Collection[str]) -> str:
    """How ``names`` differs from ``wanted``, in words: "lacks age and adds sex"; "" if both are the same."""
    lacks = sorted({*wanted} - {*names})
    more = sorted({*names} - {*wanted})
    return " and ".join(f"{word} {', '.join(some)}" for word, some in (("lacks", lacks), ("adds", more)) if some)
