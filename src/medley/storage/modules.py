"""Networks in JSON: classes, settings and shapes of a module, so that a folder brings its network back without pickle.

A class, and a function that a module holds, is named by its module and its name there. It is looked up, and never
imported, unless it is torch's or Medley's: reading a folder runs no code that the reader has not imported.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..contract.errors import WireError
from ..contract.problem import State
from . import atomic
from .checksum import checksum, refuse_damage

STRUCTURE, NUMBERS = "model.json", "model.safetensors"
"""Files of a folder: the structure of its network, and the parameters that x does not have in their order."""

MARK = "_trained_by_medley"
"""Attribute of modules that come from a run."""

OWN = {*vars(nn.Module()), "training", MARK}
"""Attributes of every module, which are not its settings."""

REMADE = ("_flat_weights", "_flat_weight_refs")
"""Lists of parameters that torch's recurrent layers keep beside the parameters themselves."""

PACKAGES = ("torch", "medley")

log = logging.getLogger("medley")


class Unwritten(ValueError):
    """A part of a module that has no form in JSON."""


def trained(module: nn.Module) -> nn.Module:
    """The module, marked with all its parts as trained, so that nobody draws its weights anew by oversight."""
    for m in module.modules():
        setattr(m, MARK, True)
    return module


def is_trained(module: nn.Module) -> bool:
    """Whether the module, or a part of it, comes from a run."""
    return any(getattr(m, MARK, False) for m in module.modules())


def written(module: nn.Module) -> dict[str, Any]:
    """A module's structure in plain values. Raises Unwritten, naming the part, for a module that has none."""
    seen: dict[int, str] = {}
    out: dict[str, Any] = {}
    for path, m in module.named_modules(remove_duplicate=False):
        if id(m) in seen:
            out[path] = {"same": seen[id(m)]}
            continue
        seen[id(m)] = path
        hooks = [k for k, v in vars(m).items() if k.endswith("_hooks") and v]
        if hooks:
            raise Unwritten(f"{path or 'the module'} has {hooks[0].strip('_').replace('_', ' ')}")
        settings = {k: v for k, v in vars(m).items() if k not in OWN and k not in REMADE}
        out[path] = {
            "class": _name(type(m), path or "the module"),
            "settings": {k: _plain(v, f"{path}.{k}".lstrip(".")) for k, v in settings.items()},
            "parameters": _tensors(m._parameters, path, seen),
            "buffers": _tensors(m._buffers, path, seen),
            "passing": sorted(m._non_persistent_buffers_set),
        }
    return out


def rebuilt(structure: Mapping[str, Any]) -> nn.Module:
    """The module of `written`, with all numbers 0. Raises WireError, with the remedy, for one that cannot be made."""
    made: dict[str, nn.Module] = {}
    tensors: dict[str, Tensor] = {}
    for path, part in structure.items():
        made[path] = made[part["same"]] if "same" in part else _module(part, path, tensors)
        if path:
            above, _, name = path.rpartition(".")
            made[above]._modules[name] = made[path]
    for m in made[""].modules():
        if isinstance(m, nn.RNNBase):
            m._init_flat_weights()
    return made[""].eval()


def fill(module: nn.Module, x: Tensor, buffers: State | None) -> nn.Module:
    """The module with trainable parameters x [d] and buffers, in place. Raises WireError where they do not fit."""
    params = [p for p in module.parameters() if p.requires_grad]
    if (d := sum(p.numel() for p in params)) != len(x):
        raise WireError(f"the module has {d} trainable parameters, and the result {len(x)}: it is another network")
    floats = [b for b in module.buffers() if b.is_floating_point()]
    ints = [b for b in module.buffers() if not b.is_floating_point()]
    module.to(x.dtype)
    with torch.no_grad():
        pairs = [(params, x), *(zip((floats, ints), buffers, strict=True) if buffers is not None else ())]
        for places, flat in pairs:
            if sum(p.numel() for p in places) != len(flat):
                raise WireError("the module's buffers are not those of the result: it is another network")
            for p, v in zip(places, torch.split(flat, [p.numel() for p in places]), strict=True):
                p.copy_(v.view(p.shape))
    return trained(module.eval())


def save(folder: Path, module: nn.Module, x: Tensor) -> str:
    """Write a module's structure, and the numbers that x [d] lacks: frozen parameters, or all if x has another order.

    Returns the reason where the module has no form in JSON, else an empty text; its numbers are written either way.
    """
    for stale in (STRUCTURE, NUMBERS):  # of an earlier result
        (folder / stale).unlink(missing_ok=True)
    trained = [p.detach().cpu().reshape(-1) for p in module.parameters() if p.requires_grad]
    other = not torch.equal(torch.cat(trained), x)
    lacking = {k: p.detach().cpu().clone() for k, p in module.named_parameters() if other or not p.requires_grad}
    if other:
        lacking |= {k: b.detach().cpu().clone() for k, b in module.named_buffers()}
    if lacking:
        with atomic.replacing(folder / NUMBERS) as tmp:
            save_file(lacking, tmp, {"sum": checksum({}, lacking)})
    try:
        text = json.dumps(written(module), indent=1)
    except (Unwritten, ValueError) as e:
        return str(e)
    with atomic.replacing(folder / STRUCTURE) as tmp:
        tmp.write_text(text, encoding="utf-8")
    return ""


def load(folder: Path, x: Tensor, buffers: State | None) -> nn.Module | None:
    """The module of a folder, with parameters x [d] and buffers; None where it has no structure. Raises WireError."""
    try:
        structure = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise WireError(f"{folder / STRUCTURE} cannot be read: {e}") from None
    try:
        module = rebuilt(structure)
        kept = _numbers(folder)
        module.load_state_dict(kept, strict=False)
        return trained(module) if _whole(module, kept) else fill(module, x, buffers)
    except WireError:
        raise
    except Exception as e:  # any damage to the file: a key that is missing, a value of another kind
        raise WireError(f"{folder / STRUCTURE} holds no module: {type(e).__name__}: {e}") from None


def brought_back(folder: Path, module: nn.Module | None, x: Tensor, buffers: State | None) -> nn.Module | None:
    """The network of a folder with its numbers.

    Args:
        folder: the folder
        module: a module of the same architecture, which is copied; None for the structure in the folder
        x: trainable parameters [d]
        buffers: the buffers; None where there are none

    Returns None where the folder has no network that can be made here; a warning in the log gives the reason. Raises
    WireError where ``module`` is another network.
    """
    if module is not None:
        out = copy.deepcopy(module)
        kept = _numbers(folder)
        try:
            out.to(x.dtype).load_state_dict(kept, strict=False)
        except RuntimeError as e:
            raise WireError(f"the module is another network than the result's: {e}") from None
        return trained(out.eval()) if _whole(out, kept) else fill(out, x, buffers)
    try:
        return load(folder, x, buffers)
    except WireError as e:
        log.warning("%s: the result has no model: %s", folder, e)
        return None


def _numbers(folder: Path) -> dict[str, Tensor]:
    """The numbers that `save` wrote beside x; none where there is no file. Raises WireError for a damaged one."""
    path = folder / NUMBERS
    if not path.exists():
        return {}
    try:
        with safe_open(path, "pt") as f:
            said, kept = (f.metadata() or {}).get("sum"), {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as e:
        raise WireError(f"{path} cannot be read: {e}") from None
    refuse_damage(path, said, checksum({}, kept))
    return kept


def _whole(module: nn.Module, kept: Mapping[str, Tensor]) -> bool:
    """Whether ``kept`` has all trainable parameters of a module."""
    return all(name in kept for name, p in module.named_parameters() if p.requires_grad)


def _module(part: Mapping[str, Any], path: str, tensors: dict[str, Tensor]) -> nn.Module:
    near = (*PACKAGES, part["class"].partition(":")[0].partition(".")[0])
    cls = _found(part["class"], near)
    if not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
        raise WireError(f"{part['class']} is no nn.Module")
    m: nn.Module = cls.__new__(cls)
    nn.Module.__init__(m)
    for name, value in part["settings"].items():
        if name in OWN or name.startswith("__") or inspect.isfunction(getattr(cls, name, None)):
            raise WireError(f"{path}.{name} is no setting")
        vars(m)[name] = _value(value, near)
    for kind, places in (("parameters", m._parameters), ("buffers", m._buffers)):
        for name, how in part[kind].items():
            t: Any = None
            if how is not None:
                t = tensors[how["same"]] if "same" in how else torch.zeros(how["shape"], dtype=_dtype(how["dtype"]))
                if kind == "parameters" and "same" not in how:
                    t = nn.Parameter(t, requires_grad=how["trained"])
                tensors[f"{path}.{name}"] = t
            places[name] = t
    m._non_persistent_buffers_set = set(part["passing"])
    return m


def _tensors(values: Mapping[str, Tensor | None], path: str, seen: dict[int, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, t in values.items():
        if t is None:
            out[name] = None
            continue
        first = seen.setdefault(id(t), place := f"{path}.{name}")
        if first != place:
            out[name] = {"same": first}
            continue
        dtype = str(t.dtype).removeprefix("torch.")
        out[name] = {"shape": list(t.shape), "dtype": dtype, "trained": t.requires_grad}
    return out


def _plain(value: Any, where: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(v, where) for v in value]
    if type(value) in (tuple, torch.Size, set):
        return {type(value).__name__: [_plain(v, where) for v in value]}
    if type(value) is dict and all(type(k) is str for k in value):
        return {"dict": {k: _plain(v, where) for k, v in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"name": _name(value, where)}
    raise Unwritten(f"{where} is a {type(value).__name__}")


def _value(value: Any, near: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_value(v, near) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {k: _value(v, near) for k, v in inner.items()}
    if kind == "dtype":
        return _dtype(inner)
    if kind == "name":
        return _found(inner, near)
    return {"tuple": tuple, "Size": torch.Size, "set": set}[kind](_value(v, near) for v in inner)


def _name(thing: Any, where: str) -> str:
    name = f"{thing.__module__}:{thing.__qualname__}"
    try:
        same = _found(name, (*PACKAGES, (thing.__module__ or "").partition(".")[0])) is thing
    except WireError:
        same = False
    if not same:
        raise Unwritten(f"{where} is {thing.__qualname__}, which {thing.__module__} does not have by that name")
    return name


def _found(name: str, near: tuple[str, ...]) -> Any:
    """The thing of this name, if it is of a package in ``near``, and imported already or torch's or Medley's."""
    place, _, path = name.partition(":")
    top = place.partition(".")[0]
    if top not in near:
        raise WireError(f"a module of {near[-1]} does not hold {name}")
    try:
        found: Any = importlib.import_module(place) if top in PACKAGES else sys.modules[place]
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, KeyError, AttributeError):
        raise WireError(
            f"the network is made of {path} in {place}, which is not here: import {place} first, or give "
            "Result.load(folder, module=...)"
        ) from None
    return found


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"{name!r} is no dtype")
    return dtype
