"""Figures of a model that clients measure on their nodes, and the totals that the server computes from them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ...contract import PersonalModels, State, Vec
from ...contract.annotation import in_range
from ...contract.errors import Diverged, MedleyError, WireError
from ...contract.place import name_of
from ...federation import fairness
from ...federation.row_sample import LEAST
from ...metrics import AUROC, Summed
from ...numerics.intervals import pooled_error
from ...server.clientwise import OwnModels
from ...server.options import Metric
from ...storage.history import Row
from ...wire.exchange import Tag
from ..protocol import calls
from ..protocol.checked_json import (
    Amount,
    Figure,
    Number,
    Sentences,
    checked,
    opened,
    outliers,
    parsed,
    printable,
    table,
    wrong,
)
from ..protocol.flwr_api import packed

log = logging.getLogger("medley")

FIGURES = {
    "test_loss": Figure,
    "test_loss_error": Amount,
    "test_loss_within": Amount,
    "accuracy": Annotated[float, in_range(0.0, 1.0)],
    "accuracy_within": Amount,
}
"""Figures of test rows other than metrics; of one that a node rounds also by how much it may be off."""


@dataclass(frozen=True)
class Asked:
    """What an answer to an evaluation must contain.

    Attributes:
        held: for each requested task, whether the client has test rows
        loss: whether the loss must be there
        sampled: the number of rows in the sample that the loss is of, which the answer repeats with their spread; 0
            for all rows
        metrics: names of further figures, each with its number of sums; 0 for a metric without sums
        own: whether figures of the client's own model are there, too
    """

    held: Sequence[bool]
    loss: bool = True
    sampled: int = 0
    metrics: Mapping[str, int] = field(default_factory=dict)
    own: bool = False


@dataclass(frozen=True)
class Figures:
    """One client's figures of a model.

    Attributes:
        tests: figures by name for each requested task, without figures that are not finite
        sums: for each task, the sums of the metrics that have sums, by name
        loss: f_i(x), or an estimate; None if not requested, or if the client has no rows
        within: by how much rounding may have changed the loss; 0 if it is exact
        sample: for an estimate, the number of its rows and the sum of their squared deviations
        own: the figures of the client's own model; None if not requested, or if it could not be computed
        why: the reason for missing figures of its own model
    """

    tests: list[dict[str, float]]
    sums: list[dict[str, list[float]]]
    loss: float | None
    sample: tuple[int, float] | None = None
    own: Figures | None = None
    why: str = ""
    within: float = 0.0

    @property
    def largest(self) -> float:
        """The largest absolute value of the losses; 0 if there are none."""
        return max(abs(v) for v in (0.0, self.loss, *(t.get("test_loss") for t in self.tests)) if v is not None)

    @classmethod
    def read(cls, client: int, raw: bytes, request: Asked) -> Figures:
        """The figures in an answer. Raises WireError, naming client and field, for invalid ones."""
        who = f"{name_of(client)}'s answer to an evaluation"
        return cls.of(who, parsed(who, raw), request)

    @classmethod
    def of(cls, who: str, values: Any, request: Asked) -> Figures:
        """The figures in a client's JSON."""
        values = table(who, values)
        sampled = request.sampled if request.loss else 0
        reason = ["why" if "why" in values else "own"] if request.own else []
        of_loss = ["loss", *({"loss_within"} & values.keys())] if request.loss else []
        table(who, values, ["tests", *of_loss, *(["sample"] if sampled else []), *reason])
        n = len(request.held)
        expected = f"a list of {n} entries: figures by name for a task with test rows, and null for other tasks"
        entries = checked(who, values, "tests", list[dict[str, Any] | None], expected=expected)
        if [entry is not None for entry in entries] != [*request.held]:
            raise wrong(who, values, "tests", expected)
        tests = [_figures(who, entry or {}, request.metrics) for entry in entries]
        sums = [_sums(who, (entry or {}).get("sums", {}), request.metrics) for entry in entries]
        sample = None
        if sampled:
            rows, squares = checked(who, values, "sample", tuple[Annotated[Number, in_range(sampled, sampled)], Amount])
            sample = rows, float(squares)
        loss = checked(who, values, "loss", Figure) if request.loss else None
        why = printable(checked(who, values, "why", Sentences)) if "why" in values else ""
        of_own = replace(request, own=False, sampled=0)
        personal = cls.of(f"{who}, its own model", values["own"], of_own) if "own" in values else None
        within = checked(who, values, "loss_within", Amount) if "loss_within" in of_loss else 0.0
        return cls(tests, sums, loss, sample, personal, why, within)

    @property
    def losses(self) -> dict[str, float]:
        """The loss, if there is one, and what rounding may have changed it by, if it is rounded."""
        known = {"loss": self.loss, "loss_within": self.within or None}
        return {k: v for k, v in known.items() if v is not None and self.loss is not None}


def _figures(who: str, entry: Mapping[str, Any], metrics: Mapping[str, int]) -> dict[str, float]:
    """The figures of a task's test rows by name."""
    hints = {**dict.fromkeys(metrics, Figure), **dict.fromkeys((f"{m}_within" for m in metrics), Amount), **FIGURES}
    figures = {name: value for name, value in entry.items() if name != "sums"}
    if not figures.keys() <= hints.keys():
        raise wrong(who, {"tests": entry}, "tests", f"figures of {sorted(hints)}")
    return {name: checked(who, figures, name, hints[name]) for name in figures}


def _sums(who: str, sums: Any, metrics: Mapping[str, int]) -> dict[str, list[float]]:
    """The sums of the metrics that have sums, by name."""
    out = {name: [*map(float, checked(who, sums, name, list[Figure]))] for name in table(who, sums)}
    if any(len(values) != (metrics.get(name) or -1) for name, values in out.items()):
        raise wrong(who, {"tests": sums}, "tests", f"with sums of the metrics {sorted(metrics)}")
    return out


class RemoteEvaluator:
    """Measures models by exchanges with the clients. The ledger does not count these; ``evaluations`` does.

    Args:
        draw: the `medley.deploy.server.population.RemoteSimulation` that makes this evaluator
        metrics: figures of test rows by name
        grad_norm: whether the gradient's norm is measured
        rows: the number of rows that the loss is estimated from; None for all
    """

    def __init__(
        self, draw: Any, metrics: Mapping[str, Metric], grad_norm: bool = False, rows: int | None = None
    ) -> None:
        self.draw = draw
        self.metrics = metrics
        self.grad_norm = grad_norm
        self.rows = rows
        self.evaluations = 0
        kinds = draw.census.known.classes or 2
        self._sums = {name: _count(f, kinds) if isinstance(f, Summed) else 0 for name, f in metrics.items()}
        self._answers: tuple[int, dict[int, Figures]] = (-1, {})
        """The round of the last evaluation, and the clients' answers to it."""

    def evaluate(self, x: Vec, buffers: State | None, round: int) -> Row:
        """Figures of x on the task of this round, from the clients that answer.

        loss: Σ p_i f_i(x) over the clients with training rows that answer, divided by their Σ p_i; left out if rows are
            private. With ``eval_rows`` it is an estimate, and loss_error its standard error
        grad_norm: ‖Σ p_i ∇f_i(x)‖, in the same way, if requested
        test_loss, accuracy: means over the clients' test rows; metrics from their sums, or as means weighted by test
            rows
        client_accuracy_mean and similar: over clients, each on its own test rows
        gap, task: as in `medley.federation.evaluation.RowEvaluator.evaluate`
        evaluations: the number of these exchanges since the previous row; the column ``exchanges`` does not include
            them
        evaluated: Σ p_i over the clients that sent a loss or, if rows are private, an answer

        Raises MedleyError if no client with training rows answers.
        """
        draw = self.draw
        scenario = self.draw.fed.scenario
        s = draw.plan.step(round)
        p = draw.shares(round)
        task = draw.plan.current(s)
        gradients = dict[int, Vec]()
        answers = self._ask(x, buffers, round, task, not draw.fed.lossless, gradients=gradients)
        self._answers = round, answers
        losses = {i: answer.loss for i, answer in answers.items() if answer.loss is not None}
        share = sum(p[i] for i in (answers if draw.fed.lossless else losses))
        if not share:
            raise MedleyError(f"no client with training rows evaluated the model after round {round}")
        row: Row = {} if scenario.stream is None else {"task": s}
        if losses:
            row["loss"] = sum(p[i] * loss for i, loss in losses.items()) / share
            if within := sum(p[i] * answers[i].within for i in losses) / share:
                row["loss_within"] = within
            if self.rows is not None:
                variance = [p[i] ** 2 * self._variance(i, a, s) for i, a in answers.items() if a.sample is not None]
                row["loss_error"] = math.sqrt(sum(variance)) / share
            elif scenario.f_star is not None:
                row["gap"] = row["loss"] - scenario.f_star
        if self.grad_norm:
            row["grad_norm"] = float((sum(p[i] * g for i, g in gradients.items()) / share).norm())
        row |= {k: v for k, v in self._means(answers, task).items() if k != "test_loss_error"}
        each = [self._means({i: a}, task) for i, a in answers.items()]
        for name, low in (("accuracy", True), ("test_loss", False)):
            values = [figures[name] for figures in each if name in figures]
            if values:
                row |= fairness.over_clients(name, np.array(values), low)
                break
        evaluations, self.evaluations = self.evaluations, 0  # not a total, which a resumed run would restart
        return {**row, "evaluations": evaluations, "evaluated": share}

    def _variance(self, i: int, answer: Figures, s: int) -> float:
        """The variance of client i's estimate of its loss; see `medley.federation.row_sample.Drawn.mean`."""
        assert answer.sample is not None
        count, squares = answer.sample
        return (1 - count / int(self.draw.sizes(s)[0][i])) * squares / max(1, count - 1) / count

    @property
    def own_tests(self) -> bool:
        """Whether any client has test rows."""
        return bool(self.draw.fed.census.tests.any())

    def by_client(self, x: Vec, buffers: State | None, round: int, models: PersonalModels | None = None) -> list[Row]:
        """Figures of x at each client that answers, on its own rows; needs no exchange after `evaluate`.

        If clients use their own models, each measures its own as well as x; the model stays on its node.
        """
        draw, (before, answers) = self.draw, self._answers
        s = draw.plan.step(round)
        task = draw.plan.current(s)
        if before != round or models is not None:
            acked = models.acked if isinstance(models, OwnModels) else None
            answers = self._ask(x, buffers, round, task, not draw.fed.lossless, acked)
        out: list[Row] = []
        for i, answer in answers.items():
            if answer.loss is None and not draw.fed.lossless:
                continue
            row: Row = {"client": i, "rows": int(draw.sizes(s)[0][i])}
            row["test_rows"] = int(draw.census.tests[i, task].sum())
            server = answer.losses | self._means({i: answer}, task)
            if models is None:
                out.append(row | server)
                continue
            personal = answer.own
            if personal is None:
                log.warning("round %d: %s's own model is not measured: %s", round, name_of(i), answer.why)
            else:
                row |= personal.losses | self._means({i: personal}, task)
            out.append(row | {f"server_{name}": value for name, value in server.items()})
        return out

    def accuracies(self, x: Vec, buffers: State | None, round: int) -> list[float]:
        """Test accuracy on every task, from the clients that answer; empty if there are no classes."""
        tasks = range(self.draw.task_count)
        answers = self._ask(x, buffers, round, tasks, loss=False)
        scores = [self._means({i: replace(a, tests=[a.tests[k]]) for i, a in answers.items()}, [k]) for k in tasks]
        return [row.get("accuracy", 0.0) for row in scores] if any("accuracy" in row for row in scores) else []

    def remedy(self, advice: str) -> str:
        """The remedy for diverging numbers, without knowledge of the clients' rows."""
        return f"{advice}, and scale down a client's rows if their numbers are very large"

    def _ask(
        self,
        x: Vec,
        buffers: State | None,
        round: int,
        tests: Sequence[int],
        loss: bool,
        acked: Mapping[int, Tag] | None = None,
        gradients: dict[int, Vec] | None = None,
    ) -> dict[int, Figures]:
        """The clients' answers by id; see `medley.deploy.node.rows.NodeRows.evaluate`.

        Args:
            acked: the versions of memories with which clients measure their own models; None: they do not
            gradients: receives the clients' gradients if the run measures their norm
        """
        draw = self.draw
        fed = self.draw.fed
        census = self.draw.census
        p = self.draw.shares(round)
        grad = loss and self.grad_norm and gradients is not None
        request: dict[str, Any] = {
            "x": x,
            "buffers": buffers,
            "round": round,
            "tests": [*tests],
            "loss": loss,
            "grad": grad,
        }
        request |= {"known": fed.known(draw.problem), "run": "" if acked is None else fed.run}
        common = packed(request)
        members = self._free(round, p)
        each = {i: {"acked": list((acked or {}).get(i, ())), "sample": self._sample(i, round, p)} for i in members}
        letters = {i: {"common": common, "own": json.dumps(each[i]).encode()} for i in members}
        answers = fed.messenger.send("evaluate", letters)
        if not answers:
            raise MedleyError(f"no client evaluated the model after round {round}; are the SuperNodes up?")
        self.evaluations += 1
        figures = dict[int, Figures]()
        failed = dict[int, MedleyError]()
        for i, (raw, _) in sorted(answers.items()):
            has_rows = [bool(census.tests[i, k]) for k in tests]
            sampled = each[i]["sample"][-1] if self.rows is not None else 0
            expected = Asked(has_rows, loss and p[i] > 0, sampled, self._sums, acked is not None)
            try:
                body = opened(raw, name_of(i), i)
                if grad and expected.loss and gradients is not None:
                    body, gradients[i] = calls.opened_gradient(i, body, x)
                measured = Figures.read(i, body, expected)
                self._check_sums(
                    i, [measured, *([] if measured.own is None else [measured.own])], census.tests[i, [*tests]]
                )
                figures[i] = measured
            except MedleyError as e:
                if not fed.tolerant:
                    raise
                failed[i] = e
        self._settle(round, figures, failed, gradients or {})
        return figures

    def _free(self, round: int, p: Mapping[int, float]) -> list[int]:
        """The members to ask: others than those at work, which answer only when they have trained, if any has rows."""
        members = [i for i in self.draw.members(round) if i not in self.draw.census.refused]
        free = [i for i in members if i not in self.draw.fed.messenger.at_work]
        return free if any(p[i] > 0 for i in free) else members

    def _settle(
        self, round: int, figures: dict[int, Figures], failed: dict[int, MedleyError], gradients: dict[int, Vec]
    ) -> None:
        """Take clients that failed, and those far from all others, out of the answers, and log them.

        Raises their error if the run tolerates none, and if no client is left.
        """
        for i, error in [*outliers({i: f.largest for i, f in figures.items()}, f"loss after round {round}")]:
            if not self.draw.fed.tolerant:
                raise error
            failed[i] = error
            del figures[i]
        for i, why in sorted(failed.items()):
            log.warning("round %d, evaluation: no answer of %s: %s", round, name_of(i), why)
            gradients.pop(i, None)
        if not figures and failed:
            raise next((e for e in failed.values() if isinstance(e, Diverged)), next(iter(failed.values())))

    def _check_sums(self, i: int, answers: Sequence[Figures], rows: np.ndarray) -> None:
        """Raise WireError for sums of a metric that are impossible for client i's test rows."""
        each = [(name, v, int(n)) for a in answers for n, s in zip(rows, a.sums, strict=True) for name, v in s.items()]
        for name, values, n in each:
            f = self.metrics[name]
            assert isinstance(f, Summed)
            if not f.fits(torch.tensor(values, dtype=torch.float64), n):
                raise WireError(
                    f"{name_of(i)}'s answer to an evaluation: the sums of {name} are impossible for {n} test rows"
                )

    def _sample(self, i: int, round: int, p: Mapping[int, float]) -> list[int]:
        """Client i's rows in the sample of ``eval_rows``: the index of its first row, the number of all rows, and of
        its sampled rows.
        """
        if self.rows is None:
            return []
        sizes = self.draw.sizes(self.draw.plan.step(round))[0]
        # As in `medley.federation.row_sample`, halves go to the even number.
        count = min(int(sizes[i]), max(LEAST, int(np.rint(p[i] * self.rows)))) if p[i] > 0 else 0
        return [int(sizes[:i].sum()), int(sizes.sum()), count]

    def _means(self, answers: Mapping[int, Figures], tasks: Sequence[int]) -> Row:
        """The answers' figures over the test rows of ``tasks``, by name."""
        rows = self.draw.census.tests
        out = Row()
        summed = dict[str, Tensor]()
        sizes_and_figures = list[tuple[int, dict[str, float]]]()
        sums = list[dict[str, list[float]]]()
        for i, a in answers.items():
            sizes_and_figures += [(int(rows[i, s]), figures) for s, figures in zip(tasks, a.tests, strict=True)]
            sums += a.sums
        for name in ("test_loss", "accuracy", *self.metrics):
            present = [
                (n, figures[name], figures.get(f"{name}_within", 0.0))
                for n, figures in sizes_and_figures
                if name in figures
            ]
            if present:
                count = sum(n for n, *_ in present)
                out[name] = sum(n * value for n, value, _ in present) / count
                within = sum(n * step for n, _, step in present) / count
                out |= {f"{name}_within": within} if within else {}
        parts = [
            (n, f["test_loss"], f["test_loss_error"])
            for n, f in sizes_and_figures
            if "test_loss_error" in f and "test_loss" in f
        ]
        if parts:
            out["test_loss_error"] = pooled_error(parts)
        for part in sums:
            for name, values in part.items():
                if any(
                    name not in other for (_, figures), other in zip(sizes_and_figures, sums, strict=True) if figures
                ):
                    continue  # a site's rules withhold its figures
                summed[name] = torch.tensor(values, dtype=torch.float64) + summed.get(name, torch.zeros(len(values)))
        for name, total in summed.items():
            f = self.metrics[name]
            assert isinstance(f, Summed)
            pair = [*zip((name, f"{name}_error"), f.figure(total), strict=True)]
            pair += [(f"{name}_within", f.within(total))] if isinstance(f, AUROC) else []
            out.pop(f"{name}_within", None)
            out |= {k: v for k, v in pair if math.isfinite(v)}
        return out


def _count(metric: Summed, classes: int) -> int:
    """The number of a metric's sums, found with two rows of zeros."""
    return len(metric.sums(torch.zeros(2, 1 if classes == 2 else classes), torch.zeros(2, dtype=torch.int64)))
