"""Data sets of the Hugging Face hub; only this module imports ``datasets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...contract import BadData, RecipeError, checked
from ...rows.precision import kept_apart
from ...runtime.versions import install
from ..dataset import Dataset
from ..ingest.keys import all_keys
from .table import Raw


@checked("datasets")
def hub(  # noqa: PLR0913
    name: str,
    features: str | Sequence[str],
    target: str = "label",
    train: str = "train",
    test: str | None = "test",
    keys: Sequence[str] = (),
    config: str | None = None,
    regression: bool | None = None,
    client: str | None = None,
    **load: Any,
) -> Dataset:
    """A data set of the Hugging Face hub, from its local cache or downloaded; it needs the extra ``hub``.

    Args:
        name: Its name on the hub.
        features: One column of images, which become [n, channels, h, w] in [0, 1], or of vectors; or several columns
            of numbers.
        target: The column of labels, whole numbers or texts, or of values; default "label".
        train: The split of training rows; default "train".
        test: The split of test rows; default "test". None for no test set.
        keys: Further columns, such as each row's patient; default none.
        config: The configuration, if the data set has several; default none.
        regression: Whether targets are values; by default fractions are values, and everything else is classes.
        client: The column of each row's client; default none.
        load: Further keywords of ``datasets.load_dataset``, such as ``revision``; its default is the newest.

    Raises:
        RecipeError: A column or a split does not exist, or the package ``datasets`` is not installed.
        BadData: Images differ in size.
    """
    call = f"datasets.hub({name!r})"
    try:
        import datasets
    except ImportError:
        raise RecipeError(f"{call} needs Hugging Face's datasets: {install('hub')}.") from None
    splits = datasets.load_dataset(name, config, **load)
    for split in (train, test):
        if split is not None and split not in splits:
            raise RecipeError.unknown(split, splits.keys(), f"{call}: the data set")
    columns = [features] if isinstance(features, str) else list(features)
    named = all_keys(target, client, keys, call)
    for column in (*columns, target, *named):
        if column not in splits[train].column_names:
            raise RecipeError.unknown(column, splits[train].column_names, f"{call}: split {train!r}")
    test_rows = None if test is None else (_features(splits[test], columns, call), np.asarray(splits[test][target]))
    keyed = {key: np.asarray(splits[train][key]) for key in named}
    X = _features(splits[train], columns, call)
    y = np.asarray(splits[train][target])
    return Raw(call, X, y, target, keyed, test=test_rows).dataset(name, regression)


def _features(split: Any, columns: list[str], call: str) -> Tensor:
    if len(columns) > 1:
        return torch.from_numpy(kept_apart(np.stack([np.asarray(split[c], float) for c in columns], axis=1)))
    rows = [np.asarray(value) for value in split[columns[0]]]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise BadData(
            f"{call}: column {columns[0]!r} holds rows of shapes {sorted(shapes)[:3]}; they must all be equal."
        )
    X = np.stack(rows)
    if X.dtype != np.uint8:
        return torch.from_numpy(kept_apart(X)).reshape(len(X), *(X.shape[1:] or (1,)))
    grey = X.ndim == 3
    return torch.as_tensor((X[:, None] if grey else X.transpose(0, 3, 1, 2)).astype(np.float32)).div_(255)
