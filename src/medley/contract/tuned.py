"""A method with the learning rates that tuning found for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from ..runtime.frames import framed
from .algorithm import Algorithm
from .errors import MedleyError
from .numbers import real, take
from .settings import Checked, positive

JUDGED = ("score", "scores", "status", "chosen", "note", "rounds")
"""Entries of a record's row that are not settings."""


def split(method: Algorithm[Any, Any] | Tuned) -> tuple[Algorithm[Any, Any], float]:
    """The algorithm, and the factor on every client's lr; it is 1 for a method that is not `Tuned`."""
    return (method.method, method.lr) if isinstance(method, Tuned) else (method, 1.0)


@dataclass(frozen=True)
class Tuned(Checked):
    """A method with a tuned learning rate.

    Attributes:
        method: the method
        lr: factor of every client's learning rate; default 1
        record: the search, one row for each grid point

    Raises RecipeError unless ``lr`` is a finite number above 0.
    """

    method: Algorithm[Any, Any]
    lr: Annotated[float, positive] = 1.0
    record: tuple[dict[str, Any], ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        take(self, real, "lr")
        super().__post_init__()

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name

    def frame(self) -> Any:
        """The record as a pandas DataFrame, one row per grid point. Raises MedleyError if pandas is not installed."""
        return framed(({"method": self.name, **row} for row in self.record), "Tuned.frame()", MedleyError)

    @property
    def tuning(self) -> str:
        """The search in words: the choice, the grid, the budget, and a note if the choice is at the grid's edge. Or
        empty.
        """
        if not self.record:
            return ""
        chosen = next((row for row in self.record if row.get("chosen")), self.record[0])
        keys = [k for k in chosen if k not in JUDGED]
        grid = {k: ", ".join(dict.fromkeys(f"{row[k]}" for row in self.record)) for k in keys}
        choice = " and ".join(f"{k}={chosen[k]} of {grid[k]}" for k in keys)
        points = len(self.record)
        seeds = len(chosen.get("scores", ()))
        budget = f"{points} points, {seeds} seed{'' if seeds == 1 else 's'}, {chosen.get('rounds', '?')} rounds each"
        note = f"; {chosen['note']}" if chosen.get("note") else ""
        return f"tuned to {choice} ({budget}){note}"
