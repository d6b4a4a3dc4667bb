"""The state of a run between two rounds. A round begins from it, and a checkpoint holds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..contract import State, Vec, pytree
from ..numerics.forgetting import figures
from ..storage.history import Row, history_text
from ..storage.run_folder import Grown
from ..wire.exchange import Tag
from .bookkeeping import COUNTS, Bookkeeping


@dataclass
class RunState:
    """A run between two rounds.

    Attributes:
        round: the number of the last whole round, 0 before the first
        wall: seconds spent so far
        matrix: test accuracy on every task (column) after each task done so far (row)
        clients: figures of each client, as in `Result.clients`
        best: round, value, x and buffers of the best evaluation, if the run keeps one; else None
        last: the row that only the last round of a run has, taken out of the history by `open_ended`; else None
    """

    round: int
    s: Any
    bookkeeping: Bookkeeping
    history: list[Row]
    wall: float = 0.0
    matrix: list[list[float]] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    best: dict[str, Any] | None = None
    last: Row | None = None

    def before(self) -> RunState:
        """A copy for the next round to change. Both share their tensors, because nothing changes these in place."""
        b = self.bookkeeping
        fresh = {"ledger": b.ledger.fork(), "acked": dict(b.acked), "notes": b.counts, "late": dict(b.late)}
        bookkeeping = Bookkeeping(**(vars(b) | fresh))
        s = pytree.copy(self.s)
        return RunState(self.round, s, bookkeeping, self.history, self.wall, self.matrix, self.clients, self.best)

    def choose(self, value: float, higher: bool, x: Vec) -> None:
        """Keep x [d] and the buffers if this round's figure is better than the best so far; nan and ±inf never are."""
        before = math.nan if self.best is None else self.best["value"]
        if math.isfinite(value) and not (value <= before if higher else value >= before):
            copies = x.detach().clone(), self.bookkeeping.buffers
            self.best = {"round": self.round, "value": value, "x": copies[0], "buffers": copies[1]}

    def result(self, x: Vec) -> tuple[Vec, State | None]:
        """The model and buffers of the result: the best ones if the run keeps them, else x [d] and the last buffers."""
        return (x, self.bookkeeping.buffers) if self.best is None else (self.best["x"], self.best["buffers"])

    def open_ended(self, rounds: int, eval_every: int) -> RunState:
        """The state that a longer run would have at this round, so that resuming this run gives the longer one.

        The last round has a row even if ``eval_every`` does not divide its number. Take that row out, and add its
        counts to the next row.
        """
        if not self.history or self.round != rounds or rounds % eval_every == 0 or self.history[-1]["round"] != rounds:
            return self
        *history, last = self.history
        notes = {name: last[name] for name in COUNTS if name in last}
        return replace(self, history=history, last=last, bookkeeping=replace(self.bookkeeping, notes=notes))

    @property
    def grown(self) -> Grown:
        """The parts that a run's folder keeps in separate files."""
        return Grown(self.history, self.bookkeeping.ledger, self.clients)

    def state(self, memories: Callable[[Mapping[int, Tag]], Mapping[int, Any]]) -> dict[str, Any]:
        """The state that a checkpoint holds besides `grown`."""
        b = self.bookkeeping
        return {
            "round": self.round,
            "server": self.s,
            "memories": memories(b.remembered),
            "begun with": dict(memories(b.begun_with).items()),
            "wall": self.wall,
            "matrix": self.matrix,
            "engines": sorted(b.engines),
            "seconds": b.seconds,
            "acked": b.acked,
            "buffers": b.buffers,
            "late": {i: w for i, w in b.late.items() if w.at < math.inf},  # others are not there yet: asked again
            "notes": b.notes,
            "earlier": sorted(b.earlier),
            "best": self.best,
            "last": "" if self.last is None else history_text([self.last]),
        }

    def summary(self, first: Sequence[int]) -> dict[str, Any]:
        """Final figures: the row of the model's round, accuracies on tasks, and means over the last ten rows.

        ``first`` has the first step at which a client meets each task.
        """
        best_round = None if self.best is None else self.best["round"]
        row = next((r for r in self.history if r["round"] == best_round), self.history[-1] if self.history else {})
        out: dict[str, Any] = {**row, **({} if best_round is None else {"best_round": best_round})}
        if self.matrix:
            out |= {**figures(self.matrix, first), "matrix": self.matrix}
        for name in ("loss", "accuracy"):
            last = [row[name] for row in self.history[-10:] if name in row and row.get("task") == out.get("task")]
            if last:
                out[f"tail_{name}"] = sum(last) / len(last)
        return out
