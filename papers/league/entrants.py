"""The league's methods, each with its main knob and the ladder that the knob is tuned on.

Every method is tuned with one budget, see `search`: clients' lr and the knob. A knob starts at the value at which the
method's own paper or default has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from averaged import CONTROLS, SteppedSCAFFOLD

import medley as md
from medley.contract.algorithm import Algorithm
from medley.distributions import is_number

LRS = (-2, -1, 0, 1)
"""The common grid of clients' lr, in half decades of the federation's own."""

GRID = (-4, -3, -2, -1, 0, 1, 2)
"""Clients' lr of a full grid, in half decades: a hundredth to ten times the federation's own."""

BUDGET = 8
"""Tuning runs of a method on a federation, unless the best point then lies at an edge of what was tried."""

BEYOND = 8
"""Further runs, at most, to take it away from the edge."""

Point = tuple[float, int]
"""lr in half decades of the federation's own, and the knob's position on its ladder."""


@dataclass(frozen=True)
class Entrant:
    """A method of the league.

    Attributes:
        method: with its default settings
        knob: the setting that is tuned beside lr; "" for none
        ladder: values of the knob, ascending
        start: the position on the ladder where tuning begins; default 0
        asynchronous: whether it goes on after the first replies, in the clock groups
        groups: the kinds of group that it takes part in, "rounds" and "clock"; none for a control
    """

    method: Algorithm[Any, Any]
    knob: str = ""
    ladder: Sequence[Any] = (0.0,)
    start: int = 0
    asynchronous: bool = False
    groups: tuple[str, ...] = ("rounds",)

    def at(self, point: Point) -> md.Tuned:
        """The method with the settings of ``point``."""
        method: Any = self.method
        if self.knob:
            method = dataclasses.replace(method, **{self.knob: self.value(point[1])})
        return md.Tuned(method, 10 ** (point[0] / 2))

    def value(self, j: int) -> Any:
        """The knob's value at position j; beyond an end, the ladder goes on in the ratio of its last two values.

        If the method refuses 1, as a momentum is, the differences from 1 go on in their ratio above the ladder.
        """
        if 0 <= j < len(self.ladder):
            return self.ladder[j]
        end, before = (self.ladder[0], self.ladder[1]) if j < 0 else (self.ladder[-1], self.ladder[-2])
        steps = -j if j < 0 else j + 1 - len(self.ladder)
        if j > 0 and end < 1 and not self.takes(1.0):
            return 1 - (1 - end) * ((1 - end) / (1 - before)) ** steps
        return end * (end / before) ** steps

    def takes(self, value: Any) -> bool:
        """Whether the method takes this value of the knob."""
        try:
            dataclasses.replace(self.method, **{self.knob: value})
        except md.RecipeError:
            return False
        return True

    def has(self, j: int) -> bool:
        """Whether the knob has a value at position j: one of the ladder, or beyond it a further one for the method."""
        if 0 <= j < len(self.ladder):
            return True
        ends = self.ladder[:2] if j < 0 else self.ladder[-2:]
        if len(ends) < 2 or not all(is_number(v) and v > 0 for v in ends):
            return False
        return self.takes(self.value(j))


BOTH = ("rounds", "clock")
CLOCK = ("clock",)
STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
PULLS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

ENTRANTS: dict[str, Entrant] = {
    "FedAvg": Entrant(md.FedAvg(), groups=BOTH),
    "SCAFFOLD": Entrant(md.SCAFFOLD(), "server_lr", (0.3, 1.0, 2.0, 4.0), 1, groups=BOTH),
    "FedDyn": Entrant(md.FedDyn(), "alpha", PULLS, 4, groups=BOTH),
    "FedAvgM": Entrant(md.FedAvgM(), "beta", (0.3, 0.6, 0.8, 0.9, 0.95), 2, groups=BOTH),
    "FedAdam": Entrant(md.FedAdam(), "server_lr", STEPS, 1, groups=BOTH),
    "FedYogi": Entrant(md.FedYogi(), "server_lr", STEPS, 1),
    "FedAdagrad": Entrant(md.FedAdagrad(), "server_lr", STEPS, 2),
    "FedExP": Entrant(md.FedExP(), "eps", (1e-4, 1e-3, 1e-2, 1e-1), 1),
    "FedProx": Entrant(md.FedProx(), "mu", PULLS, 2),
    "FedNova": Entrant(md.FedNova(), "server_momentum", (0.0, 0.5, 0.8, 0.9), 0),
    "FedCM": Entrant(md.FedCM(), "alpha", (0.03, 0.1, 0.3, 0.6, 1.0), 1),
    "FedDC": Entrant(md.FedDC(), "alpha", PULLS, 2),
    "FedADMM": Entrant(md.FedADMM(), "prox", PULLS, 3),
    "AFedPD": Entrant(md.AFedPD(), "prox", PULLS, 4),
    "FedSpeed": Entrant(md.FedSpeed(), "prox", PULLS, 4),
    "FedSMOO": Entrant(md.FedSMOO(), "prox", PULLS, 4),
    "FedLESAM": Entrant(md.FedLESAM(), "rho", (0.0, 0.01, 0.03, 0.1, 0.3), 2),
    "FedGAMMA": Entrant(md.FedGAMMA(), "rho", (0.0, 0.01, 0.03, 0.1, 0.3), 3),
    "FedBuff": Entrant(md.FedBuff(), "server_lr", STEPS, 4, True, CLOCK),
    "FedAsync": Entrant(md.FedAsync(), "alpha", (0.1, 0.3, 0.6, 0.9, 1.0), 2, True, CLOCK),
    "CA2FL": Entrant(md.CA2FL(), "server_lr", STEPS, 4, True, CLOCK),
    "ACE": Entrant(md.ACE(), "server_lr", STEPS, 4, True, CLOCK),
    "ACED": Entrant(md.ACED(), "server_lr", STEPS, 4, True, CLOCK),
    "FedECADO": Entrant(md.FedECADO(), "L", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0), 2, groups=()),
    "FedNorton": Entrant(md.FedNorton(), groups=BOTH),
    "FedNorton async": Entrant(md.FedNorton(), asynchronous=True, groups=CLOCK),
}
ENTRANTS |= {
    f"{name} averaged": dataclasses.replace(ENTRANTS[name], method=control, groups=())
    for name, control in CONTROLS.items()
}
PARTS = ((1.0, 0.0, True), (2.0, 0.0, True), (2.0, 0.3, False), (2.0, 0.3, True), (2.0, 0.5, True), (4.0, 0.3, True))
ENTRANTS |= {
    # Rows of their own: a changed ladder would throw away the results of the rows above.
    "SCAFFOLD with step and momentum": Entrant(SteppedSCAFFOLD(), "parts", PARTS, 3, groups=()),
    "FedADMM share": Entrant(md.FedADMM(server_lr="share"), "prox", PULLS, 3, groups=()),
    "FedDyn from .01": Entrant(md.FedDyn(alpha=0.01), "alpha", PULLS, 2, groups=()),
    "MOON": Entrant(md.MOON(), "mu", (0.1, 0.3, 1.0, 5.0, 10.0), 2, groups=()),
    "SCAFFOLDM": Entrant(md.SCAFFOLDM(), "beta", (0.03, 0.1, 0.3, 0.6, 1.0), 1, groups=()),
}


def search(entrant: Entrant, judge: Callable[[Point], tuple[float, ...]], budget: int = BUDGET) -> Point:
    """The best point that the budget finds; ``judge`` gives its score, of which a larger one is better.

    The common grid of lr at the knob's start comes first. Then the neighbours of the best point are tried: lr below and
    above, the knob above and below. Where all of them are known, half steps of lr follow. If the best point lies at an
    edge once the budget is spent, the search goes on beyond that edge until it does not, by `BEYOND` runs at most.
    Of equal points the first stays.
    """
    scores: dict[Point, tuple[float, ...]] = {}
    for k in LRS[:budget]:
        scores[k, entrant.start] = judge((k, entrant.start))
    while True:
        best = max(scores, key=lambda p: scores[p])
        k, j = best
        near = [(k - 1, j), (k + 1, j), (k, j + 1), (k, j - 1), (k + 0.5, j), (k - 0.5, j)]
        left = [p for p in near if p not in scores and entrant.has(p[1])]
        if len(scores) >= budget:
            left = outside(entrant, best, list(scores))
        if not left or len(scores) >= budget + BEYOND:
            return best
        scores[left[0]] = judge(left[0])


def grid(entrant: Entrant, judge: Callable[[Point], tuple[float, ...]]) -> Point:
    """The best point of all lr of `GRID` with all values of the knob's ladder, however many runs it takes."""
    points = [(float(k), j) for k in GRID for j in range(len(entrant.ladder))]
    return max(points, key=judge)


def outside(entrant: Entrant, best: Point, tried: Sequence[Point]) -> list[Point]:
    """The neighbours of the best point in lr and in the knob that lie beyond all values tried of that setting."""
    k, j = best
    lrs = [lr for lr, _ in tried]
    knobs = [knob for _, knob in tried]
    points = [(k - 1, j)] * (k == min(lrs)) + [(k + 1, j)] * (k == max(lrs))
    points += [(k, j + 1)] * (j == max(knobs)) + [(k, j - 1)] * (j == min(knobs))
    return [p for p in points if entrant.has(p[1])]


def at_edge(entrant: Entrant, best: Point, tried: Sequence[Point]) -> list[str]:
    """The settings whose chosen value is the smallest or largest tried, where the method takes a further one."""
    beyond = outside(entrant, best, tried)
    return [name for name, at in (("lr", 0), (entrant.knob, 1)) if any(p[at] != best[at] for p in beyond)]
