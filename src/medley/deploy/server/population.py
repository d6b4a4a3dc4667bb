"""The server's view of clients on other machines: sizes, shares, tasks, and figures measured by exchanges."""

from __future__ import annotations

import json
import logging
from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from ...contract import Client, Engine, PartlyShared, Problem, TaskView
from ...contract.errors import BadData, MedleyError, RecipeError
from ...contract.place import name_of
from ...federation.rows import refuse_weights
from ...federation.scenario import Scenario
from ...federation.tasks import Planned, TaskPlan
from ...numerics.scaling import Scaling
from ...participation import sampling_of
from ...server.options import HeldOut, Metric
from ...storage.identity import identity
from ..protocol.reports import Census, Names, base_of
from .evaluation import RemoteEvaluator
from .messenger import Messenger
from .roster import Roster

log = logging.getLogger("medley")


@dataclass(frozen=True, eq=False)
class RemoteFederation:
    """A `Population` whose clients hold their rows on other machines.

    Attributes:
        tolerant: whether an evaluation continues without a client that fails; default False
        roster: the members of each round, if clients join and leave; None for the same clients throughout
        lossless: whether clients send no loss, because their rows are private; default False
        scaling: the preparation of all clients' rows, which the result keeps; default None
        summed: whether replies are summed in secret; default False
        run: the name under which clients keep their memories of this run
        first: whether requests carry the initial personal part of the clients' models, because the run does not draw it
    """

    scenario: Scenario
    census: Census
    messenger: Messenger
    tolerant: bool = False
    roster: Roster | None = None
    lossless: bool = False
    scaling: Scaling | None = None
    summed: bool = False
    run: str = ""
    first: bool = False

    def within(self, scenario: Scenario) -> RemoteFederation:
        """The same clients, with the problem of this scenario."""
        return replace(self, scenario=scenario)

    def known(self, problem: Problem) -> dict[str, Any]:
        """The values that requests carry to every client: see `medley.deploy.protocol.reports.Known`."""
        first: dict[str, Any] = {}
        if self.first and isinstance(problem, PartlyShared):
            own_parts = problem.own()
            problem.load_own(None)
            first = {"first": {name: t.tolist() for name, t in problem.own().items()}}
            problem.load_own(own_parts)
        return asdict(self.census.known) | first | {"base": base_of(problem)}

    @property
    def client_names(self) -> Mapping[int, str]:
        """The clients' names by id, as far as they have some and have connected."""
        return self.messenger.names

    def settings(self) -> dict[str, Any]:
        """The scenario's settings and the clients' numbers of rows, for the record."""
        data = f"elsewhere {json.dumps(self.census.settings())}"
        members: dict[str, Any] = {} if self.roster is None else {"membership": "open"}
        members |= recorded_names(self.census.reports[0].names, self.census.known.classes)
        if self.scaling is not None and self.scaling.coding is not None:
            members |= {"features": [*self.scaling.coding.features], "scaling": self.scaling.plain()}
        names = self.census.names
        members |= {"client_names": names} if names else {}
        scenario = replace(self.scenario, membership=None)
        return scenario.settings(data, f"{len(self.census)} clients' own data") | members

    def identity(self) -> dict[str, str]:
        """Fingerprints of the scenario. Of the clients' rows, which are elsewhere, they contain only the numbers."""
        return identity({"data": self.census.settings(), **replace(self.scenario, membership=None).parts})

    def draw(
        self, seed: int, on: HeldOut = "test", dtype: torch.dtype | None = None, device: str = "cpu", rounds: int = 1
    ) -> RemoteSimulation:
        """The clients of this seed; see `Population.draw`. Raises RecipeError for figures of rows other than test
        rows.
        """
        if on != "test":
            raise RecipeError(
                f"run.evaluate_on = {on!r}: nodes measure models on their test rows, and have no validation "
                "rows; let data() return the rows for the choice as test rows, and leave "
                "evaluate_on, best and patience out",
                "evaluate_on",
            )
        return RemoteSimulation(self, seed, dtype, device, rounds)


class RemoteSimulation(Planned):
    """A `RemoteFederation` under one seed: a `ClientSource` whose clients run on other machines.

    Raises BadData for a task without training rows or, in a stream, without test rows; Unsupported for weights of rows
    that the problem does not accept.
    """

    def __init__(
        self, fed: RemoteFederation, seed: int, dtype: torch.dtype | None, device: str, rounds: int = 1
    ) -> None:
        self.fed = fed
        self.seed = seed
        scenario = fed.scenario
        census = self.census
        n = len(census)
        facts = census.known
        kind = census.reports[0]
        scenario.check(n)
        self.plan = TaskPlan.draw(scenario.stream, facts.labels, facts.classes, n, seed, rounds, device)
        X = kind.X.example()
        y = kind.y.example()
        self.problem: Problem = scenario.problem.ready(X, y, facts.classes, dtype, device)
        if census.weighted:
            refuse_weights(scenario.problem, self.problem)
        for s, holders in enumerate(census.tests.sum(0)):
            if not holders and scenario.stream is not None:
                raise BadData(f"task {s} has no test rows; give it some, or use Dataset.split(test=0.2)")
        for s in range(len(self.plan)):
            if not self.sizes(s)[0].any():
                raise BadData(f"no client has rows of task {s}")

    @property
    def census(self) -> Census:
        """The reports of all clients so far."""
        return self.fed.census if self.fed.roster is None else self.fed.roster.census

    def sizes(self, s: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients' numbers of rows [clients] at step s, and the sums of their weights [clients]."""
        census = self.census
        n = len(self.fed.census)
        tasks = self.plan.at(s, n)
        return census.rows[np.arange(n), tasks], census.weights[np.arange(n), tasks]

    def shares(self, round: int) -> Mapping[int, float]:
        """p_i of the members of this round, by id."""
        scenario = self.fed.scenario
        members = None if scenario.membership is None else self.members(round)  # this may add to the census
        return scenario.shares(*self.sizes(self.plan.step(round)), members)

    def members(self, round: int) -> tuple[int, ...]:
        """Ids of the members of this round."""
        return self.fed.scenario.members(max(round, 1), len(self.fed.census))

    @property
    def tested(self) -> bool:
        """Whether any client has test rows of the first task."""
        return bool(self.fed.census.tests[:, 0].any())

    def view(self, round: int) -> TaskView:
        """The task of this round."""
        s = self.plan.step(round)
        p = self.shares(round)
        scenario = self.fed.scenario
        sizes = self.sizes(s)[0]
        law = sampling_of(scenario.participation, len(p))
        local = scenario.local
        return TaskView(self.plan.tasks[s], p, law, local(self.seed, round, sizes))

    def cohort(self, round: int) -> tuple[int, ...]:
        """Ids of the clients that take part: the drawn clients that have rows of the task."""
        return self.fed.scenario.cohort(round, self.sizes(self.plan.step(round))[0], self.seed)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Raises MedleyError: the client's rows are on its SuperNode."""
        raise MedleyError(f"{name_of(i)} runs on its SuperNode and cannot be built here: use the Flower transport")

    def evaluator(
        self,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        minimiser: bool = False,
        eval_rows: int | None = None,
    ) -> RemoteEvaluator:
        """An evaluator of models; see `Draw.evaluator`. Raises RecipeError for gradients that nodes do not send.

        Clients do not report single rows, so the server cannot detect a loss without a minimiser.
        """
        del minimiser
        if eval_rows is not None and self.fed.summed:
            raise RecipeError(
                "run.eval_rows with [secure]: nodes would have to send a few rows' losses unmasked; leave it out",
                "eval_rows",
            )
        if grad_norm and (why := "private rows" if self.fed.lossless else "[secure]" if self.fed.summed else ""):
            raise RecipeError(
                f"target = {{ grad_norm = ... }} with {why}: the norm is of a sum of gradients, and nodes would "
                "have to send theirs one by one, without noise or mask; use another target",
                "target",
            )
        return RemoteEvaluator(self, metrics or {}, grad_norm, eval_rows)


def recorded_names(names: Names, classes: int | None) -> dict[str, Any]:
    """What a result keeps of columns and classes; of a label other than a number or a text, the text of it."""
    labels = [*map(_label, names.labels)]
    found = {"features": names.features, "classes": classes or len(labels), "labels": labels}
    return {k: v for k, v in found.items() if v}


def _label(text: str) -> Any:
    """The value that Python writes so."""
    value: Any = text
    with suppress(ValueError, SyntaxError):
        value = literal_eval(text)
    return value if isinstance(value, str | int | float) else text
