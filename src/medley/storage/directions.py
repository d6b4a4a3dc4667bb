"""Directions of figures: whether larger or smaller is better."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from ..contract.errors import RecipeError

Direction = Literal["higher", "lower", "unknown"]

DECLARED: Mapping[object, Direction] = {"max": "higher", "min": "lower"}
"""The words that declare a metric's direction."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WORDS: Mapping[Direction, frozenset[str]] = {
    "higher": _words(
        "accuracy acc recall precision sensitivity specificity auc auroc auprc aucpr ap map f1 f2 fbeta r2 mcc kappa "
        "iou jaccard dice ndcg mrr bleu rouge hit hits concordance cindex likelihood"
    ),
    "lower": _words(
        "loss losses logloss error errors mae mse rmse mape smape nll perplexity brier ece deviance distance distances "
        "hausdorff gap gaps norm norms regret cost wer cer eer fpr fnr bce spread std"
    ),
}
"""Whole words in the names of known metrics, by direction."""

COSTS = ("seconds", "bytes", "bytes_down", "bytes_up", "exchanges")
"""Costs that a target may bound; "bytes" is up and down together, and seconds are of the virtual clock."""

DOUBT = _words(
    "negative minus not no non anti inverse drop loses lost lack missed difference disparity decline decrease change "
    "reduction delta improvement gained avoided saved corrected closed"
)
"""Words that may turn the direction of the word next to them."""

HIGHER = _words("learn took_part")

LOWER = _words(
    "grad_norm fgt attack_success epsilon rounds exchanges seconds wall bytes_down bytes_up lost late evaluations "
    "rounds_to_target exchanges_to_target bytes_to_target seconds_to_target"
)
"""Medley's own figures that no word of `WORDS` covers."""

F = TypeVar("F", bound=Callable[..., Any])


def lower_is_better(f: F) -> F:
    """Decorator that marks a metric as better when lower; ``metrics={"bias": (bias, "min")}`` does the same."""
    f.lower_is_better = True  # type: ignore[attr-defined]
    return f


def by_name(name: str) -> Direction:
    """The direction of a metric by the whole words of its name: "recall_abnormal" is higher, "abnormality" unknown.

    A leading "neg", as in scikit-learn's neg_log_loss, and a trailing "free", as in error_free, turn a loss. If a name
    has words of both directions, or of `DOUBT`, it stays unknown.
    """
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", name)]
    decisive = WORDS["higher"] | WORDS["lower"]
    words = [w if w in decisive else w.rstrip("0123456789") for w in words]
    negated = words[:1] == ["neg"]
    directions: set[Direction] = {"unknown"} if DOUBT & {*words} else set()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in WORDS["higher"]:
            directions.add("unknown" if negated else "higher")
        elif word in WORDS["lower"]:
            directions.add("higher" if negated or after == "free" else "lower")
    return directions.pop() if len(directions) == 1 else "unknown"


def direction(name: str, metric: object) -> Direction:
    """The direction of a user's metric: as declared by a pair or by `lower_is_better`, otherwise by its name."""
    f, declared = metric if isinstance(metric, tuple) else (metric, None)
    marked = "lower" if getattr(f, "lower_is_better", False) else by_name(name)
    return DECLARED.get(declared, marked)


def directions_of(metrics: Mapping[str, object] | None) -> dict[str, str]:
    """The direction of each of a run's metrics, by name: "higher", "lower" or "unknown"."""
    return {name: direction(name, f) for name, f in (metrics or {}).items()}


def higher_is_better(metric: str, metrics: Mapping[str, str] | None = None) -> bool:
    """True for accuracies, False for losses, forgetting, spreads and costs.

    Args:
        metrics: directions of a user's metrics by name, as in a run's settings; default none

    Raises RecipeError if neither a declaration nor the name decides it.
    """
    better = (metrics or {}).get(metric)
    if better is None:
        lower = metric in LOWER or metric.endswith("_spread")
        better = "higher" if metric in HIGHER else "lower" if lower else by_name(metric)
    if better == "unknown":
        raise RecipeError(
            f"is a larger or a smaller {metric!r} better? The name does not say: pass metrics={{{metric!r}: "
            f"(f, 'max')}} or (f, 'min'); for a finished run, set result.settings['metrics'][{metric!r}] = "
            "'higher' or 'lower'",
            "metrics",
        )
    return better == "higher"
