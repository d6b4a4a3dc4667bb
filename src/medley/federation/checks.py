"""Checks of arguments."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ..contract import Algorithm, BadData, Family, Place, Problem, RecipeError, Unsupported
from ..datasets import Dataset
from ..datasets.readers.folders import refuse_parts
from ..privacy.private import private_part
from ..problems import Logistic, Network, Softmax
from ..problems.network.own_loss import called
from ..rows.numbers import kind_of_text
from ..scenarios import ByKey, Partition
from ..secure import SecureSum
from ..server.reply_policy import ReplyPolicy
from ..wire.codec import Codec, Plain
from .labels import fits

log = logging.getLogger("medley")


def expect(value: object, kind: Any, where: str, example: str, key: str, wanted: bool = False) -> None:
    """Raise RecipeError unless ``value`` is of this kind. The usual mistake is a class instead of an instance.

    Args:
        kind: the class, union or protocol that it must be an instance of
        where: the call and the argument, for the message
        example: a correct expression, for the message
        key: the argument's name, the error's ``key``
        wanted: False lets None pass
    """
    if (value is not None or wanted) and (isinstance(value, type) or not isinstance(value, kind)):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise RecipeError(f"{where} is {what}; give an object such as {example}", key)


def check_sources(data: Dataset | None, clients: object, partition: Partition | None) -> None:
    """Raise RecipeError unless either data with a partition, or clients are given."""
    if (data is None) == (clients is None):
        raise RecipeError("Federation: give either data= with partition=, or clients=[(X, y), ...]", "data")
    if data is not None and partition is None and data.keys:
        key = next(iter(data.keys))
        raise RecipeError(
            "Federation(data=...): pass partition= to divide the rows among clients; the data set has "
            f"{' and '.join(data.keys)}, so "
            f"scenarios.ByKey({key!r}) makes each {key} a client",
            "partition",
        )
    if data is not None and partition is None:
        raise RecipeError(
            "Federation(data=...): pass partition= to divide the rows among clients, e.g. "
            "scenarios.Dirichlet(clients=100, "
            "alpha=0.1)",
            "partition",
        )
    if clients is not None and partition is not None:
        raise RecipeError("Federation(clients=...): they already hold their data; leave partition= out", "partition")


def check_labels(problem: Family, data: Dataset, sizes: list[int] | None = None) -> None:
    """Raise BadData, with the remedy, for targets that do not fit the problem.

    These are: values for a classification problem; class numbers for a regression problem; and more than two text
        labels for a problem of two classes. With ``sizes``, the rows of each client, the error names the client if only
        it has the rarest label.

    Logs a warning for labels that differ only in capitals or in spaces at their ends.
    """
    _check_task(problem, data)
    spelt = [str(label).strip().casefold() for label in data.labels]
    times = Counter(spelt)
    if odd := [label for label, s in zip(data.labels, spelt, strict=True) if times[s] > 1][:8]:
        shown = ", ".join(map(repr, odd))
        log.warning("the labels %s are different classes; if two are spellings of one, correct them in the data", shown)
    if not isinstance(problem, Logistic) or len(data.labels) <= 2:
        return
    counts = torch.bincount(data.y[data.y >= 0], minlength=len(data.labels)).tolist()
    said = [f"{label!r} ({count:,} rows)" for label, count in zip(data.labels, counts, strict=True)]
    more = f" and {len(said) - 8} more" if len(said) > 8 else ""
    e = BadData(
        f"Logistic has two classes, and {data.name} has {len(said)} labels: {', '.join(said[:8])}{more}; correct a "
        "misspelt label, or use problems.Softmax"
    )
    rows = (data.y == counts.index(min(counts))).nonzero()[:, 0].tolist()
    held = set() if sizes is None else {*np.repeat(np.arange(len(sizes)), sizes)[rows]}
    if sizes is None or len(held) != 1:
        raise e
    client = int(next(iter(held)))
    raise e.at(Place.of(client).at(rows[0] - sum(sizes[:client]), "y"))


def _check_task(problem: Family, data: Dataset) -> None:
    name, y, labels = type(problem).__name__, data.y, data.labels
    loss = problem.loss if isinstance(problem, Network) else None
    values = fits(problem, len(labels)) == "values"
    many = len(labels) or data.classes or 0
    if values and ((not labels and many > 2) or not all(map(_is_number, labels, range(many)))):
        shown = labels or range(many)
        special = kind_of_text(str(labels[0])) if labels else ""
        raise BadData(
            f"{name if loss is None else called(loss)} fits values, but the targets of {data.name} are the classes "
            f"{', '.join(map(repr, shown[:4]))}{', …' if many > 4 else ''}; give "
            f"{'Logistic or Softmax' if loss is None else 'a loss of classes'}, or numbers, "
            f"y.astype('float64'){f'; {labels[0]!r} {special}' if special else ''}"
        )
    classes = isinstance(problem, Logistic | Softmax) or getattr(problem, "loss", None) == "cross_entropy"
    if not classes or data.classes is not None or not y.is_floating_point() or not len(y):
        return
    if isinstance(problem, Logistic) and not (y != y.round()).any():
        return  # 0 and 1, or −1 and 1
    remedy = "Network(loss='mse')" if isinstance(problem, Network) else "LeastSquares"
    raise BadData(
        f"{name} needs classes, but the targets of {data.name} are values such as {y.flatten()[0].item():g}; give "
        f"{remedy}, or read classes without regression=True, as whole numbers or text"
    )


def _is_number(label: Any, k: int) -> bool:
    """Whether a label, such as "2" or "2.0", is the number k that stands for it."""
    try:
        return float(label) == k
    except ValueError:
        return False


def check_names(data: Dataset, partition: object, names: Sequence[str]) -> None:
    """Log a warning about values of a partition's key that have test rows but no training rows, and so are no client.

    Raises BadData for names of the parts of one data set.
    """
    refuse_parts(names, "Federation: the clients are called {}")
    if not isinstance(partition, ByKey) or not {partition.key} <= data.keys.keys() & data.test_keys.keys():
        return
    key = partition.key
    lost = sorted({str(v) for v in data.test_keys[key]} - {str(v) for v in data.keys[key]})
    if lost:
        names = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        log.warning(
            "%s: %s of %r %s test rows but no training rows, and %s; Dataset.split(by=%r) leaves each of them some",
            *(data.name, names, key, *(("has", "is no client") if len(lost) == 1 else ("have", "are no clients")), key),
        )


def check_secure(
    secure: SecureSum,
    algorithm: Algorithm[Any, Any],
    problem: Problem,
    how: tuple[Codec | None, ReplyPolicy | None],
    cohort: int,
    attacked: bool,
) -> None:
    """Raise an error, before the first round, for a secure run that cannot work.

    Args:
        how: the run's codec and reply policy
        cohort: number of clients of the first round
        attacked: whether some clients are Byzantine
    """
    codec, policy = how
    if codec is not None and not isinstance(getattr(codec, "up", codec), Plain):
        raise RecipeError(
            f"run(secure=..., codec={codec!r}): replies are masked numbers, which no codec can shorten; leave "
            "codec= out, or give TwoWay with a codec of requests only: TwoWay(up=Plain(), down=...)",
            "codec",
        )
    if policy is not None and (policy.deadline is not None or policy.replies is not None or policy.retries):
        raise RecipeError(
            f"run(secure=..., reply_policy={policy!r}): a secure sum includes each client that replies, exactly "
            "once; leave deadline=, replies= and retries= out. quorum= and faulty= are fine",
            "reply_policy",
        )
    if attacked:
        raise RecipeError(
            "run(secure=...): this federation's attacks change single replies, which a secure sum hides; leave "
            "attack= or secure= out",
            "secure",
        )
    if problem.buffers() is not None:
        raise Unsupported(
            f"{algorithm.name}: this network has buffers, such as BatchNorm's, which clients send without a "
            "mask, so they would reveal single clients; use GroupNorm, or leave secure= out",
            method=algorithm.name,
            need="sums",
        )
    if cohort:
        secure.degree(cohort)
        secure.needed(cohort)


def check_seed(algorithm: Algorithm[Any, Any], seed: int, remote: bool) -> None:
    """Warn, once per process, if a private run's noise follows from a seed that can be guessed."""
    private = private_part(algorithm)
    if private is None or private.noise == 0 or abs(seed) >= 1 << 64:
        return
    if not remote or (private.unit, private.noise_at) == ("client", "server"):
        warn_of_seed()


@cache
def warn_of_seed() -> None:
    """Warn once per process that noise is only as secret as its seed."""
    log.warning(
        "the noise of a private run follows from its seed, so anyone who guesses the seed can remove the noise. In a "
        "simulation that is fine. For a model that you give to others, pass seed=secrets.randbits(128) (run.seed in a "
        "recipe), use a new one for each run, and keep it secret"
    )
