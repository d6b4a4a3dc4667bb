"""The layer that a linear model becomes; a run folder may hold it, as it may torch's layers."""

from torch import Tensor, nn


class Linear(nn.Linear):
    """torch's layer, which also takes rows of another dtype than its own: a linear model is float64, rows float32."""

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs of rows [n, features]."""
        return super().forward(rows.to(self.weight.dtype))
