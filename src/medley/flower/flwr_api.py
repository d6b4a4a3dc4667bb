"""Parts of flwr that Medley takes, but for the Fleet API; tested with the versions in `TESTED`, imported on first use.

Documented by Flower: Message, RecordDict, ConfigRecord, ClientApp, ServerApp; Grid's push_messages and pull_messages.
Not documented: the codes of errors (``flwr.common.constant.ErrorCode``), ``count_bytes`` of records, and the pauses
between two looks for an object. `medley.flower.fleet` takes the Fleet API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..contract.errors import MedleyError

if TYPE_CHECKING:
    from flwr.app import Context as Context
    from flwr.app import Message as Message
    from flwr.app import RecordDict
    from flwr.clientapp import ClientApp as ClientApp
    from flwr.serverapp import Grid as Grid
    from flwr.serverapp import ServerApp as ServerApp

TESTED = ("1.41", "1.42")
"""Versions of flwr with which Medley's tests pass."""

CRASHED = 8
"""Flower's code of an app that died, or was too busy to say for a minute that it lives."""

AGAIN = 0.03
"""Seconds until an object is asked for again that is announced and not there yet, doubled from time to time.

Flower waits for 1 s: an exchange with one node took 0.63 s in the mean instead of 0.31 s, on idle cores.
"""

AGAIN_AT_MOST = 0.5
"""The longest pause in seconds between two looks for an object; Flower's own reaches 10."""

ABSENT = 0.5
"""Seconds between two looks whether the nodes are there whose replies were announced."""

BROKEN = (1, 2, 6, 7, CRASHED)
"""Flower's codes of errors that are no lost messages: an app that cannot be loaded, raises or crashes."""

Letter = Mapping[str, bytes]
"""The content of a message: bytes by name."""

Handler = Callable[[Letter, "Context"], bytes]
"""(letter, the node's context) -> the answer."""


class Reply(NamedTuple):
    """A reply to one message.

    Attributes:
        message: the id of the message that it answers
        answer: the answer's bytes; None for an error
        size: bytes of the answer's records; 0 for an error
        code: Flower's code of the error; 0 for an answer
    """

    message: str
    answer: bytes | None
    size: int
    code: int
    reason: str


def records(letter: Letter) -> RecordDict:
    """A letter as Flower's records. Flower stores records of equal content once."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({k: ConfigRecord({"bytes": v}) for k, v in letter.items()})


def size(content: RecordDict) -> int:
    """Bytes of records on the wire; 0 for a record with an empty value, which Flower refuses to count."""
    total = 0
    for record in content.values():
        with suppress(ValueError):
            total += record.count_bytes()
    return total


def push(grid: Grid, kind: str, content: Mapping[int, RecordDict], ttl: float) -> dict[str, int]:
    """Send records to nodes; Flower gives up after ``ttl`` seconds. Returns the node of each message's id."""
    from flwr.app import Message

    ids = grid.push_messages([Message(r, node, kind, ttl=ttl) for node, r in content.items()])
    return {m: node for m, node in zip(ids, content, strict=True) if m}


@dataclass
class _Until:
    """Flower's ``max_time`` as a condition, on which the pulls of all messages of one look end."""

    moment: float
    gone: Callable[[], bool]
    looked: float = field(default_factory=time.monotonic)

    def __le__(self, waited: float) -> bool:  # Flower asks waited >= max_time
        if time.monotonic() >= self.moment:
            return True
        if time.monotonic() < self.looked + ABSENT:
            return False
        self.looked = time.monotonic()
        return self.gone()


def pull(grid: Grid, messages: Iterable[str], until: float, nodes: Collection[int]) -> list[Reply]:
    """The replies that have arrived to these messages.

    A node announces a reply before it sends the content, and may die in between. Then the reply is an error, as soon as
    the SuperLink misses one of the nodes.

    Args:
        until: the moment of ``time.monotonic`` until which a reply's content is waited for
        nodes: the nodes that the replies come from
    """
    gone = lambda: not {*nodes} <= {*grid.get_node_ids()}
    from flwr.supercore.inflatable.inflatable_utils import pull_objects as used

    # Flower's grid has no setting for them: it would wait for two hours, in pauses of 10 s.
    times = {"max_time": _Until(until, gone), "initial_backoff": AGAIN, "backoff_cap": AGAIN_AT_MOST}
    cast(dict[str, Any], used.__kwdefaults__).update(times, max_tries_per_object=None)
    return [_reply(m) for m in grid.pull_messages(list(messages))]


def _reply(m: Message) -> Reply:
    to = m.metadata.reply_to_message_id
    if m.has_content():
        answer = m.content.config_records.get("answer", {}).get("bytes", b"")
        # Other content than ours is an answer that nobody can read.
        return Reply(to, answer if isinstance(answer, bytes) else b"", size(m.content), 0, "")
    return Reply(to, None, 0, m.error.code, m.error.reason)


def client_app(handlers: Mapping[str, Callable[[Letter, Context], bytes]]) -> ClientApp:
    """A Flower ClientApp: handlers by message type, "query", "evaluate" or "query.<method>"."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    def handle(handler: Callable[[Letter, Context], bytes]) -> Callable[[Message, Context], Message]:
        def reply(message: Message, context: Context) -> Message:
            letter = {k: r["bytes"] for k, r in message.content.config_records.items()}
            return Message(records({"answer": handler(letter, context)}), reply_to=message)

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


def checked_version() -> str:
    """The version of flwr. Raises MedleyError where flwr is missing, or is none of `TESTED`."""
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise MedleyError('Flower is not installed: pip install "medley-fl[flower]"') from None
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise MedleyError(
            f"flwr {version} is installed. medley node speaks to the SuperLink by modules of flwr that are not public, "
            f'and is tested with flwr {" and ".join(TESTED)}: pip install "medley-fl[flower]", or use flower-supernode'
        )
    return version
