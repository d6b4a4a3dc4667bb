"""Requests to one client, and answers with a gradient, as they travel: what a node reads and what a server opens."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ...contract import pytree
from ...contract.errors import WireError
from ...contract.message import is_finite
from ...contract.place import name_of
from ...wire.clip import Clip
from ...wire.exchange import Exchange
from .checked_json import Amount, Line, Number, checked
from .flwr_api import Letter

REQUEST: dict[str, Any] = {
    "round": Number,
    "number": Number,
    "method": Line,
    "blocks": tuple[tuple[Number]],
    "each": list[Number],
    "acked": list[tuple[Number, tuple[Number, Number]]],
    "p": list[tuple[Number, Amount]],
    "weights": list[tuple[Number, Amount]],
    "clip": list[Amount],
}
"""Fields of an exchange as a node accepts them; a mapping as a list of its pairs, without the messages in ``each``."""

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
            every = pytree.from_bytes(letter["common"], {"Clip": Clip})
            individual = pytree.from_bytes(letter["own"], {"Exchange": Exchange})
            exchange: Exchange = individual["exchange"]
            twice = [key for key in SHARED | every.keys() if getattr(exchange, key)]
            if not every.keys() <= {*SHARED, "p"} or twice:
                raise ValueError(
                    f"its common part has {sorted(every)}, and this client's part repeats or lacks some fields"
                )
            request = cls(replace(exchange, **every), individual["run"], individual["known"])
            _check(request.exchange)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as e:
            raise WireError(f"this is not one of Medley's requests: {type(e).__name__}: {e}") from None
        check_run(request.run)
        return request


def check_run(name: Any) -> None:
    """Raise WireError for a run's name that could be a path to another folder."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,64}", name):
        raise WireError(f"a run's name consists of letters, digits, _ and -, not {name!r}")


def _check(e: Exchange) -> None:
    """Raise WireError, or a Python error, for fields of other types and numbers out of range."""
    clip = e.clip or Clip({})
    scales = [*clip.scales.values()] if isinstance(clip.scales, dict) else [clip.scales]
    fields = {**vars(e), "each": [*e.each], "clip": [*scales, clip.noise]}
    pairs = {"acked": e.acked, "p": e.p, "weights": {} if e.weights is None else e.weights}
    fields |= {name: [*mapping.items()] for name, mapping in pairs.items()}
    for name, hint in REQUEST.items():
        checked("the server's request", fields, name, hint)


def sealed_gradient(figures: bytes, gradient: Tensor) -> bytes:
    """The answer to an evaluation with the gradient of the client's loss."""
    return pytree.to_bytes({"said": figures.decode(), "gradient": gradient})


def opened_gradient(client: int, raw: bytes, x: Tensor) -> tuple[bytes, Tensor]:
    """Inverse of `sealed_gradient`. Raises WireError if the gradient does not fit a model x [d]."""
    try:
        content = pytree.from_bytes(raw, {})
        figures = content["said"].encode()
        gradient = content["gradient"]
        fit = isinstance(gradient, Tensor) and (gradient.shape, gradient.dtype) == (x.shape, x.dtype)
    except (WireError, KeyError, TypeError, AttributeError) as e:
        raise WireError(f"{name_of(client)}'s answer to an evaluation cannot be decoded: {type(e).__name__}") from None
    if not fit or not is_finite(gradient):
        raise WireError(
            f"{name_of(client)}'s answer to an evaluation: its gradient is not a vector of {len(x)} finite numbers"
        )
    return figures, gradient
