"""Flower's own objects, without a network: messages, records, apps, and a Grid that hands them over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from medley.clients.host import ClientHost
from medley.clients.memories import Memories
from medley.flower.messenger import Messenger
from medley.flower.node import CallRequest, answer, client_app
from medley.flower.transport import Flower, FlowerConnection

TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # what Flower sets in a task's process


class Bench(Grid):
    """Nodes 100, 101, ... in this process; replies come back from the last to the first."""

    def __init__(self, apps: Iterable[ClientApp], config: dict[str, Any] | None = None, **node: Any) -> None:
        self.apps, self.config, self.node = dict(enumerate(apps, 100)), config or {}, node
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


class InProcess:
    """A transport: every client of a host behind an app of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, host: ClientHost) -> FlowerConnection:
        theirs = replace(host, memories=Memories())
        serve = lambda letter, context: answer(theirs, CallRequest.read(letter), self.folder)
        hello = lambda letter, context: json.dumps({"client": context.node_config["partition-id"]}).encode()
        asked = {f"query.{name}": serve for name in host.algorithm.message_types}
        self.grid = Bench([client_app({"query": hello, **asked}) for _ in range(5)])
        self.messenger = Messenger(self.grid, timeout=5)
        self.messenger.gather(5)
        return Flower(self.messenger, "run").open(host)
