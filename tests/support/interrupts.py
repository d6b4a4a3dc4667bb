"""Ctrl-C before any line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def lines_of(call: Callable[[], Any], module: ModuleType, stop: int | None = None, function: str | None = None) -> int:
    """The lines of a module, or of one function of it, that ``call()`` runs, as Python counts them.

    Raises KeyboardInterrupt before line number ``stop``; lines count from 1.
    """
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        code = frame.f_code
        if code.co_filename != module.__file__ or function not in (None, code.co_name):
            return None
        if event == "line":
            count += 1
            if count == stop:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
