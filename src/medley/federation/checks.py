"""Checks of arguments."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from ..codecs import Quantise, TopK
from ..contract import Algorithm, BadData, Family, Need, Place, Problem, RecipeError, Unsupported, integer
from ..contract.text import unquoted
from ..datasets import Dataset
from ..datasets.ingest.keys import refuse_parts
from ..datasets.ingest.spelling import look_alike
from ..distributions import is_number
from ..partitions import ByKey, Partition
from ..privacy.private import private_part
from ..problems import Logistic, Network, Softmax
from ..problems.network.own_loss import called
from ..rows.numbers import MISSING, kind_of_text
from ..rows.numbers import is_number as is_number_text
from ..runtime.field_words import elsewhere
from ..secure import SecureSum
from ..server.reply_policy import ReplyPolicy
from ..wire.codec import Codec, Plain
from ..wire.connection import RealTime
from .labels import fits

log = logging.getLogger("medley")

MANY_NAMES = 100_000
"""Spellings of more clients' names than this are not compared."""


def expect(value: object, kind: Any, where: str, example: str, key: str, required: bool = False) -> None:
    """Raise RecipeError unless ``value`` is of this kind. The usual mistake is a class instead of an instance.

    Args:
        kind: the class, union or protocol that it must be an instance of
        where: the call and the argument, for the message
        example: a correct expression, for the message
        key: the argument's name, the error's ``key``
        required: False lets None pass
    """
    if (value is not None or required) and (isinstance(value, type) or not isinstance(value, kind)):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        hint = elsewhere(value) if isinstance(value, str) else ""
        raise RecipeError(f"{where} is {what}; give an object such as {example}{'.' if hint else ''}{hint}", key)


def check_sources(data: Dataset | None, clients: object, partition: Partition | None) -> None:
    """Raise RecipeError unless either data with a partition, or clients are given."""
    if (data is None) == (clients is None):
        raise RecipeError("Federation: give either data= with partition=, or clients=[(X, y), ...]", "data")
    if data is not None and partition is None and data.keys:
        key = next(iter(data.keys))
        raise RecipeError(
            "Federation(data=...): pass partition= to divide the rows among clients; the data set has "
            f"{' and '.join(data.keys)}, so "
            f"partitions.ByKey({key!r}) makes each {key} a client",
            "partition",
        )
    if data is not None and partition is None:
        raise RecipeError(
            "Federation(data=...): pass partition= to divide the rows among clients, e.g. "
            "partitions.Dirichlet(clients=100, "
            "alpha=0.1)",
            "partition",
        )
    if clients is not None and partition is not None:
        raise RecipeError("Federation(clients=...): they already hold their data; leave partition= out", "partition")


def checked_number(problem: Family, validation: object, classes: object, own_test: object) -> int | None:
    """``classes`` as a Python int. Raises RecipeError for an invalid share, number or switch."""
    if not isinstance(own_test, bool | None):
        raise RecipeError(f"Federation(own_test={own_test!r}): must be True or False, or None", "own_test")
    if not is_number(validation) or not 0 <= validation < 1:  # type: ignore[operator]
        raise RecipeError(
            f"Federation(validation={validation!r}): must be a share in [0, 1){unquoted(validation)}", "validation"
        )
    number = integer(classes)
    if classes is not None and (number is None or not 2 <= number < 2**31):
        remedy = f"must be a whole number, at least 2{unquoted(classes)}"
        raise RecipeError(f"Federation(classes={classes!r}): {remedy}", "classes")
    if number is not None and fits(problem) == "values":
        name = called(problem.loss) if isinstance(problem, Network) else type(problem).__name__
        raise RecipeError(f"Federation(classes={number}): {name} fits values, not classes; leave it out", "classes")
    if isinstance(problem, Logistic) and number not in (None, 2):
        raise RecipeError(f"Federation(classes={number}): Logistic has two; leave it out, or use Softmax", "classes")
    return number


def check_labels(problem: Family, data: Dataset, place_of: Callable[[int], Place]) -> None:
    """Raise BadData, with the remedy, for targets that do not fit the problem.

    These are: values for a classification problem; class numbers for a regression problem; and more than two labels for
    a problem of two classes. The error names the client if only it has the rarest label.

    Args:
        place_of: the place of a training row, by its number among all
    """
    _check_task(problem, data)
    _warn_of_spellings(data, place_of)
    if data.inferred:
        _warn_of_gaps(data.labels)
    _warn_of_unseen(data)
    _warn_of_missing(data)
    labels = data.labels or tuple(range(data.classes or 0))
    if not isinstance(problem, Logistic) or len(labels) <= 2 or data.y.ndim > 1:
        return
    counts = torch.bincount(data.y[data.y >= 0], minlength=len(labels)).tolist()
    shown = [f"{label!r} ({count:,} rows)" for label, count in zip(labels, counts, strict=True)]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    e = BadData(
        f"Logistic has two classes, and {data.name} has {len(shown)} labels: {', '.join(shown[:8])}{more}; correct a "
        "misspelt label, or use problems.Softmax"
    )
    rarest = counts.index(min(counts))
    rows = (data.y == rarest).nonzero()[:, 0].tolist()
    ends = [place_of(row) for row in (*rows[:1], *rows[-1:])]  # each client's rows stand together
    if not ends and data.y_test is not None and (tests := (data.y_test == rarest).nonzero()[:1, 0].tolist()):
        raise e.at(Place(data.name, "test").at(tests[0], "y"))
    raise e.at(ends[0].at(ends[0].row, "y")) if ends and ends[0].client == ends[1].client is not None else e


def _warn_of_spellings(data: Dataset, place_of: Callable[[int], Place]) -> None:
    """Log a warning for labels that differ in capitals only, in what nobody sees, or as texts of one number."""
    labels = [label for label in data.labels if isinstance(label, str)]
    spelt = [float(label) if is_number_text(label) else label.casefold() for label in labels]
    times = Counter(spelt)
    odd = [label for label, spelling in zip(labels, spelt, strict=True) if times[spelling] > 1][:8]
    if odd:
        shown = ", ".join(map(repr, odd))
        log.warning("the labels %s are different classes; if two are spellings of one, correct them in the data", shown)
    for group in look_alike(labels):
        where = []
        for label in group:
            rows = (data.y == data.labels.index(label)).reshape(len(data.y), -1).any(1).nonzero()[:1, 0].tolist()
            where.append(f"{label!a} ({place_of(rows[0]) if rows else 'test rows'})")
        log.warning(
            "the labels %s look alike, as %r, and are different classes; if they are one, write them alike",
            " and ".join(where),
            group[0],
        )


@cache
def _warn_of_gaps(labels: tuple[Any, ...]) -> None:
    """Log a warning, once in a process, that numbers with gaps between them get numbers of classes."""
    numbers = [label for label in labels if type(label) is int]
    if len(numbers) < 2 or labels == (-1, 1) or numbers[-1] - numbers[0] < len(numbers):
        return
    more = ", …" if numbers[8:] else ""
    log.warning(
        "the labels %s are numbered %s in their order; pass classes= if labels are numbers of classes already",
        ", ".join(map(str, numbers[:8])) + more,
        ", ".join(map(str, range(min(8, len(numbers))))) + more,
    )


def _warn_of_unseen(data: Dataset) -> None:
    """Log a warning for labels that test rows have and no training row has."""
    if (
        data.y_test is None
        or data.classes is None
        or data.y.ndim > 1
        or min(map(int, (data.y.min(), data.y_test.min()))) < 0
    ):
        return
    counts, tested = (torch.bincount(y, minlength=data.classes) for y in (data.y, data.y_test))
    unseen = ((counts == 0) & (tested > 0)).nonzero()[:, 0].tolist()
    if unseen:
        shown = ", ".join(repr(data.labels[k] if data.labels else k) for k in unseen[:8]) + (
            ", …" if unseen[8:] else ""
        )
        log.warning("%s: the test rows have the labels %s, which no training row has", data.name, shown)


def _warn_of_missing(data: Dataset) -> None:
    """Log a warning for a label that looks like a missing one, and if all look like dates or numbers."""
    labels = data.labels
    odd = [kind_of_text(label) if isinstance(label, str) else "" for label in labels]
    if labels and all(odd) and "unit" not in odd[0]:  # "3a" may well be a class
        log.warning("%s: the labels are taken for classes, but %r %s", data.name, labels[0], odd[0])
    for k, label in enumerate(labels):
        if isinstance(label, str) and label.lower() in MISSING and not (label == "-" and "+" in labels):
            count = sum(int((y == k).sum()) for y in (data.y, data.y_test) if y is not None)
            log.warning(
                "%s: the label %r is taken for a class (its rows: %d); drop them if their label is missing",
                data.name,
                label,
                count,
            )


def _check_task(problem: Family, data: Dataset) -> None:
    name = type(problem).__name__
    y = data.y
    labels = data.labels
    loss = problem.loss if isinstance(problem, Network) else None
    values = fits(problem, len(labels)) == "values"
    many = len(labels) or data.classes or 0
    if values and ((not labels and many > 2) or not all(map(_is_number, labels, range(many)))):
        shown = labels or range(many)
        special = kind_of_text(str(labels[0])) if labels else ""
        raise BadData(
            f"{name if loss is None else called(loss)} fits values, but the targets of {data.name} are the classes "
            f"{', '.join(map(repr, shown[:4]))}{', …' if many > 4 else ''}; give "
            f"{'Logistic or Softmax' if loss is None else 'a loss of classes'}, or numbers, y.astype('float64') or a "
            f"reader's regression=True{f'; {labels[0]!r} {special}' if special else ''}"
        )
    classes = isinstance(problem, Logistic | Softmax) or getattr(problem, "loss", None) == "cross_entropy"
    if not classes or data.classes is not None or not y.is_floating_point() or not len(y):
        return
    if isinstance(problem, Logistic) and not (y != y.round()).any():
        return  # 0 and 1, or −1 and 1
    remedy = "Network(loss='mse')" if isinstance(problem, Network) else "LeastSquares"
    first = y[y != y.round()][:1].tolist() or y.flatten()[:1].tolist()
    raise BadData(
        f"{name} needs classes, but the targets of {data.name} are values such as {first[0]:g}; give "
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
    if len(names) <= MANY_NAMES:
        for group in look_alike(names, case=False):
            shown = " and ".join(map(ascii, group))
            log.warning("the clients %s look alike, as %r; if they are one, write its name alike", shown, group[0])
        missing = [name for name in names if name.lower() in MISSING]
        if missing:
            log.warning(
                "%r is taken for a client's name; drop its rows if it says that their client is not known", missing[0]
            )
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


def check_codec(codec: Codec | None, algorithm: Algorithm[Any, Any]) -> None:
    """Raise Unsupported for a codec that leaves out small entries of the equations that the method solves."""
    replies = getattr(codec, "up", codec)
    inner = getattr(replies, "inner", replies)
    if algorithm.solves_sums and isinstance(inner, TopK | Quantise):
        raise Unsupported(
            f"run(codec={codec!r}): {algorithm.name} solves equations from the sums of its replies, and "
            f"{type(inner).__name__} loses their small entries; leave codec= out, or give codecs.Cast('float32'), "
            "which halves the bytes",
            method=algorithm.name,
            need="codec",
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
    if policy is not None and policy.clock == "wall":
        raise RecipeError(
            f"run(secure=..., reply_policy={policy!r}): a secure sum has no late replies; leave clock= out",
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


def check_choice(algorithm: Algorithm[Any, Any], best: str | None) -> None:
    """Raise Unsupported if the figures of private rows would choose among the rounds of trees."""
    if best is not None and private_part(algorithm) is not None and Need.TREES in algorithm.requires():
        raise Unsupported(
            f"run(best={best!r}): {algorithm.name} would be chosen by exact figures of private rows, which its ε does "
            "not count; leave best= out, and choose the number of rounds by public rows or by an earlier study",
            method=algorithm.name,
            need="sums",
        )


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


def check_clock(policy: ReplyPolicy, connection: object) -> None:
    """Raise RecipeError for a policy by the clock on the wall if the clients are not on nodes."""
    if policy.clock == "wall" and not isinstance(connection, RealTime):
        raise RecipeError(
            "reply_policy.clock = 'wall' is for nodes: here clients take turns, and only their virtual times differ. "
            "Leave clock out, and describe the clients' speeds by devices=",
            "clock",
        )
