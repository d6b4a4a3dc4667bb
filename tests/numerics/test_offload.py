from __future__ import annotations

import errno
import gc
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.numerics import offload as pages
from medley.numerics.offload import offload, release_pages
from medley.storage.spill import Spill
from support.interrupts import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all vectors stay in memory")


@pytest.fixture(autouse=True)
def small(monkeypatch: Any) -> None:
    """Vectors of 1,000 numbers are long, two of them fit into memory, and a file has three."""
    gc.collect()
    monkeypatch.setattr(pages, "LONG", 1000)
    monkeypatch.setattr(pages, "BUDGET", sum(pages._held.values()) + 2 * 4000)
    monkeypatch.setattr(pages, "FILE", 3 * 4096)


def test_what_exceeds_the_budget_has_the_same_bits():
    vectors = [torch.full((1000,), float(i)) for i in range(9)]
    kept = [offload(v) for v in vectors]
    assert [k is v for k, v in zip(kept, vectors, strict=True)] == [True] * 2 + [False] * 7
    assert offload(kept[8]) is kept[8]
    short = torch.zeros(9)
    assert offload(short) is short
    for _ in range(2):
        for k, v in zip(kept, vectors, strict=True):
            assert torch.equal(k, v)
            release_pages(k)
            assert torch.equal(k, v)
    matrix = torch.randn(30, 50, dtype=torch.float64)
    assert torch.equal(offload(matrix.T), matrix.T)


def test_what_a_method_changed_in_place_is_not_lost():
    *in_memory, v = (offload(torch.zeros(1000)) for _ in range(3))
    v += 1  # no method should
    v.data.add_(1)
    v.numpy()[:] += 1  # torch counts neither of these two
    assert release_pages(v)
    assert v.eq(3).all()
    assert len(in_memory) == 2


def test_places_are_used_again_once_no_view_is_left_and_files_go_with_the_last():
    in_memory = [offload(torch.zeros(1000)) for _ in range(2)]
    files = len(os.listdir("/proc/self/fd"))
    a, b = (offload(torch.full((1000,), float(i))) for i in range(2))
    view = a[10:20]
    was = a.data_ptr()
    del a
    others = [offload(torch.full((1000,), 7.0)) for _ in range(4)]
    assert view.tolist() == [0.0] * 10  # although its vector's name is gone
    assert was not in [o.data_ptr() for o in others]
    b += 1  # the next vector at its place must not see it
    was = b.data_ptr()
    del view, b
    again = [offload(torch.full((1000,), 9.0)) for _ in range(2)]
    assert was in [v.data_ptr() for v in again]
    assert all(v.eq(9).all() for v in again)
    assert len(os.listdir("/proc/self/fd")) == files + 4  # two files, and their maps
    del again, others
    assert len(os.listdir("/proc/self/fd")) == files
    assert (len(in_memory), pages._used, pages._free) == (2, {}, {})


def test_many_vectors_need_few_open_files():
    before = len(os.listdir("/proc/self/fd"))
    kept = [offload(torch.full((1000,), float(i))) for i in range(600)]
    assert len(os.listdir("/proc/self/fd")) - before < 150  # with three vectors in each file, 400
    assert all(v.eq(i).all() for i, v in enumerate(kept))


def test_ctrl_c_at_any_line_loses_no_vector():
    in_memory = [offload(torch.zeros(1000)) for _ in range(2)]
    first = offload(torch.full((1000,), 1.0))
    steps = lines_of(lambda: offload(torch.full((1000,), 2.0)), pages, function="to_file")
    assert steps > 10
    for stop in range(1, steps + 1):
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda: offload(torch.full((1000,), 2.0)), pages, stop, "to_file")
        assert first.eq(1).all()
        assert offload(torch.full((1000,), 3.0)).eq(3).all()
    assert len(in_memory) == 2


def test_a_full_disk_is_an_error_with_a_remedy(monkeypatch: Any):
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    vectors = [offload(torch.zeros(1000)) for _ in range(3)]
    monkeypatch.setattr(os, "pwrite", no_room)
    with pytest.raises(md.MedleyError, match=r"No space left.*set TMPDIR"):
        offload(torch.ones(1000))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(md.MedleyError, match=r"no room left.*set TMPDIR"):
        offload(torch.ones(1000))
    assert all(v.eq(0).all() for v in vectors)


def test_without_a_folder_for_files_the_error_has_the_same_remedy(monkeypatch: Any):
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", none)
    kept = [offload(torch.zeros(1000)) for _ in range(2)]
    with pytest.raises(md.MedleyError, match=r"No usable temporary.*set TMPDIR"):
        offload(torch.ones(1000))
    with pytest.raises(md.MedleyError, match=r"No usable temporary.*set TMPDIR"):
        Spill(budget=0).update({i: torch.ones(9) for i in range(2)})
    assert len(kept) == 2


def test_a_forked_process_forgets_where_the_vectors_were_that_it_drops():
    vectors = [offload(torch.zeros(1000)) for _ in range(3)]
    child = os.fork()
    if child == 0:
        del vectors  # other memory may have their addresses: to give it back would lose it
        os._exit(len(pages._used))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(pages._used) == 1
    assert vectors[2].eq(0).all()


def test_threads_share_files():
    def store(i: int) -> list[torch.Tensor]:
        return [offload(torch.full((1000,), float(i))) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(store, range(12)))
    assert all(v.eq(i).all() for i, vectors in enumerate(kept) for v in vectors)


def test_what_stays_in_memory_is_known_beforehand() -> None:
    kept = [offload(torch.zeros(1000)) for _ in range(5)]
    assert sum(pages._held.values()) == pages.resident_bytes(kept[0].nbytes, 1e9)
    assert pages.resident_bytes(40, 1e9) == 4e10  # short vectors stay


@pytest.mark.slow
@pytest.mark.parametrize("transport", [None, md.transports.Processes(2)])
@pytest.mark.parametrize("policy", [None, md.ReplyPolicy(replies=4)])
def test_a_run_has_the_same_bits_whatever_fits(transport: Any, policy: Any, tmp_path: Path, monkeypatch: Any):
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(8), participation=0.7
    )
    options: dict[str, Any] = {"progress": False, "transport": transport, "reply_policy": policy}
    monkeypatch.setattr(pages, "LONG", 1 << 30)
    in_memory = md.run(md.FedNorton(), fed, 6, **options)
    monkeypatch.setattr(pages, "LONG", 1000)
    seen = []

    def stop(row: dict[str, Any]) -> None:
        seen.append(len(pages._used))
        if row["round"] == 4:
            raise KeyboardInterrupt

    first = md.run(md.FedNorton(), fed, 6, checkpoint=tmp_path, on_round=stop, **options)
    assert first.status.outcome == "interrupted"
    assert max(seen) >= 3
    second = md.run(md.FedNorton(), fed, 6, resume=tmp_path, checkpoint=tmp_path, **options)
    assert torch.equal(in_memory.x, second.x)
    del first, second
    gc.collect()
    assert pages._used == {}
