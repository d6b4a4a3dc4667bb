from __future__ import annotations

import errno
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.types import Vec
from medley.numerics import offload
from medley.storage import checkpoint, spill
from medley.storage.spill import Spill
from support.interrupts import lines_of


@dataclass
class Held:
    v: Vec
    count: int = 0


def value(i: int, n: int = 1000) -> Any:
    return [((1, i), Held(torch.full((n,), float(i)), i))]


def test_what_exceeds_the_budget_comes_back_with_the_same_bits():
    spill = Spill({"Held": Held}, budget=10 * 4000)
    for i in range(50):
        spill[i] = value(i)
    assert spill.size <= 10 * 4000
    assert sorted(spill) == list(range(50))
    for i in (7, 49, 7, 0):
        ((tag, value_),) = spill[i]
        assert (tag, value_.count, type(value_.count)) == ((1, i), i, int)
        assert torch.equal(value_.v, torch.full((1000,), float(i)))
        assert spill.size <= 10 * 4000
    assert [i for i in spill if i in spill._in_memory][-1] == 0  # the last one asked for is the last to go


def test_a_value_that_is_replaced_counts_once():
    spill = Spill({"Held": Held}, budget=10 * 4000)
    for turn in range(20):
        spill[0], spill[1] = value(turn), value(turn, n=500)
        assert spill.size == 4000 + 2000
    assert set(spill._in_memory) == {0, 1}
    assert spill._file is None


def test_places_on_disk_are_used_again():
    spill = Spill({"Held": Held}, budget=0)
    for turn in range(20):
        for i in range(5):
            spill[i] = value(turn)
    assert os.fstat(spill._file.fileno()).st_size <= 6 * 8192
    del spill[3]
    assert 3 not in spill
    assert len(spill) == 4
    with pytest.raises(KeyError):
        spill[3]
    spill.clear()
    assert (len(spill), spill.size) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are in the common file")
def test_long_tensors_are_written_once_and_read_where_they_are(monkeypatch: Any):
    monkeypatch.setattr(offload, "LONG", 4000)
    monkeypatch.setattr(spill, "LONG", 4000)
    monkeypatch.setattr(offload, "FILE", 4 * 4096)
    values = Spill({"Held": Held}, budget=2 * 4000)
    for i in range(6):
        values[i] = value(i)
    values[6] = [*value(6), ((2, 6), Held(torch.zeros(3)))]  # with a short one: in the common file
    values[7] = value(7)
    values[8] = value(8)
    assert values.size <= 2 * 4000
    assert (sorted(values), len(values)) == ([*range(9)], 9)
    assert (sorted(values._mapped), sorted(values._in_file)) == ([0, 1, 2, 3, 4, 5], [6])
    old = values[2][0]
    at = old[1].v.data_ptr()
    values[2] = [old, *value(20)]
    assert values.size <= 2 * 4000
    for i in (7, 8, 6, 0):
        assert all(values[i][0][1].v == i)
    assert [all(m.v == k) for (_, m), k in zip(values[2], (2, 20), strict=True)] == [True, True]
    assert values[2][0][1].v.data_ptr() == at
    del old, values
    gc.collect()
    assert offload._used == {}


@pytest.mark.slow
@pytest.mark.parametrize("long", [1000, 1 << 20])
@pytest.mark.parametrize("transport", [None, md.transports.Processes(2)])
@pytest.mark.parametrize("codec", [None, md.codecs.Delta()])
def test_a_run_has_the_same_bits_whatever_fits(transport: Any, codec: Any, long: int, tmp_path: Path, monkeypatch: Any):
    for module in (spill, offload):
        monkeypatch.setattr(module, "LONG", long)
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(40), participation=0.5
    )
    options: dict[str, Any] = {"progress": False, "transport": transport, "codec": codec}
    in_memory = md.run(md.SCAFFOLD(), fed, 4, **options)
    monkeypatch.setattr(spill, "BUDGET", 5 * 640 * 8)
    monkeypatch.setattr(checkpoint, "PART", 5 * 640 * 8)
    small = md.run(md.SCAFFOLD(), fed, 2, checkpoint=tmp_path, **options)
    assert small.status.ok
    assert len([*tmp_path.glob("memories-*")]) > 2
    small = md.run(md.SCAFFOLD(), fed, 4, resume=tmp_path, **options)
    assert torch.equal(in_memory.x, small.x)


def test_a_damaged_part_of_a_checkpoint_is_named(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(checkpoint, "PART", 100)
    state = {"memories": {i: value(i, 20)[0][1] for i in range(5)}}
    checkpoint.save(tmp_path, state, {})
    back = checkpoint.load(tmp_path, {"Held": Held})["memories"]
    assert [(i, memory.count) for i, memory in back.items()] == [(i, i) for i in range(5)]
    checkpoint.save(tmp_path, {"memories": {0: value(7, 20)[0][1]}}, {})
    assert [*tmp_path.glob("memories-*")] == []  # nobody needs the old ones
    checkpoint.save(tmp_path, state, {})
    part = min(tmp_path.glob("memories-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(md.WireError, match=f"{part.name} is damaged"):
        dict(checkpoint.load(tmp_path, {"Held": Held})["memories"].items())


@pytest.mark.parametrize("budget", [0, 2 * 80, 10 * 80])
def test_ctrl_c_at_any_line_leaves_every_client_its_old_or_its_new_value(budget: int):
    def filled() -> Spill:
        spill = Spill({"Held": Held}, budget=budget)
        for i in range(3):
            spill[i] = value(i, 10)
        return spill

    def store(spill: Spill) -> None:
        assert spill[0][0][1].count == 0
        spill[1] = value(7, 10)

    reference = filled()
    steps = lines_of(lambda: store(reference), spill)
    assert steps > 10
    for stop in range(1, steps + 1):
        after = filled()
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda: store(after), spill, stop)  # noqa: B023 (called here)
        assert sorted(after) == [0, 1, 2]
        assert len(after) == 3
        counts = {i: after.peek(i)[0][1].count for i in after}
        assert counts in ({0: 0, 1: 1, 2: 2}, {0: 0, 1: 7, 2: 2})


class NoRoom:
    def seek(self, at: int) -> None:
        pass

    def write(self, raw: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        pass


def test_a_value_that_does_not_fit_on_disk_is_still_there():
    spill = Spill({"Held": Held}, budget=80)
    spill[0] = value(0, 10)
    spill[1] = value(1, 10)
    file = spill._file
    spill._file = NoRoom()
    with pytest.raises(md.MedleyError, match="set TMPDIR"):
        spill[2] = value(2, 10)
    spill._file = file
    assert {i: spill.peek(i)[0][1].count for i in sorted(spill)} == {0: 0, 1: 1, 2: 2}
    spill[3] = value(3, 10)
    assert {i: spill[i][0][1].count for i in sorted(spill)} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert spill.size <= 80
