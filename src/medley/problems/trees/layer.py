"""The module that a grown forest becomes; a run folder may hold it, as it may torch's layers."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...contract.types import Vec
from ...numerics.forest import Forest, importance, layout_of
from .xgboost import model_of


class Grown(nn.Module):
    """A grown forest. It takes rows [n, columns] and returns outputs [n], or [n, classes] of softmax.

    Attributes:
        x: the forest's vector [d]
    """

    def __init__(self, x: Vec) -> None:
        super().__init__()
        self.x = nn.Parameter(x.detach().cpu().clone())

    def forward(self, X: Tensor) -> Tensor:
        """Outputs of these rows."""
        grown = Forest.of(self.x)
        if X.ndim != 2 or X.shape[1] != grown.layout.columns:
            raise ValueError(f"the forest takes rows of {grown.layout.columns} columns, and these are {list(X.shape)}")
        z = torch.from_numpy(grown.outputs(X.to(torch.float32).numpy())).to(self.x.dtype)
        return z if grown.layout.outputs > 1 else z[:, 0]

    @property
    def reads_missing(self) -> bool:
        """Whether NaN in rows is a missing value."""
        return bool(layout_of(self.x).missing)

    def importance(self) -> dict[str, np.ndarray]:
        """Sums over all splits by column [columns]: "gain", "cover" (Σh of the rows divided) and "splits"."""
        return importance(self.x)

    def to_xgboost(self, path: str | Path) -> Path:
        """Write the forest as XGBoost's JSON model, which ``xgboost.Booster(model_file=path)`` reads."""
        Path(path).write_text(json.dumps(model_of(Forest.of(self.x))), encoding="utf-8")
        return Path(path)
