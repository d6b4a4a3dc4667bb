"""Models of a client's own: own parameters beside the shared x, and the model that a client uses."""

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
    """A problem whose x [d] holds the shared parameters. The other parameters [e] belong to each client.

    The own part is state of the problem, as buffers are: it is set before each call for a client, and read after it.
    """

    @abstractmethod
    def own(self) -> dict[str, Tensor]:
        """Copies of the own part as it stands."""

    @abstractmethod
    def load_own(self, state: OwnState | None) -> None:
        """Set the own part; None sets the first one, which is the same for all clients."""


class PersonalModel(NamedTuple):
    """The model that one client uses.

    Attributes:
        x: its parameters [d]; of a `PartlyShared` problem those in the place of the shared ones
        buffers: the shared buffers; None where there are none
        own: its own part; None where the problem has none
    """

    x: Vec
    buffers: State | None = None
    own: OwnState | None = None


PersonalModels = Callable[[Sequence[int]], Mapping[int, PersonalModel]]
"""Ids of clients -> their models; a client whose model cannot be made is left out."""

__all__ = ["OwnState", "PartlyShared", "Patterns", "PersonalModel", "PersonalModels"]
