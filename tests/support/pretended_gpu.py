"""A pretended GPU: finds tensors on the wrong device, and moments when the host waits, on a machine without one.

>>> import medley as md, torch
>>> from support.pretended_gpu import PretendedGPU
>>> q = md.problems.synthetic_quadratics(clients=4, d=3)
>>> with PretendedGPU() as gpu:
...     run = md.run(md.FedAvg(), md.Federation(q.problem, clients=q.clients), rounds=2, device="cuda")
...     torch.ones(2, device="cuda") + torch.ones(2)
Traceback (most recent call last):
RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (add)
>>> gpu.waits[0].what
'item'

Tensors are ordinary CPU tensors. Each storage carries the name of its pretended device, so autograd, `torch.func` and
views work as usual. The numbers are the CPU's. Two torch modes do the rest: one sees calls from Python, the other every
operation below autograd.

It does not show a GPU's rounding, speed or memory, nor a kernel that CUDA lacks. It does not see operations of other
threads.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import medley

HOST = torch.device("cpu")

WAITING = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "masked_select": "boolean mask",
    "equal": "equal",
    "bincount": "bincount",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "_linalg_check_errors": "check of a factorization",
    "_linalg_eigh": "check of a factorization",
    "_linalg_svd": "check of a factorization",
    "linalg_lstsq": "check of a factorization",
}
"""Operations whose result or shape the host needs, by torch's name, with the word for it."""

COPIES = frozenset({"copy", "copy_", "clone", "_to_copy"})

ZERO_DIM = frozenset({"fill", "fill_", "masked_fill", "masked_fill_", "index_put", "index_put_"})
"""Operations, in addition to pointwise ones, that accept a tensor [] of the host as a number."""

ZEROS = ("current_device", "memory_allocated", "memory_reserved", "max_memory_allocated")

NOTHINGS = ("set_rng_state", "manual_seed", "manual_seed_all", "synchronize", "empty_cache", "reset_peak_memory_stats")

SOURCE = Path(medley.__file__).parent


class Event(NamedTuple):
    """A moment when host and device meet.

    Attributes:
        what: "item", "tolist", "copy to the host", "nonzero", "boolean mask", and so on; "upload" for the other way;
            "draw" of random numbers.
        line: the line of Medley's source, as in ``engines/stacked.py:128``; empty if Medley has no part in it.
    """

    what: str
    line: str


class PretendedGPU:
    """Within ``with PretendedGPU() as gpu:`` torch finds CUDA devices, which compute on the CPU.

    Args:
        devices: the number of devices; default 1
        memory: bytes of each device, all of them free; default 16 GiB

    Within ``with`` it raises torch's errors for tensors on several devices: in one operation, as an index, as a NumPy
    array, and in a draw from a generator on another device.

    Attributes:
        waits: the moments when the host waited for a device, in order
        uploads: copies from the host to a device, in order
        draws: random numbers drawn on a device, from streams other than the CPU's; they include dropout's, whose stream
            the run has seeded
    """

    def __init__(self, devices: int = 1, memory: int = 16 << 30) -> None:
        self.devices = devices
        self.memory = memory
        self.waits: list[Event] = []
        self.uploads: list[Event] = []
        self.draws: list[Event] = []
        self._target: torch.device | None = None  # of the call that names a device
        self._calling: torch.device | None = None  # of the arguments of the call from Python
        self._stack = ExitStack()

    def __enter__(self) -> PretendedGPU:
        for name, stand_in in self._cuda().items():
            self._stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        self._stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_acceptable", return_value=False))
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_Calls(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def device_of(self, t: Tensor) -> torch.device:
        """The device that a tensor is pretended to be on."""
        while torch._C._functorch.is_functorch_wrapped_tensor(t):
            t = torch._C._functorch.get_unwrapped(t)
        try:
            return getattr(t.untyped_storage(), "pretended", HOST)
        except NotImplementedError:  # a sparse tensor has no storage
            return HOST

    def lines(self) -> dict[str, int]:
        """The number of waits by line and word, most first."""
        return dict(Counter(f"{e.line} {e.what}" for e in self.waits).most_common())

    def _cuda(self) -> dict[str, Callable[..., Any]]:
        """Stand-ins for the functions of `torch.cuda` that look for a device."""
        state = torch.empty(0, dtype=torch.uint8)
        properties = SimpleNamespace(total_memory=self.memory, name="pretended", multi_processor_count=1)
        return {
            "is_available": lambda: True,
            "device_count": lambda: self.devices,
            "get_device_name": lambda *a: "pretended",
            "get_device_properties": lambda *a: properties,
            "mem_get_info": lambda *a: (self.memory, self.memory),
            "get_rng_state": lambda *a: state,
            # Each is a separate function: torch's compiler, which torch.optim imports, keeps a table of them.
            **{name: partial(lambda *a, **k: 0) for name in ZEROS},
            **{name: partial(lambda *a, **k: None) for name in NOTHINGS},
        }

    def _named(self, device: Any) -> torch.device:
        """The device of this name. Raises RuntimeError if there is none."""
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if named.type == "cpu":
            return HOST
        index = named.index or 0
        if named.type != "cuda" or index >= self.devices:
            raise RuntimeError(f"{named}: invalid device ordinal, the pretended GPUs are cuda:0 to {self.devices - 1}")
        return torch.device("cuda", index)

    @contextmanager
    def _during(self, target: torch.device | None, calling: torch.device | None) -> Iterator[None]:
        before = self._target, self._calling
        self._target = target
        self._calling = calling
        try:
            yield
        finally:
            self._target, self._calling = before

    def _count(self, what: str) -> None:
        {"upload": self.uploads, "draw": self.draws}.get(what, self.waits).append(Event(what, _line()))

    def _say(self, out: Any, device: torch.device, inputs: frozenset[int] = frozenset()) -> None:
        """Put new storages on ``device``; a storage that has a device already, or is in ``inputs``, stays there."""
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and device != HOST and not torch._C._functorch.is_functorch_wrapped_tensor(t):
                storage: Any = t.untyped_storage()
                if storage._cdata not in inputs and not hasattr(storage, "pretended"):
                    storage.pretended = device

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call from Python, with its device removed from the arguments."""
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs)
        devices = {self.device_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)} - {HOST}
        calling = next(iter(devices), None)
        if kwargs.get("device") is None:
            with self._during(None, calling):
                return func(*args, **kwargs)
        target = self._named(kwargs["device"])
        kwargs = {name: v for name, v in kwargs.items() if name != "device"}
        _refuse_generator(kwargs.get("generator"), target)
        with self._during(target, calling):
            out = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            return self._uploaded(out, target)
        self._say(out, target)
        return out

    def _uploaded(self, t: Tensor, target: torch.device) -> Tensor:
        """A tensor made from Python's numbers or an array, on ``target``."""
        source = self.device_of(t)
        if source == target:
            return t
        with self._during(target, source):
            return t.clone()

    def _moved(self, x: Tensor, device: Any, dtype: torch.dtype, copy: bool = False, **form: Any) -> Tensor:
        """`Tensor.to`."""
        target = self.device_of(x) if device is None else self._named(device)
        source = self.device_of(x)
        if source == target:
            return x.to(dtype, copy=copy, **form)
        with self._during(target, source):
            return x.to(dtype, **form).clone() if dtype == x.dtype else x.to(dtype, **form)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation below autograd: check its devices, count it, and put its result on a device."""
        name = func.overloadpacket.__name__
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        device = self._common(func, name, args, tensors)
        for v in kwargs.values():
            _refuse_generator(v, device)
        target = device if self._target is None or (tensors and name.endswith("_")) else self._target
        self._tally(func, name, args, tensors, target)
        out = func(*args, **kwargs)
        self._say(out, target, frozenset(t.untyped_storage()._cdata for t in tensors if t.layout == torch.strided))
        return out

    def _common(self, func: Any, name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> torch.device:
        """The device of an operation. Raises RuntimeError for tensors on several devices, as torch does."""
        devices = [self.device_of(t) for t in tensors]
        several = sorted({str(d) for d in devices}, reverse=True)
        if not tensors:
            return HOST if self._calling is None else self._calling
        if len(several) == 1 or name in COPIES:
            return devices[0]
        if name.startswith("index") and isinstance(args[1], list | tuple):  # with tensors as indices
            first = devices[0]
            if any(self.device_of(t) not in (HOST, first) for t in args[1] if t is not None):
                message = "indices should be either on cpu or on the same device as the indexed tensor"
                raise RuntimeError(f"{message} ({first})")
            tensors = [tensors[0], *args[2:3]]
            devices = [first, *(self.device_of(t) for t in args[2:3])]
        numbers = torch.Tag.pointwise in func.tags or name in ZERO_DIM
        places = {d for t, d in zip(tensors, devices, strict=True) if not (numbers and d == HOST and t.ndim == 0)}
        if len(places) > 1 or (name.endswith("_") and devices[0] not in places):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{several[0]} and {several[-1]}! ({name})"
            )
        return places.pop()

    def _tally(self, func: Any, name: str, args: tuple[Any, ...], tensors: list[Tensor], target: torch.device) -> None:
        """Count an operation in which host and device meet."""
        devices = [self.device_of(t) for t in tensors]
        # Attention has the tag even without dropout; with dropout it calls bernoulli_.
        attention = name.startswith("_scaled_dot_product")
        if torch.Tag.nondeterministic_seeded in func.tags and target != HOST and not attention:
            self._count("draw")
        if name in COPIES and tensors:
            source = devices[1] if name in ("copy", "copy_") else devices[0]
            if source != target:
                self._count("copy to the host" if target == HOST else "upload")
            return
        if not any(d != HOST for d in devices):
            return
        if name in WAITING:
            self._count(WAITING[name])
        elif name == "repeat_interleave" and "output_size" not in str(func):
            self._count("repeat_interleave")
        elif name.startswith("index") and isinstance(args[1], list | tuple):
            indices = [t for t in args[1] if t is not None]
            if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
                self._count("boolean mask")
            elif any(self.device_of(t) == HOST for t in indices):
                self._count("upload")


class _Calls(TorchFunctionMode):
    def __init__(self, gpu: PretendedGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.called(func, args, kwargs or {})


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds, and finds the stand-ins

    def __init__(self, gpu: PretendedGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.operation(func, args, kwargs or {})


def _line() -> str:
    """The innermost line of Medley's source that is running, except in this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if SOURCE in path.parents:
            return f"{path.relative_to(SOURCE)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _refuse_generator(generator: Any, device: torch.device) -> None:
    """Raise RuntimeError for a draw on ``device`` from a generator on another device."""
    if isinstance(generator, torch.Generator) and generator.device.type != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{generator.device.type}'")


def _to(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, *rest = args
    first = kwargs.pop("other", None) if "other" in kwargs else rest[0] if rest else None
    if isinstance(first, Tensor):
        return gpu._moved(x, gpu.device_of(first), first.dtype, **_form(rest[1:], kwargs))
    device = kwargs.pop("device", None)
    if rest and (rest[0] is None or isinstance(rest[0], str | int | torch.device)):
        device = rest.pop(0)
    dtype = kwargs.pop("dtype", None)
    if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
        dtype = rest.pop(0)
    return gpu._moved(x, device, dtype or x.dtype, **_form(rest, kwargs))


def _parsed(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of `torch.nn.Module.to`; a tensor's device is the pretended one."""
    like = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
    parsed = func(*args, **kwargs)
    return parsed if like is None else (gpu.device_of(like), *parsed[1:])


def _form(rest: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments ``copy`` and ``memory_format`` of `Tensor.to`; the first of ``rest`` is ``non_blocking``."""
    out = {name: v for name, v in kwargs.items() if name in ("copy", "memory_format") and v is not None}
    return {"copy": rest[1], **out} if len(rest) > 1 else out


def _numpy(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = gpu.device_of(args[0])
    if device != HOST:
        raise TypeError(
            f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return func(*args, **kwargs)


def _list(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if gpu.device_of(args[0]) != HOST:
        gpu._count("tolist")
    return func(*args, **kwargs)


def _same_place(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A copy, or a tensor of Python's numbers, on the first argument's device."""
    device = kwargs.pop("device", None)
    out = func(*args, **kwargs)
    target = gpu.device_of(args[0]) if device is None else gpu._named(device)
    if func == Tensor.new_tensor:
        return gpu._uploaded(out, target)
    gpu._say(out, target)
    return out


def _one_hot(gpu: PretendedGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On a GPU torch does not look at the classes if their number is given."""
    number_known = len(args) > 1 or kwargs.get("num_classes", -1) >= 0
    waits = len(gpu.waits)
    with gpu._during(None, gpu.device_of(args[0])):
        out = func(*args, **kwargs)
    if number_known:
        del gpu.waits[waits:]
    return out


def _index(device: torch.device) -> int:
    return -1 if device == HOST else device.index


_SPECIAL: dict[Any, Callable[[PretendedGPU, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    Tensor.device.__get__: lambda gpu, f, a, k: gpu.device_of(a[0]),
    Tensor.is_cuda.__get__: lambda gpu, f, a, k: gpu.device_of(a[0]) != HOST,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda gpu, f, a, k: gpu.device_of(a[0]) == HOST,  # type: ignore[attr-defined]
    Tensor.get_device: lambda gpu, f, a, k: _index(gpu.device_of(a[0])),
    Tensor.to: _to,
    Tensor.cpu: lambda gpu, f, a, k: gpu._moved(a[0], HOST, a[0].dtype, **k),
    Tensor.cuda: lambda gpu, f, a, k: gpu._moved(a[0], a[1] if a[1:] else k.get("device", "cuda"), a[0].dtype),
    Tensor.pin_memory: lambda gpu, f, a, k: a[0],
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.tolist: _list,
    Tensor.__deepcopy__: _same_place,
    Tensor.new_tensor: _same_place,
    torch.nn.functional.one_hot: _one_hot,
    torch._C._nn._parse_to: _parsed,
}
"""Calls that need handling because the operation below autograd does not show enough."""
