"""The method author's view of the clients of one round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

import torch

from ..runtime.streams import Secret
from .client import Client
from .message import Message, Packed
from .problem import Readout, State
from .sampling import LocalSampling, Sampling
from .task import Task

OnLate = Literal["drop", "deliver"]
"""Whether a reply that comes after its exchange is lost, or delivered to the round in which it arrives."""

D = TypeVar("D", bound=Message)
E = TypeVar("E", bound=Message)
U = TypeVar("U", bound=Message)
V = TypeVar("V")


class BoundedSum(NamedTuple):
    """A sum of replies, each scaled down to a norm of at most 1.

    Attributes:
        total: the sum by field; None if no client replied
        within: number of replies whose norm was already at most 1
        came: number of replies
    """

    total: Packed | None
    within: int
    came: int


class Each(Mapping[int, V]):
    """Messages of single clients, all of one form, each made when it is read: large ones need not all exist at once.

    Args:
        ids: the clients
        make: id -> the client's message, the same at every call until the replies are read
        like: a message of their form, of which only the size is read; default None: one of them is made for that
    """

    def __init__(self, ids: Iterable[int], make: Callable[[int], V], like: V | None = None) -> None:
        self._ids = dict.fromkeys(ids)
        self._make = make
        self.like = like

    def __getitem__(self, i: int) -> V:
        if i not in self._ids:
            raise KeyError(i)
        return self._make(i)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, i: object) -> bool:
        return i in self._ids


@runtime_checkable
class Replies(Protocol[U]):
    """The replies to one `Cohort.ask`. The exchange happens when `mean`, `sum` or `each` reads them."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Clients that replied, ascending; empty before the replies are read."""

    @property
    def count(self) -> float:
        """The number of clients that replied; 0 before the replies are read. In a private run the expected number."""

    @property
    def share(self) -> float:
        """Σ p_i over the clients that replied; 0 before the replies are read."""

    @property
    def asked(self) -> Mapping[int, int]:
        """The round in which each replying client was asked."""

    def mean(self) -> U:
        """Every field's mean over the replies, weighted by p_i. Raises TooFewReplies if there is none."""

    def sum(self, weights: Mapping[int, float] | None = None) -> U:
        """Every field's sum over the replies, weighted by ``weights``, by default the global p_i.

        Raises TooFewReplies if there is no reply.
        """

    def bounded(self, weight: float, scales: Mapping[str, float] | float, noise: float = 0.0) -> BoundedSum:
        """``weight`` times the sum of the replies, each scaled down to a norm of at most 1.

        Args:
            weight: the factor of every reply
            scales: s_f by field, above 0; a number stands for all. The norm is √(Σ_f ‖m_f‖²/s_f²) over the fields f
            noise: z of the noise that clients add to a secure sum, of standard deviation z·s_f·weight; default 0
        """

    def each(self) -> dict[int, U]:
        """The replies by client id, ascending; possibly none."""


@runtime_checkable
class Cohort(Protocol):
    """The clients that take part in one round. `ask` is the only way to communicate with them."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Clients that take part, ascending."""

    @property
    def p(self) -> Mapping[int, float]:
        """p_i of every client of the population; Σ p_i = 1."""

    @property
    def round(self) -> int:
        """The number of this round, from 1."""

    @property
    def task(self) -> Task:
        """The stream's task in this round."""

    @property
    def population(self) -> int:
        """The number of clients, taking part or not."""

    @property
    def fraction(self) -> float:
        """The share of the population that takes part."""

    @property
    def least(self) -> int:
        """The fewest clients that an exchange may ask: 1, or as many as hide each other in a secure sum."""

    @property
    def at_work(self) -> frozenset[int]:
        """Clients whose reply to an earlier request is still on its way; `ask` does not ask them.

        After the replies of an `ask` are read, this includes the clients that are late.
        """

    @property
    def sampling(self) -> Sampling | None:
        """The distribution that drew these clients; None if privacy accounting does not support it."""

    def local(self, i: int, /) -> LocalSampling:
        """The distribution of client i's batches in this round, for privacy of its rows."""

    @property
    def buffers(self) -> State | None:
        """The model's current buffers, which are not part of x; None if there are none."""

    @property
    def readout(self) -> Readout | None:
        """Where x has the last linear layer; None unless that layer is in x."""

    def __len__(self) -> int: ...

    def rng(self, purpose: str) -> torch.Generator:
        """A fresh random stream of the server, named (seed, round, purpose)."""

    def secret(self, purpose: str) -> Secret:
        """A random stream for noise that protects clients, for which `rng` would be too easy to guess."""

    def note(self, **figures: float) -> None:
        """Add figures to this round's row of the history."""

    @overload
    def ask(
        self,
        method: Callable[[Client[Any], D], U],
        common: D,
        *,
        ids: tuple[int, ...] | None = None,
        late: OnLate = "drop",
    ) -> Replies[U]: ...

    @overload
    def ask(
        self,
        method: Callable[[Client[Any], D, E], U],
        common: D,
        each: Mapping[int, E],
        *,
        ids: tuple[int, ...] | None = None,
        late: OnLate = "drop",
    ) -> Replies[U]: ...

    def ask(
        self, method: Any, common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> Replies[Any]:
        """Have clients run ``method``. One `ask` is one exchange, the unit in which papers count.

        Args:
            method: a method of the algorithm marked ``@on_client``
            common: the message for all clients; it is encoded once
            each: a message for each client by id, if the method takes one; `Each` makes large ones as they are sent
            ids: the clients to ask; by default all clients that take part
            late: "drop": a reply that comes after the exchange is lost; "deliver": it is delivered in the round in
                which it arrives

        The exchange happens when the replies are read, so that workers can sum their own clients' replies. Raises
        MedleyError if replies were never read, if ``method`` is not a client method, and if a client has no entry in
        ``each``.
        """


class ForwardingCohort:
    """Passes on to another cohort whatever a subclass does not define. A subclass defines `Cohort.ask`."""

    def __init__(self, clients: Cohort) -> None:
        self._clients = clients

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clients, name)

    def __len__(self) -> int:
        return len(self.ids)
