"""Systems without fork, pwrite, memfd and folders that can be opened: their paths give the same bits.

Names that Windows or macOS lack are taken away in a process of its own. This is an emulation: Medley has been run on
Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from medley.storage import atomic

WORK = """
import json, os, sys, signal, multiprocessing
import torch, filelock
import medley as md
from medley.storage import spill

md.run  # its names are imported now
if sys.argv[1] == "poor":
    for module, names in ((os, ("fork", "pwrite", "pread", "memfd_create", "sched_getaffinity", "posix_fadvise")),
                          (signal, ("pthread_sigmask", "SIGKILL"))):
        for name in names:
            delattr(module, name)
    sys.modules["fcntl"] = None
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    multiprocessing.set_start_method("spawn", force=True)
    plain = os.open

    def files_only(path, *args, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "a folder", path)
        return plain(path, *args, **options)

    os.open = files_only
    sys.platform = "win32"

torch.set_num_threads(1)
spill.BUDGET = 1  # memories go to disk
data = md.datasets.digits().take(200, 50)
fed = md.Federation(md.problems.Softmax(mu=1e-3), data=data, partition=md.partitions.IID(6))
folder = sys.argv[2]


def stop(row):
    if row["round"] == 2:
        raise KeyboardInterrupt


md.run(md.SCAFFOLD(), fed, 4, checkpoint=folder + "/a", checkpoint_every=1, on_round=stop)
run = md.run(md.SCAFFOLD(), fed, 4, resume=folder + "/a", transport=md.transports.Processes(2))
board = md.compare([md.FedAvg(), md.SCAFFOLD()], fed, 2, 2, jobs=2, save=folder + "/b")
print(json.dumps([run.digest, *(r.digest for r in board.results)]))
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_without_the_names_of_linux_the_bits_are_the_same(tmp_path: Path) -> None:
    digests = {}
    for how in ("whole", "poor"):
        words = [sys.executable, "-c", WORK, how, str(tmp_path / how)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        digests[how] = json.loads(done.stdout.splitlines()[-1])
        assert ("cannot fork; clients are served in this process" in done.stderr) == (how == "poor")
        assert ("cannot fork, so runs are made one after the other" in done.stderr) == (how == "poor")
    assert len(digests["whole"]) == 5
    assert digests["poor"] == digests["whole"]


def test_macos_has_a_call_of_its_own_to_force_a_file_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    called: list[Any] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, what: called.append(what))
    with atomic.replacing(tmp_path / "a") as tmp:
        tmp.write_text("x")
    assert called == [51]

    def refused(fd: int, what: int) -> None:
        raise OSError(45, "not supported")

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", refused)
    monkeypatch.setattr(os, "fsync", synced.append)
    with atomic.replacing(tmp_path / "a") as tmp:
        tmp.write_text("y")
    assert len(synced) == 2  # the file, and the folder
