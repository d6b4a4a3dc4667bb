"""The person of each row, for methods whose rows are private by person."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Sequence

import numpy as np
import torch

from ..contract import BadData, Index, RecipeError
from ..contract.place import name_of
from ..rows.coding import folded
from .rows import Layout, Picked


def people_of(by: str, picked: Sequence[Picked], layout: Layout) -> Index | None:
    """The person of each row [n], from 0, in the order of ``layout``; None without a column.

    Values that differ only in spaces, case or form are one person: 7, 7.0, "007" and " 7". If two people have such
    names, they are bounded as one, which protects them no less.

    Args:
        by: the column of `medley.datasets.Dataset.keys` that names people; "" for none
        picked: tables and their rows

    Raises RecipeError if a table has no such column. Raises BadData, naming the client, for a row without a person, and
    for a person with rows at two clients: each client's ε is for its own rows, so that person's would be their sum.
    """
    if not by:
        return None
    columns = []
    for table, rows in picked:
        if by not in table.keys:
            if table.keys:
                raise RecipeError.unknown(by, table.keys, "Private(by=...): the data")
            raise RecipeError(
                f"Private(by={by!r}): the data has no such column. A column that is not an input is among the data "
                f"set's keys: Dataset(X, y, keys={{{by!r}: ...}}), or keys=[{by!r}] of a reader of files",
                "by",
            )
        columns.append(np.asarray(table.keys[by])[rows].astype(str))
    spellings, which = np.unique(np.concatenate(columns), return_inverse=True)
    column = np.array([_person(v) for v in spellings.tolist()])[which]
    empty = np.flatnonzero(np.isin(column, ("", "nan", "none", "nat", "<na>")))
    if len(empty):
        raise layout.blamed(
            BadData(f"it has no {by}, so its person is not known; give it one, or leave the row out", row=int(empty[0]))
        )
    names, people = np.unique(column, return_inverse=True)
    owner = np.repeat(np.tile(np.asarray(layout.ids), len(layout.sizes)), layout.sizes.ravel())
    first, last = (np.full(len(names), fill) for fill in (np.iinfo(np.int64).max, -1))
    np.minimum.at(first, people, owner)
    np.maximum.at(last, people, owner)
    shared = np.flatnonzero(first != last)
    if len(shared):
        k = int(shared[0])
        raise BadData(
            f"Private(by={by!r}): {str(names[k])!r} has rows at {name_of(first[k])} and at {name_of(last[k])}, as "
            f"{len(shared)} of {len(names)} people have at several, and their ε would be the sum of those clients'. "
            f"Give each person's rows to one client, as partition=partitions.ByKey({by!r}) does. If these are "
            "different people, give them different names, for example the client's name before the number",
            client=int(first[k]),
        )
    return torch.from_numpy(people.astype(np.int64))


def _person(name: str) -> str:
    """What all spellings of a name have in common."""
    text = folded(unicodedata.normalize("NFKC", name))
    with contextlib.suppress(ValueError):
        number = float(text)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else text
    return text
