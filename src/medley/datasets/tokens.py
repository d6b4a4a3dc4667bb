"""Text as rows of token ids."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..contract.errors import RecipeError

PADDING = 0
"""The id that fills rows on the right. No word has it."""

UNKNOWN = 1
"""The id of all words outside the vocabulary."""

WORDS = re.compile(r"[#@]?[\w']+|[.,!?;]")
"""A word, or a mark."""


def split(line: str) -> list[str]:
    """Words in lower case, with apostrophes, # and @, and punctuation marks of their own; after LEAF's Sent140."""
    return WORDS.findall(line.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that have an id of their own, in the order of ids from 2.

    Ids 0 and 1 are `PADDING` and `UNKNOWN`. ``len`` counts them too: it is the number of embeddings to make.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, lines: Iterable[str], size: int) -> Vocabulary:
        """The most common words of these lines, up to ``size`` ids including the two special ones; ties go by the
        alphabet.

        Give the training rows only. Raises RecipeError for a size below 3.
        """
        if size < 3:
            raise RecipeError(f"Vocabulary.of(size={size}): must be at least 3, since two ids are special.", "size")
        counts = Counter(itertools.chain.from_iterable(map(split, lines)))
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]))

    def __len__(self) -> int:
        return len(self.words) + 2

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: i for i, word in enumerate(self.words, 2)}

    def encode(self, lines: Sequence[str], length: int) -> Int64[Tensor, "n length"]:
        """The ids of the first ``length`` words of each line, padded on the right.

        A line without words is one `UNKNOWN`. Raises RecipeError for a length below 1.
        """
        if length < 1:
            raise RecipeError(f"Vocabulary.encode(length={length}): must be at least 1.", "length")
        out = np.full((len(lines), length), PADDING, np.int64)
        of = self.ids.get
        for row, line in enumerate(lines):
            ids = [of(word, UNKNOWN) for word in split(line)[:length]] or [UNKNOWN]
            out[row, : len(ids)] = ids
        return torch.from_numpy(out)
