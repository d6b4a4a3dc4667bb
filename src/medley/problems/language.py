"""The loss of a causal language model, whose targets are its own tokens, one place on."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from .cross_entropy import padded_cross_entropies

IGNORED = -100
"""The label of a token that has no loss, such as padding or a prompt."""


def causal_lm(outputs: Float[Tensor, "n t v"], y: Int[Tensor, "n t"]) -> Float[Tensor, " n"]:
    """The loss of each row: the mean cross-entropy of its next tokens, without those that are masked.

    Use it as ``Network(model, loss=causal_lm)`` with y the token ids themselves, −100 where there is no loss. Outputs
    at place k are compared with y at place k + 1. A row counts once whatever its length; the loss of Hugging Face's
    models is the mean over all tokens of a batch, which is the same where rows have equally many.

    Args:
        outputs: logits
        y: token ids, masked by −100; a row without any has loss 0
    """
    return padded_cross_entropies(outputs[:, :-1].movedim(2, 1), y[:, 1:], IGNORED, None)
