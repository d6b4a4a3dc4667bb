"""A cohort whose replies can only be read as noisy sums of bounded replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

from ..contract import Algorithm, Cohort, Message, OnLate, Packed, RecipeError, Replies, Sampling, State, Unsupported
from ..runtime.forwarded import forwarded

U = TypeVar("U", bound=Message)


@runtime_checkable
class Noisy(Protocol):
    """Makes a sum of bounded replies private: `medley.privacy.private.Round`."""

    sampling: Sampling

    def sum(self, replies: Replies[Any], up: type[Message], exchange: str, weight: float) -> Packed:
        """``weight`` times the sum of the bounded replies, with noise."""


@runtime_checkable
class Refuses(Protocol):
    """Raises Unsupported with a reason."""

    def refuse(self, what: str) -> NoReturn:
        """Raise Unsupported with this reason."""


class Hidden:
    """A value that is not public: every use of it raises Unsupported with a reason.

    The property that returns it does not raise, so that a test for the protocol passes.
    """

    def __init__(self, refuses: Refuses, reason: str) -> None:
        self._refuses = refuses
        self._reason = reason

    def _used(self, *args: Any) -> NoReturn:
        self._refuses.refuse(self._reason)

    __len__ = __iter__ = __getitem__ = __contains__ = __eq__ = __bool__ = __hash__ = _used


class PrivateReplies(Generic[U]):
    """The replies to one `ask`: only their noisy sum, neither single replies nor the ids of clients that answered."""

    def __init__(self, replies: Replies[U], up: type[U], exchange: str, clients: PrivateCohort) -> None:
        self._replies = replies
        self._up = up
        self._exchange = exchange
        self._clients = clients

    @property
    def count(self) -> float:
        """The expected number of clients in the cohort. The true one is not public."""
        return self._clients.sampling.rate * self._clients.members

    @property
    def share(self) -> float:
        """The expected Σ p_i over the clients that take part. The true one is not public."""
        return self._clients.fraction

    @property
    def ids(self) -> Any:
        """The ids of clients that answered, which are not public: every use raises Unsupported."""
        return Hidden(self._clients, "reads which clients answered, or how many")

    @property
    def asked(self) -> Any:
        """The rounds in which clients were asked, which are not public: every use raises Unsupported."""
        return Hidden(self._clients, "reads when each client was asked")

    def mean(self) -> U:
        """The noisy sum divided by the expected number of clients in the cohort."""
        return self._make(1 / self.count)

    def sum(self, weights: Mapping[int, float] | None = None) -> U:
        """The noisy sum, with p_i = 1/n or one weight for all. Raises Unsupported for unequal weights."""
        weight = 1 / self._clients.members
        if weights is not None:
            different = set(weights.values())
            if len(different) != 1 or not weights.keys() >= {i for i, p in self._clients.p.items() if p > 0}:
                self._clients.refuse("gives replies different weights")
            weight = different.pop()
        return self._make(weight)

    def bounded(self, weight: float, scales: Any, noise: float = 0.0) -> NoReturn:
        """Raises Unsupported: the sum would have no noise."""
        self._clients.refuse("bounds replies itself")

    def each(self) -> dict[int, U]:
        """Raises Unsupported: replies are not public."""
        self._clients.refuse("reads replies one by one")

    def _make(self, weight: float) -> U:
        fields = self._clients.noisy.sum(self._replies, self._up, self._exchange, weight)
        message = object.__new__(self._up)
        message.__dict__.update(fields)
        return message


class PrivateCohort:
    """The clients of one round as a private method may see them. Implements `medley.contract.cohort.Cohort`."""

    population, least, rng, secret, note, readout = forwarded(
        "_clients", "population", "least", "rng", "secret", "note", "readout"
    )

    def __init__(self, clients: Cohort, noisy: Noisy, method: Algorithm[Any, Any]) -> None:
        self._clients = clients
        self.noisy = noisy
        self._method = method
        self.p = clients.p
        self.round = clients.round
        self.task = clients.task
        self.members = sum(p > 0 for p in clients.p.values())
        if not noisy.sampling.rate:
            raise RecipeError(
                f"{method.name} cannot be private: no round has any client, so a mean has nothing to divide by; pass a "
                "participation= with clients",
                "participation",
            )
        if clients.buffers is not None:
            self.refuse("has a model with buffers, such as BatchNorm's, which would be averaged without noise")
        if max(clients.p.values()) * self.members > 1 + 1e-9:
            self.refuse("weighs clients by their rows, which are not public: use Federation(weights='uniform')")

    def refuse(self, what: str) -> NoReturn:
        """Raise Unsupported with the reason why the method cannot be private."""
        method = self._method
        other = self._method.sums_as
        remedy = f"; use {other}, whose server reads only sums" if other else ""
        raise Unsupported(f"{method.name} cannot be private: it {what}{remedy}", method=method.name, need="sums")

    @property
    def sampling(self) -> Sampling:
        """The distribution that drew the cohort."""
        return self.noisy.sampling

    @property
    def ids(self) -> Any:
        """The ids of clients that take part, which are not public: every use raises Unsupported."""
        return Hidden(self, "reads which clients take part")

    def __len__(self) -> int:
        self.refuse("reads how many clients take part")

    @property
    def at_work(self) -> Any:
        """Clients whose reply is on its way, which are not public: every use raises Unsupported."""
        return Hidden(self, "reads which clients are at work")

    @property
    def fraction(self) -> float:
        """The expected share of the clients that take part."""
        return self.sampling.rate

    def local(self, i: int, /) -> NoReturn:
        """Raises Unsupported: a server that reads only sums does not need it."""
        self.refuse("reads the batches of single clients")

    @property
    def buffers(self) -> State | None:
        """None: a model with buffers raises Unsupported."""
        return None

    def ask(
        self, method: Callable[..., Any], common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> PrivateReplies[Any]:
        """See `Cohort.ask`. Raises Unsupported for messages to single clients, chosen clients and late replies."""
        if each is not None:
            self.refuse("sends each client its own message, which it keeps at the server")
        if ids is not None:
            self.refuse("chooses whom it asks")
        if late != "drop":
            self.refuse("takes late replies, which belong to another round's draw")
        replies = self._clients.ask(method, common)
        up = method.__self__.message_types[method.__name__].up  # type: ignore[attr-defined]
        return PrivateReplies(replies, up, method.__name__, self)
