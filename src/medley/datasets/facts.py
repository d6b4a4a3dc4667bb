"""Facts of a data set that results keep: names and scaling of its features, test rows and their commonest label."""

from __future__ import annotations

from typing import Any

import torch

from .dataset import Dataset


def recorded(data: Dataset) -> dict[str, Any]:
    """The facts about a data set as plain values, by the name of their setting; those that it lacks are left out."""
    out: dict[str, Any] = {}
    if data.features:
        out["features"] = list(data.features)
    if data.scaling is not None and data.X.ndim == 2:  # results cannot predict a frame of images
        out["scaling"] = data.scaling.plain()
    y = data.y_test
    if y is None:
        return out
    out["test_rows"] = len(y)
    if data.classes is not None and y.ndim == 1:
        counts = torch.bincount(y[y >= 0], minlength=data.classes)
        most = int(counts.argmax())
        out["test_majority"] = [str(data.labels[most] if data.labels else most), int(counts[most]) / len(y)]
    return out
