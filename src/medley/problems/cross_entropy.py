"""The cross-entropy of each row, and checks of its labels."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..contract import BadData, Data, Place
from ..rows.lazy import Lazy


def cross_entropies(z: Float[Tensor, "n c ..."], y: Int[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """−log softmax(z)_y of each row."""
    # Without `nll_loss`, because vmap runs that in Python and imports sympy for it.
    return -torch.log_softmax(z, 1).gather(1, y[:, None]).squeeze(1)


def padded_cross_entropies(
    z: Float[Tensor, "n c ..."], y: Int[Tensor, "n ..."], ignored: int, factors: Float[Tensor, " c"] | None
) -> Float[Tensor, " n"]:
    """The mean cross-entropy of each row over its targets. Targets equal to ``ignored`` do not count.

    A row whose targets are all ignored has loss 0.

    Args:
        ignored: the label of targets that have no loss
        factors: a factor for the loss of each class [c]; None for 1
    """
    present = y != ignored
    labels = torch.where(present, y, torch.zeros_like(y))
    losses = cross_entropies(z, labels)
    if factors is not None:
        losses = losses * factors[labels]
    return row_means(torch.where(present, losses, torch.zeros_like(losses)), present)


def row_means(values: Float[Tensor, "n ..."], present: Bool[Tensor, "n ..."]) -> Float[Tensor, " n"]:
    """The mean of each row over the places where ``present`` is true; 0 if it never is. Values elsewhere must be 0."""
    n = len(values)
    return values.reshape(n, -1).sum(1) / present.reshape(n, -1).sum(1).clamp(min=1)


def class_labels(y: Data, classes: int | None, where: str, ignored: int | None = None) -> Int[Tensor, "n ..."]:
    """Labels as int64.

    Args:
        y: labels [n], or [n, ...] for sequences and maps, in any dtype.
        classes: the number of classes C; None if it is not known.
        ignored: a label that stands for padding in sequences and maps.

    Raises BadData if a label is not a whole number in 0..C−1; the error names the first such row.
    """
    labels = y.to(torch.int64)
    bad = (labels != y) | (labels < 0) | (labels >= (classes or 1 << 62))
    if y.ndim > 1 and ignored is not None:
        bad &= labels != ignored
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        row = at[0]
        expected = f"0..{classes - 1}" if classes else "0, 1, ..."
        remedy = "Give classes= if there are more, or number the labels from 0"
        if y[at] % 1 != 0 and y.ndim > 1:
            remedy = (
                "If they are soft labels (probabilities), pass a loss of your own, "
                "Network(loss=torch.nn.functional.cross_entropy); if they are values, loss='mse'"
            )
        elif y[at] % 1 != 0:
            remedy = "If they are values, use LeastSquares, or Network(loss='mse')"
        elif y.ndim > 1 and ignored is not None:
            remedy += f", or say ignore_index={y[at].item():g} if it is padding"
        raise BadData(
            f"{where} needs labels {expected}, but this one is {y[at].item():g}. {remedy}", place=Place(row=row)
        )
    return labels


def binary_targets(y: Data, where: str) -> Data:
    """Targets of binary cross-entropy, as floats.

    Raises BadData if a target is not in 0..1; the error names ``where`` and the first such row.
    """
    if isinstance(y, Lazy):
        return y
    bad = (y < 0) | (y > 1)
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        raise BadData(f"{where} needs targets from 0 to 1, but this one is {y[at].item():g}", place=Place(row=at[0]))
    return y if y.is_floating_point() else y.float()
