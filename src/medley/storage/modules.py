"""Networks in JSON: classes, settings and shapes of a module, so that a folder restores its network without pickle.

A module's class is in `torch.nn`, in `medley.models`, or in a Python module that the reader has imported. Its settings
are plain values, such classes, functions of `FUNCTIONS`, and functions from the file of its own class. So somebody
else's folder can combine layers, but cannot call other code.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import math
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..contract import State, WireError
from . import atomic
from .base import BASE, LAYERS, STILL, base_name, digest, placed, refuse_other, still_buffers
from .formats import checksum, refuse_damage

STRUCTURE = "model.json"
"""The file of a folder with the structure of its network."""

NUMBERS = "model.safetensors"
"""The file of a folder with the parameters that x lacks or has in another order."""

MARK = "_trained_by_medley"
"""Attribute that marks modules from a run."""

OWN = {*vars(nn.Module()), "training", MARK, BASE, STILL}
"""Attributes of every module, which are not its settings."""

NONE = "its folder has no structure of the network; give the module that the run had, Result.load(folder, module=...)"

REMADE = ("_flat_weights", "_flat_weight_refs")
"""Lists of parameters that torch's recurrent layers keep in addition to the parameters themselves."""

UNDERSCORED = (
    "_qkv_same_embed_dim", "_flat_weights_names", "_all_weights", "_reversed_padding_repeated_twice", "_size", "_keys",
)  # fmt: skip
"""Settings of torch's modules whose names begin with "_"."""

F = nn.functional
FUNCTIONS: dict[str, Any] = {
    f"{f.__module__}:{f.__qualname__}": f
    for f in (
        F.relu, F.relu6, F.elu, F.selu, F.celu, F.leaky_relu, F.rrelu, F.silu, F.mish, F.gelu, F.glu, F.softmax,
        F.log_softmax, F.softmin, F.softplus, F.softsign, F.tanh, F.sigmoid, F.logsigmoid, F.hardtanh, F.hardswish,
        F.hardsigmoid, F.hardshrink, F.softshrink, F.tanhshrink, F.normalize, torch.relu, torch.tanh, torch.sigmoid,
        torch.sin, torch.cos,
    )
}  # fmt: skip
"""Functions of torch that a module may hold, by their names in a folder."""

log = logging.getLogger("medley")


class Unwritten(ValueError):
    """Raised for a part of a module that has no form in JSON."""


def trained(module: nn.Module) -> nn.Module:
    """The module, marked with all its parts as trained, so that nobody reinitialises its weights by mistake."""
    for m in module.modules():
        setattr(m, MARK, True)
    return module


def is_trained(module: nn.Module) -> bool:
    """Whether the module, or a part of it, comes from a run."""
    return any(getattr(m, MARK, False) for m in module.modules())


def written(module: nn.Module) -> dict[str, Any]:
    """A module's structure in plain values. Raises Unwritten, naming the part, if it has no such form."""
    paths: dict[int, str] = {}
    out: dict[str, Any] = {}
    for path, m in module.named_modules(remove_duplicate=False):
        if id(m) in paths:
            out[path] = {"same": paths[id(m)]}
            continue
        paths[id(m)] = path
        hooks = [k for k, v in vars(m).items() if k.endswith("_hooks") and v]
        if hooks:
            raise Unwritten(f"{path or 'the module'} has {hooks[0].strip('_').replace('_', ' ')}")
        settings = {k: v for k, v in vars(m).items() if k not in OWN and k not in REMADE}
        name = _name(type(m), path or "the module", type(m).__module__)
        unknown = [k for k in settings if not _is_setting(type(m), k)]
        if unknown:
            raise Unwritten(f"{path or 'the module'} has {unknown[0]}, which is not a setting of {type(m).__name__}")
        out[path] = {
            "class": name,
            "settings": {k: _plain(v, f"{path}.{k}".lstrip("."), type(m).__module__) for k, v in settings.items()},
            "parameters": _tensors(m._parameters, path, paths),
            "buffers": _tensors(m._buffers, path, paths),
            "passing": sorted(m._non_persistent_buffers_set),
        }
    return out


def rebuilt(structure: Mapping[str, Any]) -> nn.Module:
    """Inverse of `written`, with all numbers 0. Raises WireError, with the remedy, if the module cannot be made."""
    built: dict[str, nn.Module] = {}
    tensors: dict[str, Tensor] = {}
    for path, part in structure.items():
        built[path] = built[part["same"]] if "same" in part else _module(part, path, tensors)
        if path:
            above, _, name = path.rpartition(".")
            built[above]._modules[name] = built[path]
    for m in built[""].modules():
        if isinstance(m, nn.RNNBase):
            m._init_flat_weights()
    return built[""].eval()


def fill(module: nn.Module, x: Tensor, buffers: State | None) -> nn.Module:
    """The module with trainable parameters x [d] and buffers, in place. Raises WireError if they do not fit."""
    params = [p for p in module.parameters() if p.requires_grad]
    d = sum(p.numel() for p in params)
    if d != len(x):
        raise WireError(f"the module has {d} trainable parameters, but the result has {len(x)}: it is another network")
    moving = [b for name, b in module.named_buffers() if name not in still_buffers(module)]
    floats = [b for b in moving if b.is_floating_point()]
    ints = [b for b in moving if not b.is_floating_point()]
    with torch.no_grad():
        pairs = [(params, x), *(zip((floats, ints), buffers, strict=True) if buffers is not None else ())]
        for places, flat in pairs:
            if sum(p.numel() for p in places) != len(flat):
                raise WireError("the module's buffers are not the result's: it is another network")
            for p, v in zip(places, torch.split(flat, [p.numel() for p in places]), strict=True):
                p.copy_(v.view(p.shape))
    return trained(module.eval())


def save(folder: Path, module: nn.Module, x: Tensor) -> str:
    """Write a module's structure, and the numbers that x [d] lacks: frozen parameters, or all if x has another order.

    For a module with a named base, see `base_name`, it writes the base's name and digest instead of both.

    Returns the reason if the module has no form in JSON, otherwise an empty text; the numbers are written in any case.
    """
    for stale in (STRUCTURE, NUMBERS):  # of an earlier result
        (folder / stale).unlink(missing_ok=True)
    trained = [p.detach().cpu().reshape(-1) for p in module.parameters() if p.requires_grad]
    sizes = [*map(len, trained)]
    other = sum(sizes) != len(x) or not all(map(torch.equal, trained, torch.split(x, sizes)))
    base = base_name(module)
    still = still_buffers(module)
    lacking: dict[str, Tensor] = {
        k: p for k, p in module.named_parameters() if (other if p.requires_grad else base is None)
    }
    lacking |= {k: b for k, b in module.named_buffers() if (base is None if k in still else other)}
    lacking = {k: t.detach().cpu().clone() for k, t in lacking.items()}
    if lacking:
        with atomic.replacing(folder / NUMBERS) as tmp:
            save_file(lacking, tmp, {"sum": checksum({}, lacking)})
    try:
        structure = None if base is not None else json.loads(json.dumps(written(module)))
    except (Unwritten, ValueError) as e:
        structure = None
        why = str(e)
    else:
        why = "" if base is None else f"its base, {base}, lies elsewhere"
    if base is None and structure is None and not still:
        return why
    content = {"structure": structure, "still": sorted(still)}
    content |= {} if base is None else {"base": {"name": base, "digest": digest(module, still)}}
    atomic.write(folder / STRUCTURE, json.dumps({"sum": _sum(content, x), **content}, indent=1))
    return why


def _sum(content: Any, x: Tensor) -> str:
    """The checksum of what a folder says about its network, together with the parameters."""
    return checksum({"structure": json.dumps(content)}, {"x": x.detach().cpu()})


def _content(folder: Path, x: Tensor) -> dict[str, Any]:
    """What a folder says about the network with parameters x [d]; empty if nothing. Raises WireError."""
    try:
        content = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"structure": None, "still": []}
    except (OSError, ValueError, RecursionError) as e:
        raise WireError(f"{folder / STRUCTURE} cannot be read: {e}") from None
    try:
        recorded = content.pop("sum")
        names = content.setdefault("still", [])
        base = content.get("base")
        refuse_damage(folder / STRUCTURE, recorded, _sum(content, x))
        valid_base = base is None or (isinstance(base["name"], str) and isinstance(base["digest"], str))
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or not valid_base:
            raise TypeError("its base or its buffers are none")
    except (AttributeError, LookupError, TypeError) as e:
        raise WireError(f"{folder / STRUCTURE} holds no module: {type(e).__name__}: {e}") from None
    return dict(content)


def _size(structure: Mapping[str, Any]) -> int:
    """The number of parameters and buffers in a structure, computed before any is made."""
    parts = [part for part in structure.values() if "same" not in part]
    tensors = chain.from_iterable((*part["parameters"].values(), *part["buffers"].values()) for part in parts)
    return sum(math.prod(t["shape"]) for t in tensors if t is not None and "same" not in t)


def load(folder: Path, x: Tensor, buffers: State | None) -> nn.Module | None:
    """The module of a folder, with parameters x [d] and buffers; None if it has no structure. Raises WireError."""
    content = _content(folder, x)
    if "base" in content:
        raise WireError(
            f"the folder holds what was trained, but not its base {content['base']['name']}: pass the module that the "
            "run had, Result.load(folder, module=...)"
        )
    structure = content["structure"]
    if structure is None:
        return None
    try:
        numbers = _numbers(folder)
        available = sum(t.numel() for t in (x, *numbers.values(), *(buffers or ())))
        size = _size(structure)
        if size > available:
            raise WireError(
                f"{folder / STRUCTURE} describes a network of {size} numbers, but the folder has {available}"
            )
        return _filled(rebuilt(structure), content, numbers, x, buffers)
    except WireError:
        raise
    except Exception as e:  # any damage to the file, such as a missing key
        raise WireError(f"{folder / STRUCTURE} holds no module: {type(e).__name__}: {e}") from None


def _filled(
    module: nn.Module, content: Mapping[str, Any], numbers: Mapping[str, Tensor], x: Tensor, buffers: State | None
) -> nn.Module:
    """The module, in place, with the numbers of a folder: those next to x, then x and the buffers."""
    vars(module)[STILL] = frozenset(content["still"])
    with torch.no_grad():
        for name, t in (*module.named_parameters(), *module.named_buffers()):
            if name in numbers and numbers[name].shape != t.shape:
                raise WireError(f"the module is another network than the result's: {name} is {list(t.shape)}")
            if name in numbers:
                t.copy_(numbers[name])
    complete = all(name in numbers for name, p in module.named_parameters() if p.requires_grad)
    return trained(module.eval()) if complete else fill(module, x, buffers)


def restored(folder: Path, module: nn.Module | None, x: Tensor, buffers: State | None) -> nn.Module | str:
    """The network of a folder, or a copy of ``module`` if given, with the folder's numbers.

    Returns the reason if the network cannot be made here, and logs it as a warning. Raises WireError if ``module`` or
    its base is another network than the folder's.
    """
    if module is not None:
        content = _content(folder, x)
        named = "base" in content
        out = placed(module if named else copy.deepcopy(module), x.dtype)  # without a name it gets the folder's base
        if named:
            refuse_other(out, content["base"], content["still"])
        return _filled(out, content, _numbers(folder), x, buffers)
    try:
        return load(folder, x, buffers) or NONE
    except WireError as e:
        log.warning("%s: the result has no model: %s", folder, e)
        return str(e)


def _numbers(folder: Path) -> dict[str, Tensor]:
    """The numbers that `save` wrote next to x; none if there is no file. Raises WireError for a damaged file."""
    path = folder / NUMBERS
    if not path.exists():
        return {}
    try:
        with safe_open(path, "pt") as f:
            recorded = (f.metadata() or {}).get("sum")
            numbers = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as e:
        raise WireError(f"{path} cannot be read: {e}") from None
    refuse_damage(path, recorded, checksum({}, numbers))
    return numbers


def _module(part: Mapping[str, Any], path: str, tensors: dict[str, Tensor]) -> nn.Module:
    cls = _class(part["class"])
    module_name = part["class"].partition(":")[0]
    m: nn.Module = cls.__new__(cls)
    nn.Module.__init__(m)
    for name, value in part["settings"].items():
        if not _is_setting(cls, name):
            raise WireError(f"{path}.{name} is not a setting of {part['class']}")
        vars(m)[name] = _value(value, module_name)
    for kind, places in (("parameters", m._parameters), ("buffers", m._buffers)):
        for name, tensor in part[kind].items():
            if tensor is None:
                places[name] = None
                continue
            t: Any
            if "same" in tensor:
                t = tensors[tensor["same"]]
            else:
                t = torch.zeros(tensor["shape"], dtype=_dtype(tensor["dtype"]))
                if kind == "parameters":
                    t = nn.Parameter(t, requires_grad=tensor["trained"])
            tensors[f"{path}.{name}"] = t
            places[name] = t
    m._non_persistent_buffers_set = set(part["passing"])
    return m


def _tensors(values: Mapping[str, Tensor | None], path: str, paths: dict[int, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, t in values.items():
        if t is None:
            out[name] = None
            continue
        place = f"{path}.{name}"
        first = paths.setdefault(id(t), place)
        if first != place:
            out[name] = {"same": first}
            continue
        dtype = str(t.dtype).removeprefix("torch.")
        out[name] = {"shape": list(t.shape), "dtype": dtype, "trained": t.requires_grad}
    return out


def _plain(value: Any, where: str, module_name: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(v, where, module_name) for v in value]
    if type(value) in (tuple, torch.Size, set):
        return {type(value).__name__: [_plain(v, where, module_name) for v in value]}
    if type(value) is dict and all(type(k) is str for k in value):
        return {"dict": {k: _plain(v, where, module_name) for k, v in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"name": _name(value, where, module_name)}
    raise Unwritten(f"{where} is a {type(value).__name__}")


def _value(value: Any, module_name: str) -> Any:
    if isinstance(value, list):
        return [_value(v, module_name) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {k: _value(v, module_name) for k, v in inner.items()}
    if kind == "dtype":
        return _dtype(inner)
    if kind == "name":
        return _setting(inner, module_name)
    return {"tuple": tuple, "Size": torch.Size, "set": set}[kind](_value(v, module_name) for v in inner)


def _name(value: Any, where: str, module_name: str) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    try:
        same = _setting(name, module_name) is value
    except WireError:
        same = False
    if not same:
        raise Unwritten(f"{where} is {name.replace(':', '.')}, which a folder cannot keep")
    return name


def _is_setting(cls: type[nn.Module], name: str) -> bool:
    """Whether a folder may set an attribute of this name: neither torch's own machinery nor a method."""
    theirs = hasattr(nn.Module, name) or name in OWN or callable(getattr(cls, name, None))
    return not theirs and (name[:1] != "_" or name in UNDERSCORED or not _is_library(cls.__module__))


def _is_library(place: str) -> bool:
    return place.partition(".")[0] in ("torch", "medley")


def _setting(name: str, module_name: str) -> Any:
    """The value that a setting names: from `FUNCTIONS`, a function in the file of the module's class, or a class."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    place, _, path = name.partition(":")
    if place == module_name and not _is_library(place):
        value = vars(sys.modules[place]).get(path)
        if inspect.isfunction(value) and (value.__module__, value.__qualname__) == (place, path):
            return value
    return _class(name)


def _class(name: str) -> type[nn.Module]:
    """The module class of this name: a public one of `torch.nn` or `medley.models`, or one that is imported."""
    place, _, path = name.partition(":")
    if _is_library(place):
        if not f"{place}.".startswith(LAYERS) or path[:1] == "_":
            raise WireError(f"a network consists of layers of torch.nn and medley.models, not of {name}")
        importlib.import_module(place)
    first, *inner = path.split(".")
    value: Any = getattr(sys.modules.get(place), first, None)
    for part in inner:  # a class within a class, and never through a module
        value = vars(value).get(part) if inspect.isclass(value) else None
    if value is None:
        raise WireError(
            f"the network needs {path} from {place}, which is not imported: import {place} first, or pass "
            f"Result.load(folder, module=...); at the shell, medley predict --allow-code {name}"
        )
    location = inspect.isclass(value) and issubclass(value, nn.Module) and (value.__module__, value.__qualname__)
    if location != (place, path):
        raise WireError(f"{name} is not a module class in {place}")
    return cast("type[nn.Module]", value)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"{name!r} is not a dtype")
    return dtype
