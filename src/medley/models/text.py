"""Classifiers of token rows: int64 ids [b, length], padded on the right with id 0.

Padding does not count: the outputs of a row are the same however many padding ids follow it. Ids come from
`medley.datasets.tokens.Vocabulary`, or from any other tokeniser that keeps id 0 for padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import RecipeError, checked
from .normal import Dropout, Size

PADDING = 0
"""The id that pads a row."""


@checked("models")
def lstm(vocabulary: Size, classes: Size, embedding: Size = 100, hidden: Size = 128, layers: Size = 1) -> Recurrent:
    """An LSTM over token rows, then a linear layer on the state after a row's last token.

    With v ids, c classes, embeddings of length e and h hidden units it has v·e + 4h(e + h + 2) + c(h + 1) parameters,
    and 4h(2h + 2) more for each further layer (Hochreiter & Schmidhuber, "Long Short-Term Memory", Neural
    Computation, 1997). torch keeps two bias vectors per layer.

    Args:
        vocabulary: Number of ids, including the padding id.
        classes: Number of outputs.
        embedding: Length of an embedding; default 100.
        hidden: Units of each layer; default 128.
        layers: Number of LSTM layers; default 1.

    Raises RecipeError if a size is below 1.
    """
    return Recurrent("lstm", vocabulary, classes, embedding=embedding, hidden=hidden, layers=layers)


@checked("models")
def gru(vocabulary: Size, classes: Size, embedding: Size = 100, hidden: Size = 128, layers: Size = 1) -> Recurrent:
    """A GRU over token rows, then a linear layer on the state after a row's last token. Arguments as in `lstm`.

    It has v·e + 3h(e + h + 2) + c(h + 1) parameters, in the letters of `lstm` (Cho et al., "Learning Phrase
    Representations using RNN Encoder-Decoder", EMNLP 2014).
    """
    return Recurrent("gru", vocabulary, classes, embedding=embedding, hidden=hidden, layers=layers)


@checked("models")
def char_lstm(classes: Size = 80, embedding: Size = 8, hidden: Size = 256, layers: Size = 2) -> Recurrent:
    """LEAF's network for Shakespeare: the next character after a row of characters; 819,920 parameters.

    The published network has 817,872; torch keeps a second bias vector in each layer, which adds 2·1,024 (Caldas
    et al., "LEAF: A Benchmark for Federated Settings", 2018). Every id is a character; none is padding.

    Args:
        classes: Number of characters, of the input and of the output; default 80, as in `datasets.shakespeare`.
        embedding: Length of an embedding; default 8.
        hidden: Units of each layer; default 256.
        layers: Number of LSTM layers; default 2.

    Raises RecipeError if a size is below 1.
    """
    return Recurrent("lstm", classes, classes, embedding=embedding, hidden=hidden, layers=layers, padded=False)


@checked("models")
def text_cnn(
    vocabulary: Size,
    classes: Size,
    embedding: Size = 300,
    kernels: Sequence[Size] = (3, 4, 5),
    channels: Size = 100,
    dropout: Dropout = 0.5,
) -> TextCNN:
    """Convolutions over token rows, their maximum over time, dropout and a linear layer.

    The source is Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014, without its bound on
    the weights' norm. With the defaults and v ids it has 300·v + 360,300 + 301·classes parameters.

    Args:
        vocabulary: Number of ids, including the padding id.
        classes: Number of outputs.
        embedding: Length of an embedding; default 300.
        kernels: Tokens in a window, for each convolution; default 3, 4 and 5.
        channels: Channels of each convolution; default 100.
        dropout: Probability with which a feature is dropped in training; default 0.5.

    Raises RecipeError if a size is below 1, or the dropout outside [0, 1).
    """
    if not kernels:
        raise RecipeError("models.text_cnn(kernels=()): give at least one width of a window", "kernels")
    return TextCNN(vocabulary, classes, embedding, kernels=kernels, channels=channels, dropout=dropout)


class Recurrent(nn.Module):
    """Embeddings, recurrent layers, and a linear layer on the state after a row's last token.

    Args:
        kind: "lstm" or "gru".
        padded: whether id 0 is padding; default True.
    """

    def __init__(
        self,
        kind: Literal["lstm", "gru"],
        vocabulary: int,
        classes: int,
        embedding: int,
        hidden: int,
        layers: int,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.padded = padded
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=PADDING if padded else None)
        layer = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = layer(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [b, t] to outputs [b, classes]; a row of only padding is read as one id."""
        states = self.rnn(self.embed(ids))[0]
        if not self.padded:
            out: Tensor = self.head(states[:, -1])
            return out
        # States are causal: the states up to a row's last token do not depend on the padding after it.
        places = torch.arange(ids.shape[1], device=ids.device)
        last = torch.where(ids != PADDING, places, 0).amax(1)
        out = self.head(states[torch.arange(len(ids), device=ids.device), last])
        return out


class TextCNN(nn.Module):
    """Kim's network; the arguments are the same as in `text_cnn`."""

    def __init__(
        self, vocabulary: int, classes: int, embedding: int, kernels: Sequence[int], channels: int, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, channels, kernel) for kernel in kernels)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels * len(kernels), classes)
        self.widest = max(kernels)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [b, t] to outputs [b, classes]. Windows begin at a token, and may reach into the padding after a row."""
        t = ids.shape[1]
        begins = (ids != PADDING)[:, None]
        x = self.embed(F.pad(ids, (0, self.widest - 1), value=PADDING)).transpose(1, 2)
        # After ReLU a window that begins at padding counts as 0: it is the maximum only if no other window is positive.
        maps = [F.relu(convolution(x))[:, :, :t] * begins for convolution in self.convolutions]
        out: Tensor = self.head(self.dropout(torch.cat([m.amax(2) for m in maps], 1)))
        return out
