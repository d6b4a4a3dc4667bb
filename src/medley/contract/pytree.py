"""Pytrees: tensors, scalars, strings and None in dataclasses, dicts, lists and tuples.

Server state, client memories and checkpoints are pytrees. They can be copied, saved and compared without pickle.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.tricks import trim
from .errors import MedleyError, WireError
from .pieces import Content, Pieces

Skeleton = Any
"""A pytree as JSON values; a tensor is ``{"tensor": name}``."""

TRIMMED = 1 << 25
"""Bytes of a tensor after which the memory of pieces that were taken is given back to the system."""

LONGEST_HEAD = 100_000_000
"""Bytes of the longest head that is read, as in safetensors."""

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype)
    for name, dtype in re.findall(
        r"(\w+) (\w+)",
        "BOOL bool U8 uint8 I8 int8 F8_E5M2 float8_e5m2 F8_E4M3 float8_e4m3fn I16 int16 U16 uint16 F16 float16 "
        "BF16 bfloat16 I32 int32 U32 uint32 F32 float32 C64 complex64 F64 float64 I64 int64 U64 uint64",
    )
    if hasattr(torch, dtype)
}
"""Types by safetensors' names, in the order in which it stores them, from the last to the first."""

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ORDER = {dtype: k for k, dtype in enumerate(_DTYPES.values())}


class OtherVersion(WireError):
    """A saved dataclass has not the fields of its class."""


def map_tensors(tree: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """The same pytree with new containers and ``f`` applied to every tensor.

    Raises MedleyError for an attribute of a dataclass that is not a field, because it would be lost.
    """
    if isinstance(tree, Tensor):
        return f(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        if len(vars(tree)) > len(tree.__dataclass_fields__):
            more = min(vars(tree).keys() - tree.__dataclass_fields__.keys())
            kind = type(tree).__name__
            raise MedleyError(f"{kind}.{more} is not a field, so it would be lost: declare it in class {kind}")
        return dataclasses.replace(
            tree, **{k.name: map_tensors(getattr(tree, k.name), f) for k in dataclasses.fields(tree)}
        )
    if isinstance(tree, dict):
        return {k: map_tensors(v, f) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_tensors(v, f) for v in tree)
    return tree


def copy(tree: Any) -> Any:
    """New containers with the same tensors: you can change this version by assignment without changing the old one."""
    return map_tensors(tree, lambda t: t)


def tensors(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the pytree with its dotted name."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for k in dataclasses.fields(tree):
            yield from tensors(getattr(tree, k.name), f"{name}.{k.name}" if name else k.name)
    elif isinstance(tree, dict):
        for key, v in tree.items():
            yield from tensors(v, f"{name}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, v in enumerate(tree):
            yield from tensors(v, f"{name}[{i}]")


def nbytes(tree: Any) -> int:
    """The bytes of the pytree's tensors."""
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if hasattr(tree, "__dataclass_fields__") or isinstance(tree, dict):
        return sum(map(nbytes, (tree if isinstance(tree, dict) else vars(tree)).values()))
    return sum(map(nbytes, tree)) if isinstance(tree, list | tuple) else 0


def pack(tree: Any, store: dict[str, Tensor], copy: bool = True) -> Skeleton:
    """The pytree as JSON values; its tensors go into ``store`` by name. Raises WireError for values of other types.

    ``copy=False`` puts views of the tensors into ``store``, for a store that is read at once.
    """
    if isinstance(tree, Tensor):
        name = f"t{len(store)}"
        # safetensors rejects views that share memory, and a checkpoint must not depend on aliasing.
        t = tree.detach().cpu().contiguous()
        store[name] = t.clone() if copy else t.resolve_conj().resolve_neg()
        return {"tensor": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {k.name: pack(getattr(tree, k.name), store, copy) for k in dataclasses.fields(tree)}
        return {"dataclass": type(tree).__name__, "fields": fields}
    if isinstance(tree, dict):
        return {"dict": [[pack(k, store, copy), pack(v, store, copy)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [pack(v, store, copy) for v in tree]}
    raise WireError(f"state can hold tensors, scalars, strings, None, lists, dicts and dataclasses, not a {type(tree)}")


def unpack(skeleton: Skeleton, store: Mapping[str, Tensor], classes: Mapping[str, type]) -> Any:
    """Inverse of `pack`. Raises WireError for a damaged skeleton, or for a dataclass that is not in ``classes``.

    Args:
        skeleton: the JSON values that `pack` returned
        store: tensors by name
        classes: the allowed dataclasses, by name
    """
    if not isinstance(skeleton, dict):
        return skeleton
    match skeleton:
        case {"tensor": name} if name in store:
            return store[name]
        case {"dict": items}:
            return {unpack(k, store, classes): unpack(v, store, classes) for k, v in items}
        case {"list": items}:
            return [unpack(v, store, classes) for v in items]
        case {"tuple": items}:
            return tuple(unpack(v, store, classes) for v in items)
        case {"dataclass": name, "fields": fields} if name in classes:
            declared = {f.name for f in dataclasses.fields(classes[name])}
            if declared != fields.keys():
                other = ", ".join(sorted(declared ^ fields.keys()))
                raise OtherVersion(f"another version of the method saved it, with other fields of {name}: {other}")
            return classes[name](**{k: unpack(v, store, classes) for k, v in fields.items()})
    raise WireError(f"damaged or foreign state: {str(skeleton)[:80]}")


def to_bytes(tree: Any) -> bytes:
    """The pytree in safetensors' format; its skeleton is JSON in a tensor of uint8, named "tree".

    The bytes are those of ``safetensors.torch.save``, made with one copy of the tensors where it makes three.
    """
    return b"".join(in_pieces(tree))


def in_pieces(tree: Any) -> list[bytes | memoryview]:
    """The bytes of `to_bytes`, in pieces that are views of the tensors: read them while nothing changes these."""
    store: dict[str, Tensor] = {}
    text = json.dumps(pack(tree, store, copy=False)).encode()
    store["tree"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return safetensors(store)


def safetensors(store: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """Contiguous tensors on the CPU in safetensors' format, in pieces that are views of them."""
    names = sorted(store, key=lambda name: (-_ORDER[store[name].dtype], name))
    head: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        begin, end = end, end + nbytes(store[name])
        t = store[name]
        head[name] = {"dtype": _NAMES[t.dtype], "shape": [*t.shape], "data_offsets": [begin, end]}
    first = json.dumps(head, separators=(",", ":")).encode()
    first += b" " * (-len(first) % 8)
    parts = [store[name].reshape(-1).view(torch.uint8).numpy().data for name in names if nbytes(store[name])]
    return [len(first).to_bytes(8, "little"), first, *parts]


def from_bytes(raw: Content | memoryview, classes: Mapping[str, type], *, take: bool = False) -> Any:
    """Inverse of `to_bytes`; runs no code from the bytes. Raises WireError for bytes that are not a pytree.

    With ``take``, pieces of ``raw`` are taken out of it as they are read, and their memory is free.
    """
    try:
        store = _tensors_in(raw if isinstance(raw, Pieces) else Pieces([raw]), take)
        return unpack(json.loads(store.pop("tree").numpy().tobytes()), store, classes)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError, RecursionError) as e:
        raise WireError(f"these bytes are not a state that Medley saved: {type(e).__name__}: {e}") from None


def _tensors_in(raw: Pieces, take: bool = False) -> dict[str, Tensor]:
    """The tensors in safetensors' format, by name, each copied once. Raises ValueError or KeyError for other bytes."""
    freed = 0
    first = int.from_bytes(raw[:8], "little") + 8
    if len(raw) < 8 or first > min(len(raw), LONGEST_HEAD):
        raise ValueError(f"a head of {first} bytes in {len(raw)}")
    head = json.loads(raw[8:first])
    store: dict[str, Tensor] = {}
    end = 0
    for name, about in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, after) = _DTYPES[about["dtype"]], about["shape"], about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, after)):
            raise ValueError(f"{name} has no shape or no place")
        if begin != end or after - begin != math.prod(shape) * dtype.itemsize or after > len(raw) - first:
            raise ValueError(f"{name} is not where its shape says")
        # A copy to memory that torch has aligned, because some kernels give different bits at other alignments.
        store[name] = t = torch.empty(shape, dtype=dtype)
        if after > begin:
            flat = t.reshape(-1).view(torch.uint8).numpy()
            for piece in raw.between(first + begin, first + after, take):
                flat[begin - end : begin - end + len(piece)] = np.frombuffer(piece, np.uint8)
                begin += len(piece)
                if take and begin >= freed + TRIMMED:  # glibc keeps what lies between longer-lived values
                    trim()
                    freed = begin
        end = after
    if end != len(raw) - first:
        raise ValueError(f"{len(raw) - first - end} bytes belong to no tensor")
    return store


def dataclasses_in(*roots: Any) -> dict[str, type]:
    """Every dataclass that the type hints of ``roots`` reach, by name.

    A root may be an instance; then its fields' values are roots too.
    """
    classes: dict[str, type] = {}

    def visit(hint: Any) -> None:
        for arg in typing.get_args(hint):
            visit(arg)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__name__ not in classes:
            classes[hint.__name__] = hint
            for h in typing.get_type_hints(hint).values():
                visit(h)

    def look(value: Any) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            visit(type(value))
            for k in dataclasses.fields(value):
                look(getattr(value, k.name))

    for root in roots:
        visit(root)
        look(root)
    return classes
