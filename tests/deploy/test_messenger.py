"""The server's way to its clients: who is waited for, how long, and answers that no node of ours makes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import medley as md
from medley.deploy.protocol import flwr_api
from medley.deploy.protocol.checked_json import opened, sealed, sealed_error
from medley.deploy.protocol.flwr_api import Reply
from medley.deploy.server import messenger
from medley.deploy.server.messenger import Messenger, _together

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from support.bench import Bench


class Grid:
    def get_node_ids(self) -> list[int]:
        return [100, 101]


@pytest.mark.parametrize(
    ("kind", "usual", "named"),
    [("train", [], True), ("train", [50.0] * 3, False), ("train", [0.1, 50.0, 50.0], True), ("evaluate", [], True)],
)
def test_an_exchange_that_takes_long_names_the_clients_it_waits_for(
    kind: str, usual: list[float], named: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that a node held up says nothing of the next."""
    begun, told, answer = time.monotonic(), list[dict[str, Any]](), sealed(b"x")
    warned = lambda: "so far" in caplog.text if named else bool(told)

    def pull(grid: Any, waiting: Any, until: float, nodes: Any) -> list[Reply]:
        return [Reply(m, answer, 1, 0, "") for m in waiting if m == "m0" or warned()]

    monkeypatch.setattr(flwr_api, "records", lambda letter: letter)
    monkeypatch.setattr(flwr_api, "size", lambda content: 1)
    monkeypatch.setattr(flwr_api, "push", lambda grid, kind, content, ttl: {f"m{n - 100}": n for n in content})
    monkeypatch.setattr(flwr_api, "pull", pull)
    monkeypatch.setattr(messenger, "NAMED", 0.1)
    monkeypatch.setattr(messenger, "LONG", 0.4)
    p = Messenger(Grid(), timeout=60)  # type: ignore[arg-type]
    p.nodes, p._durations[kind] = {0: 100, 1: 101}, deque(usual, 3)
    p.events = lambda event, **values: event == "awaited" and told.append(values)
    with caplog.at_level(logging.WARNING, "medley"):
        assert sorted(p.send(kind, {0: {}, 1: {}})) == [0, 1]
    said = [r.getMessage() for r in caplog.records]
    who = "an evaluation waits" if kind == "evaluate" else "waiting"
    assert said == ([f"{who} for clients [1], for 0 s so far and 60 s at most"] if named else [])
    assert told[0]["clients"] == [1]
    assert told[-1] == {"clients": [], "since": told[0]["since"]}
    assert ("waited" in told[-2]) == named
    assert (0.4 if named else 0.1) <= p._durations[kind][-1] <= time.monotonic() - begun


def test_answers_that_are_announced_and_never_come_end_with_the_timeout_and_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes die after their announcement; the third one's answer is behind theirs."""

    def missing(name: str) -> bytes:
        raise ObjectUnavailableError(name)

    class Announced(Bench):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = super().pull_messages(message_ids)
            for k, m in enumerate(found):
                if m.metadata.src_node_id in (101, 102):
                    with contextlib.suppress(ObjectPullError):
                        pull_objects(["a"], missing)
                    found[k] = Message(Error(3, "unavailable"), reply_to=self.sent[0])
                    found[k].metadata.__dict__["_reply_to_message_id"] = m.metadata.reply_to_message_id
            return found

    grid = Announced([flwr_api.client_app({"query.train": lambda *_: sealed(b"x")})] * 3)
    monkeypatch.setattr(messenger, "LONG", 0.1)
    p = Messenger(grid, timeout=0.4)
    p.nodes, begun = {0: 100, 1: 101, 2: 102}, time.monotonic()
    with caplog.at_level(logging.WARNING, "medley"):
        assert sorted(p.send("query.train", {i: {"n": b"1"} for i in range(3)})) == [0]
    assert time.monotonic() - begun < 1.2
    (said,) = [r for r in caplog.records if "waiting" in r.getMessage()]
    assert said.getMessage() == "waiting for clients [0, 1, 2], for 0 s so far and 0 s at most"
    assert said.created < time.time() - 0.2


def test_an_empty_answer_is_an_answer_that_nobody_can_read() -> None:
    app = lambda answer: flwr_api.client_app({"query.train": lambda *_: answer})
    p = Messenger(Bench([app(b""), app(sealed(b"x"))]), timeout=5)
    p.nodes = {0: 100, 1: 101}
    answers = p.send("query.train", {i: {"n": b"1"} for i in range(2)})
    assert answers == {0: (b"", 6), 1: (b"=x", 6 + 7)}
    with pytest.raises(md.WireError, match="client 0 sent neither an answer nor one of Medley's errors"):
        opened(answers[0][0], "client 0")


def test_all_clients_with_a_fault_are_named_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 2 is right, and client 3 has not answered when the time is over: nobody waits for it."""
    texts = {0: "client 'north': its recipe's file has changed", 1: "client 1 has the method A", 4: "client 4 has gone"}
    texts |= {k: f"client {k}: its recipe's file has changed" for k in (5, 6)}
    answers = {100 + k: sealed_error(md.RecipeError(text, "recipe")) for k, text in texts.items()}
    answers[102] = sealed(b'{"client": 2}')

    class Seven:
        get_node_ids = staticmethod(lambda: range(100, 107))

    monkeypatch.setattr(messenger, "SOON", 0.3)
    monkeypatch.setattr(flwr_api, "records", lambda letter: letter)
    monkeypatch.setattr(flwr_api, "size", lambda content: 1)
    monkeypatch.setattr(flwr_api, "push", lambda grid, kind, content, ttl: {str(n): n for n in content})
    first = True

    def pull(grid: object, waiting: Iterable[str], *_: object) -> list[Reply]:
        nonlocal first
        here, first = {"100", "102"} if first else {str(n) for n in answers}, False
        return [Reply(m, answers[int(m)], 1, 0, "") for m in waiting if m in here]

    monkeypatch.setattr(flwr_api, "pull", pull)
    with pytest.raises(md.RecipeError) as caught:
        Messenger(Seven()).gather(7)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "node 100: client 'north': its recipe's file has changed; the same holds for client 5, client 6; "
        "node 101: client 1 has the method A; node 104: client 4 has gone"
    )
    assert caught.value.key == "recipe"
    texts = [f"node {n}: app/r.toml: data.split: digits has a test set already" for n in (100, 101, 102)]
    assert _together(texts) == f"{texts[0]}; the same holds for node 101, node 102"


@contextlib.contextmanager
def on_demand(monkeypatch: pytest.MonkeyPatch, *nodes: int) -> Iterator[tuple[Messenger, list[int], set[int]]]:
    """A messenger, the nodes that it sent letters to, and those whose answers are there."""
    sent, here = list[int](), set[int]()

    def push(grid: Any, kind: str, content: dict[int, Any], ttl: float) -> dict[str, int]:
        sent.extend(content)
        return {f"{n} {kind} {len(sent)}": n for n in content}

    def pull(grid: Any, waiting: Iterable[str], *_: Any) -> list[Reply]:
        return [Reply(m, sealed(m.encode()), 1, 0, "") for m in waiting if int(m.split()[0]) in here]

    monkeypatch.setattr(flwr_api, "records", lambda letter: letter)
    monkeypatch.setattr(flwr_api, "size", lambda content: 1)
    monkeypatch.setattr(flwr_api, "push", push)
    monkeypatch.setattr(flwr_api, "pull", pull)
    p = Messenger(Grid(), timeout=60)  # type: ignore[arg-type]
    p.nodes = {n - 100: n for n in nodes}
    yield p, sent, here
    p.close()


def test_a_letter_stays_open_and_its_answer_comes_in_a_later_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[dict[str, Any]]()
    with on_demand(monkeypatch, 100, 101) as (p, sent, here):
        p.events = lambda event, **values: told.append(values["visits"]) if event == "visits" else None
        here.add(100)
        assert [*p.collect("query.a", {0: {}, 1: {}}, {0, 1}, 2, 0.01)] == [0]
        assert (p.at_work, sent) == ({1}, [100, 101])
        assert [*p.send("evaluate", {0: {}})] == [0]
        here.add(101)
        answers = p.collect("query.b", {0: {}}, {0}, 1, 5.0)
        assert {i: a and opened(a[0], "client") for i, a in answers.items()} == {
            0: b"100 query.b 4",
            1: b"101 query.a 2",
        }
        assert (p.at_work, sent) == (frozenset(), [100, 101, 100, 100])
    assert [[*v] for v in told] == [["0", "1"], ["0", "1"], ["0", "1"]]
    assert told[0]["1"][1] is None
    assert told[1]["1"] == told[0]["1"]
    assert told[2]["1"][0] == told[0]["1"][0] <= told[2]["1"][1]


def test_if_nobody_is_awaited_the_first_answer_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_demand(monkeypatch, 100, 101) as (p, sent, here):
        assert p.collect("query.a", {0: {}, 1: {}}, {0, 1}, 1, 0.01) == {}
        here.add(101)
        assert [*p.collect("query.b", {}, set(), 1, None)] == [1]
        assert p.at_work == {0}
        assert sent == [100, 101]


def test_an_answer_that_came_during_a_long_evaluation_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_demand(monkeypatch, 100, 101) as (p, _, here):
        here.add(100)
        assert [*p.collect("query.a", {0: {}, 1: {}}, {0, 1}, 2, 0.01)] == [0]
        p._looked -= 1000.0  # as long ago as if an evaluation had taken so long
        p._open[101].until -= 1000.0
        here.add(101)
        answers = p.collect("query.a", {0: {}}, {0, 1}, 2, 5.0)
        assert all(answers[i] is not None for i in (0, 1))


def test_an_open_letter_ends_with_the_timeout_and_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_demand(monkeypatch, 100, 101) as (p, _, here):
        here.add(100)
        assert [*p.collect("query.a", {0: {}, 1: {}}, {0, 1}, 2, 0.01)] == [0]
        p._open[101].until = time.monotonic()
        assert p.collect("query.a", {0: {}}, {0, 1}, 2, 5.0)[1] is None
        assert (p.at_work, p.silent) == (frozenset(), {101})
        p.collect("query.a", {1: {}}, {1}, 1, 0.01)
        p.forget([1])
        assert p.collect("query.a", {0: {}}, {0}, 1, 5.0).keys() == {0}
