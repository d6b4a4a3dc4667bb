"""Clients in worker processes of this machine: the same bits as in one process, in less time.

Workers are forked when a run begins, so that data are inherited and never sent. They keep nothing between two requests:
clients' memories stay with the parent and travel with each request. So any free worker can take a block; if a worker
dies, it is replaced and its block is served again. Tensors pass through shared memory, all other values as JSON through
a pipe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import connection as pipes
from typing import Annotated, Any

import torch
from torch import Tensor

from ..contract import Checked, MedleyError, RecipeError, in_range, integer, pytree, take
from ..wire.clip import Clip
from ..wire.connection import Connection, Host
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .arena import Arena
from .failures import ATTEMPTS, describe, revive
from .inprocess import InProcess
from .memories import MemoriesHere, answer

log = logging.getLogger("medley")

HEARTBEAT = 1.0
"""Seconds after which a process that waits for another checks whether that one still runs."""

MOST = 1024
"""The largest number of workers: all of them are forked when a run begins."""


@dataclass(frozen=True)
class Processes(Checked):
    """Forked processes with one thread each; ``workers`` is their number, by default 2.

    A run has the same bits as on `InProcess` in a process that computes with one thread (``torch.set_num_threads(1)``).
    Raises RecipeError for fewer than one worker, and for a device other than the CPU. If processes cannot be forked, as
    on Windows, clients are served in the process of the run.
    """

    workers: Annotated[int, in_range(1, MOST)] = 2

    def __post_init__(self) -> None:
        take(self, integer, "workers")
        super().__post_init__()

    def open(self, host: Host) -> Connection:
        """Begin a run with the clients of ``host``: fork the workers, or serve clients here if forking is
        impossible."""
        if host.device != "cpu":
            raise RecipeError(f"Processes: workers use the CPU, but the run is on {host.device}; leave device= out")
        if "fork" not in multiprocessing.get_all_start_methods():
            log.warning("Processes: this system cannot fork; clients are served in this process, with the same bits")
            return InProcess().open(host)
        return ProcessesConnection(host, self.workers)


@dataclass
class Job:
    """A block on its way to a worker.

    Attributes:
        block, ids: the block's number and its clients
        head: JSON values of the request; a pytree would take six times as long for its numbers
        body: the clients' own messages and their memories, a pytree
        attempts: the number of workers that have died on it
    """

    block: int
    ids: tuple[int, ...]
    head: dict[str, Any]
    body: dict[str, Any]
    attempts: int = 0


class Worker:
    """The parent's side of one worker."""

    def __init__(self, host: Host, common: Arena) -> None:
        self.host = host
        self.common = common
        self.inbox, self.outbox = Arena(), Arena()
        self.job: Job | None = None
        self._fork()

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        arguments = (self.host, theirs, self.common, self.inbox, self.outbox, os.getpid())
        self.process = context.Process(target=work, args=arguments, daemon=True)
        # Ctrl-C reaches the whole process group, and only the parent answers it: workers start with it blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with warnings.catch_warnings():
                # A worker uses no inherited locks and no inherited threads.
                warnings.filterwarnings("ignore", r".*multi-threaded, use of fork\(\)", DeprecationWarning)
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def give(self, job: Job) -> None:
        """Send a job."""
        self.job = job
        layout = self.inbox.write(job.body)
        with contextlib.suppress(OSError):  # the worker has died; waiting for its reply shows that
            self.pipe.send_bytes(json.dumps({**job.head, "body": layout}).encode())

    def take(self, classes: Mapping[str, type]) -> Any:
        """The answer to the job, copied into memory of its own. Raises the error if the job failed.

        Raises EOFError or OSError if the worker died.
        """
        head = json.loads(self.pipe.recv_bytes())
        self.job = None
        if "error" in head:
            return revive(head)
        return pytree.map_tensors(self.outbox.read(head, classes), Tensor.clone)

    def end(self) -> int | None:
        """Kill the process, which loses nothing. Returns its exit code."""
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.pipe.close()
        return code

    def replace(self) -> int | None:
        """Start a new process instead of this one, which is dead or works on an abandoned job.

        Returns the exit code of the old process.
        """
        code = self.end()
        self.job = None
        self._fork()
        return code


class ProcessesConnection(MemoriesHere):
    """Sends blocks to free workers and keeps the clients' memories."""

    def __init__(self, host: Host, workers: int) -> None:
        super().__init__(host)
        self.common = Arena()
        self.classes = pytree.dataclasses_in(host.algorithm.memory)
        self.workers = [Worker(host, self.common) for _ in range(workers)]

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields blocks as they are done."""
        return self.serve_from(exchange)

    def serve_from(self, exchange: Exchange, first: int = 0) -> Iterator[Fold]:
        """Serve the blocks from ``first`` on in workers. Yields them as they are done.

        If there are several errors, the earliest block's is raised, as in one process.
        """
        for w in self.workers:
            if w.job is not None:  # an earlier exchange was abandoned
                w.replace()
        common = self.common.write({"common": exchange.common, "buffers": exchange.buffers})
        jobs = (self._job(exchange, block, common) for block in range(first, len(exchange.blocks)))
        failed: dict[int, MedleyError] = {}
        done: list[Fold] = []
        while True:
            for w in self.workers:
                if w.job is None and not failed and (job := next(jobs, None)) is not None:
                    w.give(job)
            yield from done
            # After an error only earlier blocks matter: one of them could fail, too.
            busy = {w.pipe: w for w in self.workers if w.job is not None and w.job.block < min(failed, default=1 << 62)}
            if not busy:
                break
            done = []
            for job, came in self._answers(busy, exchange):
                if isinstance(came, MedleyError):
                    failed[job.block] = came
                else:
                    done.append(self.fold(exchange, job.block, came))
        if failed:
            raise failed[min(failed)]

    def _answers(self, busy: Mapping[pipes.Connection, Worker], exchange: Exchange) -> list[tuple[Job, Any]]:
        """Wait for busy workers. Returns the answers that arrived, and gives the jobs of dead workers to new ones."""
        answers = []
        ready = pipes.wait(list(busy), HEARTBEAT)
        for pipe, w in busy.items():
            job = w.job
            assert job is not None
            if pipe in ready:
                try:
                    answers.append((job, w.take(self.classes)))
                except (EOFError, OSError):
                    self._again(w, job, exchange)
            elif not ready and not w.process.is_alive():
                self._again(w, job, exchange)
        return answers

    def _job(self, exchange: Exchange, block: int, common: dict[str, Any]) -> Job:
        ids = exchange.blocks[block]
        part = exchange.of_block(ids)
        head = vars(part) | {"common": common, "p": [*part.p.items()]}
        if part.weights is not None:
            head["weights"] = [*part.weights.items()]
        if part.clip is not None:
            head["clip"] = vars(part.clip)
        return Job(block, ids, head, {"each": head.pop("each"), "held": self.memories_of(exchange, ids)})

    def _again(self, w: Worker, job: Job, exchange: Exchange) -> None:
        """Give the job of a dead worker to a new one. Raises MedleyError if too many workers have died on it."""
        job.attempts += 1
        code = w.replace()
        if job.attempts >= ATTEMPTS:
            raise MedleyError(
                f"{ATTEMPTS} workers died one after the other while they served clients {list(job.ids)} in "
                f"round {exchange.round} ({exchange.method}), the last with exit code {code}; -9 often means "
                "that the machine ran out of memory: use fewer workers, or run without transport= to see what "
                "happens"
            )
        w.give(job)

    def close(self) -> None:
        """End the workers and free the shared memory."""
        for w in self.workers:
            w.end()
            w.inbox.close()
            w.outbox.close()
        if self.workers:
            self.common.close()
        self.workers = []


def work(host: Host, pipe: pipes.Connection, common: Arena, inbox: Arena, outbox: Arena, parent: int) -> None:
    """The main function of a worker: serve blocks until the parent is gone.

    Args:
        pipe: carries requests in and replies out, as JSON
        common, inbox: shared memory with the message to all clients, and with the tensors of a request
        outbox: shared memory for the tensors of a reply
    """
    # An inherited OpenMP pool has no threads here: with more than one, the first parallel loop would hang.
    torch.set_num_threads(1)
    classes = pytree.dataclasses_in(host.algorithm.memory)
    while True:
        while not pipe.poll(HEARTBEAT):
            if os.getppid() != parent:
                return
        try:
            head = json.loads(pipe.recv_bytes())
            try:
                every = common.read(head["common"], {})
                body = inbox.read(head.pop("body"), classes)
                layout = outbox.write(answer(host, _request({**head, **every, "each": body["each"]}), body["held"]))
            except Exception as e:
                layout = describe(e)
            pipe.send_bytes(json.dumps(layout).encode())
        except (EOFError, OSError):
            return


def _request(values: dict[str, Any]) -> Exchange:
    """The request from JSON values as in `Job`."""
    (ids,), weights, clip = values["blocks"], values["weights"], values["clip"]
    values |= {"blocks": (tuple(ids),), "p": dict(values["p"]), "weights": None if weights is None else dict(weights)}
    return Exchange(**{**values, "clip": None if clip is None else Clip(**clip)})
