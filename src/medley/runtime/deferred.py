"""Checks of tensors on an accelerator, gathered over a round and read in one copy to the host.

Each read of a device's tensor makes the host wait until the device has finished all its work. On the CPU a check is
made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor

Fail = Callable[[int], NoReturn]
"""Raises the error of a check, given the first place that failed."""


class Checks:
    """Checks whose outcome is still on a device, in their order."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []
        self._fails: list[Fail] = []

    def put(self, bad: Tensor, fail: Fail) -> None:
        """Add a check: ``fail`` is called if ``bad``, bool [k] or [], is True anywhere."""
        self._flags.append(bad.reshape(-1))
        self._fails.append(fail)

    def read(self) -> None:
        """Wait for the outcomes, and raise the error of the first check that failed."""
        flags = self._flags
        self._flags = []
        fails = self._fails
        self._fails = []
        if not flags:
            return
        results = iter(torch.cat(flags).tolist())
        for flag, fail in zip(flags, fails, strict=True):
            bad = [next(results) for _ in range(len(flag))]
            if any(bad):
                fail(bad.index(True))


_open: list[Checks | None] = []
"""The gatherings in progress in this process, innermost last; None if checks do not wait."""


@contextmanager
def gathered() -> Iterator[None]:
    """Gather the checks of tensors on an accelerator, and read them at the end, or before an error propagates."""
    checks = Checks()
    _open.append(checks)
    try:
        yield
    except Exception as e:
        try:
            checks.read()
        except Exception as first:  # numbers that are not finite caused the later errors
            raise first from e
        raise
    finally:
        _open.remove(checks)
    checks.read()


@contextmanager
def at_once() -> Iterator[None]:
    """Make each check at once, even within `gathered`."""
    _open.append(None)
    try:
        yield
    finally:
        _open.pop()


def gathering(t: Tensor) -> Checks | None:
    """The gathering that a check of ``t`` belongs to; None if the check is made at once."""
    return _open[-1] if _open and not t.is_cpu else None
