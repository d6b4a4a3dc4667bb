"""Definitions of a page's terms, and the software that made it."""

from __future__ import annotations

import platform
from datetime import datetime

import numpy as np
import torch

from ...runtime.versions import version
from ..document import code, definitions, text
from ..figures import Markup
from ..numbers import usable
from ..table import estimated, named, streamed
from .comparison import Comparison, listed
from .sites import same_clients

BITS = ("medley", "python", "torch", "numpy", "scipy", "platform", "machine", "threads")
"""What a result records of its environment, on which its bits depend."""


def notes(c: Comparison) -> list[Markup]:
    """Definitions of the terms that this page uses."""
    metrics = set[str]().union(*(s.metrics for s in c.summaries))
    partition = "" if c.results and all(same_clients(r) for r in c.results) else "the partition, "
    used = metrics & {"gap", "accuracy", "attack_success", "epsilon"}
    if c.personal:
        used = used - {"accuracy"} | {"personal"}
    also = {
        "sampled": estimated(c.results),
        "tasks": streamed(c.results),
        "worst": bool(metrics & {"client_accuracy_worst", "client_test_loss_worst"}),
        "estimate": "client_accuracy_worst_estimate" in metrics,
        "paired": len(c.groups) > 1,
        "broken": not all(usable(r) for r in c.results),
    }
    used |= {term for term, applies in also.items() if applies}
    return [definitions(used, c.base, named(c.metric, c.results), partition)]


def made_by(command: str | None, c: Comparison) -> list[Markup]:
    """The ``command`` that made the page, if there is one, versions of software, the date, and whether runs differ."""
    facts = [
        f"Medley {version()}",
        f"Python {platform.python_version()}",
        f"PyTorch {torch.__version__}",
        f"NumPy {np.__version__}",
        platform.platform(terse=True),
        datetime.now().astimezone().isoformat(" ", "minutes"),
    ]
    unlike = [text(words) for words in [_unlike(c)] if words]
    return [*([code(command)] if command else []), text(" · ".join(facts), "facts"), *unlike]


def _unlike(c: Comparison) -> str:
    """A sentence on versions, machines and threads if the runs were not all made with the same; empty if they were."""
    values = {name: sorted({str(r.environment.get(name, "?")) for r in c.results if r.environment}) for name in BITS}
    unlike = [f"{name} ({'; '.join(several)})" for name, several in values.items() if len(several) > 1]
    return "" if not unlike else f"The runs differ in {listed(unlike)}, so equal settings may give other last digits."
