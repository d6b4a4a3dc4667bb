"""Requests to one client, and answers with a gradient, as they travel: what a node reads and what a server opens."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from ...contract import Problem, State, pytree
from ...contract.annotation import at_least
from ...contract.errors import WireError
from ...contract.message import is_finite
from ...contract.pieces import Content
from ...contract.place import name_of
from ...wire.clip import Clip
from ...wire.exchange import Exchange
from .checked_json import Amount, Count, Line, Number, checked, declared, parsed, printable, table, wrong
from .flwr_api import Letter, packed

REQUEST = "the server's request"
"""The beginning of errors of a request."""

FIELDS: dict[str, Any] = {
    "round": Number,
    "number": Number,
    "method": Line,
    "blocks": tuple[tuple[Number]],
    "tolerant": bool,
    "common": dict,
    "each": list[tuple[Number, dict[str, Any]]],
    "acked": list[tuple[Number, tuple[Number, Number]]],
    "p": list[tuple[Number, Amount]],
    "weights": list[tuple[Number, Amount]],
    "clip": list[Amount],
}
"""Fields of an exchange as a node accepts them; a mapping as a list of its pairs."""

SHARED = {"common", "buffers", "weights", "clip"}
"""Fields of an exchange that are the same for all clients; in a secure sum, so is p. A secure sum's name contains their
digest."""


@dataclass(frozen=True)
class CallRequest:
    """A request to one client.

    Attributes:
        exchange: an exchange with this client alone
        values: the further values of `medley.deploy.server.transport.Flower`
    """

    exchange: Exchange
    run: str
    values: Any

    @classmethod
    def read(cls, letter: Letter) -> CallRequest:
        """The request in a letter. Raises WireError for other bytes."""
        try:
            every = table(REQUEST, pytree.from_bytes(letter["common"], {"Clip": Clip}))
            individual = pytree.from_bytes(letter["own"], {"Exchange": Exchange})
            table(REQUEST, individual, ["exchange", "run", "known"])
            exchange: Exchange = checked(REQUEST, individual, "exchange", Exchange)
            shared = {*SHARED, "p"}
            if not every.keys() <= shared or any(getattr(exchange, key) for key in SHARED | every.keys()):
                raise ValueError(
                    f"its common part has {sorted(every)}, and this client's part repeats or lacks some fields"
                )
            request = cls(replace(exchange, **every), individual["run"], individual["known"])
            _check(request.exchange)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as e:
            raise WireError(f"this is not one of Medley's requests: {type(e).__name__}: {e}") from None
        check_run(request.run)
        return request

    def check(self, problem: Problem, rounds: int) -> None:
        """Raise WireError for a round beyond ``rounds``, and for buffers of other shapes than the model has."""
        checked(REQUEST, vars(self.exchange), "round", Annotated[int, at_least(1)], rounds)
        if self.exchange.buffers is not None:
            check_buffers(REQUEST, self.exchange.buffers, problem.buffers())


def check_run(name: Any) -> None:
    """Raise WireError for a run's name that could be a path to another folder."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,64}", name):
        raise WireError(f"a run's name consists of letters, digits, _ and -, not {name!r}")


def _check(e: Exchange) -> None:
    """Raise WireError, or a Python error, for fields of other types and numbers out of range."""
    checked(REQUEST, vars(e), "clip", Clip | None)
    clip = e.clip or Clip({})
    scales = [*clip.scales.values()] if isinstance(clip.scales, dict) else [clip.scales]
    fields = {**vars(e), "weights": {} if e.weights is None else e.weights, "clip": [*scales, clip.noise]}
    for name in ("each", "acked", "p", "weights"):
        fields[name] = [*checked(REQUEST, fields, name, dict).items()]
    for name, hint in FIELDS.items():
        checked(REQUEST, fields, name, hint)
    ((client,),) = e.blocks
    if client not in e.p:
        raise wrong(REQUEST, fields, "p", f"a table with the share of client {client}")


EVALUATION = "the server's request of an evaluation"
"""The beginning of errors of such a request."""


@dataclass(frozen=True)
class Evaluation:
    """A request to measure a model at one client.

    Attributes:
        x, buffers: the model
        tests: the tasks whose test rows are asked for
        loss, grad: whether the loss of the training rows and its gradient are asked for
        known: see `medley.deploy.protocol.reports.Known`
        run: the name under which memories are kept, if figures of the client's own model are asked for; else empty
        sample: the client's rows in a sample, see `medley.deploy.node.rows.NodeRows.evaluate`; empty for all
        acked: the version of the client's memory; empty for none
    """

    x: Tensor
    buffers: tuple[Tensor, Tensor] | None
    round: Number
    tests: list[Count]
    loss: bool
    grad: bool
    known: Any
    run: Line
    sample: tuple[()] | tuple[Number, Number, Number]
    acked: tuple[()] | tuple[Number, Number]

    @classmethod
    def read(cls, letter: Letter) -> Evaluation:
        """The request in a letter. Raises WireError for other bytes."""
        every = table(EVALUATION, pytree.from_bytes(letter.get("common", b""), {}))
        individual = {"sample": [], "acked": [], **parsed(EVALUATION, letter.get("own", b"{}"))}
        return declared(cls, EVALUATION, every | table(EVALUATION, individual, ["sample", "acked"]))

    def check(self, problem: Problem, tasks: int, rounds: int) -> None:
        """Raise WireError for a model of another shape than the client's, and for tasks and rounds that it does not
        have; ``rounds`` are those of a task.
        """
        checked(EVALUATION, vars(self), "round", Number, rounds * tasks)
        if len({*self.tests}) < len(self.tests) or any(k >= tasks for k in self.tests):
            raise wrong(EVALUATION, vars(self), "tests", f"different whole numbers below {tasks}")
        if (self.x.shape, self.x.dtype) != ((problem.d,), problem.dtype) or not is_finite(self.x):
            raise wrong(EVALUATION, vars(self), "x", f"a vector of {problem.d} finite numbers of {problem.dtype}")
        if self.buffers is not None:
            check_buffers(EVALUATION, self.buffers, problem.buffers())


def check_buffers(who: str, buffers: Any, like: State | None) -> None:
    """Raise WireError unless buffers from elsewhere have the shapes and types of the model's, and are finite."""
    pair = buffers if isinstance(buffers, tuple) and len(buffers) == 2 else (None, None)
    for mine, theirs in zip(like or (None, None), pair, strict=True):
        if mine is None or not isinstance(theirs, Tensor) or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise WireError(f"{who}: its buffers do not have the model's shapes and types")
        if not is_finite(theirs):
            raise WireError(f"{who}: its buffers contain numbers that are not finite")


def sealed_gradient(figures: bytes, gradient: Tensor) -> Content:
    """The answer to an evaluation with the gradient of the client's loss."""
    return packed({"figures": figures.decode(), "gradient": gradient})


def opened_gradient(client: int, raw: bytes, x: Tensor) -> tuple[bytes, Tensor]:
    """Inverse of `sealed_gradient`. Raises WireError if the gradient does not fit a model x [d]."""
    who = f"{name_of(client)}'s answer to an evaluation"
    try:
        content = pytree.from_bytes(raw, {})
    except WireError as e:
        raise WireError(f"{who}: {printable(str(e))}") from None
    figures = checked(who, table(who, content, ["figures", "gradient"]), "figures", str)
    gradient = content["gradient"]
    fit = isinstance(gradient, Tensor) and (gradient.shape, gradient.dtype) == (x.shape, x.dtype)
    if not fit or not is_finite(gradient):
        raise WireError(f"{who}: its gradient is not a vector of {len(x)} finite numbers")
    return figures.encode(errors="replace"), gradient
