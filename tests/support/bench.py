"""Flower's own objects, without a network: messages, records, apps, and a Grid that hands them over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from medley.clients.host import ClientHost
from medley.clients.memories import Memories
from medley.contract import pytree
from medley.deploy.node.serve import Shelf, answer, client_app
from medley.deploy.protocol.calls import CallRequest
from medley.deploy.server.messenger import Messenger
from medley.deploy.server.transport import Flower, FlowerConnection
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # what Flower sets in a task's process


class Bench(Grid):
    """Nodes 100, 101, ... in this process; replies come back from the last to the first."""

    def __init__(self, apps: Iterable[ClientApp], config: dict[str, Any] | None = None, **node: Any) -> None:
        self.apps = dict(enumerate(apps, 100))
        self.config = config or {}
        self.node = node
        self.ids = {n: n - 100 for n in self.apps}
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.silent: Collection[int] = ()
        self.crashes: Counter[int] = Counter()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any) -> Any: ...

    def send_and_receive(self, *args: Any, **kw: Any) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for m in messages:
            node = m.metadata.dst_node_id
            m.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(m)
            ids.append(m.metadata.message_id)
            context = Context(1, node, {"partition-id": self.ids[node], **self.node}, RecordDict(), self.config)
            reply = self.apps[node](m, context)
            if node in self.silent:
                reply = Message(Error(5, "node unavailable"), reply_to=m)
            if self.crashes[node]:
                self.crashes[node] -= 1
                reply = Message(Error(8, "ClientApp stopped responding."), reply_to=m)
            self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies[i] for i in reversed(list(message_ids))]


class AtNodes(FlowerConnection):
    """A connection whose requests out of band are answered here, from the memories on the nodes' disks.

    An app measures a client's own model at its node; here the evaluator of one process asks for the model.
    """

    folder: Path

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        if not exchange.aside:
            yield from super().exchange(exchange)
            return
        for block, ids in enumerate(exchange.blocks):
            classes = pytree.dataclasses_in(self.host.algorithm.memory)
            shelves = {i: Shelf(self.folder / self.flower.run / str(i), classes) for i in ids}
            memories = {i: shelf.peek(i, exchange.acked.get(i)) for i, shelf in shelves.items()}
            yield self.host.serve_block(exchange, block, memories)[0]


class FlowerInProcess:
    """A transport: every client of a host behind an app of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, host: ClientHost) -> FlowerConnection:
        remote = replace(host, memories=Memories())
        serve = lambda letter, context: answer(remote, CallRequest.read(letter), self.folder)
        hello = lambda letter, context: json.dumps({"client": context.node_config["partition-id"]}).encode()
        queries = {f"query.{name}": serve for name in host.algorithm.message_types}
        self.grid = Bench([client_app({"query": hello, **queries}) for _ in range(5)])
        self.messenger = Messenger(self.grid, timeout=5)
        self.messenger.gather(5)
        connection = AtNodes(host, Flower(self.messenger, "run"))
        connection.folder = self.folder
        return connection
