"""The client's long-running process: it polls for messages, answers them itself, and outlives its SuperLink."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...contract.errors import MedleyError, RecipeError, WireError
from ...runtime.signals import handled
from ...runtime.tricks import one_arena
from ...storage.atomic import locked, write
from ..protocol.flwr_api import discard, pause
from .fleet import HEARTBEAT, FleetNode, NotAdmitted, Parcel, RunOver, Unreachable, error_reply
from .serve import LEFT

if TYPE_CHECKING:
    from ..protocol.flwr_api import ClientApp, Context, Message

log = logging.getLogger("medley.node")

RUNS = 4
"""How many runs' settings a node keeps in memory."""

GRACE = 10.0
"""Seconds that a stopping node may take to finish its current answer."""

ABSENCE = 2.0
"""Seconds for which a node leaves the SuperLink after its process was killed; the server looks five times a second."""

LAST_BEAT = 5.0
"""Seconds that a node waits for the answer to its last heartbeat."""

RETRY = 5.0
"""The longest pause in seconds between two attempts to reach a SuperLink."""

LINGER = 15.0
"""Seconds that a leaving client's node stays after its last answer, because a SuperLink drops the answers of nodes that
have gone before the server fetches them."""

EARLY = 0.7
"""A node first polls after this share of the shortest of its last waits."""

UNSEEN = 1.0
"""The most seconds before a node's first poll."""


@dataclass
class Rhythm:
    """Pauses between polls, for repeated waits of similar length: the first poll comes shortly before the expected
    end.
    """

    waits: deque[float] = field(default_factory=lambda: deque(maxlen=4))

    def came(self, waited: float) -> None:
        """Remember a wait of this many seconds."""
        self.waits.append(waited)

    def pause(self, waited: float) -> float:
        """Seconds until the next poll, after this many seconds of waiting."""
        return max(pause(waited), min(EARLY * min(self.waits, default=0.0), UNSEEN) - waited)


class Stopped(BaseException):
    """The node was told to stop. Not an `Exception`, so that handlers of clients' errors do not catch it."""


class Resident:
    """One client's node.

    A message lies in ``folder`` until its reply is sent. A node that was killed answers it after its restart, with the
    same answer, because memories are kept in two phases.

    Args:
        node_config: Flower's node config, with ``partition-id`` and ``memory``
        folder: the folder of the current message; only one node at a time may use it
        tidy: called at the start, and when a run is over; by default does nothing
    """

    def __init__(
        self,
        fleet: FleetNode,
        app: ClientApp,
        node_config: Mapping[str, Any],
        folder: Path,
        tidy: Callable[[], object] = lambda: None,
    ) -> None:
        self.fleet = fleet
        self.app = app
        self.node_config = node_config
        self.folder = folder
        self.tidy = tidy
        self.contexts: dict[int, Context] = {}
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._logged = ""
        self._until = math.inf
        """The time at which the node of a leaving client ends."""
        self._ready: tuple[str, Message] | None = None
        """A reply that could not be sent yet, with the id of its message."""

    @property
    def inbox(self) -> Path:
        """The file of the current message."""
        return self.folder / "message"

    @property
    def badge(self) -> Path:
        """The file with the node's Flower id, from its first connection until it deactivates itself."""
        return self.folder / "node"

    def run(self) -> None:
        """Serve until `stop` is called, or the process gets SIGTERM or SIGINT."""
        one_arena()
        with locked(self.folder), self._signals():
            self.tidy()
            beat = threading.Thread(target=self._beat, daemon=True)
            beat.start()
            try:
                self._serve()
            except Stopped:
                log.info("stopped before sending the current answer; the next start sends it")
            finally:
                self._stop.set()
                with suppress(Stopped, MedleyError):  # a second signal skips the farewell
                    self.fleet.deactivate()
                    self.badge.unlink(missing_ok=True)
                with suppress(Stopped):
                    self.fleet.close()
                    beat.join(LAST_BEAT)  # a thread that is in gRPC while the interpreter ends aborts the process
        log.info("ended")

    def stop(self) -> None:
        """End after the current message."""
        self._stop.set()

    def _serve(self) -> None:
        came = time.monotonic()
        wait = 0.5
        active = False
        killed = self.badge.exists()
        rhythm = Rhythm()
        while not self._stop.is_set():
            if time.monotonic() > self._until:
                (self.folder / LEFT).unlink(missing_ok=True)
                log.info("has left")
                return
            try:
                if not active or self._lost.is_set():
                    self._connect(killed)
                    killed = False
                    self._lost.clear()
                    active = True
                    wait = 0.5
                    self._logged = ""
                    self._resume()
                parcel = self.fleet.pull()
                if parcel is None:
                    self._stop.wait(rhythm.pause(time.monotonic() - came))
                    continue
                rhythm.came(time.monotonic() - came)
                _keep(self.inbox, parcel.raw)
                self._handle(parcel)
                came = time.monotonic()
            except (Unreachable, NotAdmitted) as e:
                active = False
                self._tell(str(e))
                self._stop.wait(wait)
                wait = min(2 * wait, RETRY)

    def _connect(self, killed: bool) -> None:
        """Activate the node. ``killed``: the process before this one did not deactivate it.

        A message on its way to a killed process is lost, and the SuperLink does not notice. So the node leaves for a
        moment, and the server then asks again.
        """
        earlier = None
        with suppress(OSError, ValueError):
            earlier = int(self.badge.read_text(encoding="utf-8"))
        number = self.fleet.activate(earlier)
        if killed and not self.inbox.exists():
            number = self._absent()
        _keep(self.badge, str(number).encode())
        log.info("connected to %s as node %d", self.fleet.superlink, number)

    def _absent(self) -> int:
        """Leave the SuperLink for a moment. Returns Flower's id of the node that came back."""
        self.fleet.deactivate()
        self._stop.wait(ABSENCE)
        return self.fleet.activate()

    def _resume(self) -> None:
        """Answer the message that was current when the process or the connection ended."""
        if not self.inbox.exists():
            return
        try:
            parcel = self.fleet.reopened(self.inbox.read_bytes())
        except (OSError, WireError) as e:
            log.warning("dropping the message in %s, which cannot be read: %s", self.inbox, e)
            self.inbox.unlink(missing_ok=True)
            return
        log.info("run %d: resuming %s", parcel.run, parcel.kind)
        if not self._handle(parcel):
            # The process before this one may have announced the reply without sending it: the server would wait in
            # vain.
            _keep(self.badge, str(self._absent()).encode())

    def _handle(self, parcel: Parcel) -> bool:
        """Answer one message. If that fails, the answer is the error, and the node continues. Returns what
        `FleetNode.push` does.
        """
        begun = time.monotonic()
        taken = True
        try:
            if self._ready is None or self._ready[0] != parcel.id:
                self._ready = parcel.id, self._answer(parcel)
            answered = time.monotonic()
            taken = self.fleet.push(parcel, self._ready[1], answered - begun)
            seconds = answered - begun, time.monotonic() - answered
            log.debug("run %d: %s: pull and answer %.3f s, push %.3f s", parcel.run, parcel.kind, *seconds)
        except RunOver:
            log.info("run %d is over", parcel.run)
            self.contexts.pop(parcel.run, None)
            self.tidy()
        if self._ready is not None and self._ready[1].has_content():
            discard(self._ready[1].content)
        self._ready = None
        self.inbox.unlink(missing_ok=True)
        if (self.folder / LEFT).exists():
            log.info("leaving: this was the last answer")
            self._until = time.monotonic() + LINGER
        return taken

    def _answer(self, parcel: Parcel) -> Message:
        """The reply to a message; if it cannot be read or the app fails, a reply that says so."""
        try:
            context = self._context(parcel.run)
            message = self.fleet.content(parcel)
            return self.app(message, context)
        except (Unreachable, NotAdmitted, RunOver):
            raise
        except (Exception, SystemExit) as e:
            log.warning("run %d: %s failed: %s: %s", parcel.run, parcel.kind, type(e).__name__, e)
            return error_reply(parcel, f"{type(e).__name__}: {e}")

    def _context(self, run: int) -> Context:
        if run not in self.contexts:
            self.contexts[run] = self.fleet.context(run, self.node_config)
            log.info("run %d begins: %s", run, dict(self.contexts[run].run_config))
            while len(self.contexts) > RUNS:
                del self.contexts[next(iter(self.contexts))]
        return self.contexts[run]

    def _beat(self) -> None:
        """Send a heartbeat every 20 s, also during an answer."""
        while not self._stop.wait(HEARTBEAT * 2 / 3):
            try:
                if not self.fleet.heartbeat():
                    self._lost.set()
                else:
                    with suppress(OSError):
                        os.utime(self.badge)  # a container's healthcheck looks at its age
            except MedleyError as e:
                log.debug("heartbeat: %s", e)

    def _tell(self, text: str) -> None:
        """Log a sentence, unless only its numbers differ from the last one."""
        words = re.sub(r"\d+", "", text)
        if words != self._logged:
            self._logged = words
            log.warning("%s; trying again", text)

    def _signals(self) -> AbstractContextManager[None]:
        """SIGTERM and SIGINT end the node: at once if it is idle, otherwise after at most `GRACE` seconds."""

        def end(*_: object) -> None:
            if self._stop.is_set():
                raise Stopped
            self._stop.set()
            signal.setitimer(signal.ITIMER_REAL, GRACE)

        def late(*_: object) -> None:
            raise Stopped

        return handled({"SIGTERM": end, "SIGINT": end, "SIGALRM": late})


def _keep(path: Path, content: bytes) -> None:
    """Write a file that lets the node resume after a kill. If the disk is full, the node continues without it."""
    try:
        write(path, content)
    except MedleyError as e:
        log.warning("%s; until then a kill may lose a message", e)


def data_function(path: Path) -> Any:
    """The function ``data`` in a Python file of the node's owner. Raises RecipeError if there is none."""
    spec = spec_from_file_location("medley_own_data", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RecipeError(f"--data {path}: no such Python file", "data")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise RecipeError(f"--data {path}: {type(e).__name__}: {e}", "data") from e
    function = getattr(module, "data", None)
    if not callable(function):
        raise RecipeError(f"--data {path} has no function data(context) that returns your rows", "data")
    return function
