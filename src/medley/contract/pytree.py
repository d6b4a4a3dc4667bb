"""Pytrees: tensors, scalars, strings and None in dataclasses, dicts, lists and tuples.

Server state, client memories and checkpoints are pytrees. They can be copied, saved and compared without pickle.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .errors import MedleyError, WireError

Skeleton = Any
"""A pytree as JSON values; a tensor is ``{"tensor": name}``."""


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


def pack(tree: Any, store: dict[str, Tensor]) -> Skeleton:
    """The pytree as JSON values; its tensors go into ``store`` by name. Raises WireError for values of other types."""
    if isinstance(tree, Tensor):
        name = f"t{len(store)}"
        # safetensors rejects views that share memory, and a checkpoint must not depend on aliasing.
        store[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {k.name: pack(getattr(tree, k.name), store) for k in dataclasses.fields(tree)}
        return {"dataclass": type(tree).__name__, "fields": fields}
    if isinstance(tree, dict):
        return {"dict": [[pack(k, store), pack(v, store)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [pack(v, store) for v in tree]}
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
                raise WireError(
                    f"the saved {name} has fields {sorted(fields)}, but this version's has {sorted(declared)}: it was "
                    "saved by another version of the method"
                )
            return classes[name](**{k: unpack(v, store, classes) for k, v in fields.items()})
    raise WireError(f"damaged or foreign state: {str(skeleton)[:80]}")


def to_bytes(tree: Any) -> bytes:
    """The pytree in safetensors' format; its skeleton is JSON in a tensor of uint8, named "tree"."""
    store: dict[str, Tensor] = {}
    text = json.dumps(pack(tree, store)).encode()
    return safetensors.torch.save({"tree": torch.frombuffer(bytearray(text), dtype=torch.uint8), **store})


def from_bytes(raw: bytes, classes: Mapping[str, type]) -> Any:
    """Inverse of `to_bytes`; runs no code from the bytes. Raises WireError for bytes that are not a pytree."""
    try:
        # Copy to memory that torch has aligned, because some kernels give different bits at other alignments.
        store = {name: t.clone() for name, t in safetensors.torch.load(raw).items()}
        return unpack(json.loads(store.pop("tree").numpy().tobytes()), store, classes)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise WireError(f"these bytes are not a state that Medley saved: {type(e).__name__}: {e}") from None


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
