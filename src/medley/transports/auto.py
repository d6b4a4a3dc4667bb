"""Clients in this process, then in worker processes once their work is long enough: the same bits either way."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..contract.settings import Settings
from ..runtime.cores import cores, one_thread
from ..wire.connection import Connection, Host
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .inprocess import InProcess, InProcessConnection
from .processes import Processes, ProcessesConnection

log = logging.getLogger("medley")

SPENT = 0.5
"""Seconds of clients' work in this process before workers take over; until then a run may be a short one."""

LEAST = 0.02
"""The least seconds of work worth sending to workers. The way there and back takes about 2 ms per block."""

LONG = 20.0
"""Seconds of clients' work after which a run without an explicit transport mentions `Auto` in the log."""


@dataclass(frozen=True)
class Auto(Settings):
    """Worker processes when they pay off.

    Attributes:
        workers: the largest number of processes. Default: torch's threads, at most the cores that this process may
            use; so with OMP_NUM_THREADS=1 clients stay in this process

    Blocks of clients are served here, with one thread, until they have taken `SPENT` seconds. From then on workers
    serve the blocks of an exchange if it takes `LEAST` seconds or more. All blocks are computed with one thread
    wherever they are served: the bits are those of `Processes`, on any number of cores.

    With fewer than two workers it behaves like `InProcess`. So it does on a GPU, on systems that cannot fork safely
    (all but Linux), in a daemonic process, and outside the main thread. Raises RecipeError, as `Processes` does.
    """

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            Processes(self.workers)  # which checks the number

    def open(self, host: Host) -> Connection:
        """Begin a run with the clients of ``host``. Workers are forked at once, before a run has threads of its own."""
        count = self.workers or min(torch.get_num_threads(), cores())
        return AutoConnection(host, count) if count > 1 and forks(host.device) else InProcess().open(host)


class AutoConnection(ProcessesConnection):
    """Serves blocks in this process until they have taken long enough, and then in workers."""

    def __init__(self, host: Host, workers: int) -> None:
        super().__init__(host, workers)
        self.spent = 0.0
        self.block = 0.0
        self.since = 0

    @property
    def place(self) -> str:
        """Where the clients' work is done, and why."""
        times = f"{self.spent:.2g} s of work here, {1e3 * self.block:.2g} ms a block"
        if not self.since:
            return f"this process: {times}"
        return f"{len(self.workers)} processes from round {self.since} on: {times}"

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields blocks as they are done."""
        several = len(exchange.blocks) > 1
        for block, ids in enumerate(exchange.blocks):
            if self._pays(len(exchange.blocks) - block):
                self.since = self.since or exchange.round
                yield from self.serve_from(exchange, block)
                return
            began = time.perf_counter()
            with one_thread():
                reply, pending = self.host.serve_block(exchange, block, self.memories_of(exchange, ids))
            if several:
                self.block = time.perf_counter() - began
                self.spent += self.block
            self.keep(exchange, pending)
            yield reply

    def _pays(self, blocks: int) -> bool:
        return blocks > 1 and self.spent >= SPENT and blocks * self.block >= LEAST


def forks(device: str) -> bool:
    """Whether workers can be forked here for a run on this device."""
    return (
        device == "cpu"
        and sys.platform == "linux"
        and not multiprocessing.current_process().daemon
        and threading.current_thread() is threading.main_thread()
    )


@dataclass(frozen=True)
class Unchosen:
    """This process, if no transport is given: if a run's clients take long, it logs once that `Auto` exists."""

    def open(self, host: Host) -> InProcessConnection:
        """Begin a run with the clients of ``host``."""
        count = min(torch.get_num_threads(), cores())
        return LongConnection(host, count) if count > 1 and forks(host.device) else InProcessConnection(host)


class LongConnection(InProcessConnection):
    """Serves requests by calls of the host, and logs when they have taken `LONG` seconds."""

    def __init__(self, host: Host, workers: int) -> None:
        super().__init__(host)
        self.workers = workers
        self.spent = 0.0
        self.warned = False

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields the blocks in order."""
        began = time.perf_counter()
        for reply in super().exchange(exchange):
            self.spent += (time.perf_counter() - began) * (len(exchange.blocks) > 1)
            if self.spent > LONG and not self.warned:
                self.warned = True
                log.warning(
                    "clients have taken %.0f s in this process; run(transport=medley.transports.Auto()) serves them in "
                    "%d processes, each with one thread",
                    self.spent,
                    self.workers,
                )
            yield reply
            began = time.perf_counter()
