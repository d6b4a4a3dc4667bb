"""LEAF's benchmarks, from the JSON files that its scripts write.

Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. A benchmark's folder has the sub-folders ``train`` and
``test``; each holds JSON files with ``users`` and ``user_data``, {user: {"x": [...], "y": [...]}}. ``keys`` names the
user of every training row, ``test_keys`` that of every test row: partition by ``partitions.ByKey``. Without a ``test``
folder there are no test rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, checked
from .dataset import Dataset
from .files import Place, find_folder

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters in the order of their ids."""

SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""FEMNIST's 62 classes."""


@checked("datasets")
def femnist(folder: Place | None = None) -> Dataset:
    """FEMNIST: handwritten digits and letters of 62 classes by writer, 28×28, from LEAF's JSON files.

    They lie in ``femnist/data/train`` and ``femnist/data/test``, in ``femnist/train`` and ``femnist/test``, or in these
    two sub-folders of the folder itself. X [n, 1, 28, 28] has LEAF's grey values, 1 for paper and 0 for ink.
    ``keys["writer"]`` names the writer. Raises ``BadData`` for files that are missing or damaged.
    """
    call = "datasets.femnist()"

    def rows(x: list[Any], y: list[Any]) -> tuple[Tensor, Tensor]:
        X = torch.tensor(x, dtype=torch.float32)
        if X.ndim != 2 or X.shape[1] != 784:
            raise ValueError(f"an image has shape {list(X.shape[1:])}, not 784 numbers")
        return X.view(-1, 1, 28, 28), torch.tensor(y, dtype=torch.int64)

    return _leaf("femnist", call, folder, rows, len(SYMBOLS), tuple(SYMBOLS), "writer")


@checked("datasets")
def shakespeare(folder: Place | None = None) -> Dataset:
    """Shakespeare by speaker: 80 characters and the next one, from LEAF's JSON files.

    They lie in ``shakespeare/data/train`` and so on, like `femnist`. X [n, 80] is int64, y the next character's
    id; ids are places in `CHARACTERS`. A character outside of it counts as the last one, as LEAF's own index −1 does.
    ``keys["speaker"]`` names role and play. Raises ``BadData`` for files that are missing or damaged.
    """
    call = "datasets.shakespeare()"
    ids = {character: i for i, character in enumerate(CHARACTERS)}
    other = len(CHARACTERS) - 1

    def rows(x: list[Any], y: list[Any]) -> tuple[Tensor, Tensor]:
        if any(len(row) != 80 for row in x) or any(len(character) != 1 for character in y):
            raise ValueError("a row is no pair of 80 characters and the next one")
        X = torch.tensor([[ids.get(character, other) for character in row] for row in x], dtype=torch.int64)
        return X.view(-1, 80), torch.tensor([ids.get(character, other) for character in y], dtype=torch.int64)

    return _leaf("shakespeare", call, folder, rows, len(CHARACTERS), tuple(CHARACTERS), "speaker")


Rows = Callable[[list[Any], list[Any]], tuple[Tensor, Tensor]]


def _leaf(
    name: str, call: str, folder: Place | None, rows: Rows, classes: int, labels: tuple[str, ...], key: str
) -> Dataset:
    """The data set of a benchmark's folder. ``rows`` makes X and y of LEAF's lists x and y of one user."""
    root = find_folder(call, "train", "*.json", folder, (f"{name}/data", name))
    X, y, users = _part(root / "train", call, rows)
    test = root / "test"
    X_test, y_test, testers = _part(test, call, rows) if any(test.glob("*.json")) else (None, None, None)
    test_keys = {} if testers is None else {key: testers}
    return Dataset(X, y, X_test, y_test, classes, {key: users}, name, labels, test_keys=test_keys)


def _part(folder: Path, call: str, rows: Rows) -> tuple[Tensor, Tensor, np.ndarray]:
    Xs = []
    ys = []
    users = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            data = content["user_data"]
            names = content["users"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadData(
                f"{call}: {path} is no JSON file of LEAF with 'users' and 'user_data' ({error!r}). Make it again by "
                "LEAF's preprocess.sh."
            ) from None
        for user in names:
            try:
                x = data[user]["x"]
                y = data[user]["y"]
                if len(x) != len(y):
                    raise ValueError(f"{len(x)} rows with {len(y)} labels")
                if not x:
                    continue
                X_user, y_user = rows(x, y)
            except (KeyError, TypeError, ValueError) as error:
                raise BadData(
                    f"{call}: {path}, user {user!r}: {error}. Make the file again by LEAF's preprocess.sh."
                ) from None
            Xs.append(X_user)
            ys.append(y_user)
            users += [str(user)] * len(y_user)
    if not Xs:
        raise BadData(f"{call}: the files in {folder} hold no rows. Make them again by LEAF's preprocess.sh.")
    return torch.cat(Xs), torch.cat(ys), np.array(users)
