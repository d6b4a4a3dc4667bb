"""Fingerprints: digests of values, functions, classes and modules that are equal in every process of one Python.

The identity of a run is a fingerprint of each of its parts, next to the readable settings. Medley returns or resumes a
folder's run only for a call with the same identity.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import inspect
import logging
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import torch
from torch import Tensor, nn

from ..contract.errors import RecipeError
from ..rows.fields import Fields
from ..rows.lazy import Lazy, digest
from ..rows.sparse import arrays
from ..runtime import renamed
from .as_json import without_addresses
from .modules import OWN

PREFIX = "identity."
"""The prefix of fingerprints' keys in the settings of a run."""

SIZE = 16
"""Bytes of a fingerprint."""

RECORDED = {"medley", "torch", "numpy", "scipy"}
"""Packages whose versions a folder records, so that another version causes a warning, not another identity."""

SKIPPED = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__",
    "__slots__", "__hash__", "__firstlineno__", "__static_attributes__", "__protocol_attrs__", "__annotate__",
    "__annotations_cache__", "_is_protocol", "_is_runtime_protocol", "__non_callable_proto_members__",
}  # fmt: skip
"""Attributes of a class that affect no result."""

MODULE_STATE = OWN
"""Attributes of every module; its parameters, buffers, children and hooks are digested separately."""


class Unidentified(RecipeError):
    """Raised for a value without a fingerprint: another process could not compare it with its own."""


def fingerprint(value: Any) -> str:
    """A digest of ``value`` in hexadecimal, made from:

    - tensors and arrays by dtype, shape and content
    - functions by bytecode, constants, defaults, values in closures, and the global values that they read
    - the functions and attributes of a user's own classes, and the names of packages' classes
    - modules by class, parameters, buffers, children, hooks and attributes
    - the class and attributes of other objects; an attribute ``fingerprint`` replaces the other attributes

    Raises RecipeError, naming it, for a value that another process could not compare, such as a generator or an open
    file.
    """
    return Digester().of(value).hex()


def identity(parts: Mapping[str, Any]) -> dict[str, str]:
    """Fingerprints of named values, under the keys that settings use for them. Raises RecipeError, naming the part."""
    out = {}
    digester = Digester()
    for name, value in parts.items():
        try:
            out[PREFIX + name] = digester.of(value).hex()
        except Unidentified as e:
            raise RecipeError(
                f"{name}: {e}. A folder must recognise it: make it a function of a module or a frozen dataclass, "
                "give it an attribute `fingerprint`, or leave out checkpoint=, resume= and save=",
                name,
            ) from None
    return out


class Digester:
    """Computes fingerprints, and keeps the digests of objects that it has met before.

    An object that contains itself is encoded by the number of levels in between.
    """

    def __init__(self) -> None:
        self._digests: dict[int, tuple[Any, bytes]] = {}  # the object itself too, so that its id is not reused
        self._open: list[int] = []

    def of(self, value: Any) -> bytes:
        """The digest of a value. Raises Unidentified."""
        if value is None or type(value) in PLAIN:
            return _hashed(type(value).__name__, repr(value).encode())
        at = id(value)
        if at in self._digests:
            return self._digests[at][1]
        if at in self._open:
            return _hashed("cycle", str(len(self._open) - self._open.index(at)).encode())
        self._open.append(at)
        try:
            digest = self._compound(value)
        finally:
            self._open.pop()
        self._digests[at] = value, digest
        return digest

    def all(self, kind: str, values: Iterable[Any]) -> bytes:
        """The digest of a sequence of values."""
        return _hashed(kind, *map(self.of, values))

    def _compound(self, value: Any) -> bytes:
        if type(value).__module__ in ("typing", "typing_extensions"):
            return _hashed("type", without_addresses(repr(value)).encode())
        for kinds, handler in KINDS:
            if isinstance(value, kinds):
                return handler(self, value)
        return self._object(value)

    def named(self, kind: str, values: Mapping[str, Any]) -> bytes:
        """The digest of values by name, in the order of their names."""
        parts = []
        for name in sorted(values):
            try:
                parts += [name.encode(), self.of(values[name])]
            except Unidentified as e:
                raise Unidentified(f"{name} of {kind}, {e}" if not kind.startswith("_") else f"{name}: {e}") from None
        return _hashed(kind, *parts)

    def mapping(self, value: Mapping[Any, Any]) -> bytes:
        """A mapping, in its order."""
        return self.all("mapping", [*chain.from_iterable(value.items())])

    def unordered(self, value: Iterable[Any]) -> bytes:
        """A set, in the order of its members' digests."""
        return _hashed("set", *sorted(map(self.of, value)))

    def tensor(self, t: Tensor) -> bytes:
        """A tensor by dtype, shape and content, dense or sparse; gradients and devices don't count."""
        if isinstance(t, Fields):
            return self.all("fields", [t.names, *t.parts])
        if isinstance(t, Lazy):
            return digest(t, SIZE)
        parts = [np.ascontiguousarray(a).reshape(-1) for a in arrays(t.detach().cpu())]
        return _hashed(f"tensor {t.dtype} {list(t.shape)}", *(a.view(np.uint8).data for a in parts))

    def array(self, a: np.ndarray) -> bytes:
        """An array by dtype, shape and content."""
        if a.dtype.hasobject:
            return _hashed(f"array {list(a.shape)}", *map(self.of, a.ravel().tolist()))
        flat = np.ascontiguousarray(a).reshape(-1)
        return _hashed(f"array {a.dtype.str} {list(a.shape)}", flat.view(np.uint8).data)

    def function(self, f: types.FunctionType) -> bytes:
        """A function: code, defaults, values in its closure, and the globals that it reads. Its name does not count."""
        # A wrapper has the module and the name of what it wraps, but its own globals.
        if _trusted(f.__module__) and _trusted(str(f.__globals__.get("__name__", ""))):
            return _hashed("function", _release(f.__module__), f.__qualname__.encode(), self._bound(f))
        values = dict(globals_read(f.__code__, f.__globals__))
        marks = self.named("_marks", vars(f))
        return _hashed("own function", self.code(f.__code__), self._bound(f), self.named("_globals", values), marks)

    def _bound(self, f: types.FunctionType) -> bytes:
        cells = {name: _content(cell) for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)}
        # A class's own functions hold the class if they use super().
        cells.pop("__class__", None)
        return _hashed("bound", self.of(f.__defaults__), self.of(f.__kwdefaults__), self.named("_closure", cells))

    def code(self, code: types.CodeType) -> bytes:
        """Compiled code: bytecode, constants and names, without file, lines and the function's own name."""
        consts = [self.code(c) if isinstance(c, types.CodeType) else self.of(c) for c in code.co_consts]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        return _hashed("code", code.co_code, repr((names, counts)).encode(), code.co_exceptiontable, *consts)

    def type(self, cls: type) -> bytes:
        """A package's class by its name; a user's own class also by its bases, functions and attributes."""
        if _trusted(cls.__module__) and _is_importable(cls):
            return _hashed("class", _release(cls.__module__), cls.__qualname__.encode())
        is_dataclass = dataclasses.is_dataclass(cls)
        attributes = {
            name: value
            for name, value in vars(cls).items()
            if name not in SKIPPED and not (is_dataclass and _generated(value)) and not isinstance(value, SLOTS)
        }
        factories = [
            f.default_factory for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING
        ] if is_dataclass else []  # fmt: skip
        return _hashed(
            "own class",
            cls.__qualname__.encode(),
            self.all("bases", cls.__bases__),
            self.named(cls.__name__, attributes),
            self.all("factories", factories),
        )

    def module(self, m: nn.Module) -> bytes:
        """A module, compiled or not: class, parameters, buffers, children, hooks, attributes, and which are shared."""
        if hasattr(m, "fingerprint"):
            return self._object(m)
        first: dict[int, str] = {}
        parts: list[bytes] = []
        for path, child in getattr(m, "_orig_mod", m).named_modules(remove_duplicate=False):
            first_path = first.setdefault(id(child), path)
            parts += [path.encode(), first_path.encode()]
            if first_path != path:
                continue
            for name, t in {**child._parameters, **child._buffers}.items():
                place = "" if t is None else first.setdefault(id(t), f"{path}.{name}")
                kind = f"{name} {place} {t is not None and t.requires_grad}"
                parts += [kind.encode(), self.of(t)]
            hooks = {k: list(v.values()) for k, v in vars(child).items() if k.endswith("_hooks") and v}
            rest = {k: v for k, v in vars(child).items() if k not in MODULE_STATE}
            parts += [self.of(type(child)), self.named("_hooks", hooks), self.named(type(child).__name__, rest)]
        return _hashed("module", *parts)

    def _object(self, value: Any) -> bytes:
        cls = type(value)
        declared = getattr(value, "fingerprint", None)
        if declared is not None:
            declared = declared() if callable(declared) else declared
            return _hashed("declared", self.of(cls), self.of(declared))
        if dataclasses.is_dataclass(value):
            return _hashed("object", self.of(cls), self.named(cls.__name__, _state(value)))
        if all(getattr(cls, way) is getattr(object, way) for way in ("__reduce_ex__", "__reduce__")):
            try:
                object.__reduce_ex__(value, 2)  # fails for objects with state outside their attributes
            except (TypeError, RuntimeError):
                pass
            else:
                return _hashed("object", self.of(cls), self.named(cls.__name__, _state(value)))
        raise Unidentified(f"a {cls.__qualname__} keeps a state that cannot be compared")


class Counted(NamedTuple):
    """Shows the kind of a named tuple's attributes."""

    number: int


PLAIN = {bool, int, float, complex, str, bytes}

SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, type(Counted.number))

ALIASES = (types.GenericAlias, types.UnionType, type(Callable[[int], int]), type(Mapping[str, int] | None))

CONSTANTS = (
    torch.dtype, torch.device, type(Ellipsis), type(NotImplemented), np.dtype, slice, range, Decimal, Fraction, UUID,
    date, time, timedelta,
)  # fmt: skip
"""Kinds of values that their text describes completely."""

KINDS: tuple[tuple[Any, Callable[[Digester, Any], bytes]], ...] = (
    (nn.Module, Digester.module),
    (Tensor, Digester.tensor),
    (np.ndarray, Digester.array),
    (np.generic, lambda d, v: d.array(np.asarray(v))),
    (enum.Enum, lambda d, v: _hashed("enum", d.of(type(v)), v.name.encode())),
    (types.FunctionType, Digester.function),
    (types.MethodType, lambda d, v: _hashed("bound method", d.of(v.__func__), d.of(v.__self__))),
    (functools.partial, lambda d, v: d.all("partial", (v.func, v.args, v.keywords))),
    (staticmethod | classmethod, lambda d, v: d.all(type(v).__name__, (v.__func__,))),
    (property, lambda d, v: d.all("property", (v.fget, v.fset))),
    (functools.cached_property, lambda d, v: d.all("property", (v.func,))),
    (types.CodeType, Digester.code),
    (types.ModuleType, lambda d, v: _hashed("import", v.__name__.encode())),
    (ALIASES, lambda d, v: _hashed("type", without_addresses(repr(v)).encode())),
    (type, Digester.type),
    (types.BuiltinFunctionType, lambda d, v: _builtin(d, v)),
    (tuple, lambda d, v: d.all("tuple" if type(v) is tuple else type(v).__qualname__, v)),
    (list, lambda d, v: d.all("list", v)),
    (dict | types.MappingProxyType, Digester.mapping),
    (set | frozenset, Digester.unordered),
    (weakref.ref, lambda d, v: _hashed("weak reference", d.of(v()))),
    (PurePath, lambda d, v: _hashed("path", str(v).encode())),
    (logging.Logger, lambda d, v: _hashed("logger")),
    (CONSTANTS, lambda d, v: _hashed("constant", repr(v).encode())),
)  # fmt: skip
"""Kinds of compound values, and their digests; the first match counts."""


def globals_read(code: types.CodeType, namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Global values that a piece of code reads, by name; from a user's own modules, the attributes that it reads."""
    pairs = []
    value = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = step.argval
            value = namespace.get(step.argval)
            if name in namespace and not isinstance(value, types.ModuleType):
                pairs.append((name, value))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and _is_own_module(value):
            name = f"{name}.{step.argval}"
            value = getattr(value, step.argval, None)
            if not isinstance(value, types.ModuleType):
                pairs.append((name, value))
        elif step.opname not in ("CACHE", "PUSH_NULL"):
            value = None
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            pairs += globals_read(const, namespace)
    return pairs


def _is_own_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not _trusted(value.__name__)


@functools.cache
def _places() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_paths()[k]).resolve() for k in ("purelib", "platlib")})


@functools.cache
def _is_importable(cls: type) -> bool:
    """Whether the class's name in its module leads to this class, and not to another one. A class made in a function
    cannot be looked up, and passes.
    """
    value: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        value = getattr(value, part, cls if part == "<locals>" else None)
        if value is cls:
            return True
    return value is None


def _trusted(module: str | None) -> bool:
    """Whether a module is Python's, Medley's, or from an installed package: its version then stands for its code."""
    top = (module or "").partition(".")[0]
    if top == "__main__" or not top:
        return False
    if top in RECORDED or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and any(place in Path(file).resolve().parents for place in _places())


def _release(module: str) -> bytes:
    """A module's first name, and its package's version unless a folder records it."""
    module = renamed.first(module)
    top = module.partition(".")[0]
    if top in RECORDED or top in sys.stdlib_module_names:
        return module.encode()
    return f"{module} {getattr(sys.modules.get(top), '__version__', '')}".encode()


def _generated(value: Any) -> bool:
    """Whether `dataclass` wrote this function: then the fields say everything that it does."""
    return isinstance(value, types.FunctionType) and inspect.unwrap(value).__code__.co_filename == "<string>"


def _builtin(digester: Digester, f: Any) -> bytes:
    """A function of C: by name, and by the object that it is a method of."""
    owner = f.__self__
    of_owner = b"" if owner is None or isinstance(owner, types.ModuleType) else digester.of(owner)
    return _hashed("builtin", f"{f.__module__}.{f.__qualname__}".encode(), of_owner)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _state(value: Any) -> dict[str, Any]:
    """Attributes of an object, those in slots too, without fields of a dataclass whose metadata has identity=False."""
    slots = chain.from_iterable(_names(vars(cls).get("__slots__", ())) for cls in type(value).__mro__)
    attributes = {s: getattr(value, s) for s in slots if hasattr(value, s)} | dict(getattr(value, "__dict__", {}))
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    aside = {f.name for f in fields if not f.metadata.get("identity", True)}
    return {k: v for k, v in attributes.items() if k not in aside}


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else (s for s in slots if s not in ("__dict__", "__weakref__"))


def _hashed(kind: str, *parts: Any) -> bytes:
    """The digest of a kind and of parts, each with its length."""
    h = blake2b(kind.encode() + b"\0", digest_size=SIZE)
    for part in parts:
        raw = memoryview(part)
        h.update(f"{raw.nbytes}:".encode())
        h.update(raw)
    return h.digest()
