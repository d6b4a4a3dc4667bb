"""The loss of a causal language model: at each place the target is the next token."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from .cross_entropy import padded_cross_entropies

IGNORED = -100
"""The label of a token that has no loss, such as padding or a prompt."""


def causal_lm(outputs: Float[Tensor, "n t v"], y: Int[Tensor, "n t"]) -> Float[Tensor, " n"]:
    """The loss of each row: the mean cross-entropy of its next tokens. Masked tokens do not count.

    Use it as ``Network(model, loss=causal_lm)``. y holds the token ids themselves, and −100 for a token without a loss.
    Outputs at place k are compared with y at place k + 1. Every row counts equally, whatever its length. The loss of
    Hugging Face's models is the mean over all tokens of a batch; the two agree if all rows have equally many labels.

    Args:
        outputs: logits
        y: token ids, or −100 for a masked token; a row with only masked tokens has loss 0
    """
    return padded_cross_entropies(outputs[:, :-1].movedim(2, 1), y[:, 1:], IGNORED, None)
