"""Text sets, as vectors or as token ids."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, at_least, checked, in_range
from .dataset import Dataset
from .files import Place, find
from .formats import read_npz, too_large, unpacked_limit
from .tokens import Vocabulary


@checked("datasets")
def sentiment140(features: Annotated[int, at_least(1)] = 2000, folder: Place | None = None) -> Dataset:
    """Sentiment140 subset: 27,689 tweets, negative (0) or positive (1); the test set is 359 tweets labelled by hand.

    X [n, features] is dense: the tf-idf of the ``features`` commonest words and word pairs of the training rows, 2,000
    by default. The file ``sentiment140_subset.npz`` holds ``y``, ``user``, ``seconds_since_20090401``, ``text_xz``
    (lines, packed with xz), ``y_test`` and ``text_test_xz``. Neutral test tweets (2) are left out, since training has
    none. ``keys["user"]`` is the writer, ``keys["second"]`` the time since 1 April 2009 (Go, Bhayani, Huang, 2009).
    Raises ``BadData`` for a file that is missing or damaged.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # here for its import time, as in tables

    text, text_test, rest = _tweets("datasets.sentiment140()", folder)
    words = TfidfVectorizer(max_features=features, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32)
    X = torch.from_numpy(words.fit_transform(text).toarray())
    return rest(X, torch.from_numpy(words.transform(text_test).toarray()))


@checked("datasets")
def sentiment140_tokens(
    vocabulary: Annotated[int, at_least(3)] = 10_000,
    length: Annotated[int, in_range(1, 65536)] = 30,
    folder: Place | None = None,
) -> Dataset:
    """Sentiment140 subset as token ids: X [n, length] is int64, for `models.lstm`, `models.gru` and `models.text_cnn`.

    Rows, labels, keys and file are the same as in `sentiment140`. `tokens.Vocabulary` makes the ids from the training
    rows only: 0 is padding on the right, 1 a word outside the vocabulary. A validation set that is drawn from these
    rows later has no words of its own.

    Args:
        vocabulary: Number of ids, the two special ones included; default 10,000. The model takes as many.
        length: Words of a tweet that are kept, from its beginning; default 30.
        folder: The folder to look in first; default none.

    Raises RecipeError if the vocabulary is below 3, or the length below 1, and BadData if the file is missing or
    damaged.
    """
    text, text_test, rest = _tweets("datasets.sentiment140_tokens()", folder)
    words = Vocabulary.of(text, vocabulary)
    return rest(words.encode(text, length), words.encode(text_test, length))


def _tweets(call: str, folder: Place | None) -> tuple[list[str], list[str], Callable[[Tensor, Tensor], Dataset]]:
    """Training and test tweets, made into a data set with these inputs."""
    (file,) = find(call, ["sentiment140_subset.npz"], folder)
    arrays = read_npz(file, ["y", "user", "seconds_since_20090401", "text_xz", "y_test", "text_test_xz"], call)
    text = _lines(arrays["text_xz"], len(arrays["y"]), call)
    polar = arrays["y_test"] < 2
    lines = _lines(arrays["text_test_xz"], len(polar), call)

    def data(X: Tensor, X_test: Tensor) -> Dataset:
        return Dataset(
            X,
            _labels(arrays["y"]),
            X_test,
            _labels(arrays["y_test"][polar]),
            classes=2,
            keys={"user": arrays["user"].astype(np.int64), "second": arrays["seconds_since_20090401"].astype(np.int64)},
            name="sentiment140",
            labels=("negative", "positive"),
        )

    return text, [line for line, keep in zip(lines, polar, strict=True) if keep], data


def _labels(y: np.ndarray) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))


def _lines(packed: np.ndarray, n: int, call: str) -> list[str]:
    try:
        unpacking = lzma.LZMADecompressor()
        most = unpacked_limit(packed.nbytes)
        text = unpacking.decompress(packed.tobytes(), most)
        if not unpacking.eof and len(text) == most:
            raise too_large(f"{call}: the packed text", packed.nbytes, most)
        if not unpacking.eof:
            raise EOFError("its end is missing")
        lines = text.decode().split("\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise BadData(f"{call}: the packed text is damaged ({error}). Fetch the file again.") from None
    if len(lines) != n:
        raise BadData(f"{call}: the file has {len(lines)} lines of text but {n} labels. Fetch the file again.")
    return lines
