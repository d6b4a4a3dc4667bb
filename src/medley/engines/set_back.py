"""A user's function in the process of the run: what it leaves behind for the next client."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from ..contract.surroundings import ANYWHERE, AUTOCAST, HOOKS, ON_CPU, refusal

ALL_HOOKS: list[dict[int, Any]] = [
    *(getattr(modules, kind) for kind in HOOKS),
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
]
"""The hooks on every module and on every optimizer, by number."""


def left_open(device: str) -> str:
    """Which context or default of torch is in force that `set_aside` had set aside; empty if none is."""
    autocast = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
    if autocast:
        return f"autocast on for {autocast[0]}; use torch.autocast() as a context"
    if not torch.is_grad_enabled():
        return "gradients off; use torch.no_grad() as a context"
    if torch.get_default_dtype() != torch.float32:
        return f"torch's default dtype at {torch.get_default_dtype()}; set it back before the end"
    if torch.get_default_device().type != "cpu":
        return f"torch's default device at {torch.get_default_device()}; use torch.device() as a context"
    why = refusal(device)
    return f"torch in a mode that other clients would meet: {why}" if why else ""


@contextlib.contextmanager
def set_back() -> Iterator[None]:
    """Undo what the user's code inside does to the process, so that the next client finds it as this one did.

    It sets back torch's threads, defaults and choices between speed and repeatable bits, NumPy's errors, the working
    folder and the handler of Ctrl-C. It ends contexts of torch that were entered and not left, and removes hooks on
    every module and optimizer.
    """
    switches = [(read, write) for read, write, _ in ANYWHERE + ON_CPU]
    switches += [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (_folder, os.chdir),
    ]
    if threading.current_thread() is threading.main_thread():
        switches.append((lambda: signal.getsignal(signal.SIGINT), lambda f: signal.signal(signal.SIGINT, f)))
    before = [(read, write, read()) for read, write in switches]
    modes = torch._C._len_torch_function_stack()
    hooks = [set(by_number) for by_number in ALL_HOOKS]
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    with np.errstate():
        try:
            yield
        finally:
            for kind in AUTOCAST:
                if torch.is_autocast_enabled(kind):
                    torch.set_autocast_enabled(kind, False)
                    torch.autocast_decrement_nesting()
                    torch.clear_autocast_cache()
            while torch._C._len_torch_function_stack() > modes:
                torch._C._pop_torch_function_stack()
            torch._GLOBAL_DEVICE_CONTEXT.device_context = default
            for by_number, numbers in zip(ALL_HOOKS, hooks, strict=True):
                for number in set(by_number) - numbers:
                    del by_number[number]
            for read, write, value in before:
                if value is not None and read() != value:
                    write(value)


def _folder() -> str | None:
    """The working folder; None if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return None
