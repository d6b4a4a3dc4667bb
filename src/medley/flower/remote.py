"""Clients on other machines as the server sees them: sizes, shares, tasks, and figures measured by exchanges."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from ..contract import Client, Engine, PersonalModels, Problem, State, TaskView, Vec, pytree
from ..contract.errors import BadData, Diverged, MedleyError, RecipeError
from ..federation.rows import refuse_weights
from ..federation.scenario import Scenario
from ..federation.tasks import Planned, TaskPlan
from ..numerics.scaling import Scaling
from ..scenarios.participation import sampling_of
from ..server.options import HeldOut, Metric
from ..storage.history import Row
from ..storage.identity import identity
from .checked_json import Words, opened, outliers
from .client_reports import Census
from .messenger import Messenger
from .roster import Roster

log = logging.getLogger("medley")

HUGE = 1e300
"""The largest loss that a client may report."""


@dataclass(frozen=True, eq=False)
class RemoteFederation:
    """A `Population` whose clients hold their rows on other machines.

    Attributes:
        tolerant: whether an evaluation goes on without a client that fails; default False
        roster: the members of each round, where clients join and leave; None for the same ones throughout
        lossless: whether clients' rows are private, so that they send no loss of them; default False
        scaling: the preparation of all clients' rows, which the result keeps; default None
    """

    scenario: Scenario
    census: Census
    messenger: Messenger
    tolerant: bool = False
    roster: Roster | None = None
    lossless: bool = False
    scaling: Scaling | None = None

    def settings(self) -> dict[str, Any]:
        """The record of it: the scenario's settings, the clients' rows in numbers."""
        data = f"elsewhere {json.dumps(self.census.settings())}"
        members: dict[str, Any] = {} if self.roster is None else {"membership": "open"}
        if self.scaling is not None and self.scaling.coding is not None:
            members |= {"features": [*self.scaling.coding.features], "scaling": self.scaling.plain()}
        scenario = replace(self.scenario, membership=None)
        return scenario.settings(data, f"{len(self.census)} clients' own data") | members

    def identity(self) -> dict[str, str]:
        """Fingerprints of the scenario; the clients' rows, which lie elsewhere, are known by their numbers only."""
        return identity({"data": self.census.settings(), **replace(self.scenario, membership=None).parts})

    def draw(
        self, seed: int, on: HeldOut = "test", dtype: torch.dtype | None = None, device: str = "cpu", rounds: int = 1
    ) -> RemoteSimulation:
        """The clients of this seed; see `Population.draw`. Figures are of test rows whatever ``on`` says."""
        del on
        return RemoteSimulation(self, seed, dtype, device, rounds)


class RemoteSimulation(Planned):
    """A `RemoteFederation` under one seed: a `ClientSource` whose clients cannot be made here.

    Raises BadData for a task without training rows, or, in a stream, without test rows; Unsupported for weights of rows
    that the problem cannot take.
    """

    def __init__(
        self, fed: RemoteFederation, seed: int, dtype: torch.dtype | None, device: str, rounds: int = 1
    ) -> None:
        self.fed, self.seed = fed, seed
        scenario, census = fed.scenario, self.census
        n, known, kind = len(census), census.known, census.reports[0]
        scenario.check(n)
        self.plan = TaskPlan.draw(scenario.stream, known.labels, known.classes, n, seed, rounds, device)
        X, y = kind.X.example(), kind.y.example()
        self.problem: Problem = scenario.problem.ready(X, y, known.classes, dtype, device)
        if census.weighted:
            refuse_weights(scenario.problem, self.problem)
        for s, there in enumerate(census.tests.sum(0)):
            if not there and scenario.stream is not None:
                raise BadData(f"task {s} has no test rows; give it some, or take them by Dataset.split(test=0.2)")
        for s in range(len(self.plan)):
            if not self.sizes(s)[0].any():
                raise BadData(f"no client has rows of task {s}")

    @property
    def census(self) -> Census:
        """The reports of all clients so far."""
        return self.fed.census if self.fed.roster is None else self.fed.roster.census

    def sizes(self, s: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients' numbers of rows [clients] at step s, and the sums of their weights [clients]."""
        census, n = self.census, len(self.fed.census)
        met = self.plan.at(s, n)
        return census.rows[np.arange(n), met], census.weights[np.arange(n), met]

    def shares(self, round: int) -> Mapping[int, float]:
        """p_i of the members of this round, by id."""
        scenario = self.fed.scenario
        members = None if scenario.membership is None else self.members(round)  # it may add to the census
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
        s, p = self.plan.step(round), self.shares(round)
        scenario, sizes = self.fed.scenario, self.sizes(s)[0]
        law, local = sampling_of(scenario.participation, len(p)), scenario.local
        return TaskView(self.plan.tasks[s], p, law, local(self.seed, round, sizes))

    def cohort(self, round: int) -> tuple[int, ...]:
        """Ids of the clients that take part: those drawn that have rows of the task."""
        return self.fed.scenario.cohort(round, self.sizes(self.plan.step(round))[0], self.seed)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Raises MedleyError: the client's rows are on its SuperNode."""
        raise MedleyError(f"client {i} runs on its SuperNode, and cannot be made here: take the Flower transport")

    def evaluator(
        self,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        minimiser: bool = False,
        eval_rows: int | None = None,
    ) -> RemoteEvaluator:
        """An evaluator of models; see `Draw.evaluator`. Raises RecipeError for metrics, gradient norms and samples.

        Clients do not report single rows, so that a loss without a minimiser is not noticed.
        """
        del minimiser
        if metrics or grad_norm:
            raise RecipeError("on Flower clients measure loss and accuracy only: leave metrics= and grad_norm out")
        if eval_rows is not None:
            raise RecipeError(
                "on Flower clients measure their loss on all of their rows: leave eval_rows out", "eval_rows"
            )
        return RemoteEvaluator(self)


BOUNDS = {"test_loss": (-HUGE, HUGE), "accuracy": (0.0, 1.0)}
"""Figures of test rows, and the values that they may have."""


@dataclass(frozen=True)
class Figures:
    """One client's figures of a model.

    Attributes:
        tests: figures by name for each task that was asked for, of `BOUNDS`; a figure that is not finite is left out
        loss: f_i(x); None where it was not asked for, or the client has no rows
    """

    tests: list[dict[str, float]]
    loss: float | None

    @property
    def largest(self) -> float:
        """The largest absolute value of the losses; 0 where there is none."""
        return max(abs(v) for v in (0.0, self.loss, *(t.get("test_loss") for t in self.tests)) if v is not None)

    @classmethod
    def read(cls, client: int, raw: bytes, held: Sequence[bool], loss: bool) -> Figures:
        """The figures in an answer. Raises WireError, naming client and field, for others.

        Args:
            held: for each task that was asked for, whether the client has test rows
            loss: whether the loss has to be there
        """
        words = Words.read(f"client {client}'s answer to an evaluation", raw)
        words.only(*(("tests", "loss") if loss else ("tests",)))
        tests = list[dict[str, float]]()
        for there, said in zip(held, words.entries("tests", len(held), len(held)), strict=True):
            if not isinstance(said, dict if there else type(None)) or not (said or {}).keys() <= BOUNDS.keys():
                words.refuse("tests", "figures of a task with test rows by name, and null for another")
            figures = Words(words.who, said or {})
            tests.append({name: figures.number(name, *BOUNDS[name]) for name in figures.said})
        return cls(tests, words.number("loss", -HUGE, HUGE) if loss else None)


class RemoteEvaluator:
    """Measures models by exchanges with the clients. No ledger counts them; ``evaluations`` does."""

    def __init__(self, draw: RemoteSimulation) -> None:
        self.draw, self.evaluations = draw, 0
        self._answers: tuple[int, dict[int, Figures]] = (-1, {})
        """The round of the last evaluation, and the clients' answers to it."""

    def evaluate(self, x: Vec, buffers: State | None, round: int) -> Row:
        """Figures of x on the task of this round, from the clients that answer.

        loss: Σ p_i f_i(x) over the clients with training rows that answer, divided by their Σ p_i; left out where rows
            are private
        test_loss, accuracy: means over the clients' test rows
        gap, task: as in `medley.federation.evaluation.RowEvaluator.evaluate`
        evaluations: the number of these exchanges since the row before, which the column ``exchanges`` leaves out
        evaluated: Σ p_i over the clients that gave a loss, or an answer where rows are private

        Raises MedleyError where no client with training rows answers.
        """
        draw, scenario = self.draw, self.draw.fed.scenario
        s, p = draw.plan.step(round), draw.shares(round)
        now = draw.plan.now(s)
        answers = self._ask(x, buffers, round, now, loss=not draw.fed.lossless)
        self._answers = round, answers
        losses = {i: answer.loss for i, answer in answers.items() if answer.loss is not None}
        share = sum(p[i] for i in (answers if draw.fed.lossless else losses))
        if not share:
            raise MedleyError(f"nobody who has training rows evaluated the model after round {round}")
        row: Row = {} if scenario.stream is None else {"task": s}
        if losses:
            row["loss"] = sum(p[i] * loss for i, loss in losses.items()) / share
            if scenario.f_star is not None:
                row["gap"] = row["loss"] - scenario.f_star
        asked, self.evaluations = self.evaluations, 0  # not their sum, which a resumed run would begin anew
        return {**row, **self._means(answers, now), "evaluations": asked, "evaluated": share}

    @property
    def own_tests(self) -> bool:
        """Whether any client has test rows."""
        return bool(self.draw.fed.census.tests.any())

    def by_client(self, x: Vec, buffers: State | None, round: int, models: PersonalModels | None = None) -> list[Row]:
        """Figures of x at each client that answers, on its own rows; without an exchange after `evaluate`."""
        assert models is None, "FlowerConnection.open refuses methods whose clients use models of their own"
        draw, (before, answers) = self.draw, self._answers
        s = draw.plan.step(round)
        now = draw.plan.now(s)
        if before != round:
            answers = self._ask(x, buffers, round, now, loss=not draw.fed.lossless)
        out: list[Row] = []
        for i, answer in answers.items():
            if answer.loss is not None or draw.fed.lossless:
                row: Row = {"client": i, "rows": int(draw.sizes(s)[0][i])}
                row |= {} if answer.loss is None else {"loss": answer.loss}
                tests = {"test_rows": int(draw.census.tests[i, now].sum())}
                out.append({**row, **tests, **self._means({i: answer}, now)})
        return out

    def accuracies(self, x: Vec, buffers: State | None, round: int) -> list[float]:
        """Test accuracy on every task, from the clients that answer; empty where there are no classes."""
        tasks = range(self.draw.task_count)
        answers = self._ask(x, buffers, round, tasks, loss=False)
        scores = [self._means({i: replace(a, tests=[a.tests[k]]) for i, a in answers.items()}, [k]) for k in tasks]
        return [row.get("accuracy", 0.0) for row in scores] if any("accuracy" in row for row in scores) else []

    def remedy(self, advice: str) -> str:
        """The remedy for numbers that run away; the clients' rows are not known here."""
        return f"{advice}, and give rows of smaller numbers where a client's are very large"

    def _ask(self, x: Vec, buffers: State | None, round: int, tests: Sequence[int], loss: bool) -> dict[int, Figures]:
        """The clients' answers by id; see `medley.flower.client_rows.OwnRows.evaluate`."""
        fed, census, p = self.draw.fed, self.draw.census, self.draw.shares(round)
        asked = {"x": x, "buffers": buffers, "round": round, "tests": [*tests], "loss": loss}
        common = pytree.to_bytes(asked | {"known": asdict(fed.census.known)})
        there = [i for i in self.draw.members(round) if i not in census.refused]
        answers = fed.messenger.send("evaluate", {i: {"common": common} for i in there})
        if not answers:
            raise MedleyError(f"no client evaluated the model after round {round}; are the SuperNodes up?")
        self.evaluations += 1
        figures, failed = dict[int, Figures](), dict[int, MedleyError]()
        for i, (raw, _) in sorted(answers.items()):
            held = [bool(census.tests[i, k]) for k in tests]
            try:
                figures[i] = Figures.read(i, opened(raw, f"client {i}"), held, loss and p[i] > 0)
            except MedleyError as e:
                if not fed.tolerant:
                    raise
                failed[i] = e
        for i, error in [*outliers({i: f.largest for i, f in figures.items()}, f"loss after round {round}")]:
            if not fed.tolerant:
                raise error
            failed[i] = error
            del figures[i]
        for i, why in sorted(failed.items()):
            log.warning("round %d, evaluation: no answer of client %d: %s", round, i, why)
        if not figures and failed:
            raise next((e for e in failed.values() if isinstance(e, Diverged)), next(iter(failed.values())))
        return figures

    def _means(self, answers: Mapping[int, Figures], tasks: Sequence[int]) -> Row:
        """Means of figures over the test rows of ``tasks``, those that the answers have, by name."""
        rows, out = self.draw.census.tests, Row()
        got = [(int(rows[i, s]), found) for i, a in answers.items() for s, found in zip(tasks, a.tests, strict=True)]
        for name in BOUNDS:
            if there := [(n, found[name]) for n, found in got if name in found]:
                out[name] = sum(n * value for n, value in there) / sum(n for n, _ in there)
        return out
