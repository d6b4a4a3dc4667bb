"""Private trees: a client bounds what a row adds to its histograms, and adds noise to them before they leave.

**Reference**: Maddock, Cormode, Wang, Maple & Jha, "Federated Boosted Decision Trees with Differential Privacy", CCS
2022: Gaussian noise on sums of gradients and second derivatives, composed over levels and trees.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..contract import Client, LocalSampling, Message, pytree
from ..numerics import forest, splits
from ..runtime.forwarded import forwarded

SUMS = ("begin", "level")
"""The client methods whose replies are sums over rows."""


def law(rows: int, depth: int) -> LocalSampling:
    """The sums of a round of trees: every row may be in each, and there is one for each level."""
    return LocalSampling(rows, 1.0, depth)


class BoundedTrees:
    """A client's rows whose derivatives are scaled down, for each row, to ‖(g, h/H)‖ ≤ C over all outputs.

    H is the largest second derivative of the loss. A row whose derivatives are not finite adds nothing.
    """

    n, layout, work, values, codes = forwarded("_of", "n", "layout", "work", "values", "codes")

    def __init__(self, of: Any, bound: float) -> None:
        self._of = of
        self._bound = bound

    def gradients(self, F: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
        """g and h of each row at outputs F [n, outputs], bounded, and rounded towards 0 to multiples of ``unit``."""
        g, h = self._of.gradients(F, unit)
        most = splits.BENDS[forest.LOSSES[self.layout.loss]]
        norms = np.linalg.norm(np.concatenate([g, h / most], 1), axis=1, keepdims=True)
        share = np.minimum(1, np.divide(self._bound, norms, out=np.ones_like(norms), where=norms > 0))
        g, h = (np.trunc(np.where(np.isfinite(norms), v * share, 0) / unit) * unit for v in (g, h))
        return g, h


def call(
    method: Any,
    name: str,
    me: Client[Any],
    messages: Sequence[Message],
    bound: float,
    noise: Callable[[LocalSampling], float],
    identity: str,
    refuse: Callable[[str], NoReturn],
) -> Message:
    """The method's client method ``name``, whose sums get noise of the standard deviation z·C·√p.

    A row enters one histogram for each of the p columns that trees may use, with a part of the norm C at most. The
    noise follows from the client's secret, the request, and the sums themselves: a repeated request gets the same
    noise, and no two other sums do.

    Args:
        bound: C
        noise: z by the sampling of the client's sums
        identity: name and settings of the method
        refuse: raises Unsupported with a reason
    """
    rows: Any = me.problem
    layout = rows.layout
    if name not in SUMS:
        refuse("bins from counts tell about single rows; give Boost(ranges=...)")
    if forest.LOSSES[layout.loss] not in splits.BENDS:
        refuse("the gradients of its loss have no public bound; use the loss 'logistic' or 'softmax'")
    check(messages, layout, refuse)
    bounded: Any = BoundedTrees(rows, bound)
    inner: Client[Any] = dataclasses.replace(me, problem=bounded, memory=me.memory)
    reply: Any = getattr(method, name)(inner, *messages)
    me.memory = inner.memory
    scale = noise(law(rows.n, layout.depth)) * bound * math.sqrt(method.entered(me.memory, layout))
    content = blake2b(pytree.to_bytes([*messages, reply])).hexdigest()
    rng = me.secret(f"privacy of trees, {identity}, {name}, {content}")
    most = splits.BENDS[forest.LOSSES[layout.loss]]

    def noisy(sums: Tensor, part: float) -> Tensor:
        return torch.from_numpy(splits.rounded((sums + rng.normal(sums.shape) * (scale * part)).numpy(), splits.PUBLIC))

    blurred: Message = dataclasses.replace(reply, g=noisy(reply.g, 1.0), h=noisy(reply.h, most), n=None)
    return blurred


def check(messages: Sequence[Message], layout: forest.Layout, refuse: Callable[[str], NoReturn]) -> None:
    """Refuse a request on which a computation might fail for some rows and not for others, which would show."""
    for message in messages:
        cuts, lines = (getattr(message, name, None) for name in ("cuts", "lines"))
        if cuts is not None and lines is not None and (int(lines.sum()) != len(cuts) or bool((lines < 0).any())):
            refuse("the lines of its columns do not fit together")
        for name, each in (("trees", layout.nodes), ("nodes", -1)):
            records = getattr(message, name, torch.zeros(0)).numpy().reshape(-1, forest.RECORD)
            if len(records):
                nodes = records.reshape(-1 if name == "trees" else layout.outputs, each, forest.RECORD)
                feature = nodes[..., forest.FEATURE]
                leaves = feature[:, layout.nodes // 2 :]
                if not ((feature >= -1) & (feature < layout.columns)).all() or (leaves >= 0).any():
                    refuse("its trees do not fit the rows' columns")
