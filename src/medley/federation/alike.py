"""Checks that the clients' rows go together: their dtypes and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..contract import BadData, Place
from ..datasets import Dataset
from ..datasets.ingest.labels import Label
from ..datasets.ingest.raw import features_of
from ..numerics.scaling import Scaling
from ..rows.columns import class_names, differ, names_of
from .client_rows import TEST


def check_bytes(clients: Sequence[Any], test: Any, places: Sequence[Place]) -> None:
    """Raise BadData, naming the client, if some rows are bytes and others floats, usually bytes divided by 255."""
    kinds: dict[str, tuple[str, Place]] = {}
    for source, place in zip([*clients, test], [*places, TEST], strict=True):
        for part, X in _inputs(source).items():
            kind = str(getattr(X, "dtype", "")).removeprefix("torch.")
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

    Raises BadData, naming the client, if a frame has other columns, or if some clients have frames and this one an
    array: its columns could be in another order.
    """
    columns = [(place, _names(client, place, aside)) for place, client in zip(places, clients, strict=True)]
    tested = [
        (replace(place, part="test"), g[2])
        for place, g in zip(places, clients, strict=True)
        if isinstance(g, tuple) and g[3:]
    ]
    tests = [(place, names_of(X, str(place))) for place, X in tested]
    first = next((names for _, names in columns if names), ())
    for place, names in [*columns, *tests, (TEST, _names(test, TEST, aside))]:
        if names and first and (message := differ(names, first)):
            message = f"the frame {message}, of the columns {', '.join(first)}; give all clients the same columns"
            raise BadData(message, place=place)
    bare = [i for i, (_, names) in enumerate(columns) if not names and isinstance(clients[i], tuple | list | Dataset)]
    if bare and first != tuple(map(str, range(len(first)))):
        raise BadData(
            f"X has no names of columns, and other clients' have: {', '.join(first[:8])}"
            f"{', ...' if first[8:] else ''}; give a frame with these columns, or X.to_numpy() at every client",
            place=places[bare[0]],
        )
    return first if all(names for _, names in columns) else (), first


def common_scaling(clients: Sequence[Any], test: Any, places: Sequence[Place]) -> Scaling | None:
    """The scaling of the clients' data sets. Raises BadData, naming the client, if it is not the same for all rows."""
    scalings = [(place, data.scaling) for place, data in zip(places, clients, strict=True) if isinstance(data, Dataset)]
    first = next((scaling for _, scaling in scalings if scaling is not None), None)
    tests = [(TEST, test.scaling if isinstance(test, Dataset) else None)] if test is not None else []
    for place, scaling in [*scalings, *tests]:
        if first is not None and (scaling is None or not first.same(scaling)):
            raise BadData(
                "some rows are standardised, and these are not, or by another mean and deviation; give all rows by "
                "rows.standardise(like=data), of one data set of all clients or of public numbers",
                place=place,
            )
    return first


def common_classes(
    clients: Sequence[Any], test: Any, classes: int | None, places: Sequence[Place]
) -> tuple[int | None, tuple[Label, ...]]:
    """The number of classes and their names, if the clients' data sets have them.

    Raises BadData, naming the client, if two of them differ.
    """
    labels: tuple[Label, ...] = ()
    named = next(filter(None, map(class_names, clients)), ())
    for source, place in zip([*clients, test], [*places, TEST], strict=True):
        if (names := class_names(source)) not in ((), named) and named:
            order = dict(zip(named, range(len(named)), strict=True))
            message = f"its labels 0, 1, ... are{_listed(names)[1:]}, and other clients'{_listed(named)[1:]}; give all "
            message += f"the same order, data.align_labels_with_mapping({order!s:.200}, 'label')"
            raise BadData(message, place=place)
    for client, place in zip(clients, places, strict=True):
        if not isinstance(client, Dataset) or client.inferred or client.classes is None:
            continue
        if classes not in (None, client.classes) or (labels and {*client.labels} != {*labels}):
            others = f"others {classes}{_listed(labels)}; give all the same classes= or labels="
            message = f"its data set has {client.classes} classes{_listed(client.labels)}, and {others}"
            raise BadData(message, place=place)
        classes = client.classes
        labels = labels or client.labels
    return classes, labels


def _listed(labels: Sequence[Label]) -> str:
    return f", {', '.join(map(repr, labels[:8]))}" if labels else ""


def _inputs(source: Any) -> dict[str, Any]:
    """The inputs of training and test rows by name, if they are arrays."""
    if isinstance(source, Dataset):
        return {"X": source.X} | ({} if source.X_test is None else {"X_test": source.X_test})
    parts = [*source] if isinstance(source, tuple | list) else []
    return dict(zip(("X", "X_test"), [*parts[:1], *(parts[2:3] if parts[3:] else [])], strict=False))


def _names(source: Any, place: Place, aside: str | None) -> tuple[str, ...]:
    return source.features if isinstance(source, Dataset) else features_of(source, place, aside)
