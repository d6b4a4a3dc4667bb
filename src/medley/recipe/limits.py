"""Limits on the accounts that clients on other machines give of their data: the table [clients] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract.settings import Checked, at_least, positive
from ..datasets.prepared import preparation
from ..numerics.scaling import Scaling


@dataclass(frozen=True)
class ClientLimits(Checked):
    """What a client on another machine may report of its data: the largest values, and the names that all agree on.

    A client's share p_i follows from its own account, so a limit near the true value is the bound on its influence. The
    defaults keep out values that no data has.

    Attributes:
        rows: rows of a task, for training and for tests each; default 10⁹
        weight: the sum of the weights of a task's rows; default 10¹²
        classes: the number of classes; default 100,000
        row: numbers in one row; default 10⁷
        tasks: the number of tasks; default 10,000
        features: the names of the columns, in their order; by default those of the other clients
        labels: the names of the classes, in their order; by default those of the other clients
        prepared: the file of the preparation that all clients' rows have, which the result keeps; default none
    """

    rows: Annotated[int, at_least(1)] = 10**9
    weight: Annotated[float, positive] = 1e12
    classes: Annotated[int, at_least(1)] = 100_000
    row: Annotated[int, at_least(1)] = 10**7
    tasks: Annotated[int, at_least(1)] = 10_000
    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    prepared: str = ""

    @property
    def scaling(self) -> Scaling | None:
        """What the file holds. Raises BadData for a file that holds none."""
        return preparation(self.prepared, "[clients] prepared") if self.prepared else None
