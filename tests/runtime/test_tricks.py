"""The tricks on the whole process and their one switch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
