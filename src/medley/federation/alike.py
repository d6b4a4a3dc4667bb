"""Checks that the clients' rows go together: their dtypes, their columns, and the order of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..contract import BadData, Place
from ..datasets.ingest.raw import features_of
from ..rows.columns import differ, names_of

TEST = Place("Federation(test=...)")
"""Where test rows come from that belong to no client."""


def check_bytes(clients: Sequence[Any], test: Any, places: Sequence[Place]) -> None:
    """Raise BadData, naming the client, if some rows are bytes and others floats, usually bytes divided by 255."""
    kinds: dict[str, tuple[str, Place]] = {}
    for given, place in zip([*clients, test], [*places, TEST], strict=True):
        for k, part in ((0, "X"), (2, "X_test")):
            if isinstance(given, tuple | list) and len(given) > (3 if k else 0):
                kind = str(getattr(given[k], "dtype", "")).removeprefix("torch.")
                kinds.setdefault("floats" if "float" in kind else kind, (part, place))
    if "floats" in kinds and "uint8" in kinds:
        (what, place), (other, whose) = kinds["uint8"], kinds["floats"]
        raise BadData(
            f"{what} is uint8, from 0 to 255, and {other} of {whose} has floats; give all rows on one scale and in one "
            "dtype, such as (X / 255).astype('float32')",
            place=place,
        )


def common_features(
    clients: Sequence[Any], test: Any, aside: str | None, places: Sequence[Place]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the features, empty if any client has arrays; and the first names that any client has.

    Raises BadData, naming the client, for frames with other columns, and for an array beside frames with names: its
    columns may be in another order.
    """
    own = [(place, features_of(given, aside)) for place, given in zip(places, clients, strict=True)]
    tests = [
        (replace(place, part="test"), names_of(g[2]))
        for place, g in zip(places, clients, strict=True)
        if isinstance(g, tuple) and g[3:]
    ]
    first = next((names for _, names in own if names), ())
    for place, names in [*own, *tests, (TEST, features_of(test, aside))]:
        if names and first and (said := differ(names, first)):
            said = f"the frame {said}, of the columns {', '.join(first)}; give all clients the same columns"
            raise BadData(said, place=place)
    bare = [i for i, (_, names) in enumerate(own) if not names and isinstance(clients[i], tuple | list)]
    if bare and first != tuple(map(str, range(len(first)))):
        raise BadData(
            f"X has no names of columns, and other clients' have: {', '.join(first[:8])}"
            f"{', ...' if first[8:] else ''}; give a frame with these columns, or X.to_numpy() at every client",
            place=places[bare[0]],
        )
    return first if all(names for _, names in own) else (), first


def check_index(given: Sequence[Any], place: Place) -> None:
    """Raise BadData if the pandas indices of X and of the targets have the rows in different orders."""
    for k, v in enumerate(given):
        X = given[2 if k == 3 or (k == 2 and len(given) > 3) else 0]
        if not all(hasattr(t, "iloc") for t in (X, v)) or len(X) != len(v) or X.index.equals(v.index):
            continue
        if Counter(X.index) == Counter(v.index):
            row = int(np.flatnonzero(X.index != v.index)[0])
            raise BadData(
                f"X has the index {X.index[row]}, but {'y' if k in (1, 3) else 'the weights'} {v.index[row]}; Medley "
                "pairs rows by position, so pass y.loc[X.index], or reset_index(drop=True) of both if the positions "
                "are right",
                place=place.at(row),
            )
