"""Calls a client method, and checks that nothing was changed in place and that the reply is finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..contract import Client, Diverged, MedleyError, Message, is_finite, pytree
from ..contract.place import name_of
from ..runtime import deferred
from .request import Request

WatchedTensor = tuple[str, Tensor, int]
"""The name of a tensor, the tensor, and its version, which torch raises with every change in place."""


def call(request: Request, me: Client[Any], ids: tuple[int, ...], each: Message | None, memory: Any) -> Message:
    """Run the request's client method. Returns its reply; ``me.memory`` is then the new memory.

    Args:
        each: their own message, stacked for several clients; None if the method takes none
        memory: their memory, stacked for several clients; not changed

    Raises MedleyError for a message or a memory that was changed in place, Diverged for a reply that is not finite.
    """
    if request.algorithm.remembers:
        me.memory = pytree.copy(memory)
    watched_tensors = [*watched(memory, request.common, each)]
    reply: Message = getattr(request.algorithm, request.exchange.method)(
        me, request.common, *([] if each is None else [each])
    )
    if not isinstance(reply, Message):
        raise MedleyError(
            f"{request.algorithm.name}.{request.exchange.method}() returns {type(reply).__name__}, but a client "
            "method must return a message: end it with return Step(...)"
        )
    check_unchanged(request, ids[0], watched_tensors)
    check_finite(request, ids, reply)
    return reply


def watched(memory: Any, *messages: Message | None) -> Iterator[WatchedTensor]:
    """The tensors of a memory and of messages, with their current versions."""
    for name, t in pytree.tensors(memory, "memory"):
        yield name, t, t._version
    for message in messages:
        if message is not None:
            for name, v in vars(message).items():
                if isinstance(v, Tensor):
                    yield f"the message's {name}", v, v._version


def check_unchanged(request: Request, i: int, tensors: Iterable[WatchedTensor]) -> None:
    """Raise MedleyError, naming client i, for a tensor that was changed in place since `watched`."""
    for name, t, version in tensors:
        if t._version != version:
            raise MedleyError(
                f"{request.method} changed {name} in place ({name_of(i)}, round {request.exchange.round}); a "
                "client's messages and memory change only by assignment: write m.c = m.c + step"
            )


def check_finite(request: Request, ids: tuple[int, ...], reply: Message) -> None:
    """Raise Diverged for NaN or infinities, naming the first such client of ``ids`` and the field.

    For tensors on an accelerator within `medley.runtime.deferred.gathered`, raises at the end of that block.
    """
    for name, v in vars(reply).items():
        stacked = isinstance(v, Tensor) and v.ndim > 1 and len(v) == len(ids) > 1
        fail = partial(_refuse, request, ids, name)
        if isinstance(v, Tensor) and v.is_floating_point() and (checks := deferred.gathering(v)) is not None:
            bad = ~v.isfinite()
            checks.put(bad.flatten(1).any(1) if stacked else bad.any(), fail)
        elif not is_finite(v):
            fail(int((~torch.isfinite(v)).nonzero()[0, 0]) if stacked else 0)


def _refuse(request: Request, ids: tuple[int, ...], name: str, row: int) -> NoReturn:
    raise Diverged(
        f"{name_of(ids[row])} sent numbers that are not finite ({name!r} of {request.method}, round "
        f"{request.exchange.round}): the run diverges",
        unexplained=True,
    )
