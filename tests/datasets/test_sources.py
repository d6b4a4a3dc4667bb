"""Data as people have it: PyTorch's data sets, mapped files, text labels, transforms."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import medley as md
from medley.datasets import augment
from medley.rows.lazy import in_memory

DIGITS = md.datasets.digits()
PARTS = [range(k, 1400, 5) for k in range(5)]
ARRAYS = [(DIGITS.X[list(p)], DIGITS.y[list(p)]) for p in PARTS]
NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Rows(TorchDataset[Any]):
    """A user's own data set; it counts the rows that it holds in memory at a time by counting reads."""

    def __init__(self, rows: range, form: str = "pair") -> None:
        self.rows, self.form, self.reads = rows, form, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        x, y = DIGITS.X[self.rows[i]], int(DIGITS.y[self.rows[i]])
        return (x, y) if self.form == "pair" else {"pixels": x.numpy(), "label": y}


def run(clients: Any, test: Any, module: nn.Module = NET, **options: Any) -> md.Result:
    fed = md.Federation(md.problems.Network(module), clients=clients, test=test)
    return md.run(md.FedAvg(), fed, 2, engine="seq", **options)


@pytest.mark.slow
def test_data_sets_loaders_and_mappings_give_the_bits_of_arrays() -> None:
    want = run(ARRAYS, (DIGITS.X_test, DIGITS.y_test))
    assert DIGITS.X_test is not None
    assert DIGITS.y_test is not None
    test = TensorDataset(DIGITS.X_test, DIGITS.y_test)
    for clients in (
        [Rows(p) for p in PARTS],
        [DataLoader(Rows(p), batch_size=7) for p in PARTS],
        [Rows(p, "mapping") for p in PARTS],
        [Rows(PARTS[0]), *ARRAYS[1:]],
    ):
        assert run(clients, test).digest == want.digest


@pytest.mark.slow
def test_lazy_rows_have_the_same_bits_in_worker_processes() -> None:
    two = run([Rows(p) for p in PARTS], None, transport=md.transports.Processes(workers=2))
    assert two.digest == run(ARRAYS, None).digest


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SimpleNamespace(), "give a pair"),
        (
            lambda: type("Stream", (IterableDataset,), {"__iter__": lambda s: iter(())})(),
            "client 1: an iterable data set has no numbered rows",
        ),
        (lambda: Rows(range(0)), "client 1: it has no rows"),
        (lambda: type("Odd", (Rows,), {"__getitem__": lambda s, i: 3})(PARTS[0]), "client 1: an item is a int"),
        (
            lambda: type("Odd", (Rows,), {"__getitem__": lambda s, i: {"a": 1, "b": 2}})(PARTS[0]),
            "want inputs and a target",
        ),
    ],
)
def test_data_sets_that_have_no_rows_to_read_are_refused_by_name(made: Any, said: str) -> None:
    with pytest.raises(md.BadData, match=said):
        run([Rows(PARTS[0]), made()], None)


def shaken(X: Tensor, generator: torch.Generator) -> Tensor:
    """A crop and a cut-out of 8×8 images in flat rows."""
    images = augment.cutout(augment.crop(X.view(-1, 1, 8, 8), generator, padding=1), generator, size=2)
    return images.flatten(1)


@pytest.mark.slow
def test_a_transform_changes_training_batches_only_with_the_same_bits_everywhere() -> None:
    test = (DIGITS.X_test, DIGITS.y_test)
    make = lambda f: md.Federation(md.problems.Network(NET, transform=f), clients=ARRAYS, test=test)  # type: ignore[arg-type]
    one = md.run(md.SCAFFOLD(), make(shaken), 3)
    two = md.run(md.SCAFFOLD(), make(shaken), 3, transport=md.transports.Processes(workers=2))
    assert one.digest == two.digest
    assert one.settings["engine"] == "seq"
    assert one.settings["transform"] == "shaken"
    plain = md.run(md.SCAFFOLD(), make(None), 3)
    assert plain.history[0] | {"wall": 0} == one.history[0] | {"wall": 0}  # evaluation is of the rows as they are
    assert plain.summary["loss"] < one.summary["loss"]
    same = md.run(md.SCAFFOLD(), make(lambda X, g: X), 3, engine="seq")
    assert torch.equal(same.x, md.run(md.SCAFFOLD(), make(None), 3, engine="seq").x)


def mapped(folder: Path, n: int, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    A = np.lib.format.open_memmap(folder / "X.npy", mode="w+", dtype=np.float32, shape=(n, *shape))
    A[:] = np.random.default_rng(0).normal(size=A.shape)
    A.flush()
    found = np.load(folder / "X.npy", mmap_mode="r")
    assert isinstance(found, np.memmap)
    return found


@pytest.mark.parametrize("norm", [False, True])
def test_mapped_files_give_the_bits_of_arrays(tmp_path: Path, norm: bool) -> None:
    A = mapped(tmp_path, 400, (1, 8, 8))
    y = (torch.from_numpy(np.array(A)).mean((1, 2, 3)) > 0).long()
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    )
    whole = torch.from_numpy(np.array(A))
    cut = [slice(0, 150), slice(150, 300)]
    test = (whole[300:], y[300:])
    a, b = (run([(X[c], y[c]) for c in cut], test, net) for X in (whole, A))
    assert a.digest == b.digest
    data = [md.datasets.Dataset(X[:300], y[:300], X[300:], y[300:], classes=2) for X in (whole, md.datasets.lazy(A))]
    feds = [
        md.Federation(md.problems.Network(net), data=d, partition=md.partitions.Dirichlet(clients=6, alpha=0.5))
        for d in data
    ]
    one, two = (md.run(md.FedAvg(), fed, 2, engine="seq") for fed in feds)
    assert one.digest == two.digest
    assert feds[0].identity() == feds[1].identity()  # the same content


MEMORY = """
import sys, numpy as np, torch, medley as md
from torch import nn
def anonymous():
    return sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024
A = np.load(sys.argv[1], mmap_mode="r")
y = torch.from_numpy((np.arange(len(A)) // 7) % 10)
net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(A.shape[1] * (A.shape[2] // 8) ** 2, 10))
before = anonymous()
most = 0
def watch(row):
    global most
    most = max(most, anonymous())
cut = np.array_split(np.arange(len(A)), 8)
fed = md.Federation(md.problems.Network(net), clients=[(A[c[0] : c[-1] + 1], y[c]) for c in cut])
md.run(md.FedAvg(), fed, 1, on_round=watch)
print(max(most, anonymous()) - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [512, pytest.param(4096, marks=pytest.mark.timeout(900))])
def test_a_mapped_file_is_trained_on_in_a_fraction_of_its_size(tmp_path: Path, megabytes: int) -> None:
    n = megabytes * 2**20 // (4 * 3 * 64 * 64)
    A = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=np.float32, shape=(n, 3, 64, 64))
    A[::97] = 1.0
    del A
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "X.npy")], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < min(500, megabytes / 2)


@pytest.mark.slow
@pytest.mark.timed
def test_images_in_a_mapped_file_take_at_most_a_third_longer_than_in_memory(tmp_path: Path) -> None:
    """Processor time of two rounds of a small convolutional network, the least ratio of three; the same bits."""
    A = mapped(tmp_path, 3000, (3, 32, 32))
    whole, y = torch.from_numpy(np.array(A)), torch.arange(3000) % 10
    net = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
    )
    cut = [slice(k, k + 500) for k in range(0, 3000, 500)]

    def timed(X: Any) -> tuple[float, str]:
        begin = time.process_time()
        r = run([(X[c], y[c]) for c in cut], None, net)
        return time.process_time() - begin, r.digest

    pairs = [(timed(whole), timed(A)) for _ in range(3)]
    assert all(a[1] == b[1] for a, b in pairs)
    ratio = min(b[0] / a[0] for a, b in pairs)
    print(f"processor time of mapped images against arrays: {ratio:.2f}")
    assert ratio <= 1.3


class Torn(TorchDataset[Any]):
    """A data set whose targets are known, and whose row ``bad`` cannot be read, or is wider than the others."""

    targets = (0, 1) * 5

    def __init__(self, fails: bool, bad: int = 7) -> None:
        self.fails, self.bad = fails, bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        if i == self.bad and self.fails:
            raise OSError("no such image")
        return torch.ones(4 if i == self.bad else 3), i % 2


@pytest.mark.parametrize(
    ("fails", "said"),
    [(True, "it cannot be read, OSError: no such image"), (False, r"it has shape \[4\], row 0 \[3\]")],
)
def test_a_row_that_fails_when_it_is_used_names_its_client(fails: bool, said: str) -> None:
    """Inputs are read in the run, beside those of another client and alone."""
    problem, whole = md.problems.Network(nn.Linear(3, 2)), (torch.ones(10, 3), torch.arange(10) % 2)
    pace = md.scenarios.Pace(lr=0.1, batch=5, epochs=1)
    for clients, name, row in (
        ({"Bern": whole, "Basel": Torn(fails)}, "client 'Basel'", 7),
        ([whole, Torn(fails)], "client 1", 7),
        ({"Basel": Torn(fails)}, "client 'Basel'", 7),
        ({"Basel": Torn(fails, 1)}, "client 'Basel'", 1),
    ):
        with pytest.raises(md.BadData, match=f"^{name}, row {row}: {said}") as e:
            md.run(md.FedAvg(), md.Federation(problem, clients=clients, pace=pace), 1, progress=False)
        assert e.value.row == row


def test_errors_of_data_that_is_dealt_later_name_no_client() -> None:
    class Failing(Torn):
        targets = ()

    deal = md.partitions.IID(2)
    with pytest.raises(md.BadData, match=r"^Federation\(data=...\), row 7: it cannot be read") as e:
        md.Federation(md.problems.Softmax(), data=Failing(True), partition=deal)
    assert (e.value.client, e.value.row) == (None, 7)
    X = torch.ones(10, 3)
    X[6, 1] = torch.nan
    with pytest.raises(md.BadData, match=r"^Federation\(data=...\), row 6, column 1: nan is not finite") as e:
        md.Federation(md.problems.Softmax(), data=(X, torch.arange(10) % 2), partition=deal)
    assert (e.value.client, e.value.row, e.value.column) == (None, 6, 1)


class Pairs(TorchDataset[Any]):
    """Items of a list."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


STAMPS = 1_700_000_001 + np.arange(4)
ORDINARY = np.float32([0.5, 1.5, 2.5, 3.5])


@pytest.mark.parametrize("form", ["arrays", "items", "fields"])
@pytest.mark.parametrize("first", [0, 1])
def test_clients_whole_numbers_and_floats_have_a_dtype_that_holds_both(form: str, first: int) -> None:
    def client(x: np.ndarray) -> Any:
        if form == "items":
            return Pairs([(x[k : k + 1], k % 2) for k in range(4)])
        return ((x[:, None], {"t": x[:, None]})[form == "fields"], np.arange(4) % 2)

    both = [STAMPS, ORDINARY][:: 1 - 2 * first]
    X: Any = md.Federation(md.problems.Logistic(), clients=[client(x) for x in both]).data.X
    X = in_memory(X.parts[0] if form == "fields" else X)
    assert X.flatten().tolist() == np.concatenate(both).tolist()


def test_items_of_a_dtype_that_the_first_does_not_hold_are_refused() -> None:
    fed = md.Federation(
        md.problems.Logistic(), clients=[Pairs([(np.float32([0.5]), 0), (STAMPS[:1], 1), (np.int64([3]), 0)])]
    )
    with pytest.raises(md.BadData, match=r"client 0, row 1: it has int64, and row 0's float32 does not hold its"):
        fed.data.X.sum()


def test_items_in_any_order_of_bytes_are_read_and_masked_ones_are_not() -> None:
    x = np.float64([[0.5, 2.0], [3.0, 4.0]])
    P = md.problems.LeastSquares()
    for rows in (x.astype(">f8"), x.astype(np.longdouble), x[:, ::-1][:, ::-1]):
        assert (md.Federation(P, clients=[Pairs([(r, 0.5) for r in rows])]).data.X + 0).tolist() == x.tolist()
    hidden = np.ma.masked_equal(x, 4.0)
    with pytest.raises(md.BadData, match="client 0, row 1: an item's input has masked entries"):
        md.Federation(P, clients=[Pairs([(r, 0.5) for r in hidden])]).data.X.sum()
    with pytest.raises(md.BadData, match="client 0, row 1: its target is masked"):
        md.Federation(P, clients=[Pairs([(r, t) for r, t in zip(x, hidden[:, 1], strict=True)])])


def test_pillows_images_have_the_colours_of_their_mode() -> None:
    Image = pytest.importorskip("PIL.Image")
    colours = np.zeros((2, 2, 3), np.uint8)
    colours[0, 0] = 255, 0, 51
    image = Image.fromarray(colours)
    palette, bits, deep = image.quantize(), Image.fromarray(colours[..., 0]).convert("1"), image.convert("I;16")
    assert (palette.mode, bits.mode, deep.mode) == ("P", "1", "I;16")
    P = md.problems.Softmax()
    X = md.Federation(P, clients=[Pairs([(palette, 0), (image, 1)])]).data.X + 0
    assert torch.equal(X[0], X[1])
    assert X[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert (md.Federation(P, clients=[Pairs([(bits, 0), (bits, 1)])]).data.X + 0)[0].tolist() == [[[1.0, 0], [0, 0]]]
    with pytest.raises(md.BadData, match="an item's image has the mode I;16, more than 8 bits a channel; convert it"):
        md.Federation(P, clients=[Pairs([(deep, 0), (deep, 1)])])
