"""Definitions of a page's terms, and the software that made it."""

from __future__ import annotations

import platform
from datetime import datetime

import numpy as np
import torch

from ...runtime.versions import version
from ..document import Block, Code, Definitions, Text
from ..numbers import usable
from ..table import estimated, named, streamed
from .comparison import Comparison
from .sites import same_clients

_LOSS = (
    "Loss",
    "f(x) = Σ pᵢ fᵢ(x) over all clients on their training rows, weighted by their share of them, with the "
    "problem's own regulariser and without what a method adds.",
)

_SAMPLED = (
    "Loss, estimate",
    "Runs with eval_rows measure their loss on some training rows of each client, the same for all methods of a seed. "
    "It is an unbiased estimate of the loss on all rows; the column loss_error has its standard error.",
)

_TASK = (
    "Last task, current task",
    "A figure so named is of one task of the stream alone, and says nothing of what was forgotten of others.",
)

_GAP = ("Gap", "Loss minus the least possible loss, on a logarithmic axis; its mean over seeds is geometric.")

_ACCURACY = ("Accuracy", "The share of test rows that the server's model labels rightly.")

_SUCCESS = (
    "Attack success",
    "The share of test rows of other classes that get a backdoor's target once they have its trigger: less is better.",
)

_EPSILON = (
    "ε",
    "The privacy that a run has spent, at the δ of its settings: of clients, or of rows at the client with the "
    "largest, by the settings' unit. Lower is more private. It counts what the method reads, not this page: the "
    "training loss and figures of clients are measured on clients' rows without noise.",
)

_WORST = (
    "Worst tenth, spread",
    "The mean accuracy over the tenth of clients that fare worst, and the standard deviation over all, each client "
    "measured on its own test rows.",
)

_ESTIMATE = (
    "Estimate",
    "Test rows are everybody's here, so a client's accuracy is not measured. It is taken to be Σ (its share of a label)"
    " × (accuracy on that label), which is right only where rows of one label are alike at all clients. Sites with "
    "other rules for labels are far worse off than it says. Federation(clients=[(X, y, X_test, y_test), ...]) or "
    "own_test=True measures it.",
)

_INTERVALS = (
    "Intervals and bands",
    "95 % Student t-intervals of the mean over seeds (n − 1 degrees of freedom). They tell how much the mean "
    "would move with other seeds, not how single runs scatter. One seed has none; two rightly give wide ones. Where "
    "all seeds are measured on the same test rows, the luck of their draw is not in them; the line below the results "
    "says how large it is for one accuracy. Of a difference of methods on the same rows it is smaller, but not zero.",
)

_BROKEN = (
    "Runs that broke off",
    "A run that diverged or was interrupted is a row in every table and a dotted line in the curves. It enters "
    "no mean, so a method's means are over fewer seeds, and are kinder to it than its average run would be.",
)

_FINAL = ("Final figures", "Those of a run's last evaluation: of the model that it ends with.")

_BYTES = (
    "Bytes and time",
    "Bytes are payloads both ways, summed over clients: a broadcast counts once per receiver. Virtual time is "
    "what the scenario's devices and links would take; wall time is what the simulation took here. Over bytes "
    "and time, seeds are interpolated within the range that all have covered.",
)


def notes(c: Comparison) -> list[Block]:
    """Definitions of the terms that this page uses."""
    there = {m for s in c.summaries for m in s.metrics}
    dealt = "" if c.results and all(same_clients(r) for r in c.results) else "the partition, "
    paired = (
        "Paired differences",
        f"A seed fixes {dealt}the cohorts, the batch order and the first model, alike for every method. So "
        f"each method is held against {c.base} seed by seed, in {named(c.metric, c.results)}, over the seeds that both "
        "finished; the interval is of their mean. With many methods, one in twenty would stand out by chance.",
    )
    items = (
        (_LOSS, True),
        (_SAMPLED, estimated(c.results)),
        (_TASK, streamed(c.results)),
        (_GAP, "gap" in there),
        (_ACCURACY, "accuracy" in there),
        (_SUCCESS, "attack_success" in there),
        (_EPSILON, "epsilon" in there),
        (_WORST, bool(there & {"client_accuracy_worst", "client_test_loss_worst"})),
        (_ESTIMATE, "client_accuracy_worst_estimate" in there),
        (_FINAL, True),
        (_INTERVALS, True),
        (paired, len(c.groups) > 1),
        (_BROKEN, not all(usable(r) for r in c.results)),
        (_BYTES, True),
    )
    return [Definitions([item for item, used in items if used])]


def made(command: str | None) -> list[Block]:
    """The ``command`` that made the page, where there is one, versions of software, and the date."""
    facts = [
        f"Medley {version()}",
        f"Python {platform.python_version()}",
        f"PyTorch {torch.__version__}",
        f"NumPy {np.__version__}",
        platform.platform(terse=True),
        datetime.now().astimezone().isoformat(" ", "minutes"),
    ]
    text = Text(" · ".join(facts), "facts")
    return [Code(command), text] if command else [text]
