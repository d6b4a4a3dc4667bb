"""Computes answers to a request: for one client, or for a stack of clients in one call."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract import Client, OptimizerState, OwnState, Packed, PartlyShared, Problem, State, pytree
from ..contract.errors import ClientFailed, MedleyError, RecipeError
from ..runtime import streams
from ..wire.exchange import Exchange
from .call import call
from .request import Request
from .stack import ClientStack, rows, stack


class Answer(NamedTuple):
    """One client's answer.

    Attributes:
        packed: its reply, before the codec
        buffers: the model's buffers after the call, None if they did not change
        work: in row gradients
        memory: its memory after the call
        optimizer: the state of its optimizer after the call; None if states are not kept
        own_part: the client's personal parameters after the call; None if all parameters are shared
    """

    client: int
    packed: Packed
    buffers: State | None
    work: float
    memory: Any
    optimizer: OptimizerState | None
    own_part: OwnState | None = None


def answer_one(request: Request, me: Client[Any], problem: Problem, device: str) -> Answer:
    """One client's answer. It sets the problem's buffers before the call and reads them afterwards.

    Raises ClientFailed, with the traceback, for an error that is not one of Medley's, and for an error in the user's
    loss.
    """
    exchange = request.exchange
    i = me.id
    if exchange.buffers is not None:
        problem.load_buffers(exchange.buffers)
    if isinstance(problem, PartlyShared):
        problem.load_own(request.owns[i])
    try:
        name_draws(me, exchange, device)
        packed = call(request, me, (i,), request.each.get(i), request.memories[i]).pack()
    except Exception as e:
        # The user's own loss is client code: it failed on these rows, but it may work on others.
        if isinstance(e, MedleyError) and not (isinstance(e, RecipeError) and e.key == "loss"):
            raise
        trace = traceback.format_exc()
        raise ClientFailed(client=i, round=exchange.round, method=exchange.method, traceback=trace) from e
    buffers = problem.buffers()  # always called, because it rejects changes that would not travel
    if exchange.buffers is None or (buffers is not None and equal(buffers, exchange.buffers)):
        buffers = None
    own_part = problem.own() if isinstance(problem, PartlyShared) else None
    memory = pytree.map_tensors(me.memory, Tensor.contiguous)
    return Answer(
        client=i,
        packed=packed,
        buffers=buffers,
        work=me.work,
        memory=memory,
        optimizer=me.optimizer_state,
        own_part=own_part,
    )


def answer_stack(request: Request, me: ClientStack[Any], *, copy: bool) -> list[Answer]:
    """The answers of a stack of clients, from one call. Without ``copy`` they are views of the stacked reply."""
    members = me.members
    like = me.like
    ids = tuple(client.id for client in members)
    each = stack([request.each[i] for i in ids], like) if request.each else None
    memory = stack([request.memories[i] for i in ids], like) if request.algorithm.remembers else None
    name_draws(members[0], request.exchange, like.device.type)
    up = call(request, me, ids, each, memory)
    messages = rows(type(up), up.pack(), len(ids), request.method, copy=copy)
    memories: Iterable[Any] = itertools.repeat(None, len(ids))
    if memory is not None:
        after = me.memory
        memories = (replace(after, **fields) for fields in rows(type(after), vars(after), len(ids), request.method))
    return [
        Answer(
            client=client.id,
            packed=packed,
            buffers=None,
            work=client.work,
            memory=new,
            optimizer=client.optimizer_state,
        )
        for client, packed, new in zip(members, messages, memories, strict=True)
    ]


def name_draws(me: Client[Any], exchange: Exchange, device: str) -> None:
    """Name the global streams by client and exchange: dropout, and a user's own loss and optimizer, draw from them."""
    streams.name_globals(device, me.seed, me.id, exchange.round, exchange.number, "noise")


def equal(a: State, b: State) -> bool:
    """True for equal buffers."""
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
