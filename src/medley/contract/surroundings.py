"""If you call Medley inside autocast, ``no_grad`` or the like, they change nothing in it, or you get an error that
names them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as modules

from ..runtime import turns
from .errors import RecipeError

AUTOCAST = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices that can have autocast."""

Switch = tuple[Callable[[], Any], Callable[[Any], Any], Any]
"""A setting of the process: how to read it, how to set it, and its value inside a call of Medley."""

ANYWHERE: tuple[Switch, ...] = ((torch.get_default_dtype, torch.set_default_dtype, torch.float32),)

ON_CPU: tuple[Switch, ...] = (
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    (lambda: _precision() or "highest", torch.set_float32_matmul_precision, "highest"),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
)
"""On a GPU these are the user's choice between speed and repeatable bits; on a CPU runs repeat without them."""

HOOKS = [kind for kind in vars(modules) if kind.startswith("_global_") and kind.endswith("_hooks")]


def _precision() -> str:
    """The precision of float32 products as torch's older functions have it; empty if it is set for each backend."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def refusal(device: str) -> str:
    """What surrounds this call and cannot be set aside, with a remedy; empty if nothing does."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return (
            "it is called inside a transform of torch.func, such as vmap or grad, which cannot go through training; "
            "call it outside of the function that is transformed"
        )
    if torch._C._get_tracing_state() is not None:
        return "it is called inside torch.jit.trace, which cannot record training; call it before the trace"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return "it is called inside FakeTensorMode, whose tensors have no values; call it outside of the mode"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return (
            "it is called inside torch.autograd.graph.saved_tensors_hooks, which can change the tensors that gradients "
            "are computed from; call it outside of that context"
        )
    if any(getattr(modules, kind) for kind in HOOKS):
        return (
            "a global hook on every module is registered, as by register_module_forward_hook; it could change the "
            "model, and some engines would not call it. Remove it, handle.remove(), or register it on your own module"
        )
    for name in ("conv", "rnn") if _precision() else ("conv", "rnn", "matmul"):
        precision = getattr(getattr(torch.backends.mkldnn, name, None), "fp32_precision", "ieee")
        if device == "cpu" and precision not in ("ieee", "none"):
            return (
                f"torch.backends.mkldnn.{name}.fp32_precision is {precision!r}, which rounds what float32 layers "
                "compute; set it to 'ieee'"
            )
    return ""


@contextlib.contextmanager
def set_aside(call: str, device: str = "cpu", threads: int | None = None) -> Iterator[None]:
    """Compute ``call`` as in a fresh process, without the modes and defaults of torch and NumPy that the caller has
    set.

    Gradients are on, inference mode, autocast and a default device are off, the default dtype is float32, and NumPy's
    floating-point errors are as it has them by default. On the CPU, deterministic mode is off, oneDNN on, and float32
    products have full precision. torch computes with this number of ``threads``; None leaves it. Afterwards everything
    is as before.

    Raises RecipeError for global module hooks, and for modes that cannot be set aside, see `refusal`.
    """
    why = refusal(device)
    if why:
        raise RecipeError(f"{call}: {why}", "run")
    switches = ANYWHERE + (ON_CPU if device == "cpu" else ())
    if threads is not None:
        switches += ((torch.get_num_threads, torch.set_num_threads, threads),)
    values = [(write, read(), plain) for read, write, plain in switches]
    before = [(write, value) for write, value, plain in values if value != plain]
    with contextlib.ExitStack() as stack:
        if before:  # of the whole process, so no other run may begin or end meanwhile
            stack.enter_context(turns.process_turn())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for write, value in before:
            stack.callback(write, value)
        for _, write, plain in switches if before else ():
            write(plain)
        yield
