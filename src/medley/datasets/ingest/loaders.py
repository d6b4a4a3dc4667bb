"""PyTorch's loaders as the rows that one pass over them yields, whatever their order and batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data._utils.collate import default_collate, default_convert

from ...contract import BadData, Place

log = logging.getLogger("medley")


class Collated(TorchDataset[Any]):
    """The rows of one batch of all items, as a loader's own ``collate_fn`` makes it."""

    def __init__(self, loader: DataLoader[Any], items: Any, place: Place) -> None:
        batch = loader.collate_fn([item_of(items, i) for i in range(len(items))])
        self.batch: Any = [*batch] if isinstance(batch, tuple | list) else batch
        first = self.batch
        while isinstance(first, Mapping | tuple | list) and len(first):
            first = next(iter(first.values() if isinstance(first, Mapping) else first))
        if not isinstance(first, Tensor) or not first.ndim or len(first) != len(items):
            kind = list(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise BadData(
                f"its collate_fn makes {kind} of {len(items)} items; it must make a tensor with one "
                "row per item. Give the data set itself, whose items are pairs (input, target)",
                place=place,
            )
        self.rows = len(items)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Any:
        return _row(self.batch, i)


def item_of(items: Any, i: int) -> Any:
    """Item i as a loader reads it: by ``__getitems__`` if the data set has it."""
    return items.__getitems__([i])[0] if hasattr(items, "__getitems__") else items[i]


def plain_tensors(items: Any) -> bool:
    """Whether a data set is one of tensors whose rows are its items: no class of the user changes them."""
    base = TensorDataset
    kind = type(items)
    return (
        isinstance(items, base)
        and (kind.__getitem__, kind.__len__) == (base.__getitem__, base.__len__)
        and not hasattr(items, "__getitems__")
    )


def _row(batch: Any, i: int) -> Any:
    """Row i of a batch, which may be tensors by place, by name, or both."""
    if isinstance(batch, Mapping):
        return {k: _row(v, i) for k, v in batch.items()}
    if isinstance(batch, tuple) or (isinstance(batch, list) and any(isinstance(v, Tensor | Mapping) for v in batch)):
        return tuple(_row(v, i) for v in batch)
    return batch[i]


def loaded(loader: DataLoader[Any], place: Place) -> Any:
    """A loader's data set: the rows that its sampler or its batch sampler draws, as its ``collate_fn`` makes them.

    The pace decides batches and their order, so a loader that shuffles all rows is read as all rows. Raises BadData,
    naming the place, for a loader that draws other rows in every pass.
    """
    items: Any = loader.dataset
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise BadData(
            f"its class {type(loader).__name__} has an __iter__ of its own, so Medley cannot tell "
            "which rows are in a batch; give a data set whose items are those pairs, or a loader with "
            "collate_fn= and sampler=",
            place=place,
        )
    if isinstance(items, IterableDataset) or not hasattr(items, "__len__") or not len(items):
        return items
    rows = _rows(loader, len(items), place)
    if rows != [*range(len(items))]:
        items = Subset(items, rows)
    return items if loader.collate_fn in (default_collate, default_convert) else Collated(loader, items, place)


def _rows(loader: DataLoader[Any], n: int, place: Place) -> list[int]:
    """The numbers of the rows that the loader draws, in ascending order."""
    batches: Any = loader.batch_sampler
    is_custom = batches is not None and type(batches) is not BatchSampler
    source: Any = batches if is_custom else loader.sampler if batches is None else batches.sampler
    few = isinstance(source, RandomSampler) and source.num_samples != n
    random = few or getattr(source, "replacement", False)
    with _unmoved(loader, source):
        passes = [] if random else [[*islice(_numbers(source), 100 * n + 1000)] for _ in range(2)]
    if random or sorted(passes[0]) != sorted(passes[1]) or len(passes[0]) >= 100 * n + 1000:
        raise BadData(
            f"its {type(source).__name__} draws other rows in every pass, but a client's rows must "
            "stay the same; give the data set, or its rows by torch.utils.data.Subset(data, rows), and weights "
            "of rows as (X, y, weights)",
            place=place,
        )
    rows = passes[0]
    if batches is not None and not is_custom and batches.drop_last:
        count = len(rows) // batches.batch_size * batches.batch_size
        if rows == passes[1] or not count:  # else every pass leaves out different rows
            rows = rows[:count]
        elif count < len(rows):
            log.warning(
                "%s: its drop_last leaves other rows out in every pass: all are taken; see Pace(drop_last)", place
            )
    if not rows:
        raise BadData("the loader yields no rows; leave it out, or its drop_last", place=place)
    return sorted(rows)


def _numbers(source: Iterable[Any]) -> Iterator[int]:
    """Row numbers of a sampler, or of a sampler of batches."""
    return (int(i) for i in chain.from_iterable(v if isinstance(v, list | tuple) else (v,) for v in source))


@contextmanager
def _unmoved(*owners: Any) -> Iterator[None]:
    """A context that afterwards restores the random streams of torch, of a loader and of its sampler."""
    generators = [getattr(owner, "generator", None) for owner in owners]
    streams = [g for g in generators if isinstance(g, torch.Generator)]
    states = [g.get_state() for g in streams]
    with torch.random.fork_rng(devices=[]):
        yield
    for g, state in zip(streams, states, strict=True):
        g.set_state(state)
