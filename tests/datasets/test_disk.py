from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import medley as md
from medley import datasets
from medley.contract.errors import BadData, RecipeError
from medley.datasets import disk


def in_file() -> int:
    """Kilobytes of this process's memory that are pages of files."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssFile"))


def test_a_saved_set_is_the_same(tmp_path: Path) -> None:
    d = datasets.digits().split(validation=0.1)
    d = datasets.Dataset(
        **{k: getattr(d, k) for k in ("X", "y", "X_test", "y_test", "X_validation", "y_validation")},
        classes=10,
        keys={"parity": (d.y % 2).numpy(), "word": np.array(["even", "odd"])[d.y.numpy() % 2]},
        name="mine",
        labels=tuple("abcdefghij"),
        weights=torch.rand(len(d.X)),
    )
    got = datasets.saved(disk.save(d, tmp_path / "set"))
    for name in disk.PARTS:
        assert torch.equal(getattr(got, name), getattr(d, name)), name
    assert (got.name, got.labels, got.classes) == ("mine", d.labels, 10)
    assert got.keys["word"].tolist() == d.keys["word"].tolist()
    kinds = {name: md.problems.Softmax(mu=1e-3) for name in ("own", "mapped")}
    runs = [
        md.run(
            md.FedAvg(),
            md.Federation(kinds[name], data=data, partition=md.partitions.IID(5)),
            2,
            progress=False,
        ).x
        for name, data in (("own", d), ("mapped", got))
    ]
    assert torch.equal(*runs)


def test_a_change_in_memory_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    disk.save(datasets.digits(), tmp_path / "set")
    datasets.saved(tmp_path / "set").X.zero_()
    assert float(datasets.saved(tmp_path / "set").X.sum()) > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_rows_stay_in_the_file(tmp_path: Path) -> None:
    disk.save(
        datasets.Dataset(torch.ones(2000, 2000), torch.zeros(2000, dtype=torch.int64), classes=2), tmp_path / "set"
    )
    before = in_file()
    data = datasets.saved(tmp_path / "set")
    assert float(data.X.sum()) == 4e6
    # 16 MB; pages that were read count as the file's.
    assert in_file() - before > 14_000


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"there is no data set in this folder.*disk\.save"):
        datasets.saved(tmp_path)
    disk.save(datasets.digits(), tmp_path / "set")
    with pytest.raises(RecipeError, match=r"is not empty; give a new folder"):
        disk.save(datasets.digits(), tmp_path / "set")
    (tmp_path / "set" / "X.npy").write_bytes(b"no array")
    with pytest.raises(BadData, match="damaged"):
        datasets.saved(tmp_path / "set")
