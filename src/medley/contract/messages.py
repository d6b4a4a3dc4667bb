"""Messages that several methods use. A message that only one method uses is declared in that method's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from .client import Client
from .cohort import Cohort
from .errors import TooFewReplies
from .message import Message
from .types import Num, Vec


class Model(Message):
    """A model, usually down: the server's x [d]."""

    x: Vec


class ModelAndRate(Message):
    """Down: the server's x [d], and its step size; 0 requests K_i, the Lipschitz constant of ∇f_i."""

    x: Vec
    lr: float


class ModelAndPull(Message):
    """Down: the server's x [d], and the weight of a proximal term over N: a client's weight is weight/(N p_i)."""

    x: Vec
    weight: float


class ModelAndVariate(Message):
    """Down: the server's x [d], and c = Σ p_i c_i [d]."""

    x: Vec
    c: Vec


class TaughtModel(Message):
    """Down: the server's x [d], and the model at the end of the last task [d]; None in the first task."""

    x: Vec
    teacher: Vec | None = None


class FirstModel(Message):
    """Down: x₀ [d] to a client without it, None to others."""

    x: Vec | None = None


class Gradient(Message):
    """A gradient [d]: up a client's gradient, down the mean over clients."""

    g: Vec


class SmoothGradient(Message):
    """Up: ∇f_i(x) [d], and its Lipschitz constant K_i if requested."""

    g: Vec
    K: float


class Candidates(Message):
    """Down: a direction p [d], and candidate steps η [k]."""

    p: Vec
    etas: Float[Tensor, " k"]


class Direction(Message):
    """Up: an approximation of H_i⁻¹g [d]."""

    p: Vec


class Line(Message):
    """Down: a direction p [d], and the first power of β to try."""

    p: Vec
    first: int


class Losses(Message):
    """Up: f_i(x − ηp) for every η [k]; exact, because differences of rounded losses are meaningless."""

    exact: ClassVar[frozenset[str]] = frozenset({"f"})
    f: Float[Tensor, " k"]


class Recall(Message):
    """Down: a request for the client's memory, without content."""


class Recalled(Message):
    """Up: the part of a client's memory that the server sums [d]."""

    v: Vec


class Step(Message):
    """Up: the displacement of a local descent, y_i − x [d]."""

    delta: Vec


class StepAndVariate(Message):
    """Up: the displacement y_i − x [d], and the change of c_i [d]."""

    delta: Vec
    dc: Vec


class TimedStep(Message):
    """Up: the displacement y_i − x [d], and the simulated time T_i in which the client made it."""

    delta: Vec
    T: Num


def losses_along(
    clients: Cohort, losses: Callable[[Client[Any], Candidates], Losses], p: Vec, ids: tuple[int, ...]
) -> Callable[[Sequence[float]], Sequence[float]]:
    """The mean of f_i(x − ηp) over clients, as a function of the steps η. Each call is one exchange.

    Args:
        clients: the cohort
        losses: the client method that answers
        p: the direction [d]
        ids: the clients to ask
    """

    def along(etas: Sequence[float]) -> Sequence[float]:
        values: list[float] = clients.ask(losses, Candidates(p, p.new_tensor(etas)), ids=ids).mean().f.tolist()
        return values

    return along


def recall_all(method: str, clients: Cohort, recall: Callable[[Any, Any], Recalled], message: Message) -> Vec:
    """Σ p_i v_i over all clients, where v_i is the vector in client i's memory.

    Asks a client whose answer is lost again, at most three times. Raises TooFewReplies if a client does not answer.

    Args:
        method: the method's name
        clients: all clients
        recall: the client method that returns v_i
        message: the request
    """
    total = None
    left = clients.ids
    for _ in range(4):
        replies = clients.ask(recall, message, ids=left)
        with suppress(TooFewReplies):
            v = replies.sum().v
            total = v if total is None else total + v
        left = tuple(i for i in left if i not in replies.ids)
        if total is not None and not left:
            return total
    raise TooFewReplies(
        f"{method} needs an answer from all other clients before clients join, leave or come back; no answer "
        f"from {[*left]}"
    )


__all__ = [
    "Candidates",
    "Direction",
    "FirstModel",
    "Gradient",
    "Line",
    "Losses",
    "Model",
    "ModelAndPull",
    "ModelAndRate",
    "ModelAndVariate",
    "Recall",
    "Recalled",
    "SmoothGradient",
    "Step",
    "StepAndVariate",
    "TaughtModel",
    "TimedStep",
    "losses_along",
    "recall_all",
]
