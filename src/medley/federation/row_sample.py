"""An estimate of the training loss from some rows of each client."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..contract import Problem, RecipeError, Vec
from ..runtime import streams
from ..runtime.recent import Recent
from ..storage.history import Row
from .evaluation import EvaluationData, outputs
from .rows import ClientRows
from .scenario import Shares

LEAST = 2
"""A client's minimum number of rows in a sample, if it has as many: fewer give no estimate of a variance."""


@dataclass(frozen=True)
class Drawn:
    """The sampled rows of one step.

    Attributes:
        places: int64 [m], the rows' positions among all training rows, client by client
        counts: int64 [k], sampled rows of each client that has any
        sizes: int64 [k], training rows of the same clients
        p: their shares p_i [k]
    """

    places: Tensor
    counts: np.ndarray
    sizes: np.ndarray
    p: np.ndarray

    def mean(self, by_row: np.ndarray) -> tuple[float, float]:
        """Σ p_i (mean of client i's sampled values), and its standard error.

        The error is that of a stratified sample without replacement, √(Σ p_i² (1 − n_i/N_i) s_i²/n_i), with n_i of N_i
        rows and their variance s_i²; see Cochran, Sampling Techniques, 3rd ed., section 5.3.
        """
        starts = np.cumsum(self.counts) - self.counts
        means = np.add.reduceat(by_row, starts) / self.counts
        squares = np.add.reduceat((by_row - np.repeat(means, self.counts)) ** 2, starts)
        spread = squares / np.maximum(1, self.counts - 1) / self.counts
        variance = self.p**2 * (1 - self.counts / self.sizes) * spread
        return float(self.p @ means), math.sqrt(float(variance.sum()))


@dataclass(frozen=True)
class DrawnClients:
    """One row each from clients drawn with probability p_i, with replacement.

    Attributes:
        places: int64 [m], the rows' positions among all training rows
    """

    places: Tensor

    def mean(self, by_row: np.ndarray) -> tuple[float, float]:
        """The mean, whose expectation is Σ p_i (mean of client i's values), and its standard error.

        See Hansen and Hurwitz, On the theory of sampling from finite populations (1943).
        """
        return float(by_row.mean()), float(by_row.std(ddof=1)) / math.sqrt(len(by_row))


@dataclass(frozen=True, eq=False)
class RowSample:
    """Training rows of each client, the same in each round of a run, for an unbiased estimate of Σ p_i f_i(x).

    Client i contributes p_i · ``count`` rows, drawn without replacement, and at least two if it has two. If there are
    more clients than ``count``, the sample is one row each from ``count`` clients drawn with probability p_i. The draw
    depends only on the seed, so all methods in a comparison are measured on the same rows.
    """

    rows: ClientRows
    seed: int
    count: int
    _drawn: Recent[EvaluationData, Drawn | DrawnClients] = field(default_factory=Recent, repr=False)

    def sample(self, s: int, data: EvaluationData) -> Drawn | DrawnClients:
        """The sample of step s, from the clients in ``data``."""
        few = self.count < len(data.p)
        return self._drawn.of(data, lambda: self._few(s, data) if few else self._draw(s, data))

    def _draw(self, s: int, data: EvaluationData) -> Drawn:
        layout = self.rows.layout
        sizes = layout.sizes[s]
        p = self._shares(data)
        counts = np.minimum(sizes, np.maximum(LEAST, np.rint(p * self.count).astype(np.int64))) * (p > 0)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        # Each client's rows in a random order; the first ones are the sample.
        order = np.lexsort((streams.rng(self.seed, "eval rows", s).random(len(owner)), owner))
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.sort(order[rank < counts[owner]]) + layout.step(s).start
        is_sampled = counts > 0
        return Drawn(torch.from_numpy(places), counts[is_sampled], sizes[is_sampled], p[is_sampled])

    def _few(self, s: int, data: EvaluationData) -> DrawnClients:
        layout = self.rows.layout
        g = streams.rng(self.seed, "eval rows", s)
        sizes = layout.sizes[s]
        who = g.choice(len(sizes), max(2, self.count), p=self._shares(data))
        places = (np.cumsum(sizes) - sizes)[who] + (g.random(len(who)) * sizes[who]).astype(np.int64)
        return DrawnClients(torch.from_numpy(places + layout.step(s).start))

    def _shares(self, data: EvaluationData) -> np.ndarray:
        """p_i of the clients in ``layout.ids``; 0 for clients that are not members."""
        if isinstance(data.p, Shares):
            return data.p.array
        return np.array([data.p.get(i, 0.0) for i in self.rows.layout.ids])

    def loss(self, problem: Problem, x: Vec, s: int, data: EvaluationData) -> Row:
        """The estimate of Σ p_i f_i(x), ``loss``, and its standard error, ``loss_error``.

        Raises RecipeError for a loss that is a mean over rows, such as a loss over pairs: a sample cannot estimate it.
        """
        sample = self.sample(s, data)
        rows = self.rows
        X, y, w = rows.at(sample.places.to(rows.y.device))
        losses = [problem.losses(z, t) for z, t in outputs(problem, x, X, y)]
        if any(part is None for part in losses):
            raise RecipeError(
                f"run(eval_rows={self.count}): the problem's loss is a mean over rows, and a sample of them "
                "cannot estimate it; return the loss of each row, or leave out eval_rows=",
                "eval_rows",
            )
        by_row = torch.cat([part for part in losses if part is not None]).double()
        mean, error = sample.mean((by_row if w is None else by_row * w).cpu().numpy())
        return {"loss": mean + problem.penalty(x), "loss_error": error}
