"""Rows that are read when they are used: a `Tensor` around files, data sets of other libraries, or other tensors.

Indexing, slicing and joining such rows gives lazy rows again. Any other operation reads the rows that it gets, so that
only the batch that is trained on is in memory. A large tensor in memory is read in this way, too: so a federation has
its clients' rows in their order without a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten

BLOCK = 1 << 24
"""Bytes of rows to read at a time."""

SAMPLED = 64
"""The number of rows that represent a source that is slow to read."""


@runtime_checkable
class RowSource(Protocol):
    """Rows that can be read by number, each of the same shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and the shape of one."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows that `read` returns."""

    @property
    def cheap(self) -> bool:
        """Whether all rows can be read for a fingerprint, as with a file."""

    def read(self, rows: np.ndarray) -> Tensor:
        """These rows, in this order, in memory."""


class Mapped:
    """Rows of an array of numbers in a file, in any byte order and memory order."""

    cheap = True

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = tuple(array.shape)
        wide = array.dtype.kind == "f" and array.itemsize > 8  # torch has no wider floats
        # As in memory, whole numbers are int64.
        self.native = np.dtype(array.dtype.newbyteorder("=") if array.dtype.kind == "f" else np.int64)
        self.native = np.dtype(np.float64) if wide else self.native
        self.dtype = torch.from_numpy(np.empty(0, self.native)).dtype

    def read(self, rows: np.ndarray) -> Tensor:
        """A copy of these rows, one after the other in memory."""
        near = len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((np.diff(rows) == 1).all())
        block = self.array[int(rows[0]) : int(rows[-1]) + 1] if near else self.array[rows]
        # The same numbers in another memory order would use other kernels, whose last bits differ.
        return torch.from_numpy(np.array(block, self.native, order="C", subok=False))


class Held:
    """Rows of a tensor in memory, or of one mapped from a file."""

    cheap = True

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def read(self, rows: np.ndarray) -> Tensor:
        """A copy of these rows."""
        return self.tensor.index_select(0, torch.from_numpy(rows))


class Lazy(Tensor):
    """Rows [n, ...] of one or several sources.

    Args:
        sources: where the rows are stored
        rows: int64 [n], their numbers, counted across all sources
        dtype: the dtype in which to read them; default: the first source's
    """

    sources: tuple[RowSource, ...]
    rows: np.ndarray

    @staticmethod
    def __new__(cls, sources: Sequence[RowSource], rows: np.ndarray | None = None, dtype: Any = None) -> Lazy:
        """Reads no rows yet."""
        total = sum(s.shape[0] for s in sources)
        rows = np.arange(total) if rows is None else rows
        shape = (len(rows), *sources[0].shape[1:])
        wrapper: Lazy = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype or sources[0].dtype)
        wrapper.sources = tuple(sources)
        wrapper.rows = rows
        return wrapper

    def read(self) -> Tensor:
        """The rows, in memory."""
        if len(self.sources) == 1:
            return _read(self.sources[0], self.rows, self.dtype)
        begins = np.cumsum([0, *(s.shape[0] for s in self.sources)])
        source = np.searchsorted(begins, self.rows, side="right") - 1
        if len(source) and (source == (k := int(source[0]))).all():  # no second copy of a client's rows
            return _read(self.sources[k], self.rows - begins[k], self.dtype)
        out = torch.empty(self.shape, dtype=self.dtype)
        for k in np.unique(source):
            at = np.flatnonzero(source == k)
            out[torch.from_numpy(at)] = self.sources[k].read(self.rows[at] - begins[k]).to(self.dtype)
        return out

    @property
    def memory(self) -> Tensor | None:
        """The tensor [m, ...] in which these rows have the numbers ``rows``; None if they are stored elsewhere."""
        source = self.sources[0]
        return source.tensor if isinstance(source, Held) and len(self.sources) == 1 else None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({list(self.shape)}, {self.dtype}, read when used)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Lazy, (self.sources, self.rows, self.dtype)

    def __getitem__(self, index: Any) -> Tensor:
        """Rows by a slice or by their numbers stay lazy.

        Without torch's dispatch, which imports ``torch.distributed.tensor`` before its first call: .6 CPU seconds.
        """
        if isinstance(index, slice):
            return _some(self, self.rows[index])
        if type(index) is Tensor and index.dtype in (torch.int64, torch.bool) and index.ndim == 1:
            return _some(self, self.rows[index.cpu().numpy()])
        return super().__getitem__(index)

    @property
    def cheap(self) -> bool:
        """Whether all rows can be read for a fingerprint."""
        return all(s.cheap for s in self.sources)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Torch's operations: those in `OPS` stay lazy, all others read their rows first."""
        kwargs = dict(kwargs or {})
        op = OPS.get(func)
        if op is not None and (out := op(*args, **kwargs)) is not None:
            return out
        read = lambda t: t.read() if isinstance(t, Lazy) else t
        return func(*tree_map(read, args), **tree_map(read, kwargs))


def _read(source: RowSource, rows: np.ndarray, dtype: torch.dtype) -> Tensor:
    """These rows in this dtype. Rows of another dtype are read a block at a time, without a second copy of all."""
    if source.dtype == dtype:
        return source.read(rows)
    out = torch.empty(len(rows), *source.shape[1:], dtype=dtype)
    step = max(1, BLOCK // max(1, source.dtype.itemsize * out.shape[1:].numel()))
    for at in range(0, len(rows), step):
        out[at : at + step] = source.read(rows[at : at + step])
    return out


def common(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """A dtype that holds the numbers of all of these: float64 if some are floats and some whole numbers."""
    kinds = {*dtypes}
    mixed = len({d.is_floating_point for d in kinds}) > 1
    return torch.float64 if mixed else reduce(torch.promote_types, kinds)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """These rows, one below the other, in their common dtype. Torch's own join would round int64 to float32."""
    dtype = common(t.dtype for t in parts)
    lazy = _cat(parts)  # not by torch's dispatch, see `Lazy.__getitem__`
    if lazy is not None:
        return lazy
    return torch.cat([t if t.dtype == dtype else t.to(dtype) for t in parts])


def in_memory(t: Tensor) -> Tensor:
    """The tensor, read if it is lazy or holds lazy tensors."""
    read: Callable[[], Tensor] | None = getattr(t, "read", None)
    return t if read is None else read()


def blocks(t: Tensor, size: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """The tensor in memory, as (number of the first row, rows), ``size`` rows at a time.

    By default lazy rows come in blocks of `BLOCK` bytes and any other tensor at once. A block read from a tensor is
    valid until the next one: fresh memory for each block, amid the values kept from earlier ones, would leave gaps as
    large as the blocks.
    """
    lazy = t if isinstance(t, Lazy) else None
    each = max(1, t.dtype.itemsize * t.shape[1:].numel())
    size = size or (max(1, len(t)) if lazy is None else max(1, BLOCK // each))
    source = None if lazy is None else lazy.memory
    if lazy is None or source is None or source.dtype != t.dtype:
        yield from ((at, in_memory(t[at : at + size])) for at in range(0, len(t), size))
        return
    buffer = torch.empty(min(size, len(t)), *t.shape[1:], dtype=t.dtype)
    for at in range(0, len(t), size):
        rows = torch.from_numpy(lazy.rows[at : at + size])
        yield at, torch.index_select(source, 0, rows, out=buffer[: len(rows)])


def digest(t: Lazy, size: int) -> bytes:
    """A digest of lazy rows in ``size`` bytes: of all rows, a block at a time, or of a sample if reading is slow.

    Over all rows it equals the digest of the same tensor in memory, see `medley.storage.identity`.
    """
    n = len(t.rows)
    each = t.dtype.itemsize * t.shape[1:].numel()
    kind = f"tensor {t.dtype} {list(t.shape)}"
    rows = t
    if not t.cheap:
        kind = f"sampled {kind}"
        rows = _some(t, t.rows[np.linspace(0, n - 1, min(n, SAMPLED)).astype(np.int64)])
    h = blake2b(kind.encode() + b"\0", digest_size=size)
    h.update(f"{len(rows.rows) * each}:".encode())
    for block in torch.split(rows, max(1, BLOCK // each)):
        h.update(in_memory(block).numpy().reshape(-1).view(np.uint8).data)
    return h.digest()


def _some(t: Lazy, rows: np.ndarray) -> Lazy:
    return Lazy(t.sources, rows, t.dtype)


def _index(t: Any, index: Sequence[Tensor | None]) -> Lazy | None:
    if not isinstance(t, Lazy) or len(index) != 1 or index[0] is None or index[0].ndim != 1:
        return None
    return _some(t, t.rows[index[0].cpu().numpy()])


def _slice(t: Lazy, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Lazy | None:
    return _some(t, t.rows[slice(start, end, step)]) if dim == 0 else None


def _select(t: Lazy, dim: int, index: int) -> Tensor | None:
    return _some(t, t.rows[[index]]).read()[0] if dim == 0 else None


def _split(t: Lazy, size: int, dim: int = 0) -> list[Lazy] | None:
    return [_some(t, t.rows[at : at + size]) for at in range(0, len(t.rows), size)] if dim == 0 else None


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Lazy | None:
    if dim != 0 or not all(isinstance(t, Lazy) for t in parts):
        return None
    lazies: list[Any] = list(parts)
    sources: list[RowSource] = []
    begins: dict[int, int] = {}
    total = 0
    rows = []
    for t in lazies:
        offsets = np.cumsum([0, *(s.shape[0] for s in t.sources)])
        places = []
        for s in t.sources:
            if id(s) not in begins:
                begins[id(s)] = total
                total += s.shape[0]
                sources.append(s)
            places.append(begins[id(s)])
        k = np.searchsorted(offsets, t.rows, side="right") - 1
        rows.append(t.rows - offsets[k] + np.array(places)[k])
    return Lazy(sources, np.concatenate(rows), common(t.dtype for t in lazies))


def _to(t: Lazy, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any) -> Lazy | None:
    if device is not None and device.type != "cpu":
        return None
    return Lazy(t.sources, t.rows, dtype or t.dtype)


OPS: dict[Any, Any] = {
    aten.index.Tensor: _index,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split.Tensor: _split,
    aten.cat.default: _cat,
    aten._to_copy.default: _to,
    aten.detach.default: lambda t: _some(t, t.rows),
    aten.alias.default: lambda t: _some(t, t.rows),
}
"""Operations that read nothing, or one row. If one returns None, it has no lazy form for its arguments."""
