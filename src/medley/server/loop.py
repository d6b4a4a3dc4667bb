"""The loop: rounds, evaluation, checkpoints, and an end that keeps every whole round."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..contract import Algorithm, State, Vec, pytree
from ..contract.errors import BudgetSpent, Diverged, MedleyError, RecipeError
from ..contract.problem import Readout
from ..runtime import deferred, stopwatch, streams, turns
from ..runtime.clock import Device
from ..storage import run_folder
from ..storage.as_json import shown_seed
from ..storage.directions import higher_is_better
from ..storage.environment import environment
from ..storage.events import Events, ExchangeEvent
from ..storage.history import Row, history_of
from ..storage.result import Result, Status, shown
from ..storage.run_folder import RunFolder
from ..storage.run_view import birth
from ..storage.spill import LazyMapping
from ..wire.connection import Connection
from .bookkeeping import Bookkeeping, joined
from .clientwise import Clientwise, summary
from .cohort import LiveCohort
from .ending import LASTING, check_loss, exhausted, judged, judged_by, reached
from .members import clients_ever, regrouped
from .options import RunOptions
from .protocols import ClientSource, Evaluator
from .round import check_model, refuse_return, started
from .run_state import RunState

log = logging.getLogger("medley")


@dataclass
class Loop:
    """The loop of one run. Call it to run it.

    Attributes:
        x0: the first model [d]
        clients: tasks, cohorts and shares
        options: the settings of the run; ``rounds`` are those of one task
        stack_size: clients in one call; their replies are summed before they travel
        device: a client's device by its id, for the virtual clock
        tick: a function that is called with every row, before the user's own
        settings: the identity of the run, in plain values
        place: called at the end; gives where the clients worked, for the result; empty text for none
    """

    algorithm: Algorithm[Any, Any]
    connection: Connection
    x0: Vec
    buffers: State | None
    clients: ClientSource
    evaluator: Evaluator
    options: RunOptions
    stack_size: int = 8
    device: Callable[[int], Device] = lambda i: Device()
    tick: Callable[[Row], object] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    place: Callable[[], str] = str
    rounds: int = field(init=False)
    """The number of rounds of all tasks together."""
    clientwise: Clientwise = field(init=False)
    _d: int = field(init=False)
    _readout: Readout | None = field(init=False)
    _readmit: tuple[int, ...] = field(init=False)
    """Clients that lost their memory and start again in the next round."""
    _events: Events | None = field(init=False, default=None)
    _exchanges: list[ExchangeEvent] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        o = self.options
        self._d, self._readout = len(self.x0), self.clients.problem.readout
        self.rounds, self._readmit = o.rounds * self.clients.task_count, tuple(o.readmit)
        self.clientwise = Clientwise(
            self.algorithm, self.clients.problem, self.connection, self.evaluator, self.stack_size, o.client_models
        )

    @cached_property
    def _seed(self) -> int | str:
        """The seed, as logs and events show it."""
        shown = shown_seed(self.options.seed, self.settings)
        return self.options.seed if shown == str(self.options.seed) else shown

    @property
    def _waits_as(self) -> str:
        """The equivalent method, if this one is made for late replies but the run waits for all replies; else empty."""
        cohort_sizes = (len(self.clients.cohort(t)) for t in range(1, self.rounds + 1))
        name = self.algorithm.waits_as
        return name if name and self.options.policy.waits(cohort_sizes) else ""

    def start(self) -> RunState:
        """The run before its first round. Warns if the method is made for late replies and this run has none."""
        if self._waits_as:
            log.warning(
                "%s is made for late replies, but this run waits for every reply: the method is then %s. Pass "
                "run(reply_policy=ReplyPolicy(replies=K)), with K below the number of clients that a round asks",
                *(self.algorithm.name, self.algorithm.waits_as),
            )
        return RunState(0, started(self.algorithm, self.x0), Bookkeeping(buffers=self.buffers), [])

    def resume(self, folder: Path) -> RunState:
        """The run from its checkpoint. Raises WireError if there is no checkpoint, or if it belongs to another run."""
        classes = pytree.dataclasses_in(self.algorithm.start(torch.zeros_like(self.x0)), self.algorithm.memory)
        checkpoint = run_folder.load(folder, classes, self.settings)
        if checkpoint is None:
            return self.start()
        saved, history, ledger = checkpoint
        if saved["round"] > self.rounds:
            raise RecipeError(
                f"the run in {folder} has done {saved['round']} rounds, more than rounds={self.rounds}: give the "
                "number that it was started with, or more",
                "rounds",
            )
        to = lambda t: t.to(self.x0.device)
        saved = pytree.map_tensors(saved, to)
        bookkeeping = Bookkeeping(ledger, saved["seconds"], saved["acked"], saved["buffers"], late=saved["late"])
        bookkeeping.engines = frozenset(saved["engines"])
        bookkeeping.notes = saved["notes"]
        bookkeeping.earlier = frozenset(saved.get("earlier", ()))
        history += history_of(saved.get("last", "")) if saved["round"] == self.rounds else []
        memories: LazyMapping = saved["memories"]
        moved = LazyMapping(lambda: ((i, pytree.map_tensors(m, to)) for i, m in memories.items()))
        self.connection.load(saved.get("begun with", {}), bookkeeping.begun_with)  # the older versions first
        self.connection.load(moved, bookkeeping.remembered)
        more = (saved["wall"], saved["matrix"], saved["clients"], saved.get("best"))
        return RunState(saved["round"], saved["server"], bookkeeping, history, *more)

    def __call__(self, resume: Path | None = None) -> Result:
        """Run to the end, to the target, to Ctrl-C or to a divergence. The status of the result says which.

        If a round is cut short, it is undone: the result and the checkpoint hold the last whole round. Raises WireError
        if ``resume`` holds no run. Errors of methods and clients carry the result so far.
        """
        if resume is not None and not run_folder.holds_run(resume):
            raise run_folder.no_run(resume)
        if self.options.folder is None:
            return self._run(self.start() if resume is None else self.resume(resume), None)
        with contextlib.closing(RunFolder(self.options.folder)) as folder:
            state = self.start() if resume is None else self.resume(resume)
            begins = resume is None or resume.resolve() != self.options.folder.resolve()
            folder.begin(self._open(state).grown, self.settings, state.round, begins, self.options.recipe)
            with contextlib.closing(Events(self.options.folder)) as self._events:
                result = self._watched(state, folder)
            try:
                result.write(self.options.folder)
            except MedleyError as e:
                e.result = result
                raise
            return result

    def _watched(self, state: RunState, folder: RunFolder) -> Result:
        """`_run`, which also writes its start and its end to the folder's events."""
        assert self._events is not None
        about = {"method": self.algorithm.name, "seed": self._seed, "pid": os.getpid(), "born": birth(os.getpid())}
        n = len(self.clients.view(max(state.round, 1)).p)
        every = self.options.checkpoint_every
        self._events.add("start", **about, round=state.round, of=self.rounds, clients=n, every=every)
        try:
            result = self._run(state, folder)
        except Exception as e:
            text = str(e) if isinstance(e, MedleyError) else f"{type(e).__name__}: {e}"
            self._events.add("end", outcome="failed", message=text[:2000], final=isinstance(e, LASTING))
            raise
        self._events.add("end", outcome=result.status.outcome, message=result.status.message)
        return result

    def _run(self, state: RunState, folder: RunFolder | None) -> Result:
        """The loop. ``state`` is replaced when a round is whole, so that every exit leaves the last whole round."""
        saved = -1
        self.x0 = self.x0.new_empty(0)  # the state has it, as long as it needs it
        began = time.perf_counter() - state.wall
        try:
            try:
                if not state.history:
                    self._evaluate_x0(state)
                while state.round < self.rounds and not self._over(state):
                    before, state = state, self._next(state, began)
                    before.s = None  # callers hold it to the end
                    if folder and state.round % self.options.checkpoint_every == 0:
                        self._save(state, folder)
                        saved = state.round
                    elif folder:
                        with stopwatch.doing("files"):
                            folder.grow(self._open(state).grown)
                    self._tell_round(state)
                status = self._over(state) or self._judged(state)
            except KeyboardInterrupt:
                status = self._interrupted(state)
            except BudgetSpent as e:
                status = Status("spent", str(e))
            except Diverged as e:
                status = judged_by(e, bool(state.history), self.evaluator.remedy)
            if folder and saved != state.round:
                self._save(state, folder)
        except Exception as e:
            if folder:
                with contextlib.suppress(MedleyError):
                    self._save(state, folder)
            if isinstance(e, MedleyError):
                e.result = self._result(state, Status("failed", str(e)))
            raise
        return self._result(state, status)

    def _over(self, state: RunState) -> Status | None:
        """The status of a run that ends here, at its target or out of patience; None if it goes on."""
        o = self.options
        if o.target and (why := reached(state.history, o.target, o.at_least, o.target_over)):
            return Status("target", why)
        if state.best is not None and (why := exhausted(state.history, str(o.best), state.best["round"], o.patience)):
            return Status("finished", why)
        waited = state.best is None and o.patience is not None and len(state.history) > o.patience
        return self._judged(state) if waited else None

    def _judged(self, state: RunState) -> Status:
        return judged(state.history, self.clients.problem, self.evaluator.remedy, self.options)

    def _next(self, state: RunState, began: float) -> RunState:
        """The run one round later; does not change ``state``. ``began`` is the start on `time.perf_counter`'s clock."""
        after = state.before()
        after.round += 1
        with deferred.gathered():
            self._round(after)
        self._readmit = ()
        after.wall = time.perf_counter() - began
        if self._evaluated(after.round):
            self._evaluate(after)
            after.bookkeeping.notes = {}
        if self.options.clients_every is not None and after.round % self.options.clients_every == 0:
            self._by_client(after)
        return after

    def _by_client(self, state: RunState) -> None:
        """Add the clients' figures after this round, and to its row a summary of the clients' own models."""
        with stopwatch.doing("evaluation"):
            rows = self.clientwise.rows(state)
        state.clients = [*state.clients, *rows]
        if self.clientwise.personal and state.history[-1]["round"] == state.round:
            state.history = [*state.history[:-1], {**state.history[-1], **summary(rows)}]

    def _evaluated(self, round: int) -> bool:
        return round % self.options.eval_every == 0 or round == self.rounds

    def _round(self, state: RunState) -> None:
        """One round of the method; after the last round of a task, also the end of the task."""
        t = state.round
        b = state.bookkeeping
        view = self.clients.view(t)
        before = self.clients.view(max(t - 1, 1)).p
        cohort = LiveCohort(
            self.clients.cohort(t),
            view.p,
            t,
            self.connection,
            b,
            self.options.encoding,
            self.stack_size,
            self.device,
            view.task,
            self.options.seed,
            self.options.policy,
            self._observe,
            view.sampling,
            view.local,
            view.lies,
            self._readout,
        )
        if self._readmit or not (before is view.p or before.keys() == view.p.keys()):
            cohort = regrouped(self.algorithm, state, (cohort, view), before.keys(), self._readmit, self._events)
        streams.name_globals("cpu", self.options.seed, "server", t, "noise")
        if cohort.ids or self.algorithm.every_round:
            with stopwatch.doing("server"):
                refuse_return(self.algorithm.name, self.algorithm.round(state.s, cohort))
            cohort.settle()
        ends = t % (self.clients.rounds_per_task or math.inf) == 0
        if ends:
            cohort = replace(cohort, ids=view.present)
            self.algorithm.end_task(state.s, cohort)
            cohort.settle()
        x = self.algorithm.model(state.s)
        check_model(self.algorithm.name, x, self._d, t)
        if ends and (scores := self.evaluator.accuracies(x, b.buffers, t)):
            state.matrix = [*state.matrix, scores]

    def _evaluate_x0(self, state: RunState) -> None:
        row = self._evaluate(state)
        for key, name in self.options.aims:
            if name not in row:
                raise RecipeError.unknown(name, row, f"run({key}=...): this run's history")
        self._tell(row)

    def _evaluate(self, state: RunState) -> Row:
        """Add a row to the history. Raises Diverged for a loss that is not finite."""
        b = state.bookkeeping
        streams.name_globals(self.options.device_name, self.options.seed, "server", state.round, "evaluation")
        with stopwatch.doing("evaluation"):
            try:
                measured = self.evaluator.evaluate(self.algorithm.model(state.s), b.buffers, state.round)
            except RecipeError as e:
                raise RecipeError(f"after round {state.round}: {e}", e.key) from e.__cause__
        row: Row = {
            "round": state.round,
            "exchanges": b.ledger.exchanges,
            "seconds": b.seconds,
            "wall": state.wall,
            "bytes_down": b.ledger.down,
            "bytes_up": b.ledger.up,
            **joined(measured, b.notes | self.algorithm.figures(state.s), self.algorithm.name),
        }
        check_loss(row.get("loss", 0.0), state.round, bool(state.history))
        state.history = [*state.history, row]  # not in place: a round that is undone takes its row with it
        name = self.options.best
        if name is not None:
            higher = higher_is_better(name, self.options.directions)
            state.choose(row.get(name, math.nan), higher, self.algorithm.model(state.s))
        return row

    def _observe(self, event: ExchangeEvent) -> None:
        self._exchanges.append(event)
        if self._events is not None:
            self._events.exchanged(event)

    def _tell_round(self, state: RunState) -> None:
        """Log a round with its answers, and with its row if it has one."""
        exchanges, self._exchanges = self._exchanges, []
        evaluated = self._evaluated(state.round)
        if self._events is None and not evaluated and not log.isEnabledFor(logging.INFO):
            return
        counts = {name: sum(map(len, (getattr(e, name) for e in exchanges))) for name in ("lost", "late", "refused")}
        requests = sum(e.asked for e in exchanges)
        exchange_seconds = sum(e.took for e in exchanges)
        row = state.history[-1] if evaluated else {}
        columns = ("loss", "test_loss", "accuracy", "gap", "evaluated")
        shown = {k: row[k] for name in columns for k in (name, f"{name}_within") if k in row}
        if self._events is not None:
            self._events.add(
                "round", round=state.round, asked=requests, **counts, took=round(exchange_seconds, 3), figures=shown
            )
        if evaluated:
            self._tell(state.history[-1])
            return
        figures = {
            "round": state.round,
            "asked": requests,
            **counts,
            "exchange_seconds": exchange_seconds,
            "wall": state.wall,
        }
        lost = counts["lost"]
        late = counts["late"]
        answers = f"{requests - lost - late} of {requests} answers, {lost} lost, {late} late"
        log.info(
            "%s, seed %s, round %d of %d: %s; not evaluated; %.3g s",
            *(self.algorithm.name, self._seed, state.round, self.rounds, answers, state.wall),
            extra={"row": {"method": self.algorithm.name, "seed": self._seed, **figures}},
        )

    def _tell(self, row: Row) -> None:
        """Log a row, and hand it to ``on_round``."""
        name = self.algorithm.name
        seed = self._seed
        figures = ", ".join(shown(row, k) for k in ("loss", "test_loss", "accuracy", "gap") if k in row)
        traffic = f"{row['bytes_down'] / 1e6:.4g} MB down, {row['bytes_up'] / 1e6:.4g} MB up, {row['wall']:.3g} s"
        extra = {"row": {"method": name, "seed": seed, **row}}
        log.info(
            "%s, seed %s, round %d of %d: %s; %s", name, seed, row["round"], self.rounds, figures, traffic, extra=extra
        )
        for listener in filter(None, (self.tick, self.options.on_round)):
            with turns.process_turn().calling_back():
                listener(dict(row))

    def _open(self, state: RunState) -> RunState:
        return state.open_ended(self.rounds, self.options.eval_every)

    def _save(self, state: RunState, folder: RunFolder) -> None:
        saved = self._open(state).state(self.connection.save)
        with stopwatch.doing("files"):
            folder.save(saved, self._open(state).grown, self.settings)

    def _interrupted(self, state: RunState) -> Status:
        where = f"; resume={str(self.options.folder)!r} goes on from there" if self.options.folder is not None else ""
        return Status("interrupted", f"stopped by Ctrl-C after round {state.round} of {self.rounds}{where}")

    def _result(self, state: RunState, status: Status) -> Result:
        # The error that ended the run says more than an error of its last evaluation.
        lesser = MedleyError if status.outcome == "failed" else Diverged
        if state.history and state.history[-1]["round"] != state.round:
            # The model may be finite although its loss is not; then the last row is from an earlier round.
            with contextlib.suppress(lesser):
                self._evaluate(state)
        if self.options.clients_every is not None or self.evaluator.own_tests or self.clientwise.personal:
            with contextlib.suppress(lesser):
                state.clients = self.clientwise.last(state)
        engines = state.bookkeeping.engines
        waits = self._waits_as
        client_rows = [row for row in state.clients if row["round"] == state.round]
        x, buffers = state.result(self.algorithm.model(state.s))
        place = self.place()
        return Result(
            self.algorithm.name,
            self.options.seed,
            x.detach().cpu().clone(),
            state.history,
            state.summary(self.clients.first_steps) | summary(client_rows),
            state.bookkeeping.ledger,
            status,
            self.settings
            | {"clients": clients_ever(self.clients, state)}
            | ({"engine": " and ".join(sorted(engines))} if engines else {})
            | ({"waits as": waits} if waits else {}),
            buffers=pytree.map_tensors(buffers, lambda t: t.cpu()),
            environment=environment() | ({"place": place} if place else {}),
            clients=state.clients,
        )
