"""Data sets on disk, mapped into memory.

A mapped tensor needs no memory: the system reads its pages when they are used and drops them when memory is short.
Processes that map the same folder share the pages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, RecipeError, checked
from ..numerics.scaling import Scaling
from ..rows.fields import Fields
from ..rows.sparse import Sparse
from ..storage.atomic import make_folder
from .dataset import PARTS, Dataset
from .files import Place


def save(data: Dataset, folder: Place) -> Path:
    """Write a data set into a new folder, one npy file for each tensor and key; `saved` maps it. Returns the folder.

    Raises RecipeError for a folder that has files already, and for sparse rows.
    """
    place = Path(folder).expanduser()
    call = f"datasets.disk.save({data.name!r})"
    if place.exists() and any(place.iterdir()):
        raise RecipeError(
            f"{call}: {place} is not empty; give a new folder, or datasets.saved({str(place)!r}).", "folder"
        )
    if isinstance(data.X, Sparse | Fields):
        kind = "sparse rows" if isinstance(data.X, Sparse) else "rows of several inputs"
        raise RecipeError(f"{call}: {kind} cannot be mapped; keep the data set in memory.", "data")
    make_folder(place)
    parts = [name for name in PARTS if getattr(data, name) is not None]
    for name in parts:
        t = getattr(data, name)
        np.save(place / f"{name}.npy", t.numpy(), allow_pickle=False)
    for k, values in enumerate(data.keys.values()):
        np.save(place / f"key{k}.npy", np.asarray(values), allow_pickle=False)
    for k, values in enumerate(data.test_keys.values()):
        np.save(place / f"test_key{k}.npy", np.asarray(values), allow_pickle=False)
    table: dict[str, Any] = {"name": data.name, "classes": data.classes, "labels": data.labels, "keys": list(data.keys)}
    table |= {
        "test_keys": list(data.test_keys),
        "features": data.features,
        "inferred": data.inferred,
        "missing": data.missing,
    }
    if data.scaling is not None:
        table["scaling"] = data.scaling.plain()
    # Last, so that an unfinished folder does not count as a data set.
    (place / "dataset.json").write_text(json.dumps(table | {"parts": parts}), encoding="utf-8")
    return place


@checked("datasets")
def saved(folder: Place) -> Dataset:
    """The data set that `disk.save` wrote into this folder; its tensors are mapped, not read.

    You may change them in memory; the files do not change. Raises ``BadData`` for a folder that holds none, or a
    damaged file.
    """
    place = Path(folder).expanduser()
    call = f"datasets.saved({str(place)!r})"
    try:
        table = json.loads((place / "dataset.json").read_text(encoding="utf-8"))
        parts = {name: _mapped(place / f"{name}.npy") for name in table["parts"]}
        keys = {key: np.load(place / f"key{k}.npy", allow_pickle=False) for k, key in enumerate(table["keys"])}
        test_keys = {
            key: np.load(place / f"test_key{k}.npy", allow_pickle=False)
            for k, key in enumerate(table.get("test_keys", []))
        }
        labels = tuple(table["labels"])
        name = table["name"]
        features = tuple(table.get("features", ()))
        scaling = Scaling.from_plain(table["scaling"]) if "scaling" in table else None
        fields: dict[str, Any] = parts | {"features": features, "scaling": scaling, "classes": table["classes"]}
        fields |= {name: table.get(name) is True for name in ("inferred", "missing")}
        return Dataset(**fields, keys=keys, name=name, labels=labels, test_keys=test_keys)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(
            f"{call}: there is no data set in this folder, or a damaged one ({error}). Write it by "
            "datasets.disk.save(data, folder)."
        ) from None


def _mapped(path: Path) -> Tensor:
    # "c": pages are copied when a program writes to them, and torch warns of arrays that it cannot write.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
