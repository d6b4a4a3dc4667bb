"""Conditions in which the runs of one table differ, other than methods and seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..storage.result import Result
from .numbers import last_round

FEDERATION = (
    "data", "partition", "stream", "replay", "problem", "module", "pace", "participation", "devices", "weights",
    "validation", "attack", "membership", "evaluate_on",
)  # fmt: skip
"""Settings that distinguish one federation from another."""

LONGEST = 60
"""The longest value of a setting that is shown, in characters."""


def differing(results: Sequence[Result]) -> str:
    """A sentence on federations and numbers of rounds that differ between runs; empty if they do not.

    If the data differ only between seeds, each seed has its own split, and that is not reported as a difference. Rounds
    are compared only over runs that made all of theirs: a target, a budget or a divergence ends a run early.
    """
    recorded = [r for r in results if "data" in r.settings]
    parts = [f"{key}{_shown(recorded, key)}" for key in FEDERATION if _differs(recorded, key)]
    reasons = [f"different federations ({'; '.join(parts)})"] if parts else []
    rounds = sorted({last_round(r) for r in results if r.status.outcome == "finished" and r.history})
    if len(rounds) > 1:
        listed = " and ".join(map(str, rounds)) if len(rounds) < 4 else f"{rounds[0]} to {rounds[-1]}"
        reasons.append(f"different numbers of rounds ({listed})")
    if not reasons:
        return ""
    return f"Not one comparison: the runs are of {' and of '.join(reasons)}, so not only the methods differ."


def _differs(results: Sequence[Result], key: str) -> bool:
    if key != "data":
        return len({_text(r, key) for r in results}) > 1
    seeds = {r.seed for r in results}
    same_seed = any(len({str(r.settings["data"]) for r in results if r.seed == seed}) > 1 for seed in seeds)
    return same_seed or len({_text(r, "data").split(" ")[0] for r in results}) > 1


def _text(r: Result, key: str) -> str:
    return str(r.settings.get(key))


def _shown(results: Sequence[Result], key: str) -> str:
    """A colon and the parts of a setting that differ; empty if they are long."""
    values = list(dict.fromkeys(_text(r, key) for r in results))
    split: Callable[[str], list[str]] = lambda v: [w for w in re.split(r"[(), ]+", v) if w]
    if key == "data":  # its shape and its digest say little
        split = lambda v: v.split(" ")[:1]
    common = set.intersection(*(set(split(v)) for v in values))
    texts = list(dict.fromkeys(" ".join(w for w in split(v) if w not in common) or "default" for v in values))
    text = " or ".join("none" if v == "None" else v for v in texts)
    return f": {text}" if len(texts) > 1 and len(text) <= LONGEST else ""
