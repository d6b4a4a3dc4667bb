"""A cohort whose replies are aggregated robustly: the method's means and sums become a rule of single replies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..contract import Algorithm, Cohort, Message, OnLate, RecipeError, Replies, TooFewReplies, Unsupported, WireError
from ..contract.cohort import ForwardingCohort
from ..contract.place import name_of
from ..runtime.forwarded import forwarded
from .rule import Context, Rule, byzantine_among

log = logging.getLogger("medley")

U = TypeVar("U", bound=Message)


class RobustReplies(Generic[U]):
    """The replies to one `ask`. Each field is aggregated on its own; a sum is the rule's vector times Σ weights."""

    ids, count, share, asked = forwarded("_replies", "ids", "count", "share", "asked")

    def __init__(self, replies: Replies[U], up: type[U], exchange: str, clients: RobustCohort, requested: int) -> None:
        self._replies = replies
        self._up = up
        self._exchange = exchange
        self._clients = clients
        self._requested = requested

    def mean(self) -> U:
        """The rule's result. Raises TooFewReplies if the rule needs more replies."""
        return self._make(1.0, self._read())

    def sum(self, weights: Mapping[int, float] | None = None) -> U:
        """The rule's result times Σ w_i over the clients that replied, by default with p_i.

        Raises Unsupported for unequal weights, and TooFewReplies if the rule needs more replies.
        """
        replies = self._read()
        w = [(self._clients.p if weights is None else weights)[i] for i in replies]
        if max(w) - min(w) > 1e-9 * max(map(abs, w)):
            self._clients.refuse("gives replies different weights")
        return self._make(sum(w), replies)

    def bounded(self, weight: float, scales: Any, noise: float = 0.0) -> NoReturn:
        """Raises Unsupported: the rule itself bounds replies."""
        self._clients.refuse("bounds replies itself")

    def each(self) -> NoReturn:
        """Raises Unsupported: there is no sum that the rule could replace."""
        self._clients.refuse("reads replies one by one, so there is no sum that the aggregation rule could replace")

    def _read(self) -> dict[int, U]:
        replies = self._replies.each()
        rule = self._clients.rule
        where = f"round {self._clients.round}, {self._exchange}"
        if not replies:
            raise TooFewReplies(f"{where}: no client answered, so {rule!r} has nothing to aggregate")
        if rule.root_client is not None and rule.root_client not in replies:
            raise TooFewReplies(
                f"{where}: {name_of(rule.root_client)}, which holds the root set of {rule!r}, did not answer"
            )
        others = len(replies) - (rule.root_client is not None)
        try:
            rule.check(others, Context(requested=self._requested))
        except TooFewReplies as e:
            raise TooFewReplies(f"{where}: {e}") from None
        return replies

    def _make(self, weight: float, replies: Mapping[int, U]) -> U:
        message = object.__new__(self._up)
        packed = {i: up.pack() for i, up in replies.items()}
        for name in next(iter(packed.values())):
            message.__dict__[name] = self._combined(name, weight, {i: fields[name] for i, fields in packed.items()})
        return message

    def _combined(self, name: str, weight: float, values: Mapping[int, Any]) -> Tensor | float | None:
        """``weight`` times the aggregate of one field, in the field's shape."""
        where = f"{name!r} of {self._exchange}"
        if any(v is None for v in values.values()):
            if all(v is None for v in values.values()):
                return None
            raise WireError(f"{where} came from only some of the clients, so it cannot be aggregated")
        first = next(iter(values.values()))
        if isinstance(first, bool):
            self._clients.refuse(f"sends {where}, a bool, which cannot be aggregated")
        like = first if isinstance(first, Tensor) else torch.zeros((), dtype=torch.float64)
        tensors = [torch.as_tensor(v, device=like.device) for v in values.values()]
        if len({t.shape for t in tensors}) > 1:
            raise WireError(
                f"{where} has several shapes, {sorted({tuple(t.shape) for t in tensors})}, so it cannot be aggregated"
            )
        dtype = like.dtype if like.is_floating_point() else torch.float64
        rows = torch.stack([t.to(dtype).flatten() for t in tensors])
        combined = self._clients.combined(f"{self._exchange}.{name}", rows, [*values], self._requested) * weight
        return combined.reshape(like.shape) if isinstance(first, Tensor) else float(combined)


class RobustCohort(ForwardingCohort):
    """The clients of one round, whose replies a rule aggregates. Implements `Cohort`.

    Args:
        before: the rule's vectors of the previous round, by exchange and field; a new mapping after each aggregation

    A rule with a root client asks that client in every exchange.
    """

    def __init__(self, clients: Cohort, rule: Rule, before: Mapping[str, Tensor], method: Algorithm[Any, Any]) -> None:
        super().__init__(clients)
        self.rule = rule
        self.before = dict(before)
        self._method = method
        if clients.buffers is not None:
            self.refuse("has a model with buffers, such as BatchNorm's, whose mean one Byzantine client can set")
        root = rule.root_client
        if root is not None and root not in clients.p:
            raise RecipeError(f"{rule!r}: there is no client {root}; there are 0 to {len(clients.p) - 1}", "root")
        self.ids = self._with_root(clients.ids)
        count = len(self.ids) - (root is not None)
        if clients.ids and count < rule.least(count):
            f = byzantine_among(rule, count)
            raise RecipeError(
                f"{rule!r} needs {rule.least(count)} replies to tolerate {f} Byzantine clients of the {count} in round "
                f"{self.round}: ask more clients, or pass a smaller byzantine=",
                "rule",
            )

    def warn(self) -> None:
        """Log a warning if a draw such as this cohort may have more Byzantine clients than the rule tolerates."""
        from scipy.stats import hypergeom

        a = len({*self.ids} - {self.rule.root_client})
        n = len({i for i, p in self.p.items() if p} - {self.rule.root_client})
        f = byzantine_among(self.rule, a)
        all_of_them = byzantine_among(self.rule, n)
        if a and (more := float(hypergeom.sf(f, n, all_of_them, a))) > 0:
            log.warning(
                "%r tolerates %d Byzantine clients of the %d drawn in a round; if %d of all %d clients are Byzantine, "
                "a round has more of them with probability %.2g: raise participation=, or pass a larger byzantine=",
                *(self.rule, f, a, all_of_them, n, more),
            )

    def _with_root(self, ids: Sequence[int]) -> tuple[int, ...]:
        root = self.rule.root_client
        return tuple(ids if root is None else sorted({*ids, root}))

    def refuse(self, reason: str) -> NoReturn:
        """Raise Unsupported with the reason why the method cannot be aggregated robustly."""
        method = self._method
        other = self._method.sums_as
        remedy = f"; use {other}, whose server reads only sums" if other and "one by one" in reason else ""
        raise Unsupported(f"{method.name} cannot be robust: it {reason}{remedy}", method=method.name, need="sums")

    def combined(self, key: str, rows: Tensor, ids: Sequence[int], requested: int) -> Tensor:
        """The rule's vector of these rows, one row per client of ``ids``, a part of ``requested`` clients."""
        root = self.rule.root_client
        at = None if root is None else ids.index(root)
        context = Context(self.before.get(key), at, requested)
        vector: Any = self.rule(rows, context)  # a user's own rule may return anything
        vector = torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector
        if not isinstance(vector, Tensor) or vector.shape != rows.shape[1:]:
            what = f"a tensor {[*vector.shape]}" if isinstance(vector, Tensor) else f"a {type(vector).__name__}"
            raise RecipeError(
                f"{self.rule!r} made {what} of the replies {[*rows.shape]} to {key}; return one vector, a tensor "
                f"[{rows.shape[1]}], as rows.mean(0) is",
                "rule",
            )
        v = vector.to(rows)
        if self.rule.remembers:
            self.before = {**self.before, key: v}
        return v

    def ask(
        self, method: Callable[..., Any], common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> RobustReplies[Any]:
        """See `Cohort.ask`."""
        up = method.__self__.message_types[method.__name__].up  # type: ignore[attr-defined]
        clients_asked = self._with_root(self.ids if ids is None else ids)
        replies: Replies[Any] = self._clients.ask(method, common, each, ids=clients_asked, late=late)
        # A later exchange may ask only those that replied to an earlier one: all Byzantine clients may be among them.
        requested = max(len(clients_asked), len(self.ids)) - (self.rule.root_client is not None)
        return RobustReplies(replies, up, method.__name__, self, requested)
