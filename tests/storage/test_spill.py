from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.types import Vec
from medley.storage import checkpoint, spill
from medley.storage.spill import Spill


@dataclass
class Held:
    v: Vec
    count: int = 0


def value(i: int, n: int = 1000) -> Any:
    return [((1, i), Held(torch.full((n,), float(i)), i))]


def test_what_exceeds_the_budget_comes_back_with_the_same_bits():
    kept = Spill({"Held": Held}, budget=10 * 4000)
    for i in range(50):
        kept[i] = value(i)
    assert kept.size <= 10 * 4000
    assert sorted(kept) == list(range(50))
    for i in (7, 49, 7, 0):
        ((tag, held),) = kept[i]
        assert (tag, held.count, type(held.count)) == ((1, i), i, int)
        assert torch.equal(held.v, torch.full((1000,), float(i)))
        assert kept.size <= 10 * 4000
    assert [i for i in kept if i in kept._here][-1] == 0  # the last one asked for is the last to go


def test_places_on_disk_are_used_again():
    kept = Spill({"Held": Held}, budget=0)
    for turn in range(20):
        for i in range(5):
            kept[i] = value(turn)
    assert os.fstat(kept._file.fileno()).st_size <= 6 * 8192
    del kept[3]
    assert 3 not in kept
    assert len(kept) == 4
    with pytest.raises(KeyError):
        kept[3]
    kept.clear()
    assert (len(kept), kept.size) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("transport", [None, md.transports.Processes(2)])
@pytest.mark.parametrize("codec", [None, md.wire.codecs.Delta()])
def test_a_run_has_the_same_bits_whatever_fits(transport: Any, codec: Any, tmp_path: Path, monkeypatch: Any):
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.scenarios.IID(40), participation=0.5
    )
    options: dict[str, Any] = {"progress": False, "transport": transport, "codec": codec}
    whole = md.run(md.SCAFFOLD(), fed, 4, **options)
    monkeypatch.setattr(spill, "BUDGET", 5 * 640 * 8)
    monkeypatch.setattr(checkpoint, "PART", 5 * 640 * 8)
    small = md.run(md.SCAFFOLD(), fed, 2, checkpoint=tmp_path, **options)
    assert small.status.ok
    assert len([*tmp_path.glob("memories-*")]) > 2
    small = md.run(md.SCAFFOLD(), fed, 4, resume=tmp_path, **options)
    assert torch.equal(whole.x, small.x)


def test_a_damaged_part_of_a_checkpoint_is_named(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(checkpoint, "PART", 100)
    state = {"memories": {i: value(i, 20)[0][1] for i in range(5)}}
    checkpoint.save(tmp_path, state, {})
    back = checkpoint.load(tmp_path, {"Held": Held})["memories"]
    assert [(i, held.count) for i, held in back.items()] == [(i, i) for i in range(5)]
    checkpoint.save(tmp_path, {"memories": {0: value(7, 20)[0][1]}}, {})
    assert [*tmp_path.glob("memories-*")] == []  # nobody needs the old ones
    checkpoint.save(tmp_path, state, {})
    part = min(tmp_path.glob("memories-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(md.WireError, match=f"{part.name} is damaged"):
        dict(checkpoint.load(tmp_path, {"Held": Held})["memories"].items())
