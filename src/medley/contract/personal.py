"""Personal models: a client's own parameters next to the shared x, and the model that the client uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from .problem import State
from .types import Vec

OwnState = Mapping[str, Tensor]
"""A client's own part of a model: "x", its parameters [e], and its buffers, "floats" [f] and "ints" [i]."""

Patterns = str | Sequence[str]
"""Names of shared parameters, see `medley.problems.Network`."""


class PartlyShared(ABC):
    """A problem whose x [d] contains only the shared parameters. Each client has its own values of the other parameters
    [e].

    The personal parameters are state of the problem, like buffers: Medley sets them before each call for a client and
        reads them afterwards.
    """

    @abstractmethod
    def own(self) -> dict[str, Tensor]:
        """A copy of this client's personal parameters."""

    @abstractmethod
    def load_own(self, state: OwnState | None) -> None:
        """Set the personal parameters; None sets the initial ones, which are the same for all clients."""


class PersonalModel(NamedTuple):
    """The model that one client uses.

    Attributes:
        x: its parameters [d]; for a `PartlyShared` problem, its values of the shared parameters
        buffers: the shared buffers; None if there are none
        own: the client's personal parameters; None if all are shared
    """

    x: Vec
    buffers: State | None = None
    own: OwnState | None = None


PersonalModels = Callable[[Sequence[int]], Mapping[int, PersonalModel]]
"""Ids of clients -> their models, without clients whose model cannot be computed."""

__all__ = ["OwnState", "PartlyShared", "Patterns", "PersonalModel", "PersonalModels"]
