"""Wrapper: a method whose server reads replies in another way. Its clients run the wrapped method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .algorithm import Algorithm
from .client import Client
from .errors import Unsupported
from .needs import Need
from .personal import Patterns
from .types import Vec

S = TypeVar("S", bound="WrapperServer")
W = TypeVar("W", bound="Wrapper[Any]")


@dataclass
class WrapperServer:
    """The state of the wrapped method's server.

    Attributes:
        inner: the method's own state
    """

    inner: Any


@dataclass(frozen=True)
class Wrapper(Algorithm[S]):
    """Base of wrappers. It passes everything else on to the wrapped method.

    Attributes:
        method: the wrapped method

    ``can`` completes the error "EWC cannot be ...". The names of the wrapper's own settings begin with ``prefix``.
    """

    method: Algorithm[Any, Any]

    can: ClassVar[str] = ""
    prefix: ClassVar[str] = ""

    @property
    def reads(self) -> str:
        """How the server reads replies, as the predicate of a sentence; "" for any way."""
        return ""

    @property
    def bounds_trees(self) -> bool:
        """Whether a method that grows trees can be wrapped."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.method).end_task is not Algorithm.end_task:
            raise Unsupported(
                f"{self.method.name} cannot be {self.can}: it asks every client at the end of a task",
                method=self.method.name,
                need="sums",
            )
        if Need.TREES in self.method.needs and not self.bounds_trees:
            raise Unsupported(
                f"{self.method.name} cannot be {self.can}: the thresholds of its trees follow from exact sums of rows "
                "by bin, which a noisy mean or a robust rule would upset. Leave the wrapper out, use "
                "Private(unit='row'), or use a linear model or a Network",
                method=self.method.name,
                need="sums",
            )
        # The class has its own; clients run the wrapped method.
        for name in ("memory", "message_types", "waits_as", "every_round", "any_loop"):
            object.__setattr__(self, name, getattr(self.method, name))

    def __getattr__(self, name: str) -> Any:
        # Client methods, which a host looks up by name.
        if name != "method" and name in self.method.message_types:
            return self.client_method(name)
        return super().__getattr__(name)  # type: ignore[misc]  # of Explained, which hides it from type checkers

    def client_method(self, name: str) -> Any:
        """The method's client method of this name."""
        return getattr(self.method, name)

    def settings(self) -> dict[str, Any]:
        """The method's settings, and the wrapper's settings with ``prefix``."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "method"}
        return {**self.method.settings(), **{f"{self.prefix}.{k}": v for k, v in settings.items()}}

    def suited(self: W, gives: frozenset[Need]) -> W:
        """With the method's "auto" settings resolved."""
        return dataclasses.replace(self, method=self.method.suited(gives))

    def remember(self, x: Vec) -> Any:
        """The method's own memory."""
        return self.method.remember(x)

    def personal(self, me: Client[Any], x: Vec) -> Vec:
        """The method's own; it stays with its client."""
        return self.method.personal(me, x)

    @property
    def is_personal(self) -> bool:
        """Whether the method's clients use models of their own."""
        return self.method.is_personal

    def shares(self) -> Patterns | None:
        """The method's own."""
        return self.method.shares()

    def people(self) -> str:
        """The method's own."""
        return self.method.people()

    def model(self, s: S) -> Vec:
        """The method's own model."""
        return self.method.model(s.inner)
