"""Replay policies: CF-16."""

from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from medley.runtime import streams

NONE = torch.zeros(0, dtype=torch.int64)


def keep(policy, labels, held=NONE, before=0, seed=0):
    came = torch.arange(before, before + len(labels))
    return policy.keep(held, came, labels, before, streams.generator(seed, "arrivals"))


@pytest.mark.parametrize(("capacity", "counts", "want"), [
    (10, (50, 50), (5, 5)), (10, (50, 50, 50), None), (9, (2, 50, 50), None), (100, (3, 4), (3, 4)), (1, (5, 5), None),
])  # fmt: skip
def test_cf16_a_ring_is_full_and_its_classes_differ_by_one(capacity, counts, want):
    labels = torch.repeat_interleave(torch.arange(len(counts)) * 2, torch.tensor(counts))
    rows = keep(md.replay.Ring(capacity), labels)
    kept = torch.bincount(labels[rows], minlength=2 * len(counts))[::2].tolist()
    assert len(set(rows.tolist())) == len(rows) == min(capacity, sum(counts))
    free = [k for k, n in zip(kept, counts, strict=True) if k < n]
    assert max(free, default=0) - min(free, default=0) <= 1
    assert all(k >= max(free, default=0) - 1 or k == n for k, n in zip(kept, counts, strict=True))
    assert want is None or tuple(kept) == want


def test_cf16_a_ring_keeps_the_latest_of_each_class_and_earlier_tasks_whole():
    labels = torch.tensor([0, 1] * 20)
    first = keep(md.replay.Ring(6), labels)
    both = keep(md.replay.Ring(6), labels, held=first, before=40, seed=1)
    assert torch.equal(both[:6], first)
    assert len(both) == 12
    assert int(both[6:].min()) >= 40
    arrivals = torch.randperm(40, generator=streams.generator(0, "arrivals"))
    for c in (0, 1):
        latest = [r for r in arrivals.tolist() if int(labels[r]) == c][-3:]
        assert sorted(latest) == [r for r in first.tolist() if int(labels[r]) == c]


def test_a_ring_needs_classes():
    with pytest.raises(RecipeError, match="Reservoir"):
        md.replay.Ring(3).keep(NONE, torch.arange(5), None, 0, streams.generator(0))


@pytest.mark.slow
@pytest.mark.shapes
def test_every_row_is_equally_likely_to_be_in_a_reservoir():
    """20 rows in two tasks, 5 kept, 1,000 draws: each is there in a quarter, to five standard errors."""
    seen = torch.zeros(20)
    for seed in range(1000):
        held = keep(md.replay.Reservoir(5), torch.zeros(8, dtype=torch.int64), seed=2 * seed)
        held = keep(md.replay.Reservoir(5), torch.zeros(12, dtype=torch.int64), held, 8, seed=2 * seed + 1)
        assert len(set(held.tolist())) == 5
        seen[held] += 1
    assert float((seen / 1000 - 0.25).abs().max()) < 5 * (0.25 * 0.75 / 1000) ** 0.5


@pytest.mark.parametrize("kind", [md.replay.Ring, md.replay.Reservoir])
@pytest.mark.parametrize("sizes", [(0,), (-3,), (5, 0), (True,), (5, True)])
def test_sizes_that_make_no_sense(kind, sizes):
    with pytest.raises(RecipeError, match="whole number"):
        kind(*sizes)
