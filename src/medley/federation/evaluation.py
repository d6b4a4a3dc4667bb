"""Measures of a model: training loss, gap, gradient norm, figures of test rows, accuracies on tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..contract import Data, Family, Need, Problem, RecipeError, Stalled, State, Vec
from ..contract.personal import OwnState, PartlyShared, PersonalModels
from ..metrics import AUROC, Summed
from ..problems.linear import LeastSquares, Linear
from ..problems.network import NetworkProblem, SharedNetwork, rows_at_once
from ..rows.lazy import Lazy, blocks
from ..server.options import Metric
from ..storage.history import Row
from . import fairness
from .clients import ClientFactory
from .fairness import Mixes
from .scenario import Scenario

Held = tuple[Tensor, Tensor]
"""Test or validation rows: X [n, ...] and y [n, ...], in the problem's form."""

MODELS_AT_ONCE = 1 << 24
"""How many parameters of clients' own models are in memory at once for evaluation: 64 MiB in float32."""

D = TypeVar("D", bound="EvaluationData")


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """The data of one step on which models are measured.

    Attributes:
        sizes: int64 [clients], rows of each client
        mixes: the labels that each client trains on; None without classes
        held: test or validation rows of the tasks that clients meet at this step, or None
        owner: int64, the client of each of these rows, −1 for shared rows; None if clients have no rows of their own
        whole: whether ``p`` has all clients; default True
    """

    p: Mapping[int, float]
    sizes: np.ndarray
    mixes: Mixes | None
    held: Held | None
    owner: Tensor | None
    whole: bool = field(default=True, kw_only=True)

    def among(self: D, p: Mapping[int, float]) -> D:
        """The data of some of the clients, with their shares p_i by id; the test rows remain those of all clients."""
        ids = list(p)
        owner = self.owner
        if owner is not None:
            owner = torch.where(torch.isin(owner, torch.tensor(ids)), owner, -1)
        mixes = None if self.mixes is None else replace(self.mixes, ids=ids)
        return replace(self, p=p, mixes=mixes, owner=owner, whole=len(ids) == len(self.sizes))

    @property
    def present(self) -> dict[int, float]:
        """p_i of the clients that have rows."""
        return {i: p for i, p in self.p.items() if p > 0}


@dataclass(frozen=True, eq=False)
class RowEvaluator:
    """Measures models on rows in this process.

    Attributes:
        tests: test or validation rows of every task; None for a task without such rows
        triggered: test rows of classes other than the backdoor's target, with its trigger, labelled as the target; None
            without a backdoor
        at: round -> the data of its step, among the members of the round
        minimiser: whether the method looks for a minimiser, so that a loss without one raises Stalled
        sampled: estimates the training loss from some rows; None to measure it on all rows
    """

    scenario: Scenario
    clients: ClientFactory
    steps: Sequence[EvaluationData]
    tests: Sequence[Held | None]
    triggered: Held | None = None
    at: Callable[[int], EvaluationData] = field(kw_only=True)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    grad_norm: bool = False
    minimiser: bool = False
    sampled: Callable[[Problem, Vec, int, EvaluationData], Row] | None = None

    def evaluate(self, x: Vec, buffers: State | None, round: int) -> Row:
        """Figures of x on the task of this round, by column.

        loss: Σ p_i f_i(x)
        loss_error: the standard error of the loss, if it is an estimate from some rows
        gap: loss − f*, if f* is known and the loss is not an estimate
        grad_norm: ‖Σ p_i ∇f_i(x)‖, if requested
        test_loss, accuracy, figures over clients, metrics: see `held_figures`
        attack_success: the share of rows with a backdoor's trigger that the model labels as its target, if there is a
            backdoor
        task: the number of the task, in a stream

        Raises Stalled if ``minimiser`` is set and the loss turns out to have none.
        """
        s = self.clients.plan.step(round)
        data = self.at(round)
        problem = self._problem(buffers, s)
        row: Row = {} if self.clients.plan.mode is None else {"task": s}
        row |= {"loss": self._loss(problem, x, s, data)} if self.sampled is None else self.sampled(problem, x, s, data)
        if self.scenario.f_star is not None and self.sampled is None:
            row["gap"] = row["loss"] - self.scenario.f_star
        if self.grad_norm:
            row["grad_norm"] = float(self._gradient(problem, x, s, data).norm())
        if data.held is not None:
            row |= held_figures(problem, x, data.held, self.metrics, data.mixes, data.owner)
        if self.triggered is not None and (hit := scores(problem, x, self.triggered)[1]) is not None:
            row["attack_success"] = hit
        return row

    @property
    def own_tests(self) -> bool:
        """Whether clients have their own test rows."""
        return any(data.owner is not None for data in self.steps)

    def by_client(self, x: Vec, buffers: State | None, round: int, models: PersonalModels | None = None) -> list[Row]:
        """A row of figures for each client that has rows of the task of this round, by id.

        client, rows: its id, and the number of its training rows
        loss: f_i of its model
        test_rows: the number of its own test rows, if clients have some
        test_loss, accuracy, metrics: of its model on its own test rows, if it has some
        server_loss, server_test_loss, ...: the same for the server's model, if clients use their own models

        See `Evaluator.by_client` for the arguments.
        """
        s = self.clients.plan.step(round)
        data = self.at(round)
        problem = self._problem(buffers, s)
        tests = OwnTests.of(data)
        ids = list(data.present)
        out = list[Row]()
        size = max(1, MODELS_AT_ONCE // len(x))
        for chunk in [ids] if models is None else [ids[k : k + size] for k in range(0, len(ids), size)]:
            theirs = None if models is None else models(chunk)
            problem = self._problem(buffers, s)  # models are built on the same problem
            for i in chunk:
                row: Row = {"client": i, "rows": int(data.sizes[i])}
                if tests is not None:
                    row["test_rows"] = len(tests.of_client(i))
                server = self._of_client(problem, i, x, s, tests)
                if theirs is None:
                    out.append(row | server)
                    continue
                mine: Row = {}
                model = theirs.get(i)
                if model is not None:
                    load(problem, model.buffers, model.own)
                    mine = self._of_client(problem, i, model.x, s, tests)
                    load(problem, buffers, None)
                out.append(row | mine | {f"server_{name}": value for name, value in server.items()})
        return out

    def _of_client(self, problem: Problem, i: int, x: Vec, s: int, tests: OwnTests | None) -> Row:
        """Figures of a model x [d] on client i's rows: the loss, and the figures of its own test rows."""
        row: Row = {"loss": problem.bind(*self.clients.rows.of(s, i)).loss(x)}
        if tests is not None and len(rows := tests.of_client(i)):
            X, y = tests.held
            row |= held_figures(problem, x, (X[rows], y[rows]), self.metrics, client=i)
        return row

    def accuracies(self, x: Vec, buffers: State | None, round: int) -> list[float]:
        """Test accuracy on every task, of the model after this round; empty without classes."""
        problem = self._problem(buffers, self.clients.plan.step(round))
        scores = []
        for test in self.tests:
            assert test is not None  # a stream has test rows of every task
            hits = [problem.hits(z, y) for z, y in outputs(problem, x, *test)]
            scores.append([h for h in hits if h is not None])
        return [float(torch.cat(h).double().mean()) for h in scores if h]

    def remedy(self, advice: str) -> str:
        """The remedy for diverging numbers: smaller rows if those are the likely cause, otherwise ``advice``."""
        return self.clients.rows.excess(advice, isinstance(self.scenario.problem, LeastSquares)) or advice

    def _problem(self, buffers: State | None, s: int) -> Problem:
        problem = self.clients.problem_of(s)
        load(problem, buffers, None)
        return problem

    def _loss(self, problem: Problem, x: Vec, s: int, data: EvaluationData) -> float:
        """Σ p_i f_i(x); from row losses if the problem has them, otherwise client by client."""
        rows = self.clients.rows
        mine = self.clients.rows.layout.step(s)
        if not data.whole:
            return sum(p * problem.bind(*rows.of(s, i)).loss(x) for i, p in data.present.items())
        losses = [problem.losses(z, y) for z, y in outputs(problem, x, rows.X[mine], rows.y[mine])]
        if any(part is None for part in losses):
            return sum(p * problem.bind(*rows.of(s, i)).loss(x) for i, p in data.present.items())
        by_row = torch.cat([part for part in losses if part is not None]).double()
        if self.minimiser:
            refuse_unbounded(self.scenario.problem, by_row, rows.y[mine])
        if self.scenario.weights == "size" and rows.w is None:
            return float(by_row.mean()) + problem.penalty(x)
        weighed = by_row if rows.w is None else by_row * rows.w[mine]
        by_client = torch.split(weighed, [int(data.sizes[i]) for i in data.present])
        mean = sum(p * float(part.mean()) for p, part in zip(data.present.values(), by_client, strict=True))
        return mean + problem.penalty(x)

    def _gradient(self, problem: Problem, x: Vec, s: int, data: EvaluationData) -> Vec:
        """Σ p_i ∇f_i(x); in one call if the problem accepts row weights."""
        rows = self.clients.rows
        shares = data.present
        if not data.whole or Need.WEIGHTS not in problem.gives or Need.NETWORK in problem.gives:
            parts = (p * problem.bind(*rows.of(s, i)).grad(x) for i, p in shares.items())
            return sum(parts, torch.zeros_like(x))
        X, y, w = rows.at(rows.layout.step(s))
        if self.scenario.weights != "size" or w is not None:
            ratio = [p * len(y) / data.sizes[i] for i, p in shares.items()]
            owner = torch.from_numpy(np.repeat(ratio, [data.sizes[i] for i in shares])).to(y.device, x.dtype)
            w = owner if w is None else w * owner
        return problem.bind(X, y, w).grad(x)


@dataclass(frozen=True, eq=False)
class OwnTests:
    """Clients' own test rows.

    Attributes:
        order: their indices, by client
        bounds: the first place of each client in ``order``
    """

    held: Held
    order: Tensor
    bounds: np.ndarray

    @classmethod
    def of(cls, data: EvaluationData) -> OwnTests | None:
        """The clients' test rows of one step; None if clients have none of their own."""
        if data.owner is None or data.held is None:
            return None
        order = torch.argsort(data.owner, stable=True)
        bounds = np.searchsorted(data.owner[order].numpy(), np.arange(max(data.p) + 2))
        return cls(data.held, order.to(data.held[1].device), bounds)

    def of_client(self, i: int) -> Tensor:
        """The indices of client i's test rows."""
        return self.order[self.bounds[i] : self.bounds[i + 1]]


def load(problem: Problem, buffers: State | None, personal: OwnState | None) -> None:
    """Set a problem's shared buffers and its personal part, if it has them."""
    if buffers is not None:
        problem.load_buffers(buffers)
    if isinstance(problem, PartlyShared):
        problem.load_own(personal)


def refuse_unbounded(family: Family, losses: Tensor, labels: Tensor) -> None:
    """Raise Stalled if a linear classifier's training loss turns out to have no minimiser."""
    if not isinstance(family, Linear) or not family.classification:
        return
    name = type(family).__name__
    if family.intercept and bool((labels == labels[0]).all()):
        raise Stalled(
            "all training rows have one class, so the loss has no minimum: a larger intercept always has a "
            f"smaller loss; use {name}(intercept=False), or add rows of another class"
        )
    # A loss below log 2 means that a row is on its right side: then 2x is better than x, and so on without end.
    if family.mu == 0 and float(losses.max()) < math.log(2):
        raise Stalled(
            "the training rows are separable, so the loss has no minimum: x puts every row on its right side, "
            f"and a longer x always has a smaller loss; give {name}(mu=...) above 0"
        )


def held_figures(
    problem: Problem,
    x: Vec,
    rows: Held,
    metrics: Mapping[str, Metric],
    mixes: Mixes | None = None,
    owner: Tensor | None = None,
    client: int | None = None,
    sums: dict[str, list[float]] | None = None,
) -> Row:
    """Figures of test rows, by column.

    test_loss: the mean loss
    accuracy: the share of rows that x classifies correctly, if there are classes
    client_accuracy_mean, client_accuracy_worst, client_accuracy_spread: over clients, each on its own test rows, see
        `fairness.measured`; without classes, of the test loss
    client_accuracy_mean_estimate, client_accuracy_worst_estimate: if the test rows are shared, see
        `fairness.estimated`
    metrics: by name

    Args:
        mixes: the labels that each client trains on; None for no estimate
        owner: the client of each row; None if rows are shared
        client: the client whose rows these are, for messages; None for all
        sums: receives the sums of each metric that has them, see `Summed`

    Raises RecipeError, naming the metric, if a metric raises or does not return a number.
    """
    X, y = rows
    all_outputs = list[Tensor]()
    by_row = list[tuple[Tensor | None, Tensor | None]]()
    for z, labels in outputs(problem, x, X, y):
        by_row.append((problem.losses(z, labels), problem.hits(z, labels)))
        all_outputs += [z] if metrics else []  # outputs of many tokens may be many times the rows
    all_outputs = [torch.cat(all_outputs)] if metrics else []
    losses, hits = (None if part[0] is None else torch.cat([*part]) for part in zip(*by_row, strict=True))
    loss = problem.bind(X, y).loss(x) if losses is None else float(losses.double().mean())
    row: Row = {"test_loss": loss}
    if hits is not None:
        row["accuracy"] = float(hits.double().mean())
        if owner is not None:
            row |= fairness.measured("accuracy", hits, owner, low_is_worse=True)
        elif mixes is not None:
            row |= fairness.estimated(hits, y, row["accuracy"], mixes)
    elif owner is not None and losses is not None:
        row |= fairness.measured("test_loss", losses, owner, low_is_worse=False)
    for name, f in metrics.items():
        row[name] = _metric(name, f, all_outputs[0], y, client)
        if isinstance(f, AUROC) and client is None:
            row[f"{name}_within"] = f.within(f.sums(all_outputs[0], y))
        if sums is not None and isinstance(f, Summed):
            sums[name] = f.sums(all_outputs[0], y).double().tolist()
    if client is not None and losses is not None and len(losses) > 1:
        row["test_loss_error"] = float(losses.double().std()) / math.sqrt(len(losses))
    return row


def _metric(name: str, f: Metric, z: Tensor, y: Tensor, client: int | None) -> float:
    """A metric of outputs and targets. For one client's rows it is nan if it raises: there is no AUC of one class."""
    try:
        return float(f(z, y))
    except Exception as e:
        if client is not None:
            return math.nan
        raise RecipeError(
            f"metrics[{name!r}] raised {type(e).__name__}: {e}. It is called with the outputs {list(z.shape)} and "
            f"targets {list(y.shape)} of the test rows, and must return a number",
            "metrics",
        ) from e


def scores(problem: Problem, x: Vec, rows: Held) -> tuple[float, float | None]:
    """Mean loss of test rows, and accuracy if there are classes."""
    row = held_figures(problem, x, rows, {})
    return row["test_loss"], row.get("accuracy")


def outputs(problem: Problem, x: Vec, X: Data, y: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """The model's outputs and the targets, a part of the rows at a time."""
    inner = problem.joint if isinstance(problem, SharedNetwork) else problem
    rows = rows_at_once(X, inner if isinstance(inner, NetworkProblem) else None)
    if not isinstance(X, Lazy):
        for a, b in zip(torch.split(X, rows), torch.split(y, rows), strict=True):
            yield problem.outputs(x, a), b
        return
    for at, a in blocks(X, rows):
        z = problem.outputs(x, a)
        shared = z.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()  # such as of an nn.Identity
        yield z.clone() if shared else z, y[at : at + rows]
