"""Sparse rows: a `Tensor` around one of SciPy's compressed arrays.

Torch's own sparse tensors cannot be indexed by rows. `OPS` has the operations that linear models need. Any other
operation raises Unsupported, so that nothing silently makes the rows dense.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from ..contract.errors import Unsupported

aten = torch.ops.aten


class Sparse(Tensor):
    """Entries [n, p] in ``matrix``, a csr_array or the csc_array that is its transpose; on the CPU, without gradients.

    Products with dense tensors and of two sparse matrices are dense, rows and elementwise products are sparse.
    """

    matrix: Any

    @staticmethod
    def __new__(cls, matrix: Any) -> Sparse:
        """Wraps ``matrix`` itself, not a copy."""
        dtype = torch.from_numpy(matrix.data).dtype
        wrapper: Sparse = Tensor._make_wrapper_subclass(cls, matrix.shape, dtype=dtype)
        wrapper.matrix = matrix
        return wrapper

    @classmethod
    def of(cls, value: Any) -> Sparse:
        """A copy of a SciPy sparse matrix in any format, columns in order. Raises TypeError unless it holds numbers."""
        matrix = scipy.sparse.csr_array(value, copy=True)
        matrix.sum_duplicates()
        return cls(matrix)

    @classmethod
    def diagonal_matrix(cls, v: Tensor) -> Sparse:
        """diag(v)."""
        return cls(scipy.sparse.csr_array(scipy.sparse.diags(v.numpy())))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Sparse({list(self.shape)}, {self.matrix.nnz} entries, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Torch's operations, below autograd: there are derivatives by the other, dense operand."""
        op = OPS.get(func)
        if op is None:
            raise Unsupported(
                "sparse rows are for Logistic, Softmax and LeastSquares, and for methods that leave the rows to them; "
                f"this method, or this step, computes with the rows itself. Give dense rows, X.toarray() (no {func})",
                method=str(func),
                need="dense rows",
            )
        return op(*args, **(kwargs or {}))


def is_sparse(value: object) -> bool:
    """True for a SciPy sparse matrix. The test does not load SciPy's module: a sparse matrix has loaded it."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def _array(t: Any) -> Any:
    """The operand as SciPy sees it."""
    return t.matrix if isinstance(t, Sparse) else t.detach().numpy() if isinstance(t, Tensor) else t


def _product(a: Tensor, b: Tensor) -> Tensor:
    out = _array(a) @ _array(b)
    return torch.from_numpy(np.ascontiguousarray(out.toarray() if is_sparse(out) else out))


def _times(a: Any, b: Any) -> Tensor:
    t, other = (a, b) if isinstance(a, Sparse) else (b, a)
    return Sparse(t.matrix.multiply(_array(other)).asformat(t.matrix.format))


def _index(t: Sparse, index: Sequence[Tensor | None]) -> Sparse:
    return Sparse(t.matrix[tuple(slice(None) if i is None else i.numpy() for i in index)])


def _slice(t: Sparse, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Sparse:
    rows = slice(start, None if end is None else min(end, t.shape[dim]), step)
    return Sparse(t.matrix[rows] if dim == 0 else t.matrix[:, rows])


def _split(t: Sparse, size: int, dim: int = 0) -> list[Sparse]:
    return [_slice(t, dim, at, at + size) for at in range(0, t.shape[dim], size)]


def _row(t: Sparse, dim: int, index: int) -> Tensor:
    line = t.matrix[[index]] if dim == 0 else t.matrix[:, [index]]
    return torch.from_numpy(line.toarray().reshape(-1))


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Sparse:
    stack = scipy.sparse.vstack if dim == 0 else scipy.sparse.hstack
    return Sparse(stack([scipy.sparse.csr_array(_array(t)) for t in parts], format="csr"))


def _to(t: Sparse, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any) -> Sparse:
    if device is not None and device.type != "cpu":
        raise Unsupported("sparse rows stay on the CPU; leave device= out", method="to", need="cpu")
    return Sparse(t.matrix.astype(torch.empty(0, dtype=dtype or t.dtype).numpy().dtype))


def _sum(t: Sparse, dim: Sequence[int] | None = None, **_: Any) -> Tensor:
    return torch.from_numpy(np.asarray(t.matrix.sum(None if dim is None else dim[0])))


def _new(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda t, size, **how: make(size, dtype=how.get("dtype") or t.dtype)


OPS: dict[Any, Callable[..., Any]] = {
    aten.mv.default: _product,
    aten.mm.default: _product,
    aten.mul.Tensor: _times,
    aten.pow.Tensor_Scalar: lambda t, exponent: Sparse(t.matrix.power(exponent)),
    aten.t.default: lambda t: Sparse(t.matrix.T),
    aten.permute.default: lambda t, dims: Sparse(t.matrix.T if [*dims] == [1, 0] else t.matrix),
    aten.index.Tensor: _index,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.select.int: _row,
    aten.cat.default: _cat,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.new_ones.default: _new(torch.ones),
    aten.new_zeros.default: _new(torch.zeros),
    aten.new_empty.default: _new(torch.empty),
    aten._to_copy.default: _to,
    aten.clone.default: lambda t, **_: Sparse(t.matrix.copy()),
    aten.detach.default: lambda t: Sparse(t.matrix),
    aten.alias.default: lambda t: Sparse(t.matrix),
}


def arrays(t: Tensor) -> list[np.ndarray]:
    """The arrays that two equal tensors share: the array itself; or entries, columns and row starts."""
    if isinstance(t, Sparse):
        return [t.matrix.data, t.matrix.indices.astype(np.int64), t.matrix.indptr.astype(np.int64)]
    return [(t.contiguous().view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy()]


def largest(t: Tensor) -> tuple[list[int], float]:
    """Place and value of the entry that is furthest from 0. ``t`` has at least one entry."""
    if isinstance(t, Sparse):
        entries = t.matrix.tocoo()
        if not entries.nnz:
            return [0, 0], 0.0
        k = int(np.abs(entries.data).argmax())
        return [int(entries.row[k]), int(entries.col[k])], float(entries.data[k])
    k = max(int(t.argmax()), int(t.argmin()), key=lambda j: abs(float(t.reshape(-1)[j])))
    return [int(i) for i in np.unravel_index(k, t.shape)], float(t.reshape(-1)[k])


def not_finite(t: Tensor, missing: bool = False) -> tuple[list[int], float] | None:
    """Place and value of the first entry that is NaN or infinite; None if all are finite.

    Args:
        missing: whether NaN stands for a missing value and is none of these; default False
    """
    if isinstance(t, Sparse):
        bad = np.flatnonzero(np.isinf(t.matrix.data) if missing else ~np.isfinite(t.matrix.data))
        if not len(bad):
            return None
        row = int(np.searchsorted(t.matrix.indptr, bad[0], side="right")) - 1
        return [row, int(t.matrix.indices[bad[0]])], float(t.matrix.data[bad[0]])
    places = (t.isinf() if missing else ~t.isfinite()).nonzero()
    return (places[0].tolist(), float(t[tuple(places[0])])) if len(places) else None
