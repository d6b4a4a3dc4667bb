"""The server's way to clients on SuperNodes: letters by client id, answers and errors back."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from ...contract.errors import MedleyError, WireError, named
from ...contract.pieces import Content
from ...contract.place import name_of
from ...storage.atomic import write
from ...storage.events import SHOWN
from ...transports.failures import ATTEMPTS
from ..protocol import flwr_api
from ..protocol.checked_json import ClientNumber, Line, checked, is_last, opened, parsed, sealed_error
from ..protocol.flwr_api import BROKEN, CRASHED, Letter, Reply, pause
from . import pulls

if TYPE_CHECKING:
    from ..protocol.flwr_api import Grid

log = logging.getLogger("medley")

POLL = 0.2
"""The longest pause in seconds between two looks for replies; Flower's own ``send_and_receive`` takes 3."""

SOON = 5.0
"""Seconds after which a starting run names missing clients."""

NAMED = 3.0
"""Seconds between two notes in the run's folder of the clients for which an exchange waits."""

LONG = 6.0
"""Seconds after which an exchange warns of these clients, or twice the time of the quickest of the last five such
exchanges, if that is more."""

RECEIVED = 10.0
"""The least seconds between two lines that say how much of large answers has come."""

BACK = 1.0
"""Seconds until a node that went away in an exchange is asked again; doubled each time, up to 10."""

FAULT = re.compile(r"""^(node \d+): (client (?:\d+|'[^']*'|"[^"]*"))?(.*)""")
"""A node's error: the node, the client if it is named, and what is wrong there."""

CLOSED = (
    "{0} has left, but this run needs the same clients from the first round to the last: restart its node and "
    "go on with --resume, or start the run with --open for clients that join and leave"
)
"""The error that replaces the answers of a client that left a run without ``open=``."""


class Moved(MedleyError):
    """A node claims a client number that belongs to another node in this run."""


@dataclass
class Sent:
    """A letter to a node that has no answer yet.

    Attributes:
        until: when its node has missed the timeout, by ``time.monotonic``
        message: Flower's id of the message under way; empty while the node is away
        at, came: when the letter was sent, and the answer came, by ``time.time``
        answer: the answer, as soon as it is here, and the bytes of the records both ways in ``size``
        lost: whether no answer will come
    """

    kind: str
    content: Any
    until: float
    is_large: bool
    message: str = ""
    at: float = field(default_factory=time.time)
    came: float | None = None
    answer: Content | None = None
    size: int = 0
    lost: bool = False
    crashed: int = 0

    @classmethod
    def of(cls, kind: str, letter: Letter, until: float) -> Sent:
        """A letter that is not sent yet."""
        return cls(kind, flwr_api.records(letter), until, sum(map(len, letter.values())) > pulls.LARGE)

    @property
    def is_hello(self) -> bool:
        """Whether it asks a node who it is."""
        return self.kind == "query"


class Messenger:
    """Sends letters to clients by id, and waits at most ``timeout`` seconds for their answers.

    A client that is late, or whose node is down, has no answer. A client whose app crashes is asked again; after three
    crashes, its answer is an error.

    A client number belongs to the first node that claims it, to the end of the run. Flower's id of a node belongs to
    its key.

    Args:
        file: stores the node of each client, so that a run can resume; default None: stores nothing
        names: learns clients' names; default an own table

    Attributes:
        bound: Flower's node of each client, also of clients that a resumed run has not heard from yet
        nodes: Flower's node of each connected client
        open: whether clients may leave
        names: clients' names, if they have any
        leaving: clients whose last answer has come
        silent: nodes that missed the timeout and have not answered since
        events: called with an event of the run and its values
        note: called when a client leaves
    """

    def __init__(
        self, grid: Grid, timeout: float = 600.0, file: Path | None = None, names: dict[int, str] | None = None
    ) -> None:
        self.grid = grid
        self.timeout = timeout
        self.file = file
        self.open = False
        self.bound: dict[int, int] = {} if file is None else _read(file)
        self.nodes: dict[int, int] = {}
        self.names = {} if names is None else names
        self.leaving, self.silent = set[int](), set[int]()
        self.events: Callable[..., object] = lambda event, **values: None
        self.note: Callable[[], object] = lambda: None
        self._aside: set[int] = set()
        """Connected nodes that left the run or cannot be used."""
        self._letter: Letter = {}
        self._arrivals = pulls.Arrivals()
        self._open, self._looked = dict[int, Sent](), 0.0
        """Letters that outlive their exchange, by node, and when `collect` last looked for their answers."""
        self._visits = dict[int, tuple[float, float | None]]()
        """When the letters of this exchange were sent and answered, by node."""
        self._apart: pulls.Apart | None = None
        self._durations: dict[str, deque[float]] = {}
        """Seconds that the last exchanges of each kind took."""

    def gather(
        self,
        clients: int,
        letter: Letter | None = None,
        tolerant: bool = False,
        tell: Callable[[str], object] = log.info,
        members: int | Collection[int] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Wait for ``clients`` clients. Returns what each client says about itself, by id: plain values, among them
        "client".

        Args:
            clients: the number of clients, which have the ids 0, 1, ...
            members: how many of them must be connected, or their ids; default None: all
            letter: the server's account of the run, for every client; default empty
            tolerant: True gives an unusable client an account with the reason under "refused"; False raises
            tell: called with a sentence about missing clients; default the log

        Raises MedleyError if they don't connect within the timeout, or if two nodes claim one id.
        """
        begun = time.monotonic()
        accounts = dict[int, dict[str, Any]]()
        is_logged = False
        refused, self._letter, recorded = dict[int, str](), letter or {}, dict(self.bound)
        ids = () if members is None or isinstance(members, int) else members
        number = members if isinstance(members, int) else len(ids) if members is not None else clients
        while len(accounts) + len(refused) < number or not accounts.keys() >= set(ids):
            fresh = self._fresh() - refused.keys()
            waiting = dict[int, Sent]()
            for node, answer in self._answers(fresh, kept=waiting):
                try:
                    account = self._account(node, answer, clients, recorded)
                    i = account["client"]
                    if is_last(answer) and not self._awaited(node, i, ids):
                        continue
                    other = self.nodes.setdefault(i, node)
                    if other != node:
                        raise _doubled(i, _called(other, accounts.get(i, {})), _called(node, account))
                    self.bound[i] = node
                    accounts[i] = account
                except Moved as e:  # the client's own node may still come
                    self._put_aside(node, e)
                except MedleyError as e:
                    if not tolerant:
                        raise self._likewise(e, waiting) from None
                    refused[node] = str(e)
                    log.warning("a node is refused: %s", e)
            missing = [i for i in ids or range(clients) if i not in accounts]
            waited = time.monotonic() - begun
            if waited > self.timeout:
                raise self._too_late(accounts, number, missing)
            if not is_logged and (is_logged := waited > SOON and len(missing) > len(refused)):
                tell(f"waiting for {named(missing, self.names)}, at most {self.timeout:g} s")
            if not fresh:
                time.sleep(POLL)
        why = f"no node that can be used is this client; refused: {'; '.join(refused.values())}"
        for i in {*range(clients)} - accounts.keys() if refused and members is None else ():
            accounts[i] = {"client": i, "refused": f"{name_of(i)}: {why}"}
        self._keep()
        return dict(sorted(accounts.items()))

    def _likewise(self, e: MedleyError, waiting: dict[int, Sent]) -> MedleyError:
        """A client's error with those of the others whose answers come within `SOON`."""
        texts = [str(e)]
        for node, answer in self._answers((), SOON, waiting):
            try:
                opened(answer, f"node {node}")
            except MedleyError as other:
                texts.append(str(other))
        e.args = (_together(texts), *e.args[1:])
        return e

    def _too_late(self, accounts: Mapping[int, object], number: int, missing: Sequence[int]) -> MedleyError:
        """The error for clients that have not connected in time."""
        return MedleyError(
            f"{len(accounts)} of {number} clients are there after {self.timeout:g} s, "
            f"{named(sorted(accounts), self.names)}, but not {named(missing, self.names)}: start their nodes, "
            "or set clients= in the app's pyproject.toml to the right number"
        )

    def _fresh(self) -> set[int]:
        """Connected nodes that have not said who they are."""
        present = {*self.grid.get_node_ids()}
        return present - {*self.nodes.values()} - self._aside

    def _answers(
        self, nodes: Collection[int], within: float = math.inf, kept: dict[int, Sent] | None = None
    ) -> Iterator[tuple[int, Content]]:
        """Ask nodes who they are; returns their answers. ``kept`` is that of `_send`."""
        for node, answer, _ in self._send("query", dict.fromkeys(sorted(nodes), self._letter), within, kept):
            if answer is not None:
                yield node, answer

    def _account(self, node: int, answer: Content, clients: int, numbers: Mapping[int, int]) -> dict[str, Any]:
        """A node's account of itself. Raises WireError if it names no client, MedleyError if its id is out of range,
        and Moved if another node has this client's number in this run; ``numbers`` has the nodes by client.
        """
        about = f"node {node}'s account of itself"
        account = parsed(about, opened(answer, f"node {node}"))
        who = _called(node, account)
        i: int = checked(about, account, "client", ClientNumber)
        reserved = sorted(account.keys() & {"absent", "refused"})
        if reserved:  # what the server writes into the accounts of clients that are not there
            raise WireError(f"{about}, client {i}: it has the field {reserved[0]}, which is the server's")
        if i >= clients:
            raise MedleyError(
                f"{who} says that it is client {i}, but the app has clients = {clients}, with ids from 0: "
                f"start the node with --client 0 to {clients - 1}"
            )
        before = numbers.get(i, node)
        if before != node:
            remedy = "" if self.file is None else f", take it out of {self.file} and resume"
            raise Moved(
                f"{who} says that it is client {i}, which is node {before} in this run, so the server refuses "
                f"it. A number belongs to a node's key; if the client's owner has a new key{remedy or ', start again'}"
            )
        if account.get("name") and self.nodes.get(i, node) == node:
            self.names[i] = checked(f"client {i}'s account of itself", account, "name", Line)
        return account

    def _put_aside(self, node: int, why: MedleyError) -> None:
        self._aside.add(node)
        log.warning("a node is refused: %s", why)

    def newcomers(self, clients: int, within: float) -> dict[int, dict[str, Any]]:
        """What clients that are not members yet say about themselves, by id, if they connect within this many
        seconds.
        """
        out = dict[int, dict[str, Any]]()
        self._aside &= {*self.grid.get_node_ids()}
        for node, answer in self._answers(self._fresh(), within):
            try:
                account = self._account(node, answer, clients, self.bound)
                if is_last(answer):
                    raise MedleyError(f"{name_of(account['client'])} is leaving and joins no run")
            except MedleyError as e:
                self._put_aside(node, e)
                continue
            i = account["client"]
            self.nodes[i] = self.bound[i] = node
            out[i] = account
        self._keep()
        return dict(sorted(out.items()))

    def forget(self, clients: Collection[int]) -> None:
        """Send nothing more to these clients. If their nodes reconnect, they count as new."""
        for i in clients:
            self._open.pop(self.nodes.get(i, -1), None)
            self._aside |= {self.nodes.pop(i)} if i in self.nodes else set()
            self.bound.pop(i, None)
            self.leaving.discard(i)
        self._keep()

    def _keep(self) -> None:
        """Write the file."""
        if self.file is not None:
            write(self.file, json.dumps(dict(sorted(self.bound.items()))), owner_only=True)

    @property
    def at_work(self) -> frozenset[int]:
        """Clients with a letter that is still open, see `collect`."""
        return frozenset(i for i, node in self.nodes.items() if node in self._open)

    def send(self, kind: str, letters: Mapping[int, Letter]) -> dict[int, tuple[Content, int]]:
        """Send a letter to each of some clients, and wait. Content that several letters share travels once.

        Returns answers by client id, for `opened`, and the bytes of their records both ways; a client that did not
        answer is absent. For a client whose app cannot run, the answer is an error. Letters in pieces are empty then.
        """
        out, ids = self._addressed(letters)
        for node, answer, size in self._send(kind, {n: letters[i] for n, i in ids.items()}):
            if answer is not None:
                out[ids[node]] = answer, size
                if is_last(answer):
                    self._leaves(ids[node])
        for letter in letters.values():
            flwr_api.discard(letter)
        self._tell(kind)
        return out

    def collect(
        self,
        kind: str,
        letters: Mapping[int, Letter],
        awaited: Set[int],
        enough: int,
        deadline: float | None = None,
    ) -> dict[int, tuple[Content, int] | None]:
        """Send letters to clients, and wait until ``enough`` of the awaited ones answered, or the deadline has passed.

        Letters without an answer stay open for ``timeout`` seconds, without those between two calls, and `collect` has
        the answer when it has come. If nobody is awaited, it waits for the first answer.

        Args:
            letters: by client; none of the clients is at work
            awaited: clients whose answers count, also to letters that are open
            deadline: in seconds; None for no deadline

        Returns answers as `send`, or None for a client that did not answer in time: all whose letter is closed now.
        """
        for s in self._open.values():  # while nobody looks, as during an evaluation, no answer gets late
            s.until += time.monotonic() - self._looked
        ids = {node: i for i, node in self.nodes.items()}
        leaving, new = self._addressed(letters)
        out: dict[int, tuple[Content, int] | None] = {
            **leaving,
            **dict.fromkeys(letters.keys() - leaving.keys() - {*new.values()}),
        }
        is_over: Callable[[], bool]
        is_over = lambda: len(awaited & out.keys()) >= min(enough, len(awaited)) if awaited else bool(out)
        arrived = self._send(kind, {n: letters[i] for n, i in new.items()}, deadline or math.inf, self._open)
        with closing(arrived):
            while not is_over() and (answer := next(arrived, None)) is not None:
                out |= self._delivered(ids, answer)
        for answer in self._closed(self._open):  # that came with the last one
            out |= self._delivered(ids, answer)
        self._looked = time.monotonic()
        self._tell(kind)
        return out

    def _delivered(
        self, ids: Mapping[int, int], answer: tuple[int, Content | None, int]
    ) -> dict[int, tuple[Content, int] | None]:
        """What `collect` returns for a node's answer."""
        node, content, size = answer
        if content is not None and is_last(content):
            self._leaves(ids[node])
        return {ids[node]: None if content is None else (content, size)}

    def _tell(self, kind: str) -> None:
        """Record in the run's events when the letters of an exchange were sent and answered, by client."""
        ids = {node: i for i, node in self.nodes.items()}
        visits = {ids[n]: times for n, times in self._visits.items() if n in ids}
        visits |= {ids[n]: (s.at, None) for n, s in self._open.items() if n in ids}
        self._visits.clear()
        if 0 < len(visits) <= SHOWN:
            rounded = {str(i): [t and round(t, 3) for t in times] for i, times in sorted(visits.items())}
            self.events("visits", kind=kind, visits=rounded)

    def _addressed(self, letters: Mapping[int, Letter]) -> tuple[dict[int, tuple[Content, int]], dict[int, int]]:
        """The errors of clients that left a run without ``open``, and the other clients by node, if they have one."""
        nodes_before = set(self.nodes.values())
        nodes = set(self.grid.get_node_ids()) - self._aside
        if nodes - nodes_before and nodes_before - nodes and not self.open:
            self._refuse(nodes - nodes_before)
        out = dict[int, tuple[Content, int]]()
        if not self.open:
            out = {i: (sealed_error(WireError(CLOSED.format(name_of(i)))), 0) for i in self.leaving & letters.keys()}
        return out, {self.nodes[i]: i for i in letters if i in self.nodes and i not in self.leaving}

    @contextmanager
    def _naming(self, kind: str, usual: float, under_way: Mapping[int, Sent], most: float) -> Iterator[None]:
        """`_name` in a thread, because a poll waits for the content of announced answers."""
        done = Event()
        thread = Thread(target=self._name, args=(kind, usual, under_way, most, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _name(self, kind: str, usual: float, under_way: Mapping[int, Sent], most: float, done: Event) -> None:
        """Record in the run's events for whom an exchange waits, and how much has arrived, and warn when it takes long;
        until it is ``done``. It takes at most ``most`` seconds.
        """
        begun = time.monotonic()
        since = round(time.time(), 3)
        logged = list[int]()
        patience = max(LONG, 2 * usual)
        waited = said = 0.0
        while not done.wait(min(NAMED, patience - waited)):
            present = {*under_way}
            waited = time.monotonic() - begun
            more = dict[str, int | str]()
            ids = sorted(i for i, node in self.nodes.items() if node in present)
            if waited >= patience:
                patience = math.inf
                more = {"waited": round(waited), "most": round(most), "kind": kind}
                who = named(ids, self.names)
                who = f"an evaluation waits for {who}" if kind == "evaluate" else f"waiting for {who}"
                log.warning("%s, for %.0f s so far and %.0f s at most", who, waited, most)
            if ids != logged or more:
                logged = ids
                self.events("awaited", clients=ids, since=since, **more)
            messages = {s.message: n for n, s in [*under_way.items()] if s.message}
            texts = self._arrivals.texts(messages) if waited > said + RECEIVED else {}
            if parts := [f"{texts[n]} from {name_of(i)}" for i, n in sorted(self.nodes.items()) if n in texts]:
                said = waited
                self.events("received", message=", ".join(parts))
        if logged:
            self.events("awaited", clients=[], since=since)

    def _awaited(self, node: int, client: int, members: Collection[int]) -> bool:
        """Whether a leaving client is a member of a continuing run. Raises WireError in a new run."""
        if client in members:
            self._leaves(client)
        elif members:
            self._aside.add(node)
        else:
            raise WireError(f"{name_of(client)} is leaving and serves no new run")
        return client in members

    def _leaves(self, client: int) -> None:
        self.leaving.add(client)
        log.warning("%s is leaving: this was its last answer", name_of(client))
        self.note()

    def _refuse(self, new: set[int]) -> None:
        """While a client's node is away, log which client numbers new nodes claim; send nothing more to refused
        nodes.
        """
        self._aside |= new
        for node, answer in self._answers(new):
            try:
                self._account(node, answer, 1 << 31, self.bound)
            except MedleyError as e:
                log.warning("a node is refused: %s", e)

    def _send(
        self, kind: str, letters: Mapping[int, Letter], within: float = math.inf, kept: dict[int, Sent] | None = None
    ) -> Generator[tuple[int, Content | None, int]]:
        """Yield answers as they come, for at most this many seconds: node, answer, bytes of the records both ways. The
        answer is None for a node that this exchange does without.

        ``kept`` has letters that are already open, and takes those that are still open at the end.
        """
        begun = time.monotonic()
        new = {n: Sent.of(kind, letter, begun + self.timeout) for n, letter in letters.items()}
        self._push(new)
        until = time.monotonic() + min(self.timeout, within)
        # A killed node comes back in seconds and its answer has the same bits, so ask it again. Ask a node that did not
        # come back within the timeout once per exchange, until it answers.
        for n, s in new.items():
            s.lost = not s.message and (s.is_hello or n in self.silent)
        under_way = new if kept is None else kept
        under_way |= new
        yield from self._closed(under_way)
        if not under_way:
            return
        durations = self._durations.setdefault(kind, deque(maxlen=5))
        usual = min(durations, default=0.0)  # an exchange that one node delayed does not predict the next
        is_large = any(s.is_large for s in under_way.values())
        if is_large:
            self._arrivals.watch(self.grid)
        most = min(self.timeout, within)
        naming = nullcontext() if kind == "query" else self._naming(kind, usual, under_way, most)
        with self._puller(is_large, kept is not None) as pull, naming:
            later = BACK
            soon = begun + BACK
            while under_way:
                if time.monotonic() > soon and not all(s.message for s in under_way.values()):
                    present = set(self.grid.get_node_ids())
                    self._push({n: s for n, s in under_way.items() if not s.message and n in present})
                    later = min(2 * later, 10.0)
                    soon = time.monotonic() + later
                waiting = {s.message: n for n, s in under_way.items() if s.message}
                # The pull of an answer to an open letter goes on after the exchange: what it has taken would be lost.
                last = until if kept is None else begun + self.timeout
                for reply in pull(self.grid, waiting, last, set(waiting.values())) if waiting else ():
                    node = waiting.pop(reply.message, None)
                    if node is None:
                        log.warning("a second answer to one message is left out: %s", reply.message)
                    else:
                        self._take(node, under_way[node], reply)
                yield from self._closed(under_way)
                now = time.monotonic()
                if now >= until:
                    break
                time.sleep(min(pause(now - begun, POLL), until - now) if under_way else 0)
        durations.append(time.monotonic() - begun)
        if kept is None and kind != "query":
            self.silent |= under_way.keys()
        yield from self._closed(under_way)

    def _push(self, letters: Mapping[int, Sent]) -> None:
        """Send letters that have no message under way."""
        for kind in {s.kind for s in letters.values()}:
            content = {n: s.content for n, s in letters.items() if s.kind == kind}
            for message, node in flwr_api.push(self.grid, kind, content, 2 * self.timeout).items():
                letters[node].message = message

    def _puller(self, is_large: bool, kept: bool) -> AbstractContextManager[Callable[..., list[Reply]]]:
        """`pulls.puller`, or for open letters one that outlives the exchange."""
        if not (is_large and kept):
            return pulls.puller(is_large)
        self._apart = self._apart or pulls.Apart()
        return nullcontext(self._apart.pull)

    def _take(self, node: int, sent: Sent, reply: Reply) -> None:
        """Note the reply to a letter. After an error the letter is sent again, or waits until its node is back."""
        sent.message = ""
        self._arrivals.forget(reply.message)
        sent.crashed += reply.code == CRASHED
        if reply.answer is not None:
            self.silent.discard(node)
            sent.came, sent.answer = time.time(), reply.answer
            sent.size = flwr_api.size(sent.content) + reply.size
        elif reply.code == CRASHED and sent.crashed < ATTEMPTS:
            self._push({node: sent})
        elif reply.code in BROKEN:
            why = f"Flower's node {node} cannot run the client's app: {reply.reason}"
            sent.answer = sealed_error(WireError(why))
        else:
            sent.lost = sent.is_hello or node in self.silent
            if not sent.lost:
                who = named([i for i, n in self.nodes.items() if n == node], self.names)
                log.info("%s: Flower lost the request: %s; it is sent again once the node is there", who, reply.reason)

    def _closed(self, letters: dict[int, Sent]) -> Iterator[tuple[int, Content | None, int]]:
        """Take the letters out that have an answer or will get none, as `_send` yields them."""
        now = time.monotonic()
        for node, s in [*letters.items()]:
            if late := s.until <= now and s.answer is None and letters is self._open:
                self.silent.add(node)
            if s.answer is not None or s.lost or late:
                del letters[node]
                self._arrivals.forget(s.message)
                self._visits[node] = s.at, s.came
                yield node, s.answer, s.size

    def close(self) -> None:
        """End what still pulls answers."""
        if self._apart is not None:
            self._apart.close()


def _called(node: int, account: Mapping[str, Any]) -> str:
    """A node in words: by its name, if it has one, and by Flower's number."""
    name = account.get("name")
    return f"node {node}" + (f" ({name!r:.100})" if name else "")


def _together(texts: Iterable[str]) -> str:
    """Nodes' errors on one line; what is wrong at several clients is told once."""
    faults = dict[str, list[str]]()
    for text in texts:
        found = FAULT.match(text)
        node, client, what = found.groups() if found else (text, None, text)
        who = client or node
        faults[what] = [*faults[what], who] if what in faults else [text]
    return "; ".join(f"{t}; the same holds for {', '.join(same)}" if same else t for t, *same in faults.values())


def _doubled(client: int, *nodes: str) -> MedleyError:
    return MedleyError(
        f"{' and '.join(nodes)} have the same client number, {client}: give each its own, by medley node --client, or "
        "partition-id in the --node-config of a stock SuperNode"
    )


def _read(file: Path) -> dict[int, int]:
    """The node of each client in a run's file; empty if there is no file. Raises WireError for a damaged file."""
    try:
        return {int(i): int(node) for i, node in json.loads(file.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise WireError(f"{file} does not say which node each client is: {type(e).__name__}: {e}") from None
