"""A node's side of a SuperLink's Fleet API. Flower documents neither the API nor its client."""

from __future__ import annotations

import io
import logging
import os
import re
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...contract.errors import MedleyError, RecipeError, WireError, reason
from ...transports.failures import ATTEMPTS
from ..protocol import flwr_api as flwr
from ..protocol import flwr_texts
from .keys import private_key

if TYPE_CHECKING:
    from ..protocol.flwr_api import Context, Message

log = logging.getLogger("medley.node")

LARGEST = 2 << 30
"""Bytes of the largest answer, and of the largest message, that a node takes from a SuperLink."""

SAID = 5.0
"""Seconds between two lines on a message that is on its way."""

CONTENT = 7200.0
"""Seconds that a node waits for the content of a request. If its run is over, the SuperLink says so."""

HEARTBEAT = 30.0
"""Seconds between heartbeats that a node announces. After twice that without one, the SuperLink takes it for
offline."""


CERTIFICATE_ERRORS = {
    "has expired": "has expired: its server needs a new one",
    "not yet valid": "is not valid yet: check the clocks of both machines",
    "mismatch": "is for another host: give --superlink the name that is in it",
}
"""What OpenSSL's reasons for refusing a certificate mean."""


class Unreachable(MedleyError):
    """The SuperLink does not answer, or something else does. The caller should try again."""


class NotAdmitted(MedleyError):
    """The SuperLink does not accept this node's key."""


class RunOver(MedleyError):
    """The run of a message is no longer running."""


@dataclass(frozen=True)
class Parcel:
    """A message to this node, without its content.

    Attributes:
        raw: Flower's answer that contained it, for `FleetNode.reopened`
        tree: Flower's tree of the objects of its content
    """

    raw: bytes
    message: Message
    tree: Any

    @property
    def run(self) -> int:
        """The id of the run."""
        return int(self.message.metadata.run_id)

    @property
    def id(self) -> str:
        """The id of the message."""
        return str(self.message.metadata.message_id)

    @property
    def kind(self) -> str:
        """The message type."""
        return str(self.message.metadata.message_type)


@dataclass
class Upload:
    """A reply that has been announced. A SuperLink lets a server know of it at once, and takes no second announcement
    from then on: after a cut, the node sends what is left.

    Attributes:
        root: the id of the reply
        session: Flower's name of its upload
        left: the objects that have not been sent, each with how often the node has tried
        was_asked: whether the SuperLink asked for any
    """

    root: str
    session: str
    left: dict[str, int]
    was_asked: bool


@dataclass
class Moved:
    """Says how much of a large message has moved, a line at most each `SAID` seconds.

    Attributes:
        word: "received" or "sent"
        pieces: the number of its records
        before: how many had moved before
    """

    word: str
    parcel: Parcel
    pieces: int
    before: int
    size: int = 0
    said: float = field(default_factory=time.monotonic)

    def add(self, size: int) -> None:
        """One more object has moved."""
        self.size += size
        if time.monotonic() > self.said + SAID:
            self.said = time.monotonic()
            much = flwr.so_much(self.size + self.before * flwr.PIECE, self.pieces)
            log.info("run %d: %s: %s %s", self.parcel.run, self.parcel.kind, self.word, much)


class FleetNode:
    """One node's side of a SuperLink's Fleet API, over TLS. The SuperLink knows the node by its key.

    The node executes nothing that the SuperLink sends. It reads only the run config in the pyproject.toml of an app's
    archive.

    Args:
        superlink: host:port
        key: the file of the private key, as ``ssh-keygen -t ecdsa -b 384`` writes it, without a passphrase
        ca: the file of the certificates, in PEM, that vouch for the SuperLink

    Raises RecipeError for an address or files that cannot be used. Calls raise Unreachable, NotAdmitted, RunOver, or
    WireError for an answer that cannot be used.
    """

    def __init__(self, superlink: str, key: Path, ca: Path) -> None:
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
        self.superlink = superlink
        address = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", superlink)
        if address is None or not 0 < int(address[1]) < 1 << 16:
            raise RecipeError(
                f"--superlink {superlink!r} is not an address: give HOST:PORT, for example fl.example.org:9092, "
                "without https://",
                "superlink",
            )
        connect = flwr.FleetHttpClient.from_server_address
        signed = flwr.NodeAuthHttpInterceptor
        signers = [flwr.RuntimeVersionHttpInterceptor(component_name="SuperNode")]
        private = private_key(key)
        self._public = flwr.public_key_to_bytes(private.public_key())
        signers.append(signed(private, private.public_key()))
        try:
            self._client = connect(superlink, False, ca.read_bytes(), interceptors=signers)
        except (OSError, ValueError) as e:
            why = reason(e) if isinstance(e, OSError) else e
            raise RecipeError(f"--ca {ca} holds no certificates: {why}; give the server's ca.crt", "ca") from None
        self._client._client.event_hooks["response"] = [_bounded]
        self._node: Any = None

    _upload: Upload | None = None

    _came: tuple[str, dict[str, bytes]] = ("", {})
    """A message's id and its objects that have arrived: after a cut, only the others are asked for."""

    def activate(self, earlier: int | None = None) -> int:
        """Activate this node. Returns its Flower id.

        ``earlier`` is the id that the node had before. A SuperLink does not activate a node that it takes for online.
        So if the node's process or the SuperLink was killed, the node sends a heartbeat under its old id.
        """
        if earlier is not None:
            self._node = flwr.Node(node_id=earlier)
            with suppress(NotAdmitted):  # an id of another key, or of another SuperLink
                if self.heartbeat():
                    return earlier
        request = flwr.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self._node = flwr.Node(node_id=self._call("ActivateNode", request).node_id)
        return int(self._node.node_id)

    def deactivate(self) -> None:
        """Deactivate this node, if it is active."""
        if self._node is not None:
            self._call("DeactivateNode", flwr.DeactivateNodeRequest(node_id=self._node.node_id))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def heartbeat(self) -> bool:
        """Send a heartbeat. Returns False if the SuperLink no longer knows the node."""
        request = flwr.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        return bool(self._call("SendNodeHeartbeat", request).success)

    def pull(self) -> Parcel | None:
        """The next message to this node, if there is one. The SuperLink hands a message out once."""
        answer = self._call("PullMessages", flwr.PullMessagesRequest(node=self._node))
        return self._opened(answer) if answer.messages_list else None

    def reopened(self, raw: bytes) -> Parcel:
        """A message from `Parcel.raw`. Raises WireError for other bytes."""
        try:
            return self._opened(flwr.PullMessagesResponse.FromString(raw))
        except Exception as e:  # protobuf raises errors of many classes
            raise WireError(f"this is not one of Flower's messages: {e}") from None

    def _opened(self, answer: Any) -> Parcel:
        message = flwr.message_from_proto(answer.messages_list[0])
        return Parcel(answer.SerializeToString(), message, answer.message_object_trees[0])

    def content(self, parcel: Parcel) -> Message:
        """The message with its content, from the SuperLink."""
        ids = [t.object_id for t in flwr.iterate_object_tree(parcel.tree)]
        ask = lambda request: self._call("PullObject", request)
        pull = flwr.make_pull_object_fn_protobuf(ask, self._node, parcel.run)
        if self._came[0] != parcel.id:
            self._came = parcel.id, {}
        came = self._came[1]
        moved = Moved("received", parcel, len({*ids}) - 3, len(came))

        def piece(name: str) -> bytes:
            if name not in came:
                content: bytes = pull(name)
                if sha256(content).hexdigest() != name:
                    raise WireError(f"a piece of message {parcel.id} is not the one that was announced: {name}")
                if (total := sum(map(len, [*came.values()])) + len(content)) > LARGEST:
                    raise WireError(f"message {parcel.id} has {total} bytes or more; {LARGEST} is the limit")
                came[name] = content
                moved.add(len(content))
            return came[name]

        try:
            objects = flwr.pull_objects(ids, piece, initial_backoff=flwr.AGAIN, max_time=CONTENT)
            self._came = "", {}
            came = {}
            message: Message = flwr.inflate_object_from_contents(parcel.id, objects)
        except (Unreachable, NotAdmitted):
            raise
        except MedleyError:
            self._came = "", {}
            raise
        except Exception as e:  # a SuperLink may send anything
            raise WireError(f"the content of message {parcel.id} cannot be read: {type(e).__name__}: {e}") from None
        message.metadata.__dict__["_message_id"] = parcel.id
        return message

    def push(self, parcel: Parcel, reply: Message, seconds: float) -> bool:
        """Send the reply to a message, and let the SuperLink forget the message's content.

        Returns False if the SuperLink asks for no part of the reply: it already has all of it, or it no longer accepts
        a reply to this message.
        """
        # With the request's times, the reply has the same id however often it is made and sent.
        asked_for = parcel.message.metadata
        reply.metadata.__dict__.update(_created_at=asked_for.created_at, _ttl=asked_for.ttl)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with flwr.no_object_id_recompute():
            tree = flwr.get_object_tree(reply)
            objects = flwr.get_all_nested_objects(reply)
            if self._upload is None or self._upload.root != tree.object_id:
                bare = flwr.remove_content_from_message(reply) if reply.has_content() else reply
                what = {"messages_list": [flwr.message_to_proto(bare)], "message_object_trees": [tree]}
                request = flwr.PushMessagesRequest(node=self._node, clientapp_runtime_list=[seconds], **what)
                answer = self._call("PushMessages", request)
                left = {name: 0 for name in objects if name in {*answer.objects_to_push}}
                self._upload = Upload(tree.object_id, answer.session_id, left, bool(left))
            upload = self._upload
            moved = Moved("sent", parcel, len(objects) - 2, len(objects) - len(upload.left))
            contents = ((name, objects[name].deflate()) for name in [*upload.left])
            flwr.in_turn(contents, lambda name, content: self._send(parcel.run, upload, moved, name, content))
        self._upload = None
        received = {"node": self._node, "run_id": parcel.run, "message_object_id": parcel.id}
        self._call("ConfirmMessageReceived", flwr.ConfirmMessageReceivedRequest(**received))
        return upload.was_asked

    def _send(self, run: int, upload: Upload, moved: Moved, name: str, content: bytes) -> None:
        """Send one object of a reply. Raises Unreachable if it is not stored: the next call sends it again."""
        about = {"node": self._node, "run_id": run, "object_id": name}
        tries = upload.left.get(name)
        if tries is None:  # a request from before the cut has ended well
            return
        upload.left[name] = tries + 1
        part = flwr.PushObjectRequest(**about, object_content=content, session_id=upload.session)
        stored = self._call("PushObject", part).stored
        if not stored and tries:  # it may have come before the cut, and its confirmation was lost
            stored = self._call("PullObject", flwr.PullObjectRequest(**about)).object_available
        if not stored:
            if tries + 1 >= ATTEMPTS:
                self._upload = None  # the session has ended: announce the reply anew
            raise Unreachable(f"the SuperLink at {self.superlink} did not store a part of a reply")
        upload.left.pop(name, None)
        moved.add(len(content))

    def context(self, run: int, node_config: Mapping[str, Any]) -> Context:
        """Flower's context for a run: the app's run config with the run's own settings, and this node's config."""
        about = flwr.run_from_proto(self._call("GetRun", flwr.GetRunRequest(node=self._node, run_id=run)).run)
        request = flwr.GetFabRequest(node=self._node, hash_str=about.fab_hash, run_id=run)
        app = self._call("GetFab", request).fab.content
        try:
            with zipfile.ZipFile(io.BytesIO(app)) as archive:
                size = archive.getinfo("pyproject.toml").file_size
                if size > 1 << 20:
                    raise ValueError(f"its pyproject.toml has {size} bytes")
            config = flwr.get_fused_config_from_fab(app, about)
        except Exception as e:  # an archive may be broken in many ways
            raise WireError(f"the run config of run {run} cannot be read: {type(e).__name__}: {e}") from None
        node = int(self._node.node_id)
        nothing = flwr.RecordDict()
        context: Context = flwr.Context(run, node, dict(node_config), nothing, config, series_id=about.series_id)
        return context

    def _call(self, name: str, request: Any) -> Any:
        """One request to the SuperLink."""
        import httpx

        try:
            return getattr(self._client, name)(request)
        except httpx.HTTPStatusError as e:
            code = e.response.status_code
            if flwr_texts.is_run_over(code):
                raise RunOver("the run is over") from None
            if flwr_texts.is_key_in_use(name, code):
                raise NotAdmitted(
                    f"this node's key is in use: another process with the same key is connected to {self.superlink}. "
                    "Stop one of the two; after a process was killed, the SuperLink frees its key within a minute"
                ) from None
            if flwr_texts.is_unknown_key(name, code):
                raise NotAdmitted(
                    f"the SuperLink at {self.superlink} does not accept this node's key: have it registered "
                    f"there (flwr supernode register), or check this machine's clock, {_clock(e.response)}"
                ) from None
            text = flwr_texts.body(e.response)
            raise Unreachable(f"the SuperLink at {self.superlink} answers {code} to {name}: {text}") from None
        except httpx.TransportError as e:
            if "certificate verify failed" in str(e).lower():
                # temporary: the SuperLink may get a valid certificate later
                about = f"the certificate of {self.superlink}"
                what = next((text for reason, text in CERTIFICATE_ERRORS.items() if reason in str(e)), "")
                what = f"{about} {what}" if what else f"the file given as --ca does not vouch for {about}"
                raise Unreachable(f"{what}: {e}") from None
            raise Unreachable(f"the SuperLink at {self.superlink} cannot be reached: {e or type(e).__name__}") from None
        except (ValueError, RuntimeError) as e:  # no protobuf; or the client was closed by another thread
            raise Unreachable(f"{self.superlink} answers {name} with something that is not Flower's: {e}") from None


def _clock(response: Any) -> str:
    """How wrong this machine's clock may be for Flower, and how wrong it is by the time in the server's answer."""
    early = flwr.SYSTEM_TIME_TOLERANCE
    late = flwr.TIMESTAMP_TOLERANCE
    text = f"which may be {early} s ahead of the server's or {late} s behind it"
    with suppress(KeyError, ValueError):
        ahead = time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
        text += f" and is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
    return text


def error_reply(parcel: Parcel, reason: str) -> Message:
    """Flower's reply for a message that could not be served."""
    reply: Message = flwr.Message(flwr.Error(2, reason), reply_to=parcel.message)
    return reply


def _bounded(response: Any) -> None:
    """Raise ValueError if an answer is compressed, or larger than `LARGEST`, before its body is read."""
    size = response.headers.get("content-length", "")
    if "content-encoding" in response.headers or not size.isdigit() or int(size) > LARGEST:
        raise ValueError(f"a body of {size or 'unknown'} bytes, encoded {response.headers.get('content-encoding')}")
