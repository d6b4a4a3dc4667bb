"""Rows of several inputs: a `Tensor` around one tensor [n, ...] for each of them.

A user's own networks read them. Indexing, slicing and joining such rows gives such rows again. Any other operation
raises Unsupported, so that no method silently treats them as one vector.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from ..contract.errors import BadData, Unsupported
from .lazy import in_memory, joined

aten = torch.ops.aten

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""The inputs of a batch as a network takes them: one tensor, or several by place or by name."""


class Fields(Tensor):
    """Several inputs of each row. As a tensor it is [n, numbers per row], which no operation reads.

    Args:
        parts: tensors [n, ...], in memory or lazy; all tensors of floats get the widest of their dtypes
        names: their names; default None: they only have places
    """

    parts: tuple[Tensor, ...]
    names: tuple[str, ...] | None

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor], names: Sequence[str] | None = None) -> Fields:
        """Wraps these tensors. Raises BadData if their lengths differ."""
        floats = [t.dtype for t in parts if t.is_floating_point()]
        dtype = reduce(torch.promote_types, floats) if floats else torch.int64
        parts = tuple(t.to(dtype) if t.is_floating_point() else t for t in parts)
        if len({len(t) for t in parts}) != 1:
            labels = names or range(len(parts))
            lengths = ", ".join(f"{len(t)} rows of {name!r}" for name, t in zip(labels, parts, strict=True))
            raise BadData(f"all inputs must have the same number of rows: {lengths}")
        shape = (len(parts[0]), sum(t.shape[1:].numel() for t in parts))
        wrapper: Fields = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=parts[0].device)
        wrapper.parts, wrapper.names = parts, None if names is None else tuple(names)
        return wrapper

    @property
    def inputs(self) -> Inputs:
        """The tensors as they were given, by name or by place."""
        return self.parts if self.names is None else dict(zip(self.names, self.parts, strict=True))

    def ordered(self, names: Sequence[str] | None) -> Fields:
        """The same inputs in the order of these names; in their own if they have only places."""
        by_name = dict(zip(self.names or (), self.parts, strict=bool(self.names)))
        return self if names is None else Fields([by_name[name] for name in names], names)

    def over(self, f: Callable[[Tensor], Tensor]) -> Fields:
        """``f`` of each tensor."""
        return Fields([f(t) for t in self.parts], self.names)

    def read(self) -> Fields:
        """The same in memory."""
        return self.over(in_memory)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Fields({described(self)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Fields, (self.parts, self.names)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Torch's operations on rows; all others raise Unsupported."""
        op = OPS.get(func)
        if op is None:
            raise Unsupported(
                f"rows of several inputs have no {func}; they work with Network, whose module takes them, and with "
                "methods that leave the rows to it. Give one tensor [n, ...], or another method",
                method=str(func),
                need="rows of one input",
            )
        return op(*args, **(kwargs or {}))


def fields(value: Any, convert: Callable[[Any, str], Tensor]) -> Fields | None:
    """Rows of several inputs from a dict or a tuple of arrays; None for any other value.

    A tuple of vectors is one table, with the vectors as its rows.

    Args:
        convert: makes a tensor of a member; its second argument is the member's name or place
    """
    if isinstance(value, Fields):
        return value
    if isinstance(value, Mapping):
        return Fields([convert(v, repr(k)) for k, v in value.items()], [str(k) for k in value]) if value else None
    if not isinstance(value, tuple) or len(value) < 2 or not all(hasattr(v, "shape") for v in value):
        return None
    if any(len(v.shape) < 1 for v in value) or all(len(v.shape) < 2 for v in value):
        return None
    return Fields([convert(v, str(k)) for k, v in enumerate(value)])


def several(value: Inputs) -> Tensor:
    """The inverse of `inputs_of`."""
    if isinstance(value, dict):
        return Fields(list(value.values()), list(value))
    return Fields(value) if isinstance(value, tuple) else value


def inputs_of(X: Tensor) -> Inputs:
    """The inputs of rows X, in memory."""
    X = in_memory(X)
    return X.inputs if isinstance(X, Fields) else X


def arguments(module: nn.Module, value: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for calling a module: one per input, by name or place, if its `forward` accepts them so.

    Otherwise the module gets the dict or the tuple as its only argument.
    """
    if isinstance(value, Tensor):
        return (value,), {}
    args, named = ((), value) if isinstance(value, dict) else (value, {})
    try:
        inspect.signature(module.forward).bind(*args, **named)
    except TypeError:
        return (value,), {}
    return args, named


def applied(module: nn.Module, value: Inputs) -> Tensor:
    """The module's outputs of these inputs."""
    args, named = arguments(module, value)
    return outputs_of(module(*args, **named))


def outputs_of(output: Any) -> Tensor:
    """What a module returned; from an object with several tensors, such as Hugging Face's, its ``logits``."""
    logits = None if isinstance(output, Tensor) else getattr(output, "logits", None)
    out: Tensor = logits if isinstance(logits, Tensor) else output
    return out


def layout(X: Tensor) -> Any:
    """The shape of one row; for several inputs, each name, in the alphabet's order, or place, with its shape."""
    if not isinstance(X, Fields):
        return tuple(X.shape[1:])
    return tuple(sorted((k, tuple(t.shape[1:])) for k, t in zip(X.names or range(len(X.parts)), X.parts, strict=True)))


def described(X: Tensor) -> str:
    """The shape of one row in words, such as "[12]" or "tokens [12], age []"."""
    if not isinstance(X, Fields):
        return str(list(X.shape[1:]))
    names = X.names or [f"input {k}" for k in range(len(X.parts))]
    return ", ".join(f"{name} {list(t.shape[1:])}" for name, t in zip(names, X.parts, strict=True))


def integers(X: Tensor) -> list[str]:
    """Names, or places, of the inputs that are whole numbers, such as token ids; the only input's place is "0"."""
    parts = X.parts if isinstance(X, Fields) else (X,)
    return [name for name, t in zip(names_of(X), parts, strict=True) if not t.is_floating_point()]


def names_of(X: Tensor) -> Sequence[str]:
    """The names of X's inputs, or their places if they have none."""
    if isinstance(X, Fields):
        return X.names or [str(k) for k in range(len(X.parts))]
    return ["0"]


def tensors(X: Tensor, what: str) -> list[tuple[Tensor, str]]:
    """Each tensor of X, and its name after ``what``."""
    if not isinstance(X, Fields):
        return [(X, what)]
    names = [repr(n) for n in X.names] if X.names else [str(k) for k in range(len(X.parts))]
    return [(t, f"{what}[{name}]") for t, name in zip(X.parts, names, strict=True)]


def _index(t: Fields, index: Sequence[Tensor | None]) -> Fields:
    return t.over(lambda part: part[index[0]])


def _slice(t: Fields, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Fields:
    if dim != 0:
        raise Unsupported("rows of several inputs have no columns", method="slice", need="rows of one input")
    return t.over(lambda part: part[start:end:step])


def _split(t: Fields, size: int, dim: int = 0) -> list[Fields]:
    return [_slice(t, dim, at, at + size) for at in range(0, len(t), size)]


def _row(t: Fields, dim: int, index: int) -> Tensor:
    at = torch.tensor([index])
    return torch.cat([in_memory(part[at]).reshape(-1).to(t.dtype) for part in t.parts])


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Fields:
    first = parts[0]
    if not isinstance(first, Fields) or dim != 0 or any(layout(t) != layout(first) for t in parts):
        raise BadData(f"rows of several inputs must have the same ones: {'; '.join({described(t) for t in parts})}")
    each = zip(*(t.ordered(first.names).parts for t in parts if isinstance(t, Fields)), strict=True)
    return Fields([joined(ts) for ts in each], first.names)


def _to(t: Fields, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any) -> Fields:
    return t.over(lambda part: part.to(device=device, dtype=dtype if part.is_floating_point() else part.dtype))


OPS: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: _index,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.select.int: _row,
    aten.cat.default: _cat,
    aten._to_copy.default: _to,
    aten.clone.default: lambda t, **_: t.over(torch.clone),
    aten.detach.default: lambda t: t.over(lambda part: part),
    aten.alias.default: lambda t: t.over(lambda part: part),
}
"""Operations on whole rows."""
