"""One client on its SuperNode: serves requests, and keeps its memory on disk.

Flower starts a process for every message, and its own ``context.state`` does not outlive a SuperNode. So a client's
memory is kept in files, in two phases: pending, then acknowledged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...clients.memories import Memories
from ...contract import pytree
from ...contract.errors import MemoryLost, RecipeError, WireError
from ...contract.pieces import Content, pieces_of
from ...contract.place import name_of, naming
from ...recipe import Recipe
from ...runtime import streams
from ...storage.atomic import private as made_private
from ...storage.atomic import write
from ...wire.codec import resending
from ...wire.connection import Host
from ...wire.exchange import Tag
from ...wire.fold import Fold
from ...wire.framing import seal, unseal
from ..protocol import flwr_api
from ..protocol.calls import CallRequest
from ..protocol.checked_json import sealed, sealed_error
from ..protocol.flwr_api import Handler, Letter
from . import record
from .owner import own_folder, record_of

if TYPE_CHECKING:
    from ..protocol.flwr_api import ClientApp, Context


log = logging.getLogger("medley.node")


@dataclass
class Shelf:
    """One client's memory of one run on disk: a file with a checksum for each version that the server may still
    need.
    """

    folder: Path
    classes: Mapping[str, type]

    def get(self, client: int, acked: Tag | None, round: int) -> Any:
        """The acknowledged memory, see `Memories.get`. Deletes versions that are no longer needed."""
        paths = {_tag(p): p for p in sorted(self.folder.glob("*-*.safetensors"))}
        memories = Memories({client: [(t, t) for t in sorted(paths)]})
        tag = memories.get(client, acked, round)
        for t in paths.keys() - {t for t, _ in memories.versions.get(client, [])}:
            paths[t].unlink()
        return None if tag is None else self._read(client, paths[tag])

    def _read(self, client: int, path: Path) -> Any:
        try:
            raw = bytes(unseal(path.read_bytes()))
        except WireError:
            raise MemoryLost(
                f"{name_of(client)}'s memory {path.name} is damaged on its disk (wrong checksum)", client
            ) from None
        return pytree.from_bytes(raw, self.classes)

    def peek(self, client: int, acked: Tag | None) -> Any:
        """The acknowledged memory, or None before the first. Changes nothing."""
        path = self.folder / f"{acked[0]:d}-{acked[1]:d}.safetensors" if acked else None
        return self._read(client, path) if path is not None and path.exists() else None

    def put(self, tag: Tag, memory: Any) -> None:
        """Write a pending version next to the acknowledged one, atomically."""
        name = f"{tag[0]:d}-{tag[1]:d}.safetensors"
        write(made_private(self.folder) / name, seal(pytree.to_bytes(memory)), owner_only=True)


def _tag(path: Path) -> Tag:
    round, number = path.stem.split("-")
    return int(round), int(number)


def answer(host: Host, request: CallRequest, folder: Path) -> Content:
    """Run one client method for one client. Returns its encoded reply. ``folder`` holds all memories of this node."""
    exchange = request.exchange
    i = request.exchange.blocks[0][0]
    reply = serve(host, request, folder)
    (receipt,) = reply.receipts
    packed = reply.replies[i]
    exact = host.algorithm.message_types[exchange.method].up.exact
    uncoded = {k: v for k, v in packed.items() if k in exact}
    rng = lambda: streams.generator(host.seed, i, exchange.round, exchange.number, "codec")
    sent = resending(host.codec).encode({k: v for k, v in packed.items() if k not in exact}, {}, rng) | uncoded
    how = {"up": receipt.up, "rows": receipt.work, "engines": reply.engines}
    return flwr_api.packed({"reply": sent, "buffers": reply.buffers, **how})


def serve(host: Host, request: CallRequest, folder: Path) -> Fold:
    """Run one client method for one client, and keep its memory; the arguments are those of `answer`."""
    exchange = replace(request.exchange, weights=None, clip=None)
    i = request.exchange.blocks[0][0]
    versions = shelf(host, request, folder)
    memories = {}
    if host.remembers:
        memories = {i: versions.get(i, exchange.acked.get(i), exchange.round)}
    reply, pending = host.serve_block(exchange, 0, memories)
    if host.remembers:
        versions.put(exchange.tag, pending[i])
    return reply


def shelf(host: Host, request: CallRequest, folder: Path) -> Shelf:
    """The memories of the client that the request is for, in the request's run."""
    i = request.exchange.blocks[0][0]
    return Shelf(folder / request.run / str(i), pytree.dataclasses_in(host.algorithm.memory))


GUARDED = "guarded"
"""A file next to a client's memories of a run: which protection its rows had when the memories were made."""


def guard(folder: Path, r: Recipe) -> None:
    """Raise WireError if the memories of a run were made under another protection than this recipe's.

    Otherwise a run without secure sums could take a secure run's name and read what the secure sums hide.
    """
    private = [m.get("private") for m in r.tables.get("methods", ())]
    protection = json.dumps([r.tables.get("secure"), private], sort_keys=True)
    path = folder / GUARDED
    if not path.exists():
        write(made_private(folder) / GUARDED, protection.encode(), owner_only=True)
    elif (before := path.read_text(encoding="utf-8")) != protection:
        raise WireError(
            f"{name_of(folder.name)} refuses: its memories of run {folder.parent.name} were made under {before}, "
            f"[secure] and private, but this recipe has {protection}: start a new run"
        )


LEAVE = "leave"
"""The file of a client's node that says that its owner wants it to leave."""

LEFT = "left"
"""The file of a client's node that says that it is sending its last answer."""


def _leaves(context: Context) -> bool:
    """Whether the client's owner wants it to leave; then the current answer is its last."""
    folder = own_folder(context.node_config)
    with suppress(OSError):
        (folder / LEAVE).replace(folder / LEFT)
    return (folder / LEFT).exists()


def client_app(handlers: Mapping[str, Handler], recipe: Path | None = None, study: bool = False) -> ClientApp:
    """A Flower ClientApp: handlers by message type, "query", "evaluate" or "query.<method>". The app sends their errors
    as answers.

    Args:
        recipe: the recipe that the node serves. The node records each answer before it sends it, and does not answer
            for a recipe that its owner closed. None for handlers without a recipe, which have no record
        study: whether answers are sums of a study, which the owner keeps to read; a model is recorded by its digest
    """

    begun = list[str]()

    def approved(recipe: Path, context: Context) -> None:
        """Raise an error for a recipe that the node must not answer. The node reads its recipe at the first request."""
        owner = context.node_config
        if not begun:
            begun[:] = [record.digest(recipe)]
            record_of(owner).keep(recipe.read_bytes())
        if record.digest(recipe) != begun[0]:
            raise RecipeError(
                f"{name_of(owner.get('partition-id'))}: its recipe's file has changed since its node started; its "
                "owner has to restart the node",
                "recipe",
            )
        approvals = record_of(owner, record.APPROVALS)
        record.refuse_unapproved(
            approvals, begun[0], owner.get("partition-id"), context.run_config, str(owner.get("reader", ""))
        )

    def guarded(kind: str, handler: Handler) -> Handler:
        def reply(letter: Letter, context: Context) -> Content:
            with naming(own_name(context.node_config)):
                return named_reply(letter, context)

        def named_reply(letter: Letter, context: Context) -> Content:
            owner = context.node_config
            request = digest(letter)
            try:
                if recipe is not None:
                    approved(recipe, context)
                out = sealed(handler(letter, context), last=_leaves(context))
            except Exception as e:
                out = sealed_error(e)
            try:
                if recipe is not None:
                    _recorded(request, context, kind, begun[0] if begun else record.digest(recipe), out, study)
            except Exception:
                log.exception("the record cannot be written")
                reason = "its record cannot be written, so it sends no answer; see the log of its node"
                return sealed_error(WireError(f"{name_of(owner.get('partition-id'))}: {reason}"))
            return out

        return reply

    return flwr_api.client_app({kind: guarded(kind, handler) for kind, handler in handlers.items()})


def digest(letter: Letter) -> str:
    """The SHA-256 of a request, taken before it is read: a large one is released then."""
    request = sha256()
    for key, content in sorted(letter.items()):
        request.update(f"{key} {len(content)} ".encode())
        for piece in pieces_of(content):
            request.update(piece)
    return request.hexdigest()


def _recorded(request: str, context: Context, kind: str, recipe: str, out: Content, study: bool) -> None:
    """Write down what leaves, before it does; keep it if it is small and no model."""
    left = record_of(context.node_config)
    config = context.run_config
    keep = (study or not kind.startswith("query.")) and len(out) <= record.ANSWER
    if keep:
        left.keep(bytes(out))
    sent = sha256()
    for piece in pieces_of(out):
        sent.update(piece)
    left.add(
        run=str(context.run_id), kind=kind, what=record.meaning(kind, out, study), recipe=recipe,
        set=str(config.get("set", ""))[: record.SETTINGS + 1], kept=keep, bytes=len(out),
        sha256=sent.hexdigest(), request=request,
    )  # fmt: skip


def own_name(owner: Mapping[str, Any]) -> dict[int, str]:
    """The node's name by its client's id: its messages say it, since the server may not know it yet."""
    i = owner.get("partition-id")
    return {i: str(owner["name"])} if owner.get("name") and isinstance(i, int) else {}
