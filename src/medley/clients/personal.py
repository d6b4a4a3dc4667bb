"""Clients' personal models, requested out of band: clients keep nothing, and the ledger counts no byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from ..contract import Algorithm, Client, ClientFailed, Diverged, MedleyError, Packed, PartlyShared, Problem, pytree
from ..contract.place import name_of
from ..wire.exchange import Exchange
from ..wire.fold import Fold, Receipt
from .answer import name_draws
from .call import watched

PHASE = "personal"
"""The phase of clients that compute their personal models, so that their random streams differ from those of
training."""


@runtime_checkable
class PersonalHost(Protocol):
    """The parts of a `medley.clients.host.ClientHost` used here."""

    algorithm: Algorithm[Any, Any]
    problem: Problem
    device: str

    def client(self, i: int, round: int, /) -> Client[Any]:
        """Client i in this round."""

    def parts(self, saved: Mapping[int, Any]) -> Any:
        """See `medley.clients.host.ClientHost.parts`."""


def personal_models(host: PersonalHost, exchange: Exchange, block: int, memories: Mapping[int, Any]) -> Fold:
    """The personal models of one block: x, buffers and own parts by client. ``failed`` has the clients that fail."""
    fold = Fold(block)
    for i in exchange.blocks[block]:
        try:
            fold.replies[i] = _personal(host, exchange, i, memories.get(i))
        except MedleyError as e:
            fold.failed[i] = str(e)
            continue
        fold.receipts.append(Receipt(i, 0, 0, 0.0))
    return fold


def _personal(host: PersonalHost, exchange: Exchange, i: int, memory: Any) -> Packed:
    """Client i's model. Raises ClientFailed or Diverged if its method does not return one."""
    algorithm = host.algorithm
    problem = host.problem
    x = exchange.common["x"]
    assert isinstance(x, torch.Tensor)
    parts = host.parts({i: memory})
    me = host.client(i, exchange.round)
    me.memory = pytree.copy(parts.memories[i])
    me.optimizer_state = parts.optimizers.get(i)
    me.phase = PHASE
    if exchange.buffers is not None:
        problem.load_buffers(exchange.buffers)
    if isinstance(problem, PartlyShared):
        problem.load_own(parts.owns[i])
    tensors = [("x", x, x._version), *watched(parts.memories[i])]
    where = f"{algorithm.name}.personal ({name_of(i)}, round {exchange.round})"
    try:
        name_draws(me, exchange, host.device)
        model = algorithm.personal(me, x)
    except MedleyError:
        raise
    except Exception as e:
        raise ClientFailed(client=i, round=exchange.round, method="personal", traceback=repr(e)) from e
    changed = [name for name, t, version in tensors if t._version != version]
    if changed:
        raise MedleyError(f"{where} changed {changed[0]} in place; write m.c = m.c + step")
    if not isinstance(model, torch.Tensor) or model.shape != x.shape:
        returned = list(model.shape) if isinstance(model, torch.Tensor) else type(model).__name__
        raise MedleyError(f"{where} returned {returned}, but must return a model [{len(x)}] like the server's")
    if not bool(torch.isfinite(model).all()):
        raise Diverged(f"{where} returned numbers that are not finite")
    out: Packed = {"x": model.detach()}
    if exchange.buffers is not None and (buffers := problem.buffers()) is not None:
        out |= {"floats": buffers[0], "ints": buffers[1]}
    if isinstance(problem, PartlyShared):
        out |= {f"own.{name}": t for name, t in problem.own().items()}
    return out
