"""The properties of a problem or a run that a method may need, each with its error message."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from .errors import RecipeError


class Need(StrEnum):
    """A property of a problem or a run. ``description`` completes "SHED needs ...", and names a remedy if there is one.

    Its value is its name in lower case, which you can use instead: ``Need("hessian") is Need.HESSIAN``.
    """

    description: str

    EVERYONE = "everyone", "every client in every round; leave participation= out"
    STREAM = "stream", "a stream of tasks: give Federation(stream=tasks.Split(tasks=5))"
    REPLAY = "replay", "a memory of past tasks: give Federation(stream=..., replay=replay.Ring(capacity=100))"
    CONVEX = "convex", "a convex problem: Logistic, Softmax or LeastSquares"
    QUADRATIC = "quadratic", "a quadratic problem: LeastSquares"
    HESSIAN = "hessian", "Hessians, which this problem hasn't got"
    FACTOR = "factor", "Hessians of the form AᵀA + δI: Logistic, Softmax or LeastSquares"
    FEATURES = "features", "a network whose last layer is linear and reads a vector for each row, or a linear model"
    BODY = "body", "a network with a linear layer at its end and layers below it, which make features of the rows"
    CLASSES = "classes", "labels in classes, one for each row"
    TARGETS = "targets", "classes or values, fitted row by row: a linear model, or a Network on cross_entropy or mse"
    ROWS = (
        "rows",
        "a loss that is the mean of its rows' losses; this one couples rows, as Cox's, losses of pairs and contrastive "
        "ones do, or cannot be had of one row alone",
    )

    TREES = "trees", "a forest, problems.Trees"
    NETWORK = "network", "a Network"
    ADAPTERS = (
        "adapters",
        "a Network with LoRA adapters whose layers' own weights are trained, and not shared with another layer: "
        "base_layer.weight.requires_grad_(True)",
    )
    WEIGHTS = "weights", "weights of rows: a linear model, or a Network whose own loss returns one number a row"
    NOISE = "noise", "a network that draws random numbers, as dropout does"
    UNIFORM = "uniform", "the same weight for every client: give Federation(weights='uniform')"
    SAMPLING = (
        "sampling",
        "a participation that privacy accounting knows: Everyone, Bernoulli, an unweighted Fraction, or Cyclic",
    )

    FIXED = (
        "fixed",
        "the same clients from the first round to the last, since its state on the server sums over them; leave "
        "membership= out",
    )

    INDEPENDENT = (
        "independent",
        "replies that are read whatever the other clients do: leave replies= and quorum= of ReplyPolicy out",
    )

    PROMPT = "prompt", "every reply within its own exchange; leave replies= and deadline= of ReplyPolicy out"

    SGD = (
        "sgd",
        "SGD at the clients, with or without momentum, since time is Σ lr; leave optimizer= of Pace out",
    )

    SHARES = "shares", "secure sums, to which clients add their noise: give run(secure=md.SecureSum())"

    REPLIES = "replies", "replies one by one, and a secure run gives the server their sums only: leave secure= out"

    def __new__(cls, word: str, description: str = "") -> Need:
        """A member."""
        need = str.__new__(cls, word)
        need._value_ = word
        need.description = description
        return need

    @classmethod
    def _missing_(cls, value: object) -> Need:
        raise RecipeError.unknown(str(value), [need.value for need in cls], "needs")


def needs_of(words: Iterable[str]) -> frozenset[Need]:
    """The needs with these names. Raises RecipeError for an unknown name, with the most similar one."""
    return frozenset(Need(word) for word in words)


__all__ = ["Need", "needs_of"]
