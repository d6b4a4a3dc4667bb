"""The node's loop without a network: messages handed to it one by one, each of Flower's own class."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.deploy.node import poll
from medley.deploy.node.fleet import FleetNode, NotAdmitted, Parcel, RunOver, Unreachable
from medley.deploy.node.poll import Resident, Rhythm, data_function
from medley.deploy.protocol import flwr_api
from medley.deploy.protocol.flwr_api import FASTEST, SLOWEST, checked_version, pause
from medley.storage import atomic

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from support import bench  # noqa: F401  Flower's task identity, which messages want


def message(k: int, kind: str = "query") -> Message:
    m = Message(RecordDict({"n": ConfigRecord({"bytes": bytes([k])})}), 7, kind)
    m.metadata.__dict__["_message_id"] = f"m{k}"
    return m


class Scripted(FleetNode):
    """A SuperLink that answers each look with the next entry: a message, nothing, or an error."""

    superlink = "here:1"

    def __init__(self, *looks: Any) -> None:
        self.looks, self.sent, self.active, self.refuse = list(looks), {}, 0, []
        self.said, self.takes = list[str](), True
        self.known = {m.metadata.message_id: m for m in looks if isinstance(m, Message)}
        self.node: Resident | None = None

    def activate(self, known: int | None = None) -> int:
        self.said.append(f"activate {known}")
        self.active += 1
        return 7

    def deactivate(self) -> None:
        self.said.append("deactivate")
        self.active = 0

    def close(self) -> None:
        self.said.append("close")

    def heartbeat(self) -> bool:
        return True

    def pull(self) -> Parcel | None:
        if not self.looks:
            assert self.node is not None
            self.node.stop()
            return None
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return None if look is None else Parcel(look.metadata.message_id.encode(), look, None)

    def reopened(self, raw: bytes) -> Parcel:
        return Parcel(raw, self.known[raw.decode()], None)

    def content(self, parcel: Parcel) -> Message:
        return parcel.message

    def context(self, run: int, node_config: Any) -> Context:
        return Context(run, 7, dict(node_config), RecordDict(), {})

    def push(self, parcel: Parcel, reply: Message, seconds: float) -> bool:
        if self.refuse:
            raise self.refuse.pop(0)
        self.sent[parcel.id] = reply
        return self.takes


def served(fleet: Scripted, app: Callable[..., Message], folder: Path) -> Resident:
    node = Resident(fleet, app, {"partition-id": 0}, folder)
    fleet.node = node
    node.run()
    return node


def echo(m: Message, context: Context) -> Message:
    return Message(m.content, reply_to=m)


def test_a_failing_request_is_answered_and_the_next_one_served(tmp_path: Path) -> None:
    def app(m: Message, context: Context) -> Message:
        if (n := m.content["n"]["bytes"][0]) == 1:
            raise ZeroDivisionError("no")
        if n == 2:
            raise SystemExit(3)
        return echo(m, context)

    fleet = Scripted(*map(message, range(4)))
    served(fleet, app, tmp_path)
    assert [m.has_error() for m in fleet.sent.values()] == [False, True, True, False]
    assert fleet.sent["m1"].error.reason == "ZeroDivisionError: no"
    assert fleet.sent["m2"].error.code == 2
    assert fleet.active == 0
    assert not (tmp_path / "message").exists()


def test_a_reply_that_could_not_be_sent_is_sent_after_the_connection_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not computed again; a run that ended meanwhile is left alone."""
    answered = []

    def app(m: Message, context: Context) -> Message:
        answered.append(m.metadata.message_id)
        return echo(m, context)

    wait = threading.Event.wait  # pauses take no time; a thread's start, which has no limit, is waited for
    monkeypatch.setattr(threading.Event, "wait", lambda self, seconds=None: wait(self, None if seconds is None else 0))
    fleet = Scripted(Unreachable("gone"), message(0), NotAdmitted("who?"), message(1), message(2))
    fleet.refuse = [Unreachable("gone"), NotAdmitted("who?"), RunOver("over")]
    served(fleet, app, tmp_path)
    assert answered == ["m0", "m1", "m2"]
    assert list(fleet.sent) == ["m1", "m2"]  # the run of m0 was over


def test_a_message_in_hand_outlives_the_process(tmp_path: Path) -> None:
    def killed(m: Message, context: Context) -> Message:
        raise KeyboardInterrupt  # as Stopped does, it passes all handlers of errors

    with pytest.raises(KeyboardInterrupt):
        served(Scripted(message(5)), killed, tmp_path)
    assert (tmp_path / "message").read_bytes() == b"m5"
    fleet = Scripted()
    fleet.known["m5"] = message(5)
    served(fleet, echo, tmp_path)
    assert fleet.sent["m5"].content["n"]["bytes"] == b"\5"
    assert not (tmp_path / "message").exists()


def test_a_node_whose_process_was_killed_leaves_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id outlives the process; with a message in hand nothing is lost, and it goes on at once."""
    monkeypatch.setattr(poll, "ABSENCE", 0.01)
    whole = Scripted(message(1))
    served(whole, echo, tmp_path)
    assert whole.said == ["activate None", "deactivate", "close"]
    assert not (tmp_path / "node").exists()

    (tmp_path / "node").write_text("7")
    killed = Scripted(message(2))
    served(killed, echo, tmp_path)
    assert killed.said == ["activate 7", "deactivate", "activate None", "deactivate", "close"]

    (tmp_path / "node").write_text("7")
    (tmp_path / "message").write_bytes(b"m3")
    busy = Scripted()
    busy.known = {"m3": message(3)}
    served(busy, echo, tmp_path)
    assert busy.said == ["activate 7", "deactivate", "close"]
    assert "m3" in busy.sent

    (tmp_path / "node").write_text("7")
    (tmp_path / "message").write_bytes(b"m4")
    late = Scripted(message(5))  # the reply to m4 was announced and not sent, and the SuperLink takes no other
    late.known["m4"], late.takes = message(4), False
    served(late, echo, tmp_path)
    assert late.said == ["activate 7", "deactivate", "activate None", "deactivate", "close"]


def test_sigterm_ends_a_node_after_its_answer_and_at_the_second_time_at_once(tmp_path: Path) -> None:
    def told(times: int) -> Callable[..., Message]:
        def app(m: Message, context: Context) -> Message:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGTERM)
            return echo(m, context)

        return app

    before = signal.getsignal(signal.SIGTERM)
    fleet = Scripted(message(0), message(1))
    served(fleet, told(1), tmp_path / "once")
    assert list(fleet.sent) == ["m0"]
    fleet = Scripted(message(0), message(1))
    served(fleet, told(2), tmp_path / "twice")
    assert list(fleet.sent) == []
    assert (tmp_path / "twice" / "message").read_bytes() == b"m0"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_node_that_is_told_to_end_again_while_it_ends_ends_without_a_traceback(tmp_path: Path) -> None:
    class Slow(Scripted):
        def deactivate(self) -> None:
            super().deactivate()
            os.kill(os.getpid(), signal.SIGTERM)

        def close(self) -> None:
            super().close()
            os.kill(os.getpid(), signal.SIGINT)

    fleet = Slow(message(0))
    served(fleet, echo, tmp_path)
    assert fleet.said == ["activate None", "deactivate", "close"]
    assert list(fleet.sent) == ["m0"]


def test_a_full_disk_ends_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """What cannot be kept is served all the same; a request that needs the disk is answered with its error."""

    def full(path: Path, content: bytes = b"") -> None:
        with atomic.writing(path):
            raise OSError(28, "No space left on device")

    def app(m: Message, context: Context) -> Message:
        if m.content["n"]["bytes"] == b"\1":
            full(tmp_path / "1-0.safetensors")
        return echo(m, context)

    monkeypatch.setattr(poll, "write", full)
    fleet = Scripted(*map(message, range(3)))
    served(fleet, app, tmp_path)
    assert [m.has_error() for m in fleet.sent.values()] == [False, True, False]
    assert "1-0.safetensors: [Errno 28] No space left" in fleet.sent["m1"].error.reason
    assert "message: [Errno 28] No space left" in caplog.text


def test_two_nodes_cannot_have_one_folder(tmp_path: Path) -> None:
    def app(m: Message, context: Context) -> Message:
        with pytest.raises(md.RecipeError, match="is in use"):
            served(Scripted(), echo, tmp_path)
        return echo(m, context)

    served(Scripted(message(0)), app, tmp_path)


def test_looks_become_rare() -> None:
    """From the fastest pause to the slowest; a wait is a tenth longer at most."""
    assert pause(0.0) == FASTEST == 0.03
    assert pause(5.0) == 0.5
    assert pause(3600.0) == SLOWEST == 3.0
    at, looks = 0.0, 0
    while at < 60:
        at, looks = at + pause(at), looks + 1
    assert looks < 70


def test_a_node_that_waits_again_and_again_looks_a_few_times_before_the_end() -> None:
    """One second between a reply and the next message: 13 looks the first time, 5 from then on, at most 0.1 s late."""
    rhythm, looks = Rhythm(), []
    for _ in range(6):
        at, count = 0.0, 1
        while at < 1.0:
            at, count = at + rhythm.pause(at), count + 1
        rhythm.came(at)
        assert at < 1.1
        looks.append(count)
    assert looks[0] >= 13
    assert max(looks[1:]) <= 6
    assert rhythm.pause(50.0) == SLOWEST
    slow = Rhythm()
    slow.came(600.0)
    assert slow.pause(0.0) == 1.0


def test_the_version_of_flwr_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_version().startswith(flwr_api.TESTED)
    monkeypatch.setattr(flwr_api.versions, "version_of", lambda name: "1.99.0")
    with pytest.raises(md.MedleyError, match=r"flwr 1\.99\.0 is installed.* tested with flwr 1\.41 and 1\.42"):
        checked_version()


def test_what_is_no_key_and_no_certificate_is_named(tmp_path: Path) -> None:
    (key := tmp_path / "key").write_text("nothing")
    with pytest.raises(md.RecipeError, match="key is not a private key"):
        FleetNode("localhost:1", key, key)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1", r"has no function data\(context\)"), ("1 / 0", "ZeroDivisionError"), (None, "no such Python file")],
)
def test_a_data_file_that_does_not_fit_is_named(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mydata.py").write_text(text)
    with pytest.raises(md.RecipeError, match=said):
        data_function(tmp_path / "mydata.py")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_sign_of_life_under_way_ends_before_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is in gRPC while the interpreter ends aborts the process."""
    monkeypatch.setattr(poll, "HEARTBEAT", 0.03)
    began, ended = threading.Event(), threading.Event()

    class Slow(Scripted):
        def heartbeat(self) -> bool:
            began.set()
            assert self.node is not None
            self.node._stop.wait(10)
            ended.wait(0.3)
            ended.set()
            return True

        def pull(self) -> Parcel | None:
            assert began.wait(10)
            return super().pull()

    served(Slow(), echo, tmp_path)
    assert ended.is_set()
