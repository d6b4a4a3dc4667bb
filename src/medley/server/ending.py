"""How a run ends: at its target, after its last round, or as diverged, if the loss grew or the accuracy fell back."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from ..contract import BadData, Diverged, PartlyShared, Problem, RecipeError, Stalled, Unsupported
from ..contract.errors import BudgetSpent, MemoryLost
from ..storage.directions import COSTS
from ..storage.history import Row
from ..storage.result import Status
from .options import RunOptions

log = logging.getLogger("medley")

LASTING = (RecipeError, BadData, Unsupported, BudgetSpent, MemoryLost)
"""Errors that a run raises again when it starts again, until somebody changes its recipe, rows, budget or memories."""

LAST = 3
"""The number of last rows that must agree that a run diverged, because one bad evaluation does not show it."""

SMALLER = "try a smaller lr"
"""The usual advice for a run that diverges."""

BEFORE = "look at the loss, the rows, and the weights that the run starts from"
"""The advice if no step was taken."""

FAR = 3.0
"""A loss is far above its start if it is more than FAR − 1 scales above it. The scale is |start|, or start − best if
that is larger."""

BEYOND = 1000.0
"""Replaces FAR if the history has at most LAST rows; then only the last row counts. The scale is then at least 1,
because any loss would be far above a start at a minimum."""

WILD = 10.0
"""A gain in accuracy can excuse a loss that is far above its start. If the loss is at most WILD − 1 scales above, a
gain of LOST of what the accuracy lacked at its start is enough; otherwise the run must have learnt."""

HUGE = 1e6
"""A last loss above HUGE times its start is a divergence, whatever accuracy, tasks or clients' own parts there are."""

SMALL = 1e-3
"""The least start that HUGE multiplies: a run may start at a minimum of 0."""

KEPT = 0.5
"""If a loss still has this share of its fall at the end, the run has converged, whatever its accuracy."""

LEARNT = 0.2
"""A run has learnt if it gained at least this share of the accuracy that it lacked at its start."""

LOST = 0.05
"""A run has lost everything if at most this share of that gain is left."""


def judged(
    history: Sequence[Row],
    problem: Problem | None = None,
    remedy: Callable[[str], str] = str,
    options: RunOptions | None = None,
) -> Status:
    """The status of a run that made all its rounds: "finished", or "diverged" with a sentence.

    Logs a warning if a figure that ``options`` aim at was nan throughout.

    Args:
        history: the evaluated rows, the first of them at x₀
        problem: the problem; if it is partly shared, the history's model lacks the clients' own parts, and shows no
            divergence
        remedy: turns an advice into the remedy; default: leaves it as it is
    """
    why = exploded(history) or ("" if isinstance(problem, PartlyShared) else diverged(history))
    if why:
        return Status("diverged", f"{why}; {remedy(SMALLER)}")
    nothing = undefined(history, [] if options is None else options.aims)
    if nothing:
        log.warning("run: %s", nothing)
    return Status("finished", nothing)


def judged_by(e: Diverged, begun: bool, remedy: Callable[[str], str] = str) -> Status:
    """The status of a run that ended with this error; adds the remedy if the error has none.

    Args:
        begun: whether the first model has been evaluated
        remedy: turns an advice into the remedy; default: leaves it as it is
    """
    sentence = f"{e}; {remedy(SMALLER if begun else BEFORE)}" if e.unexplained else str(e)
    return Status("stalled" if isinstance(e, Stalled) else "diverged", sentence)


def check_loss(loss: float, round: int, begun: bool) -> None:
    """Raise Diverged for a loss that is not finite; ``begun`` says whether the first model has been evaluated."""
    if not math.isfinite(loss):
        when = f"after round {round}: the run diverges" if begun else "at the start, before any step"
        raise Diverged(f"the loss is {loss} {when}", unexplained=True)


def exploded(history: Sequence[Row]) -> str:
    """The sentence that says that the last loss is a million times the first; empty if it is not."""
    loss = [row["loss"] for row in history if "loss" in row]
    if not loss or abs(loss[-1]) <= HUGE * max(abs(loss[0]), SMALL):
        return ""
    return f"the loss ends at {loss[-1]:.4g}, and began at {loss[0]:.4g}: the run diverges"


def diverged(history: Sequence[Row]) -> str:
    """The sentence that says how a run with finite numbers diverged; empty if it did not.

    - The loss ends far above its start, and the accuracy, if there is one, ends hardly better than at its start. If the
      loss is higher still, it is enough that the accuracy has not learnt.
    - The run had learnt, but its accuracy ends where it started (at chance, if the first model was drawn), and the loss
      has lost half of its fall. If the loss has kept half, the accuracy is only the share of the larger class, and the
      run has not diverged.

    Far above means three times the start in each of the last three rows. In a history of three rows or fewer it means a
    thousand times the start, and at least a thousand, in the last row. Accuracy alone does not decide in so short a
    history.

    A stream of tasks is not judged, because a model may rightly lose accuracy on an old task.
    """
    if any("task" in row for row in history):
        return ""
    accuracy, loss = ([row[key] for row in history if key in row] for key in ("accuracy", "loss"))
    first, best, end = _range(accuracy, max)
    start, lowest, least = _range(loss, min)
    fallen = lowest < start and max(loss[-LAST:]) <= start - KEPT * (start - lowest)
    if (
        len(accuracy) > LAST
        and not fallen
        and best - first >= LEARNT * (1 - first) > 0
        and end <= first + LOST * (best - first)
    ):
        return (
            f"the accuracy fell to {accuracy[-1]:.3g} after it had been {best:.3g}; it was {first:.3g} at the start: "
            "the run diverges"
        )
    scale = max(abs(start), start - lowest)
    far = FAR
    if scale > 0 and len(loss) <= LAST:
        scale = max(scale, 1.0)
        far = BEYOND
    excused = LOST if least <= start + (WILD - 1) * scale else LEARNT
    if scale > 0 and least > start + (far - 1) * scale and not end - first > excused * (1 - first):
        return f"the loss ends at {loss[-1]:.4g}, and began at {start:.4g}: the run diverges"
    return ""


def exhausted(history: Sequence[Row], best: str, since: int, patience: int | None) -> str:
    """The sentence that says that patience ran out; empty if it did not, or if there is none.

    Args:
        best: the figure
        since: the round of the best evaluation
        patience: the number of evaluations without a better one that ends the run; None for no limit
    """
    worse = sum(row["round"] > since for row in history)
    if patience is None or worse < patience:
        return ""
    return f"{best} was best in round {since}, and no better in {worse} evaluations since"


def undefined(history: Sequence[Row], aims: Sequence[tuple[str, str]]) -> str:
    """The sentence that says that a figure of ``target`` or ``best`` was never a finite number; empty if each was.

    Args:
        aims: the figures, each as (setting, figure)
    """
    for setting, name in aims:
        values = [row[name] for row in history if name in row]
        if values and not any(map(math.isfinite, values)):
            was = "nan" if all(map(math.isnan, values)) else "not finite"
            so = "the model is the last round's" if setting == "best" else "the run could not reach its target"
            return f"{name} was {was} at all {len(values)} evaluations, so {so}; choose a figure that these rows have"
    return ""


def _range(values: Sequence[float], best: object) -> tuple[float, float, float]:
    """The first value, the best, and the best of the last LAST; of at most LAST values, the last. All nan if none."""
    if not values:
        return math.nan, math.nan, math.nan
    pick = max if best is max else min
    return values[0], pick(values), pick(values[-LAST if len(values) > LAST else -1 :])


def reached(history: Sequence[Row], target: Mapping[str, float], at_least: Collection[str], over: int) -> str:
    """The sentence that says which target was reached; empty if none was.

    Args:
        target: the figures that end a run, and the most of a cost
        at_least: the figures that must reach at least their value; the others must reach at most theirs
        over: the number of last evaluations whose mean counts
    """
    last = history[-over:]
    for key, goal in target.items():
        if key in COSTS:
            row = history[-1] if history else {}
            spent = row.get(key, row.get("bytes_down", 0.0) + row.get("bytes_up", 0.0) if key == "bytes" else 0.0)
            if spent >= goal:
                return f"{key} {spent:.6g} reached the limit {goal:g} of target in round {int(row['round'])}"
            continue
        value = sum(row.get(key, math.nan) for row in last) / over if len(last) == over else math.nan
        if (value >= goal) if key in at_least else (value <= goal):
            mean = "" if over == 1 else f", the mean of the last {over} evaluations,"
            return f"{key}{mean} {value:.6g} reached the target {goal:g} in round {int(last[-1]['round'])}"
    return ""
