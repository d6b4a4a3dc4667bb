"""The partition of the rows among clients."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from ..document import figure, figures, text
from ..figures import Markup, partition
from ..units import count


@runtime_checkable
class Described(Protocol):
    """A description of a partition, such as `medley.scenarios.Description`.

    ``labels`` [C] may name the labels, ``clients`` [n] the clients, and ``fixed`` says that every seed has this
    partition.
    """

    @property
    def sizes(self) -> Int[np.ndarray, " n"]:
        """Rows of each client."""

    @property
    def counts(self) -> Int[np.ndarray, "n C"] | None:
        """Rows of each client and label; None if there are no labels."""

    @property
    def distance(self) -> float:
        """Mean total-variation distance of a client's labels from all clients' labels, in [0, 1]."""


def holdings(p: Described | None) -> list[Markup]:
    """Facts about a partition, its picture and the sizes of clients; nothing for None."""
    if p is None:
        return []
    sizes = np.asarray(p.sizes)
    counts = None if p.counts is None or np.asarray(p.counts).shape[1] == 0 else np.asarray(p.counts)
    facts = [f"{count(len(sizes))} clients", f"{count(float(sizes.sum()))} training rows"]
    if len(sizes):
        low, middle, high = (count(float(f(sizes))) for f in (np.min, np.median, np.max))
        facts.append(f"{low} to {high} a client, median {middle}")
    fixed = bool(getattr(p, "fixed", False))
    note = "Every seed has the same partition." if fixed else "Every seed may draw its own; the picture is of one."
    if counts is not None:
        classes_of_clients = np.count_nonzero(counts, axis=1)
        facts.append(f"{np.median(classes_of_clients):g} of {counts.shape[1]} labels at the median client")
        facts.append(f"label distance {p.distance:.2f}")
        note += (
            " Label distance is the mean over clients of the total-variation distance between a client's labels and "
            "everybody's: 0 is alike, near 1 is disjoint."
        )
    names = [str(v) for v in np.asarray(getattr(p, "labels", ()))]
    chart = figure(partition(sizes, counts, names or None, tuple(getattr(p, "clients", ()))), style="scroll")
    return [text(" · ".join(facts), "facts"), figures([chart], "wide"), text(note, "note")]
