"""Limits on what clients on other machines report about their data: the table [clients] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract.settings import Checked, at_least, positive
from ..datasets.ingest.prepared import preparation
from ..numerics.scaling import Scaling


@dataclass(frozen=True)
class ClientLimits(Checked):
    """What a client on another machine may report about its data: largest values, and names that all must share.

    A client's share p_i follows from what it reports, so a limit close to the true value bounds its influence. The
    defaults exclude only values that no real data has.

    Attributes:
        rows: rows of a task, for training and for tests each; default 10⁹
        weight: the sum of the weights of a task's rows; default 10¹²
        classes: the number of classes; default 100,000
        row: numbers in one row; default 10⁷
        tasks: the number of tasks; default 10,000
        features: the names of the columns, in order; by default the other clients' names
        labels: the names of the classes, in order, as the data has them: texts, whole numbers, or true and false; by
            default the other clients' names
        prepared: the file of the preparation applied to all clients' rows, which the result keeps; default none
    """

    rows: Annotated[int, at_least(1)] = 10**9
    weight: Annotated[float, positive] = 1e12
    classes: Annotated[int, at_least(1)] = 100_000
    row: Annotated[int, at_least(1)] = 10**7
    tasks: Annotated[int, at_least(1)] = 10_000
    features: tuple[str, ...] = ()
    labels: tuple[str | int | bool, ...] = ()
    prepared: str = ""

    @property
    def scaling(self) -> Scaling | None:
        """What the file contains. Raises BadData if it contains no preparation."""
        return preparation(self.prepared, "[clients] prepared") if self.prepared else None
