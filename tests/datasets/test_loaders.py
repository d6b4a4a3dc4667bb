"""Loaders and data sets of PyTorch stand for the rows and labels that they yield, or are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.distributed import DistributedSampler

import medley as md
from medley.contract import Place
from medley.datasets.ingest.raw import column

X = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
D = TensorDataset(X, Y)
ROWS = [[*range(10)], [*range(10, 40)], [*range(40, 100)]]
NET = md.problems.Network(nn.Linear(4, 2))


def sizes(clients: Any, **more: Any) -> list[int]:
    found: list[int] = md.Federation(NET, clients=clients, **more).describe().sizes.tolist()
    return found


class Twelve(BatchSampler):
    """Batches of a class of the user's own."""

    def __init__(self) -> None:
        super().__init__(range(12), 4, drop_last=False)


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda rows: DataLoader(D, batch_size=8, sampler=SubsetRandomSampler(rows)), [10, 30, 60]),
        (lambda rows: DataLoader(D, sampler=rows), [10, 30, 60]),
        (lambda rows: DataLoader(D, sampler=SequentialSampler(rows)), [10, 30, 60]),
        (lambda rows: DataLoader(D, batch_sampler=BatchSampler(SubsetRandomSampler(rows), 8, False)), [10, 30, 60]),
        (lambda rows: DataLoader(D, batch_sampler=[rows[:4], rows[4:7]]), [7, 7, 7]),
        (lambda rows: DataLoader(D, batch_sampler=Twelve()), [12, 12, 12]),
        (lambda rows: DataLoader(Subset(D, rows), sampler=SubsetRandomSampler([0, 2])), [2, 2, 2]),
        (lambda rows: DataLoader(D, sampler=DistributedSampler(D, 4, 1)), [25, 25, 25]),
        (lambda rows: DataLoader(Subset(D, rows), batch_size=8, shuffle=True), [10, 30, 60]),
        (lambda rows: DataLoader(Subset(D, rows), batch_size=8, drop_last=True), [8, 24, 56]),
        (lambda rows: DataLoader(Subset(D, rows), batch_size=None), [10, 30, 60]),
        (lambda rows: ConcatDataset([Subset(D, rows), Subset(D, [0])]), [11, 31, 61]),
    ],
)
def test_a_loader_stands_for_the_rows_that_it_draws(make: Callable[[list[int]], Any], want: list[int]) -> None:
    before = torch.get_rng_state()
    assert sizes([make(rows) for rows in ROWS]) == want
    assert torch.equal(before, torch.get_rng_state())


def test_samplers_choose_the_rows_of_data_and_test_as_well() -> None:
    loader = DataLoader(D, sampler=SubsetRandomSampler(ROWS[1]))
    fed = md.Federation(NET, data=loader, partition=md.partitions.IID(3), test=DataLoader(D, sampler=ROWS[0]))
    assert fed.describe().sizes.tolist() == [10, 10, 10]
    assert torch.equal(fed.data.X + 0, X[10:40])
    assert torch.equal(fed.data.X_test + 0, X[:10])
    assert fed.data.y_test is not None
    assert fed.data.y_test.tolist() == Y[:10].tolist()


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (WeightedRandomSampler([1.0] * 100, 50), "WeightedRandomSampler"),
        (RandomSampler(D, num_samples=50), "RandomSampler"),
        (RandomSampler(D, replacement=True), "RandomSampler"),
        (
            type("Half", (SubsetRandomSampler,), {"__iter__": lambda s: iter(torch.randperm(100)[:50].tolist())})([0]),
            "Half",
        ),
    ],
)
def test_a_sampler_of_other_rows_in_every_pass_is_refused(sampler: Any, name: str) -> None:
    with pytest.raises(md.BadData, match=rf"client 1: its {name} draws other rows in every pass.*Subset\(data, rows\)"):
        sizes([D, DataLoader(D, sampler=sampler)])


def test_rows_that_a_shuffling_loader_drops_are_taken_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "medley"):
        assert sizes([DataLoader(D, batch_size=8, shuffle=True, drop_last=True)]) == [100]
    assert "client 0: its drop_last leaves other rows out in every pass" in caplog.text
    with pytest.raises(md.BadData, match="client 0: the loader yields no rows"):
        sizes([DataLoader(D, batch_size=800, shuffle=True, drop_last=True)])


def twice(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([2 * x for x, _ in items]), torch.tensor([1 - int(y) for _, y in items])


def test_rows_are_those_that_collate_fn_makes() -> None:
    data = md.Federation(NET, clients=[DataLoader(D, batch_size=7, sampler=ROWS[1], collate_fn=twice)]).data
    assert torch.equal(data.X + 0, 2 * X[10:40])
    assert torch.equal(data.y, 1 - Y[10:40])
    named = lambda items: {"pixels": torch.stack([2 * x for x, _ in items]), "label": [int(y) for _, y in items]}
    data = md.Federation(NET, clients=[DataLoader(D, collate_fn=named)]).data
    assert torch.equal(data.X + 0, 2 * X)
    assert torch.equal(data.y, Y)
    with pytest.raises(
        md.BadData, match=r"client 0: its collate_fn makes \[4\] of 100 items; it must make a tensor with one row"
    ):
        sizes([DataLoader(D, collate_fn=lambda items: items)])


class Other(TorchDataset[Any]):
    """Items whose labels are not those of an attribute beside them."""

    target_transform = None

    def __init__(self, form: str) -> None:
        self.targets = self.labels = self.y = torch.zeros(20, dtype=torch.int64)
        self.form = form

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        label = torch.tensor(i % 2) if self.form == "tensors" else i % 2
        return {"image": X[i], "label": label} if self.form == "names" else (X[i], label)


class Turned(TensorDataset):
    """A TensorDataset whose items have other labels."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, 1 - y


def test_labels_are_those_of_the_items() -> None:
    for form in ("pairs", "tensors", "names"):
        assert md.Federation(NET, clients=[Other(form)]).data.y.tolist() == [0, 1] * 10
    part = Subset(Other("pairs"), range(5, 15))
    part.targets = [0] * 10  # type: ignore[attr-defined]
    assert md.Federation(NET, clients=[part]).data.y.tolist() == [1, 0] * 5
    assert md.Federation(NET, clients=[D], test=Other("pairs")).data.y_test.tolist() == [0, 1] * 10  # type: ignore[union-attr]
    assert torch.equal(md.Federation(NET, clients=[Turned(X, Y)]).data.y, 1 - Y)


class Drifting(TorchDataset[Any]):
    """Whole numbers in the first item, fractions, or a longer target, in the third."""

    def __init__(self, target: bool = False) -> None:
        self.target = target

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return np.array([1, 2.5]) if i == 2 and not self.target else np.array([1, 2]), [0, 1][: 2 if i == 2 else 1]


def test_the_first_row_does_not_decide_what_the_others_are() -> None:
    with pytest.raises(
        md.BadData, match="client 0, row 2: it has floats, row 0 whole numbers; give floats in all rows"
    ):
        (md.Federation(md.problems.LeastSquares(), clients=[Numbers()]).data.X + 0).sum()
    with pytest.raises(md.BadData, match=r"client 0, row 2: its target has shape \[2\], row 0's \[1\]"):
        md.Federation(NET, clients=[Drifting(target=True)])


class Numbers(Drifting):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[0], float(i) + 0.5


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


def test_streams_and_parts_are_no_clients() -> None:
    for given in (Stream(), DataLoader(Stream())):
        with pytest.raises(md.BadData, match="client 0: an iterable data set has no numbered rows"):
            sizes([given])
        with pytest.raises(md.BadData, match=r"Federation\(test=...\): an iterable data set has no numbered rows"):
            sizes([D], test=given)
    for names in (("train", "test"), ("Training", "VALID"), ("dev", "eval", "train")):
        with pytest.raises(md.BadData, match=f"the clients are called {', '.join(names)}, which are parts of one data"):
            sizes(dict.fromkeys(names, D))
    assert sizes({"test": D, "north": D}) == [100, 100]
    with pytest.raises(md.BadData, match="client 0 has train, test, which are parts of one data set"):
        sizes([{"train": D, "test": D}])
    with pytest.raises(md.BadData, match=r"Federation\(test=...\) has train, test, which are parts"):
        sizes([D], test={"train": D, "test": D})
    with pytest.raises(md.BadData, match="two clients are called '1'"):
        sizes({1: D, "1": D})
    keyed = md.datasets.Dataset(X, Y, keys={"split": np.array(["train", "test"] * 50)})
    with pytest.raises(md.BadData, match="the clients are called test, train, which are parts"):
        md.Federation(NET, data=keyed, partition=md.partitions.ByKey("split"))


class Drawn(TorchDataset[Any]):
    """A row drawn at random for each item, or a random input beside a fixed target."""

    def __init__(self, target: bool) -> None:
        self.rng, self.target = np.random.default_rng(0), target

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> Any:
        k = int(self.rng.integers(100))
        return X[k], float(X[k, 0]) if self.target else int(Y[i])


def test_targets_that_are_drawn_at_random_are_refused_and_inputs_are_not() -> None:
    with pytest.raises(md.BadData, match=r"client 1, row 0: it has the target .*, and read again .*same target always"):
        md.Federation(md.problems.LeastSquares(), clients=[Fixed(True), Drawn(True)])
    assert md.Federation(NET, clients=[Drawn(False)]).data.y.tolist() == Y.tolist()


@pytest.mark.parametrize("rows", [2, 5, 100])
def test_random_labels_of_two_classes_are_refused_under_each_of_two_hundred_seeds(rows: int) -> None:
    class Coins(Drawn):
        def __len__(self) -> int:
            return rows

        def __getitem__(self, i: int) -> Any:
            return X[i], int(self.rng.integers(2))

    for seed in range(200):
        coins = Coins(False)
        coins.rng = np.random.default_rng(seed)
        with pytest.raises(md.BadData, match="an item must have the same target always"):
            column(coins, 1, Place("client 0"))


class Fixed(Drawn):
    def __getitem__(self, i: int) -> Any:
        return X[i], float(X[i, 0])


class Half(TensorDataset):
    """Half of its tensors' rows."""

    def __len__(self) -> int:
        return 50


class Together(TensorDataset):
    """Items that are read together have other labels, as a loader yields them."""

    def __getitems__(self, rows: list[int]) -> Any:
        return [(x, 1 - y) for x, y in (self[i] for i in rows)]


class Noisy(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((2 * x, y) for x, y in super().__iter__())


def test_data_sets_and_loaders_with_methods_of_their_own_are_taken_by_them_or_refused() -> None:
    assert sizes([Half(X, Y)]) == [50]
    for given in (Together(X, Y), DataLoader(Together(X, Y), batch_size=9)):
        data = md.Federation(NET, clients=[given]).data
        assert torch.equal(data.y, 1 - Y)
        assert torch.equal(data.X + 0, X)
    with pytest.raises(md.BadData, match=r"client 0: its class Noisy has an __iter__ of its own"):
        sizes([Noisy(D)])
