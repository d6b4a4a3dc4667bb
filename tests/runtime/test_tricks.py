"""The tricks on the whole process and their one switch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from medley.runtime import tricks
from support.pairs import quick
from support.scripts import in_a_child

SCRIPT = """
import ctypes, gc
stopped, kept = [], []
was = gc.disable
gc.disable = lambda: (stopped.append(1), was())
import torch
empty = torch.empty
torch.empty = lambda *a, **k: (kept.append(1) if a == ((1 << 25) - (1 << 16),) else None, empty(*a, **k))[1]
import medley
medley.run  # its names are imported now
from medley.runtime import tricks
from medley.engines.fused import products
trimmed = []
ctypes.CDLL = lambda name: trimmed.append(1)
tricks.trim()
print(len(stopped), bool(kept), len(trimmed), products.HAS_ONEDNN == torch._C._has_mkldnn, gc.isenabled())
"""


@pytest.mark.parametrize(
    ("switch", "said"),
    quick(
        1,
        [
            ("0", "0 False 0 False True"),
            (None, "1 True 1 True True"),
            ("1", "1 True 1 True True"),
        ],
    ),
)
def test_one_switch_turns_all_of_them_off(switch: str | None, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MEDLEY_TRICKS", raising=False)
    if switch is not None:
        monkeypatch.setenv("MEDLEY_TRICKS", switch)
    assert in_a_child(SCRIPT).strip() == said


@pytest.mark.parametrize(
    ("on", "size", "before", "after"),
    [
        (True, tricks.LARGE, [(-4, 0), (-1, 2**31 - 1)], [(-4, 1 << 16), (-1, 1 << 26), "trimmed"]),
        (True, tricks.LARGE - 1, [], []),
        (False, tricks.LARGE, [], []),
    ],
)
def test_a_run_of_a_large_model_keeps_its_memory_and_gives_it_back_after_an_error(
    on: bool, size: int, before: list[object], after: list[object], monkeypatch: pytest.MonkeyPatch
):
    did = list[object]()
    libc = SimpleNamespace(mallopt=lambda *args: did.append(args), malloc_trim=lambda pad: did.append("trimmed"))
    monkeypatch.setattr(tricks.ctypes, "CDLL", lambda name: libc)
    monkeypatch.setattr(tricks, "ON", on)
    with contextlib.suppress(KeyError), tricks.kept_vectors(size):
        during = [*did]
        raise KeyError
    assert during == before
    assert did == [*before, *after]


@pytest.mark.parametrize("lacks", [object(), OSError()])
def test_without_glibc_a_large_model_runs_as_well(lacks: object, monkeypatch: pytest.MonkeyPatch):
    def library(name: None) -> object:
        if isinstance(lacks, OSError):
            raise lacks
        return lacks

    monkeypatch.setattr(tricks.ctypes, "CDLL", library)
    with tricks.kept_vectors(tricks.LARGE):
        assert torch.zeros(3).sum() == 0
    source = torch.arange(tricks.LARGE // 4 + 5, dtype=torch.float32)[3:]
    to = torch.empty_like(source)
    tricks.move(source, to)
    assert torch.equal(to, torch.arange(tricks.LARGE // 4 + 5, dtype=torch.float32)[3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("first", [0, 7])
def test_a_tensor_is_moved_whole_and_only_its_own_memory_is_given_back(dtype: torch.dtype, first: int) -> None:
    both = torch.arange(tricks.LARGE, dtype=torch.float64).remainder(251).to(dtype)
    expected = both.clone()
    last = len(both) - 9
    to = torch.empty(last - first, dtype=dtype)
    tricks.move(both[first:last], to)
    assert torch.equal(to, expected[first:last])
    assert torch.equal(both[:first], expected[:first])
    assert torch.equal(both[last:], expected[last:])
    small = torch.arange(9.0)
    tricks.move(small, copy := torch.empty(9))
    assert torch.equal(small, copy)


@pytest.mark.slow
def test_a_run_without_tricks_ends_where_it_ends_with_them():
    script = "import medley as md\n"
    script += "fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition="
    script += "md.partitions.IID(10))\nprint(md.run(md.FedAvg(), fed, rounds=2, progress=False).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=os.environ | {"MEDLEY_TRICKS": switch},
            check=True,
        ).stdout
        for switch in "01"
    }
    assert len(digests) == 1
