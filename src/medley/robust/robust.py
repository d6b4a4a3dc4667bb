"""Robust: gives a method an aggregation rule that tolerates a share of Byzantine clients.

**Reference**: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018; Allouah et al., "Fixing by Mixing",
AISTATS 2023 (definition of a robust aggregation rule). The file of each rule names its own paper.

**Needs**: uniform client weights. A weight by rows is what the client claims, so one Byzantine client could claim all
of it.

**One round sends** (floats per client):

The messages of the method itself.

**Departures**: a reply of several fields is aggregated field by field, with the same rule. A distance over all fields
together would mostly measure the field with the largest units, such as SCAFFOLD's dc, which is delta over a time. A
mean becomes the rule's vector, and a sum that vector times the sum of its weights: if all replies are equal, nothing
changes. An invariant over sums and memories, such as SCAFFOLD's c = Σ p_i c_i, then holds up to the distance between
the rule's vector and the mean.

**Missing replies**: the rule sees the replies that arrived, and f is a share of the clients that were asked, rounded
up: all Byzantine ones may have replied. With fewer replies than the rule needs, the run ends with TooFewReplies. A
cohort that is drawn may have more Byzantine clients than its share; a warning says how likely that is.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10),
...                     weights="uniform")
>>> result = md.run(md.Robust(md.FedAvg(), rule=md.robust.TrimmedMean(0.2)), fed, rounds=3, progress=False)
>>> result.history[-1]["accuracy"] > 0.8
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..contract import Algorithm, Cohort, Need, Unsupported, Vec, Wrapper, WrapperServer
from .replies import RobustCohort
from .rule import Rule


@dataclass
class RobustServer(WrapperServer):
    """The wrapped method's state, and the last vectors of a rule that starts from them, by exchange and field."""

    before: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Robust(Wrapper[RobustServer]):
    """A method whose means and sums of replies are replaced by a robust aggregation rule.

    Attributes:
        method: the method to run. Its server may read means, and sums with equal weights
        rule: the rule, one of `medley.robust`
    """

    method: Algorithm[Any, Any]
    rule: Rule

    can = "robust"
    prefix = "robust"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, Wrapper) and self.method.reads:
            raise Unsupported(
                f"{self.method.name} cannot be robust: it {self.method.reads}, but Robust must read the replies "
                "itself, one by one",
                method=self.method.name,
                need="sums",
            )

        if self.method.asks_once:
            raise Unsupported(
                f"{self.method.name} cannot be robust: it solves for the model from sums of clients' second moments, "
                "and a rule of models, such as a median by number, makes no second moments of them; leave Robust out",
                method=self.method.name,
                need="sums",
            )

    @property
    def name(self) -> str:
        """The rule's name and the method's."""
        return f"{self.rule.name}-{self.method.name}"

    @property
    def reads(self) -> str:
        """One by one, for its rule."""
        return "has a robust rule, which reads replies one by one"

    def requires(self) -> frozenset[str]:
        """The method's needs, uniform weights, and replies one by one."""
        return self.method.requires() | {Need.UNIFORM, Need.REPLIES}

    def start(self, x: Vec) -> RobustServer:
        """The method's own start."""
        return RobustServer(self.method.start(x))

    def round(self, s: RobustServer, clients: Cohort) -> None:
        """The method's round on a cohort whose means and sums come from the rule."""
        cohort = RobustCohort(clients, self.rule, s.before, self.method)
        if clients.round == 1:
            cohort.warn()
        self.method.round(s.inner, cohort)
        s.before = cohort.before

    def readmit(self, s: RobustServer, clients: Cohort, who: Sequence[int]) -> None:
        """The method's own `readmit`, with robust sums."""
        self.method.readmit(s.inner, RobustCohort(clients, self.rule, {}, self.method), who)

    def figures(self, s: RobustServer) -> dict[str, float]:
        """The method's own."""
        return self.method.figures(s.inner)

    def by_client(self, s: RobustServer) -> dict[int, dict[str, float]]:
        """The method's own."""
        return self.method.by_client(s.inner)
