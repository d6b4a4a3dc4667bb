"""Everything that Medley uses from flwr, imported on first use; tested with the versions in `TESTED`."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from threading import BoundedSemaphore, Event
from typing import TYPE_CHECKING, Any, NamedTuple

from ...contract import pytree
from ...contract.errors import MedleyError, WireError
from ...contract.pieces import Content, Pieces
from ...runtime import versions
from ...runtime.versions import install

if TYPE_CHECKING:
    from flwr.app import Context as Context
    from flwr.app import Message as Message
    from flwr.app import RecordDict as RecordDict
    from flwr.clientapp import ClientApp as ClientApp
    from flwr.serverapp import Grid as Grid
    from flwr.serverapp import ServerApp as ServerApp

TESTED = ("1.41", "1.42")
"""Versions of flwr with which Medley's tests pass."""

DOCUMENTED = {
    "flwr.app": "ConfigRecord Context Error Message RecordDict",
    "flwr.clientapp": "ClientApp",
    "flwr.serverapp": "ServerApp",
}
"""Names that Flower documents, by module; so are Grid's push_messages, pull_messages and get_node_ids."""

INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"

UNDOCUMENTED = {
    "flwr.app.message": "remove_content_from_message",
    "flwr.common.config": "get_fused_config_from_fab",
    "flwr.common.constant": "SYSTEM_TIME_TOLERANCE TIMESTAMP_TOLERANCE",
    "flwr.common.serde": "message_from_proto message_to_proto run_from_proto",
    "flwr.proto.fab_pb2": "GetFabRequest",
    "flwr.proto.fleet_pb2": "ActivateNodeRequest DeactivateNodeRequest "
    "PullMessagesRequest PullMessagesResponse PushMessagesRequest",
    "flwr.proto.heartbeat_pb2": "SendNodeHeartbeatRequest",
    "flwr.proto.message_pb2": "ConfirmMessageReceivedRequest PullObjectRequest PushObjectRequest",
    "flwr.proto.node_pb2": "Node",
    "flwr.proto.run_pb2": "GetRunRequest",
    "flwr.supercore.date": "now",
    "flwr.supercore.inflatable.inflatable_object": "get_all_nested_objects get_object_tree iterate_object_tree "
    "no_object_id_recompute",
    "flwr.supercore.inflatable.inflatable_protobuf_utils": "make_pull_object_fn_protobuf",
    INFLATABLE: "inflate_object_from_contents pull_objects push_object_contents_from_iterable",
    "flwr.supercore.interceptors.http.runtime_version": "RuntimeVersionHttpInterceptor",
    "flwr.supercore.primitives.asymmetric": "bytes_to_public_key public_key_to_bytes verify_signature",
    "flwr.supernode.fleet_http_client": "FleetHttpClient",
    "flwr.supernode.node_auth_http_interceptor": "NodeAuthHttpInterceptor",
}
"""Names that Flower does not document, by module. It also does not document the error codes below, ``count_bytes`` of
records, the keyword arguments of ``pull_objects``, and the table ``node`` of a SuperLink's database, which
`medley.deploy.server.gate` reads."""


def __getattr__(name: str) -> Any:
    """A name from flwr, listed in the tables above. Raises MedleyError if the installed version lacks it."""
    module = next((m for m, names in (DOCUMENTED | UNDOCUMENTED).items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"Medley takes no {name} from flwr")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as e:
        checked_version()
        raise MedleyError(f"flwr {versions.version('flwr')} does not work here: {e}. {REMEDY}") from e


REMEDY = f"Medley is tested with flwr {' and '.join(TESTED)}: {install('flower')}"


def checked_version() -> str:
    """The version of flwr. Raises MedleyError if flwr is missing, or its version is not in `TESTED`."""
    if not versions.is_installed("flwr"):
        raise MedleyError(f"Flower is not installed: {install('flower')}")
    version = versions.version("flwr")
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise MedleyError(f"flwr {version} is installed, but private parts that Medley needs may differ. {REMEDY}")
    return version


CRASHED = 8
"""Flower's error code for an app that died, or was too busy to send a heartbeat for a minute."""

BROKEN = (1, 2, 6, 7, CRASHED)
"""Flower's error codes other than lost messages: an app that cannot be loaded, raises an error or crashes."""

AGAIN = 0.03
"""Seconds before asking again for an object that is announced but not there yet. Flower waits 1 s: with that, and with
its longest pause, an exchange with one node took 0.63 s on average instead of 0.31 s, on idle cores."""

AGAIN_AT_MOST = 0.5
"""The longest such pause in seconds; Flower's is 10 s."""

ABSENT = 0.5
"""Seconds between two checks that the nodes with announced replies are still there."""

FASTEST = 0.03
"""Seconds between two polls while answers are expected at once. A poll takes the SuperLink about 0.01 s."""

SLOWEST = 3.0
"""Seconds between two polls after a long wait. Flower's own SuperNode always waits 3 s."""

PIECE = 4 << 20
"""The most bytes of one record. Each is one request and one row of the SuperLink's database, which stays locked while
the row is written: others fail after 5 s of that. nginx accepts requests of 1 GB, and SQLite rows of 1 GB."""

AT_ONCE = 2
"""How many pieces of a message travel at once, as in Flower."""

Letter = Mapping[str, Content]
"""The content of a message: bytes by name."""

Handler = Callable[[Letter, "Context"], Content]
"""(letter, the node's context) -> the answer."""


def pause(waited: float, slowest: float = SLOWEST) -> float:
    """Seconds until the next poll: a tenth of the time waited so far, so that polling lengthens a wait by at most a
    tenth.
    """
    return min(max(FASTEST, waited / 10), slowest)


class Reply(NamedTuple):
    """A reply to the message with this id: the answer's bytes and the size of its records, or Flower's code of an error
    with its reason.
    """

    message: str
    answer: Content | None
    size: int
    code: int
    reason: str


def records(letter: Letter) -> RecordDict:
    """A letter as Flower's records, of at most `PIECE` bytes each. Flower stores records of equal content once.

    Content that is longer is cut into records "name/0", "name/1", ..., which Flower names by their SHA-256, stores and
    sends one by one: what arrived before a cut is not sent again.
    """
    from flwr.app import ConfigRecord, RecordDict

    out = RecordDict()
    pieces = []
    for k, v in letter.items():
        if len(v) <= PIECE:
            out[k] = ConfigRecord({"bytes": bytes(v)})
            continue
        whole = v if isinstance(v, Pieces) else Pieces([v])
        parts = (_piece()(whole, at) for at in range(0, len(v), PIECE))
        pieces += [(f"{k}/{n}", part) for n, part in enumerate(parts)]
    # A SuperLink lists the parts of a message by their names: in this order, who pulls takes each as it is pushed.
    out.update(sorted(pieces, key=lambda piece: piece[1].object_id))
    return out


@cache
def _piece() -> Any:
    """The class of records that copy their bytes, a part of a letter, only while they are sent."""
    from flwr.app import ConfigRecord

    class Piece(ConfigRecord):  # type: ignore[misc]
        def __init__(self, whole: Pieces, begin: int) -> None:
            super().__init__()
            self.__dict__.update(whole=whole, range=(begin, min(begin + PIECE, len(whole))))

        def get(self, key: str, default: Any = None) -> Any:  # where a message is handed over in one process
            return self.whole[slice(*self.range)]

        def count_bytes(self) -> int:
            begin, end = self.range
            return int(end - begin + len("bytes"))

        def deflate(self) -> bytes:
            content: bytes = ConfigRecord({"bytes": self.get("bytes")}).deflate()
            return content

        @property
        def object_id(self) -> str:  # Flower would compute it three times
            if "_object_id" not in self.__dict__:
                self.__dict__["_object_id"] = sha256(self.deflate()).hexdigest()
            return str(self.__dict__["_object_id"])

    Piece.__qualname__ = ConfigRecord.__qualname__  # Flower writes it into the record
    return Piece


def packed(tree: Any) -> Content:
    """A pytree as bytes; if they are so many that they travel in pieces, as views of its tensors."""
    pieces = Pieces(pytree.in_pieces(tree))
    return pieces if len(pieces) > PIECE else bytes(pieces)


def contents(message: Message) -> dict[str, Content]:
    """The letter in a message: the inverse of `records`. Takes pieces out of the message, to free their memory.

    What is no record of Medley's counts as empty. Raises WireError if a piece is missing.
    """
    from flwr.app import RecordDict

    every = dict(message.content.config_records)
    out: dict[str, Content] = {k: r.get("bytes", b"") for k, r in every.items() if "/" not in k}
    names = sorted({k.rpartition("/")[0] for k in every.keys() - out.keys()})
    if names:
        message.content = RecordDict()
    for name in names:
        count = sum(k.rpartition("/")[0] == name for k in every)
        try:
            pieces = [every[f"{name}/{n}"] for n in range(count)]
            out[name] = Pieces([piece.get("bytes", b"") for piece in pieces])
        except (KeyError, TypeError):
            raise WireError(
                f"of {name!r:.100}, {count} pieces came, and they are not those from 0 to {count - 1}"
            ) from None
        for piece in pieces:
            piece.clear()  # Flower's objects form cycles, and would hold the bytes until Python looks for these
    if names:
        trimmed()
    return out


def size(content: RecordDict) -> int:
    """Bytes of records on the wire; 0 for a record with an empty value, which Flower cannot count."""
    total = 0
    for record in content.values():
        with suppress(ValueError):
            total += record.count_bytes()
    return total


def release(letter: Letter) -> None:
    """Free the memory of a large letter that has been read: its senders' frames hold it until it is answered."""
    if isinstance(letter, dict) and sum(map(len, letter.values())) > PIECE:
        letter.clear()
        trimmed()


def discard(message: Letter | RecordDict) -> None:
    """Free the pieces of a letter, or of its records, that has been sent. Flower's objects form cycles, and would hold
    them until Python looks for these.
    """
    for part in message.values():
        whole = part if isinstance(part, Pieces) else vars(part).get("whole") if hasattr(part, "__dict__") else None
        if isinstance(whole, Pieces):
            whole.clear()


def trimmed() -> None:
    """Give the memory of pieces that are gone back to the system, where the C library has a call for that."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def so_much(size: int, pieces: int) -> str:
    """How many bytes of a message of so many pieces have moved, in words."""
    much = "about" if pieces > 1 else "at most"  # one piece may be smaller
    return f"{size / 1e6:.0f} of {much} {max(size, pieces * PIECE) / 1e6:.0f} MB"


def in_turn(
    objects: Iterable[tuple[str, bytes]], push: Callable[[str, bytes], None], max_concurrent_pushes: int = AT_ONCE
) -> None:
    """Push objects, made as they are sent. Flower's function of this signature makes all before it sends the first."""
    room, failed = BoundedSemaphore(2 * max_concurrent_pushes), Event()

    def one(name: str, content: bytes) -> None:
        try:
            if not failed.is_set():
                push(name, content)
        except BaseException:
            failed.set()
            raise
        finally:
            room.release()

    pool = ThreadPoolExecutor(max_concurrent_pushes)
    futures = list[Future[None]]()
    size = 0
    try:
        for name, content in objects:
            room.acquire()
            futures.append(pool.submit(one, name, content))
            size += len(content)
        for future in as_completed(futures):
            future.result()
    finally:
        failed.set()
        pool.shutdown(wait=False, cancel_futures=True)
        if size > PIECE:
            trimmed()


def push(grid: Grid, kind: str, content: Mapping[int, RecordDict], ttl: float) -> dict[str, int]:
    """Send records to nodes; Flower gives up after ``ttl`` seconds. Returns the node of each message's id."""
    from flwr.app import Message

    importlib.import_module(INFLATABLE).push_object_contents_from_iterable = in_turn  # type: ignore[attr-defined]
    ids = grid.push_messages([Message(r, node, kind, ttl=ttl) for node, r in content.items()])
    return {m: node for m, node in zip(ids, content, strict=True) if m}


@dataclass
class _Until:
    """Stands in for Flower's ``max_time``: a condition that ends the pulls of all messages of one poll."""

    moment: float
    gone: Callable[[], bool]
    looked: float = field(default_factory=time.monotonic)

    def __le__(self, waited: float) -> bool:  # Flower evaluates waited >= max_time
        if time.monotonic() >= self.moment:
            return True
        if time.monotonic() < self.looked + ABSENT:
            return False
        self.looked = time.monotonic()
        return self.gone()


def pull(
    grid: Grid, messages: Iterable[str], until: float, nodes: Collection[int], over: Callable[[], bool] = lambda: False
) -> list[Reply]:
    """The replies that have arrived to these messages.

    A node announces a reply before it sends the content, and may die in between. Then the reply becomes an error as
    soon as the SuperLink reports one of the nodes missing.

    Args:
        until: when to stop waiting for a reply's content, by ``time.monotonic``
        nodes: the nodes that the replies come from
        over: whether nobody waits for the replies any more
    """
    gone = lambda: over() or not {*nodes} <= {*grid.get_node_ids()}
    # Flower's grid has no setting for these: it would wait for two hours, with pauses of 10 s.
    times = {"max_time": _Until(until, gone), "initial_backoff": AGAIN, "backoff_cap": AGAIN_AT_MOST}
    __getattr__("pull_objects").__kwdefaults__.update(times, max_tries_per_object=None)
    return [reply_of(m) for m in grid.pull_messages(list(messages))]


def reply_of(m: Message) -> Reply:
    """What a server reads of one of Flower's messages."""
    to = m.metadata.reply_to_message_id
    if m.has_content():
        total = size(m.content)
        answer: Any = b""
        with suppress(WireError):
            answer = contents(m).get("answer", b"")
        # Content that is not Medley's becomes an answer that fails to decode.
        return Reply(to, answer if isinstance(answer, bytes | Pieces) else b"", total, 0, "")
    return Reply(to, None, 0, m.error.code, m.error.reason)


def client_app(handlers: Mapping[str, Handler]) -> ClientApp:
    """A Flower ClientApp: handlers by message type, "query", "evaluate" or "query.<method>"."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    def handle(handler: Handler) -> Callable[[Message, Context], Message]:
        def reply(message: Message, context: Context) -> Message:
            return Message(records({"answer": handler(contents(message), context)}), reply_to=message)

        return reply

    app = ClientApp()
    for kind, handler in handlers.items():
        category, *action = kind.split(".")
        getattr(app, category)(*action)(handle(handler))
    return app


def server_app(main: Callable[[Grid, Context], None]) -> ServerApp:
    """A Flower ServerApp that calls ``main``."""
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
    return app
