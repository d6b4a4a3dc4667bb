"""Two cross-silo sets of FLamby, with its centres, its division into training and test, and its preprocessing.

Source: du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022, code at github.com/owkin/FLamby. ``keys["centre"]`` makes every centre a client; the test rows
of all centres stand together, in the order of the centres.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from ..contract import BadData, checked
from .dataset import Dataset
from .files import Place, find

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""Centres of Fed-Heart-Disease, in FLamby's order."""

REGIONS = 6
"""Centres of Fed-TCGA-BRCA."""

Part = tuple[np.ndarray, np.ndarray]


@checked("datasets")
def heart_disease(folder: Place | None = None) -> Dataset:
    """Fed-Heart-Disease: 486 training and 254 test patients of 4 hospitals, 13 features, disease or none.

    The files are ``processed.*.data`` of the UCI repository (Janosi et al., 1988), in ``flamby`` or in the folder
    itself. FLamby's preprocessing: the columns 10 to 12 and then the rows with a missing value are dropped, the columns
    2 and 6 become one-hot without their first level, and each hospital is standardised by its own training rows.

    Raises BadData if a file is missing or has another format.
    """
    from sklearn.model_selection import train_test_split

    call = "datasets.heart_disease()"
    files = find(call, [f"processed.{name}.data" for name in HOSPITALS], folder, ("flamby",))
    tables = [_patients(file, call) for file in files]
    owner = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    table = np.concatenate(tables)
    X = _one_hot(table[:, :-1], (2, 6))
    y = (table[:, -1] > 0).astype(np.int64)
    train: list[Part] = []
    test: list[Part] = []
    for centre in range(len(tables)):
        rows = X[owner == centre]
        labels = y[owner == centre]
        stratify = labels if min(np.bincount(labels, minlength=2)) > 2 else None
        first, second = train_test_split(
            np.arange(len(rows)), test_size=0.34, train_size=0.66, random_state=43, shuffle=True, stratify=stratify
        )
        mean = rows[first].mean(0)
        sd = rows[first].std(0, ddof=1)
        scaled = (rows - mean) / np.where(sd > 0, sd, 1.0)
        train.append((scaled[first], labels[first]))
        test.append((scaled[second], labels[second]))
    return _pooled(train, test, classes=2, name="heart_disease")


@checked("datasets")
def tcga_brca(folder: Place | None = None) -> Dataset:
    """Fed-TCGA-BRCA: 866 training and 222 test patients of 6 regions, 39 covariates; y is (time, event) [n, 2].

    The event is 1 for a death and 0 for the last sight of a patient who lived. `problems.cox` is the loss, and
    `metrics.concordance` the metric. The files are ``brca.csv`` and ``train_test_split.csv`` of FLamby, in ``flamby``
    or in the folder itself.

    Raises BadData if a file is missing or has another format.
    """
    call = "datasets.tcga_brca()"
    table, division = find(call, ["brca.csv", "train_test_split.csv"], folder, ("flamby",))
    fold = {row["pid"]: row["fold2"] for row in _rows(division)}
    patients = _rows(table)
    if not fold or not patients or not {"pid", "E", "T"} <= patients[0].keys():
        raise BadData(f"{call}: {table} needs the columns pid, E and T.")
    patients = [p for p in patients if p["pid"] in fold]  # 8 of 1,096 have no region
    names = [name for name in patients[0] if name not in ("pid", "E", "T")]
    try:
        folds = [fold[p["pid"]] for p in patients]
        X = np.array([[float(p[name]) for name in names] for p in patients])
        y = np.array([[float(p["T"]), float(p["E"])] for p in patients])
    except (KeyError, ValueError) as error:
        raise BadData(f"{call}: {table} and {division} do not fit together: {error}.") from None
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for part in ("train", "test"):
        regions = [np.array(folds) == f"{part}_{k}" for k in range(REGIONS)]
        parts[part] = [(X[at], y[at]) for at in regions if at.any()]
    return _pooled(parts["train"], parts["test"], classes=None, name="tcga_brca")


def _patients(file: Path, call: str) -> np.ndarray:
    """The complete rows [n, 11] of one hospital, the diagnosis last."""
    with file.open(newline="", encoding="utf-8") as stream:
        lines = [line for line in csv.reader(stream) if line]
    bad = next((k for k, line in enumerate(lines) if len(line) != 14), None)
    if bad is not None:
        raise BadData(f"{call}: row {bad} of {file} has {len(lines[bad])} cells, not 14.", row=bad)
    cells = [[c for j, c in enumerate(line) if j not in (10, 11, 12)] for line in lines]
    try:
        return np.array([[float(c) for c in line] for line in cells if "?" not in line])
    except ValueError as error:
        raise BadData(f"{call}: {file} holds a cell that is no number: {error}.") from None


def _one_hot(X: np.ndarray, columns: tuple[int, ...]) -> np.ndarray:
    """The other columns of X [n, p], then a 0/1 column for each level of ``columns`` except the first."""
    rest = [j for j in range(X.shape[1]) if j not in columns]
    levels = [(X[:, j, None] == np.unique(X[:, j])[1:]).astype(float) for j in columns]
    return np.concatenate([X[:, rest], *levels], axis=1)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _pooled(train: list[Part], test: list[Part], classes: int | None, name: str) -> Dataset:
    """The centres' rows one after the other."""
    (X, y), (X_test, y_test) = (
        [torch.from_numpy(np.concatenate([part[k] for part in parts])) for k in (0, 1)] for parts in (train, test)
    )
    if classes is None:
        y = y.float()
        y_test = y_test.float()
    centre = np.repeat(np.arange(len(train)), [len(part[0]) for part in train])
    return Dataset(X.float(), y, X_test.float(), y_test, classes, {"centre": centre}, name)
