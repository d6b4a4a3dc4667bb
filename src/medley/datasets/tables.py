"""Published tables: sets that ship with scikit-learn, and two regressions.

The sets that ship with scikit-learn have no test set of their own: a fraction ``test`` of the rows, 0.2 by default, is
drawn for one.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, checked
from ..rows.precision import kept_apart
from .dataset import Dataset
from .files import Place, find
from .formats import read_npz


@checked("datasets")
def digits(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """1,797 handwritten digits, 8×8 as 64 features in [0, 1], shipped with scikit-learn (Alpaydin, Kaynak, 1998)."""
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is one of our dependencies"
    assert spec.origin is not None
    # load_digits would import scikit-learn, which takes longer than training on its digits.
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    y = torch.from_numpy(rows[:, 64].astype(np.int64))
    return Dataset(_float(rows[:, :64] / 16), y, classes=10, name="digits").split(test, seed=seed)


@checked("datasets")
def breast_cancer(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """569 tumours with 30 features in their own units, malignant (0) or benign (1), shipped with scikit-learn."""
    from sklearn import datasets as embedded

    bunch = embedded.load_breast_cancer()
    y = torch.from_numpy(bunch.target.astype(np.int64))
    labels = tuple(map(str, bunch.target_names))
    return Dataset(_float(bunch.data), y, classes=2, name="breast_cancer", labels=labels).split(test, seed=seed)


@checked("datasets")
def diabetes(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """442 patients with 10 scaled features and the disease's progression, 25 to 346, shipped with scikit-learn."""
    from sklearn import datasets as embedded

    X, y = embedded.load_diabetes(return_X_y=True)
    return Dataset(_float(X), _float(y), name="diabetes").split(test, seed=seed)


@checked("datasets")
def online_news(folder: Place | None = None) -> Dataset:
    """Online News Popularity: 9,874 articles with 59 features in their own units; y is the log of the shares.

    From ``online_news_subset.npz`` (``x``, ``shares``, ``columns``); no test set. ``keys["channel"]`` is the section
    that an article appeared in, ``keys["weekday"]`` its day (Fernandes, Vinagre, Cortez, 2015).
    """
    call = "datasets.online_news()"
    (file,) = find(call, ["online_news_subset.npz"], folder)
    arrays = read_npz(file, ["x", "shares", "columns"], call)
    if (arrays["shares"] <= 0).any():
        row = int(np.argmax(arrays["shares"] <= 0))
        raise BadData(f"{call}: row {row} has {arrays['shares'][row]} shares; the logarithm needs at least 1.", row=row)
    names = arrays["columns"].tolist()
    for prefix in KEYS.values():
        if not any(name.startswith(prefix) for name in names):
            raise BadData(f"{call}: {file} has no column {prefix}…; fetch it again.")
    keys = {key: _one_hot(arrays["x"], names, prefix) for key, prefix in KEYS.items()}
    return Dataset(_float(arrays["x"]), _float(np.log(arrays["shares"])), keys=keys, name="online_news")


KEYS = {"channel": "data_channel_is_", "weekday": "weekday_is_"}
"""Prefixes of one-hot columns by the name of the key that they become."""


@checked("datasets")
def msd_years(folder: Place | None = None) -> Dataset:
    """Million Song subset: 4,680 songs with 54 timbre features in their own units; y is the year, 1926 to 2010.

    From ``msd_year_subset.npz`` (``x``, ``y``); no test set. ``keys["year"]`` makes every year a client
    (Bertin-Mahieux et al., 2011).
    """
    call = "datasets.msd_years()"
    (file,) = find(call, ["msd_year_subset.npz"], folder)
    arrays = read_npz(file, ["x", "y"], call)
    return Dataset(
        _float(arrays["x"]), _float(arrays["y"]), keys={"year": arrays["y"].astype(np.int64)}, name="msd_years"
    )


def _one_hot(x: np.ndarray, names: list[str], prefix: str) -> np.ndarray:
    columns = [j for j, name in enumerate(names) if name.startswith(prefix)]
    # Articles outside the listed channels have zeros throughout.
    kinds = np.array([*(names[j].removeprefix(prefix) for j in columns), "other"])
    flags = x[:, columns] > 0.5
    return kinds[np.where(flags.any(1), flags.argmax(1), len(columns))]


def _float(values: Any) -> Tensor:
    """Numbers in float32, or in float64 where they lie too close together for it."""
    return torch.from_numpy(kept_apart(values))
