"""Folds: dtypes of sums, buffers, and one block's sum at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from medley.contract.errors import WireError
from medley.transports.inprocess import InProcessConnection
from medley.wire.clip import Clip
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold, accumulate, merged, regroup
from support.toys import Say, Toy, cohort

toy = Toy()
x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def test_a_mean_of_counts_keeps_float64():
    big = torch.tensor([2**40 + 1, 3])
    total = accumulate(accumulate(None, {"n": big}, 0.5), {"n": big}, 0.5)["n"]
    assert isinstance(total, Tensor)
    assert total.tolist() == [2**40 + 1, 3]
    yes = accumulate(accumulate(None, {"b": torch.tensor([True, False])}, 0.25), {"b": torch.tensor([True, True])}, 0.5)
    assert isinstance(yes["b"], Tensor)
    assert yes["b"].tolist() == [0.75, 0.5]


@pytest.mark.parametrize(("g", "why"), [(None, "'g' came"), (x[:2], "'g' has shape")])
def test_a_reply_that_does_not_fit_leaves_the_sum_as_it_was(g: Any, why: str):
    total = accumulate(None, {"n": 1.0, "g": x}, 1.0)
    with pytest.raises(WireError, match=why):
        accumulate(total, {"n": 3.0, "g": g}, 1.0)
    assert total["n"] == 1.0
    assert torch.equal(total["g"], x)


@pytest.mark.parametrize("far", [1e200, torch.tensor([1e200], dtype=torch.float64)])
def test_a_norm_beyond_double_precision_is_clipped_to_nothing(far: Any):
    norm = Clip({"a": 1e-200, "n": 1.0}).norm({"a": far, "n": torch.tensor([3, 4])})
    assert norm == math.inf
    fold = Fold()
    fold.add(replace(exchange({0: 1.0}), clip=Clip(1e-200)), 0, {"a": far}, None)
    assert fold.total is not None
    assert float(fold.total["a"]) == 0  # type: ignore[arg-type]


class Watched(InProcessConnection):
    """Counts how many sums of blocks are alive when the next one is made."""

    alive = 0

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        tensors: list[weakref.ref[Tensor]] = []
        for reply in super().exchange(exchange):
            assert reply.total is not None
            tensors.append(weakref.ref(reply.total["v"]))
            self.alive = max(self.alive, sum(ref() is not None for ref in tensors))
            yield reply
            del reply


def test_sums_are_added_up_as_blocks_come():
    connections: list[Watched] = []

    def connection(host: Any) -> Watched:
        connections.append(Watched(host))
        return connections[-1]

    everyone = cohort(toy, 20, connection=connection, block=1)
    everyone.ask(toy.echo, Say(x)).mean()
    # the sum so far, the block before and this one
    assert connections[0].alive <= 3


def exchange(weights=None, buffers=None):
    p = {0: 0.25, 1: 0.75}
    return Exchange(1, 0, "train", ((0, 1),), {}, {}, {}, p, weights, buffers)


def test_buffers_are_the_weighted_change_and_the_largest_integers_in_any_order():
    before = torch.tensor([1.0, 2.0]), torch.tensor([7])
    fold = Fold()
    fold.add(exchange(buffers=before), 0, {}, (torch.tensor([3.0, 2.0]), torch.tensor([8])))
    fold.add(exchange(buffers=before), 1, {}, (torch.tensor([1.0, 6.0]), torch.tensor([9])))
    assert fold.buffers is not None
    assert fold.buffers[0].tolist() == [0.25 * 2, 0.75 * 4]
    assert fold.buffers[1].tolist() == [9]
    turned = Fold()
    turned.add(exchange(buffers=before), 0, {}, (torch.tensor([3.0, 2.0]), torch.tensor([9])))
    turned.add(exchange(buffers=before), 1, {}, (torch.tensor([1.0, 6.0]), torch.tensor([8])))
    assert turned.buffers is not None
    assert turned.buffers[1].tolist() == [9]


def test_replies_regrouped_have_the_sum_and_the_buffers_of_a_block_and_stay_as_they_are():
    before = (torch.zeros(2), torch.tensor([0]))
    after = (torch.tensor([1.0, 3.0]), torch.tensor([1]))
    request = exchange({0: 2.0, 1: 3.0}, before)
    packed = {i: {"v": torch.tensor([1.0, i]), "n": i, "none": None} for i in (0, 1)}
    block = Fold()
    singles = {i: Fold(engines=["seq"]) for i in (0, 1)}
    for i in (0, 1):
        block.add(request, i, packed[i], after)
        singles[i].add(replace(request, weights=None), i, packed[i], after)
    total = merged([regroup(request, 0, singles)])
    assert block.total is not None
    assert total.total is not None
    assert torch.equal(total.total["v"], block.total["v"])
    assert (total.total["n"], total.total["none"], total.engines) == (block.total["n"], None, ["seq"])
    assert torch.equal(total.buffers[0], block.buffers[0])
    assert singles[0].buffers[0].tolist() == [0.25, 0.75]
    assert singles[0].replies[0]["v"].tolist() == [1.0, 0.0]


def test_a_sum_begins_in_the_memory_of_a_reply_only_if_nothing_else_uses_it() -> None:
    for own in (False, True):
        x = torch.tensor([3.0, 4.0])
        packed = {"x": x, "n": torch.tensor([2]), "t": 5.0}
        total = accumulate(None, packed, 0.3, own)
        assert [v if isinstance(v, float) else v.tolist() for v in total.values()] == [
            (torch.tensor([3.0, 4.0]) * 0.3).tolist(),
            [0.6],
            1.5,
        ]
        assert (total["x"] is x) == own
        assert (x.tolist() == [3.0, 4.0]) != own
        assert packed["n"].tolist() == [2]
