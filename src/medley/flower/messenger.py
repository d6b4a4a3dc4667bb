"""The server's way to clients on SuperNodes: letters by client id, answers and errors back."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from ..contract.errors import MedleyError, WireError
from ..storage.atomic import write
from ..transports.failures import ATTEMPTS
from . import flwr_api
from .checked_json import Words
from .envelope import is_last, opened, sealed_error
from .flwr_api import BROKEN, CRASHED, Letter
from .polling import pause

if TYPE_CHECKING:
    from .flwr_api import Grid

log = logging.getLogger("medley")

POLL = 0.2
"""The longest pause in seconds between two looks for replies; Flower's own ``send_and_receive`` takes 3."""

SOON = 5.0
"""Seconds after which missing clients are named at the start of a run."""

NAMED = 5.0
"""Seconds between two looks at whom an exchange waits for, which the run's folder then has."""

LONG = 10.0
"""Seconds after which an exchange warns of the clients that it waits for; twice what the one before took, if more."""

BACK = 1.0
"""Seconds until a node that went away in an exchange is asked again; twice as many each time, up to 10."""

CLOSED = (
    "client {0} has left, and this run has the same clients from the first round to the last: start its node again and "
    "resume, or start the app with open= for clients that join and leave"
)
"""The error in the place of answers of a client that left a run that it may not leave."""


class Messenger:
    """Sends letters to clients by id, and waits at most ``timeout`` seconds for their answers.

    A client that is late, or whose node is down, has not answered. A client whose app crashes is asked again, and has
    an error in the place of an answer if it crashes three times.

    A client is the node that was the first to say so, to the end of the run. Flower's id of a node belongs to its key.

    Args:
        file: keeps the node of each client, for a run that is resumed; default None: nothing does
    """

    def __init__(self, grid: Grid, timeout: float = 600.0, file: Path | None = None) -> None:
        self.grid, self.timeout, self.file = grid, timeout, file
        self.bound: dict[int, int] = {} if file is None else _read(file)
        """Flower's node of each client, also of those that a run which is resumed has not met yet."""
        self._recorded = frozenset(self.bound)
        self.nodes: dict[int, int] = {}
        """Flower's node of each client."""
        self.open = False
        """Whether clients may leave."""
        self.leaving: set[int] = set()
        """Clients whose last answer has come."""
        self.events: Callable[..., object] = lambda event, **values: None
        """Takes an event of the run, and its values."""
        self.note: Callable[[], object] = lambda: None
        """Is called when a client leaves."""
        self._aside: set[int] = set()
        """Nodes that left, or that cannot be used, while they are there."""
        self._letter: Letter = {}
        self._usual = 0.0
        """Seconds that the last exchange took."""
        self.silent: set[int] = set()
        """Nodes that have not answered within the timeout, and have not answered since."""

    def gather(
        self,
        clients: int,
        letter: Letter | None = None,
        tolerant: bool = False,
        tell: Callable[[str], object] = log.info,
        wanted: int | Collection[int] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Wait for ``clients`` clients. Returns their accounts of themselves by id, plain values with "client" in them.

        Args:
            clients: the number of clients, which have the ids 0, 1, ...
            wanted: the number of those that have to be there, or their ids; default None: all
            letter: the server's account of the run, for every client; default nothing
            tolerant: True gives a client that cannot be used an account with the reason under "refused"; False raises
            tell: takes a sentence about missing clients; default the log

        Raises MedleyError when they aren't there within the timeout, or when two nodes claim one id.
        """
        begun, accounts, told = time.monotonic(), dict[int, dict[str, Any]](), False
        refused, self._letter = dict[int, str](), letter or {}
        number = clients if wanted is None else wanted if isinstance(wanted, int) else len(wanted)
        ids = () if wanted is None or isinstance(wanted, int) else wanted
        while len(accounts) + len(refused) < number or not accounts.keys() >= set(ids):
            new = set(self.grid.get_node_ids()) - set(self.nodes.values()) - refused.keys() - self._aside
            for node, answer, _ in self._send("query", {node: letter or {} for node in sorted(new)}):
                try:
                    if is_last(answer) and not self._awaited(node, answer, ids):
                        continue
                    account = self._admitted(node, answer, clients)
                except Moved as e:  # the node that has the number may come yet
                    self._aside.add(node)
                    log.warning("%s", e)
                except MedleyError as e:
                    if not tolerant:
                        raise
                    refused[node] = str(e)
                    log.warning("a node is refused: %s", e)
                else:
                    accounts[account["client"]] = account
            missing = [i for i in ids or range(clients) if i not in accounts]
            waited = time.monotonic() - begun
            if waited > self.timeout:
                raise MedleyError(
                    f"{len(accounts)} of {number} clients are there after {self.timeout:g} s, {sorted(accounts)}, and "
                    f"{missing} are not: start their nodes, or say how many there are with clients= in the app's "
                    "pyproject.toml"
                )
            if not told and waited > SOON and len(missing) > len(refused):
                tell(f"waits for clients {missing}, for {self.timeout:g} s at most")
                told = True
            if not new:
                time.sleep(POLL)
        if refused and wanted is None:
            why = f"no node that can be used is this client; refused: {'; '.join(refused.values())}"
            accounts |= {i: {"client": i, "refused": f"client {i}: {why}"} for i in range(clients) if i not in accounts}
        self._keep()
        return dict(sorted(accounts.items()))

    def _admitted(self, node: int, answer: bytes, clients: int) -> dict[str, Any]:
        """A node's account. Raises MedleyError where it is none, or where its id is another node's or out of range."""
        account = _account(node, answer)
        i = account["client"]
        if i >= clients:
            raise MedleyError(
                f"node {node} says that it is client {i}, and the app's clients= says {clients}, ids from 0: start it "
                f"with --client 0 to {clients - 1}"
            )
        if i in self._recorded:
            self._check(i, node)
        if (other := self.nodes.setdefault(i, node)) != node:
            raise MedleyError(
                f"the nodes {other} and {node} are both client {i}: give every SuperNode a partition-id of its own in "
                "its --node-config"
            )
        self.bound[i] = node
        return account

    def newcomers(self, clients: int, members: Collection[int], within: float) -> dict[int, dict[str, Any]]:
        """Accounts, by id, of clients that are no members and whose nodes have come, waiting ``within`` seconds."""
        present = set(self.grid.get_node_ids())
        self._aside &= present
        new, out = present - set(self.nodes.values()) - self._aside, dict[int, dict[str, Any]]()
        letters = {node: self._letter for node in sorted(new)}
        for node, answer, _ in self._send("query", letters, within):
            try:
                account = _account(node, answer)
                i = account["client"]
                if is_last(answer):
                    raise MedleyError(f"client {i} leaves, and joins no run")
                if i >= clients:
                    raise MedleyError(f"node {node} says that it is client {i}: ids end at {clients - 1}")
                if i in members or i in out:
                    self._check(i, node)
            except MedleyError as e:
                self._aside.add(node)
                log.warning("a node is refused: %s", e)
                continue
            self.nodes[i] = self.bound[i] = node
            out[i] = account
        self._keep()
        return dict(sorted(out.items()))

    def forget(self, clients: Collection[int]) -> None:
        """Send nothing more to these clients; their nodes are new ones once they have been away."""
        for i in clients:
            self._aside |= {self.nodes.pop(i)} if i in self.nodes else set()
            self.bound.pop(i, None)
            self.leaving.discard(i)
        self._keep()

    def _check(self, client: int, node: int) -> None:
        """Raise Moved where another node has been this client in this run."""
        if (known := self.bound.get(client, node)) != node:
            remedy = "" if self.file is None else f", take it out of {self.file} and resume"
            raise Moved(
                f"node {node} says that it is client {client}, which is node {known} in this run: it is refused. A "
                f"number belongs to a node's key; if the client's owner has a new key{remedy or ', start anew'}"
            )

    def _keep(self) -> None:
        """Write the file."""
        if self.file is not None:
            write(self.file, json.dumps(dict(sorted(self.bound.items()))), own=True)

    def send(self, kind: str, letters: Mapping[int, Letter]) -> dict[int, tuple[bytes, int]]:
        """Send a letter to each of some clients, and wait. What is the same in several letters travels once.

        Returns answers by client id, for `opened`, and the bytes of their records both ways; a client that did not
        answer is absent. A client whose app cannot be run has an error in the place of an answer.
        """
        known, nodes = set(self.nodes.values()), set(self.grid.get_node_ids()) - self._aside
        if nodes - known and known - nodes and not self.open:
            self._refuse(nodes - known)
        out = dict[int, tuple[bytes, int]]()
        if not self.open:
            out = {i: (sealed_error(WireError(CLOSED.format(i))), 0) for i in self.leaving & letters.keys()}
        there = {i: self.nodes[i] for i in letters if i in self.nodes and i not in self.leaving}
        ids = {n: i for i, n in there.items()}
        for node, answer, size in self._send(kind, {n: letters[i] for i, n in there.items()}):
            out[ids[node]] = answer, size
            if is_last(answer):
                self._leaves(ids[node])
        return out

    def _name(self, nodes: Callable[[], Collection[int]], done: Event) -> None:
        """Say among the run's events whom an exchange waits for, and warn once it takes long; until it is ``done``."""
        begun, since, told = time.monotonic(), round(time.time(), 3), list[int]()
        patience, waited = max(LONG, 2 * self._usual), 0.0
        while not done.wait(min(NAMED, patience - waited)):
            there, waited, more = nodes(), time.monotonic() - begun, dict[str, int]()
            ids = sorted(i for i, node in self.nodes.items() if node in there)
            if waited >= patience:
                patience, more = math.inf, {"waited": round(waited), "most": round(self.timeout)}
                log.warning("waits for clients %s, for %.0f s so far and %.0f s at most", ids, waited, self.timeout)
            if ids != told or more:
                told = ids
                self.events("awaited", clients=ids, since=since, **more)
        if told:
            self.events("awaited", clients=[], since=since)

    def _awaited(self, node: int, answer: bytes, members: Collection[int]) -> bool:
        """Whether a client that leaves is a member of the run that goes on. Raises WireError in a run that begins."""
        i = _account(node, answer)["client"]
        if i in members:
            self._check(i, node)
            self._leaves(i)
            return True
        if not members:
            raise WireError(f"client {i} leaves, and serves no new run")
        self._aside.add(node)
        return False

    def _leaves(self, client: int) -> None:
        self.leaving.add(client)
        log.warning("client %d leaves: this was its last answer", client)
        self.note()

    def _refuse(self, new: set[int]) -> None:
        """Log which clients' numbers new nodes claim while a client's node is away; nothing more is sent to them."""
        self._aside |= new
        for node, answer, _ in self._send("query", {node: {} for node in sorted(new)}):
            try:
                self._check(_account(node, answer)["client"], node)
            except MedleyError as e:
                log.warning("a node is refused: %s", e)

    def _send(
        self, kind: str, letters: Mapping[int, Letter], within: float = math.inf
    ) -> Iterator[tuple[int, bytes, int]]:
        """Answers as they come, within so many seconds: node, answer, bytes of the records both ways."""
        sent = {n: flwr_api.records(letter) for n, letter in letters.items()}
        if not sent:
            return
        begun = time.monotonic()
        ttl, until = 2 * self.timeout, begun + min(self.timeout, within)
        waiting = flwr_api.push(self.grid, kind, sent, ttl)
        crashed, later, soon = dict.fromkeys(sent, 0), BACK, time.monotonic() + BACK
        # A node that was killed comes back in seconds, and its answer has the same bits: it is asked again. A node that
        # did not come back within the timeout is asked once an exchange, until it answers.
        away = sent.keys() - set(waiting.values()) - self.silent if kind != "query" else set[int]()
        # In a thread, since a look waits for the content of answers that were announced.
        done = Event()
        named = Thread(target=self._name, args=(lambda: {*waiting.values(), *away}, done), daemon=True)
        if kind != "query":
            named.start()
        try:
            while (waiting or away) and time.monotonic() < until:
                if away and time.monotonic() > soon:
                    back = {n: sent[n] for n in away & set(self.grid.get_node_ids())}
                    new = flwr_api.push(self.grid, kind, back, ttl) if back else {}
                    waiting, away = waiting | new, away - set(new.values())
                    later = min(2 * later, 10.0)
                    soon = time.monotonic() + later
                for reply in flwr_api.pull(self.grid, waiting, until, set(waiting.values())):
                    node = waiting.pop(reply.message)
                    if reply.answer is not None:
                        self.silent.discard(node)
                        yield node, reply.answer, flwr_api.size(sent[node]) + reply.size
                        continue
                    crashed[node] += reply.code == CRASHED
                    if reply.code == CRASHED and crashed[node] < ATTEMPTS:
                        waiting |= flwr_api.push(self.grid, kind, {node: sent[node]}, ttl)
                    elif reply.code in BROKEN:
                        why = f"Flower's node {node} cannot run the client's app: {reply.reason}"
                        yield node, sealed_error(WireError(why)), 0
                    elif kind != "query" and node not in self.silent:
                        away = away | {node}
                if waiting or away:
                    time.sleep(pause(time.monotonic() - begun, POLL))
        finally:
            done.set()
            if named.ident is not None:
                named.join()
        self._usual = time.monotonic() - begun
        self.silent |= (away | set(waiting.values())) if kind != "query" else set()


class Moved(MedleyError):
    """A node claims the number of a client that another node has been in this run."""


def _read(file: Path) -> dict[int, int]:
    """The node of each client in a run's file; empty where there is none. Raises WireError for a damaged file."""
    try:
        return {int(i): int(node) for i, node in json.loads(file.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise WireError(f"{file} does not say which node each client is: {type(e).__name__}: {e}") from None


def _account(node: int, answer: bytes) -> dict[str, Any]:
    """A client's account of itself. Raises WireError where it does not name the client."""
    words = Words.read(f"node {node}'s account of itself", opened(answer, f"node {node}"))
    words.whole("client", 0, 1 << 30)
    return words.said
