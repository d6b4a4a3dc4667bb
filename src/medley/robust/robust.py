"""Robust: a method whose server folds single replies by a rule that some liars among them cannot move far.

**Reference**: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018; Allouah et al., "Fixing by Mixing",
AISTATS 2023 (definition of a robust fold). The file of each fold names its own paper.

**Needs**: weights of clients that are uniform. A weight by rows is a claim of the client, and one liar could take all
of it.

**One round sends** (floats per client):

The messages of the method itself.

**Departures**: a reply of several fields is folded field by field, with the same rule. Distances over all fields
together would be those of the field with the largest units, as SCAFFOLD's dc, which is delta over a time. A mean
becomes the fold, and a sum the fold times the sum of its weights: where all replies are equal, nothing changes. An
invariant over sums and memories, as SCAFFOLD's c = Σ p_i c_i, then holds up to the distance of fold and mean.

**Missing replies**: the fold is of those that came, and f is a share of their number. Below the number that the rule
wants the run ends with TooFewReplies.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.scenarios.IID(10),
...                     weights="uniform")
>>> result = md.run(md.Robust(md.FedAvg(), fold=md.robust.TrimmedMean(0.2)), fed, rounds=3, progress=False)
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
from .rule import Fold


@dataclass
class RobustServer(WrapperServer):
    """The wrapped method's state, and the vectors of a fold that starts from its last ones, by exchange and field."""

    before: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Robust(Wrapper[RobustServer]):
    """A method whose means and sums of replies are robust folds.

    Attributes:
        method: the method that runs. Its server may read means, and sums of equal weights
        fold: the rule, one of `medley.robust`
    """

    method: Algorithm[Any, Any]
    fold: Fold

    can = "robust"
    prefix = "robust"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, Wrapper) and self.method.reads:
            raise Unsupported(
                f"{self.method.name} cannot be robust: it {self.method.reads}, and a robust fold reads replies one by "
                "one",
                method=self.method.name,
                need="sums",
            )

    @property
    def name(self) -> str:
        """The fold's name and the method's."""
        return f"{self.fold.name}-{self.method.name}"

    @property
    def reads(self) -> str:
        """Replies one by one."""
        return "folds replies that it reads one by one"

    def requires(self) -> frozenset[str]:
        """The method's needs, uniform weights, and replies one by one."""
        return self.method.requires() | {Need.UNIFORM, Need.REPLIES}

    def start(self, x: Vec) -> RobustServer:
        """The method's own start."""
        return RobustServer(self.method.start(x))

    def round(self, s: RobustServer, clients: Cohort) -> None:
        """The method's round on a cohort whose means and sums are folds."""
        cohort = RobustCohort(clients, self.fold, s.before, self.method)
        self.method.round(s.inner, cohort)
        s.before = cohort.before

    def readmit(self, s: RobustServer, clients: Cohort, who: Sequence[int]) -> None:
        """The method's own, with its sums folded."""
        self.method.readmit(s.inner, RobustCohort(clients, self.fold, {}, self.method), who)

    def figures(self, s: RobustServer) -> dict[str, float]:
        """The method's own."""
        return self.method.figures(s.inner)

    def by_client(self, s: RobustServer) -> dict[int, dict[str, float]]:
        """The method's own."""
        return self.method.by_client(s.inner)
