"""The battery itself: a sound method passes, and one with a single fault fails in the checks that are there for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import medley as md
import medley.secure
from medley.algorithms import fedavg
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.message import Message
from medley.contract.types import Vec
from medley.testing import bits, checks, conformance
from medley.testing.card import Line, Term, card
from medley.testing.method_runs import Subject
from medley.transports import Processes


class Model(Message):
    x: Vec
    t: int


class Step(Message):
    delta: Vec
    more: Vec | None


class Hello(Message):
    n: int | None


class Answer(Message):
    x: Vec | None
    n: int | None


@dataclass
class Server:
    x: Vec
    t: int = 0


@dataclass
class Memory:
    sum: Vec


@dataclass(frozen=True)
class Descent(Algorithm[Server, Memory]):
    """Local descent with a memory, and one fault.

    **One round sends** (floats per client):

    - train: d + 1 down, d up; with a remark

    **Departures**: - this line: is not read
    """

    fault: str = "none"
    clients_seen: list[int] = field(default_factory=list)
    elsewhere: ClassVar[dict[Any, Any]] = {}

    def start(self, x: Vec) -> Server:
        self.elsewhere.clear()
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        return Memory(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        del s, clients, who

    def round(self, s: Server, clients: Cohort) -> None:
        everybody = tuple(range(clients.population)) if self.fault == "asks the absent" else None
        replies = clients.ask(self.train, Model(s.x, s.t), ids=everybody)
        if self.fault == "leaves replies unread":
            return
        step = replies.mean().delta
        if self.fault == "divides by n - 1":
            step = step / (clients.population - 1)
        if self.fault == "walks on its own":
            step = step + 0.1
        if self.fault == "changes the server in place":
            s.x.add_(step)
        else:
            s.x = s.x + step
        s.t = s.t + 1

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        shift = 0.1 * me.memory.sum
        if self.fault == "remembers elsewhere":
            # The first of two workers is held up in odd rounds, the second in even ones: the others' clients change.
            time.sleep(0.05 if me.id == 1 - me.round % 2 else 0)
            shift = 0.1 * self.elsewhere.get(me.id, torch.zeros_like(request.x))
        step = me.descend(request.x, shift=shift).step
        match self.fault:
            case "changes memory in place":
                me.memory.sum += step
            case "remembers elsewhere":
                self.elsewhere[me.id] = 10 * self.elsewhere.get(me.id, 0.0) + step
            case "keeps state on itself":
                self.clients_seen.append(me.id)
                step = step / len(self.clients_seen)
            case "counts who came before":
                at, count = self.elsewhere.get("count", (0, 0))
                self.elsewhere["count"] = me.round, count + 1 if at == me.round else 0
                step = step * (1 + 0.1 * self.elsewhere["count"][1])
            case "draws without a name":
                step = step * np.random.default_rng().random()
            case "knows its number":
                step = step * (1 + 0.1 * me.id)
        if self.fault != "changes memory in place":
            me.memory.sum = me.memory.sum + step
        return Step(step, step if self.fault == "sends more" else None)


def failing(method: Algorithm[Any, Any], names: Collection[str]) -> dict[str, list[str]]:
    """Those of these checks that fail, with the notes of their errors."""
    out = {}
    for check in (c for c in checks(method) if c.name in names):
        try:
            check()
        except (AssertionError, md.MedleyError, ZeroDivisionError) as e:
            out[check.name] = getattr(e, "__notes__", [])
    return out


ALL = {c.name for c in checks(Descent())}
APART = {"scrambled", "one worker"}

FAULTS = {
    "changes memory in place": ALL,
    "changes the server in place": {"server by assignment"},
    "leaves replies unread": ALL,
    "counts who came before": {"scrambled", "lost reply", "relabelled"},
    "remembers elsewhere": APART | {"resume", "lost reply"},
    "knows its number": {"relabelled"},
    "sends more": {"card", "narrow codec"},
    "asks the absent": {"partial", "members"},
    "divides by n - 1": {"one client"},
    "walks on its own": {"small steps"},
    "keeps state on itself": APART | {"stacks", "same again", "resume", "lost reply", "frozen", "members"},
    "draws without a name": APART | {"stacks", "same again", "resume", "members"},
}

SCRAMBLED = {fault: "arrival, two workers, asked twice" for fault in FAULTS if "scrambled" in FAULTS[fault]} | {
    "remembers elsewhere": "two workers, asked twice"
}
"""The parts of a scrambled run that fail by themselves."""


@pytest.mark.slow
def test_a_sound_method_passes() -> None:
    assert failing(Descent(), ALL) == {}


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=pytest.mark.slow) if len(FAULTS[f]) > 3 else f for f in FAULTS]
)
def test_a_fault_is_found_where_it_should_be(fault: str) -> None:
    # One check of those that have nothing to do with it is run along, lest a fault be one that fails everywhere.
    others = sorted(ALL - FAULTS[fault] - {"frozen"})[:1]
    failed = failing(Descent(fault), FAULTS[fault] | set(others))
    assert failed.keys() == FAULTS[fault]
    assert failed.get("scrambled", [])[:1] == [f"fail by themselves: {w}" for w in [SCRAMBLED.get(fault)] if w]


def test_a_scrambled_run_that_fails_only_as_a_whole_fails() -> None:
    subject = Subject(Descent("counts who came before"))
    with pytest.raises(AssertionError, match=r"answered differently|x differs") as e:
        bits.scrambled(subject, Processes(2), single_changes={"sleeping": lambda t: None, "waking": lambda t: None})
    assert e.value.__notes__ == ["fail by themselves: none of sleeping, waking"]


@dataclass
class Thawed(Algorithm[Server]):
    """**One round sends**

    - train: d down, d up
    """

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = s.x + clients.ask(self.train, fedavg.Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: fedavg.Model) -> fedavg.Step:
        return fedavg.Step(me.descend(request.x).step)


def test_a_method_has_to_be_frozen() -> None:
    assert failing(Thawed(), {"frozen", "card"}).keys() == {"frozen"}


@dataclass(frozen=True)
class Mixing(Algorithm[Server]):
    """The clients of a stack look at each other.

    **One round sends**

    - train: d down, d up
    """

    mixing: bool = True

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = s.x + clients.ask(self.train, fedavg.Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: fedavg.Model) -> fedavg.Step:
        step = me.descend(request.x).step
        return fedavg.Step(step * (1 + 1e-6 * (step.ndim - 1)) if self.mixing else step)


@pytest.mark.slow
def test_a_method_that_is_another_one_for_stacks_is_found() -> None:
    assert failing(Mixing(), {"stacks", "card", "scrambled"}).keys() == {"stacks"}
    assert failing(Mixing(mixing=False), {"stacks"}) == {}


@pytest.mark.slow
def test_conformance_tells_all_that_failed() -> None:
    with pytest.raises(ExceptionGroup, match="Descent breaks the contract") as e:
        conformance(Descent("sends more"))
    notes = [n for one in e.value.exceptions for n in one.__notes__]
    assert notes == ["in the check 'card'", "in the check 'narrow codec'"]
    assert "train sent 56 bytes down and 96 up" in str(e.value.exceptions[0])  # d = 6: 6·8 + 8, twice 6·8


@dataclass(frozen=True)
class Bare(Algorithm[Server]):
    """Asks with a tensor in the place of a message."""

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = s.x + clients.ask(self.train, s.x).mean().delta  # type: ignore[arg-type]

    @on_client
    def train(self, me: Client, request: fedavg.Model) -> fedavg.Step:
        return fedavg.Step(me.descend(request.x).step)


def test_a_method_without_a_whole_round_fails_once() -> None:
    with pytest.raises(ExceptionGroup, match="Bare breaks the contract") as e:
        conformance(Bare())
    (one,) = e.value.exceptions
    assert str(one) == "ask(train): the message to all is Tensor, not Model"
    assert "did not run" in one.__notes__[-1]


@dataclass(frozen=True)
class Demanding(Algorithm[Server]):
    needs: ClassVar[frozenset[str]] = frozenset({"quadratic", "network"})

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        raise NotImplementedError


def test_a_method_that_the_battery_cannot_serve() -> None:
    with pytest.raises(AssertionError, match="needs more than the battery's problems offer"):
        checks(Demanding())[0]()
    with pytest.raises(AssertionError, match="has no section"):
        card(Demanding())


# Cards


def read(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[Line]:
    section = "\n    ".join(lines)
    monkeypatch.setattr(
        Demanding, "__doc__", f"Words.\n\n    **One round sends** (floats)\n\n    {section}\n\n    **Needs**: d"
    )
    return card(Demanding())


def test_cards_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = read(
        monkeypatch,
        "- probe (first time): d down, 1 up; who is new",
        "- train: 2d + 1 down, d + 2 up.",
        "  d down, as this line does not say",
        "- settle (if flows are at the clients): 1 + d + 1 down, 0 up",
        "- train (later): 10 d down, 3d+d up",
    )
    d = Term("d", "float")
    none = (Term("0", "scalar"),)
    assert lines == [
        Line("probe", "first time", (d,), (Term("1", "scalar"),)),
        Line("train", "", (Term("2*d", "float"), Term("1", "scalar")), (d, Term("2", "scalar"))),
        Line("settle", "if flows are at the clients", (Term("1", "scalar"), d, Term("1", "scalar")), none),
        Line("train", "later", (Term("10*d", "float"),), (Term("3*d", "float"), d)),
    ]


@pytest.mark.parametrize(
    ("cost", "sent"),
    [
        ("2d + 3", {64: True, 52: False}),
        ("d(d + 1)/2", {60: True, 64: False}),
        ("k(d + 1) + 1", {8: True, 32: True, 56: True, 44: False}),
        ("k(d + 1) + d + K + 1", {28: True, 32: True, 52: True, 24: False, 30: False}),
        ("kd bytes + 4k bytes", {0: True, 9: True, 27: True, 12: False}),
        ("8(K + 1) bytes", {8: True, 104: True, 0: False, 100: False}),
        ("3 bytes", {3: True, 24: False}),
        ("kr", {24: True, 26: False, 0: True}),
    ],
)
def test_costs_are_solved_for_their_letters(monkeypatch: pytest.MonkeyPatch, cost: str, sent: dict[int, bool]) -> None:
    """d = 5 floats of 4 bytes."""
    (line,) = read(monkeypatch, f"- train: 0 down, {cost} up")
    for n, fits in sent.items():
        assert line.fits(5, 4, 0, n) is fits, n


def test_a_letter_is_the_same_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = read(monkeypatch, "- train: k bytes down, kd up")
    assert line.fits(5, 4, 2, 40)
    assert not line.fits(5, 4, 2, 20)


@pytest.mark.parametrize(
    "line",
    [
        "- train: d down",
        "- train: d² down, d up",
        "- train: d down, ? up",
        "- train (sometimes): d down, d up",
        "- train: d + down, d up",
        "- train: k(d + 1 down, d up",
        "- train: d/0 down, d up",
        "- train: 1/d down, d up",
    ],
)
def test_cards_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    with pytest.raises(AssertionError, match="2d \\+ 1"):
        read(monkeypatch, line)


@dataclass(frozen=True)
class Greeting(Algorithm[Server]):
    """Asks a client that is new one thing more.

    **One round sends**

    - greet (first time): 0 down, d up
    - greet (later): 1 down, 1 up
    - never (if it rains): 3d down, d up
    """

    needs: ClassVar[frozenset[str]] = frozenset({"convex"})  # it descends in float64

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        for i, up in clients.ask(self.greet, Hello(None if clients.round == 1 else 1)).each().items():
            s.x = s.x + clients.p[i] * (0.1 if up.x is None else up.x)

    @on_client
    def greet(self, me: Client, request: Hello) -> Answer:
        return (
            Answer(me.descend(torch.zeros(me.problem.d, dtype=torch.float64)).step, None)
            if request.n is None
            else Answer(None, 2)
        )


def test_first_times_and_later_ones_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = [c for c in checks(Greeting()) if c.name == "card"]
    check()
    assert Greeting.__doc__ is not None
    monkeypatch.setattr(Greeting, "__doc__", Greeting.__doc__.replace(" (if it rains)", ""))
    with pytest.raises(AssertionError, match=r"lines that never occur: \['never'\]"):
        check()
    monkeypatch.setattr(
        Greeting, "__doc__", Greeting.__doc__.replace("- greet (later): 1 down", "- greet (later): 2 down")
    )
    with pytest.raises(AssertionError, match=r"greet sent 8 bytes down and 8 up \(client 0, round 2"):
        check()


@dataclass(frozen=True)
class Cardless(md.FedAvg):
    """A user's method without a card."""


def test_a_users_method_may_do_without_a_card() -> None:
    assert failing(Cardless(), {"card", "narrow codec"}) == {}
    with pytest.raises(AssertionError, match="has no section"):
        card(Cardless())


def test_without_the_packages_of_secure_sums_the_battery_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {check.name for check in checks(md.FedAvg())}
    ours = ("medley.secure.party", "medley.secure.crypto")
    for name in [name for name in sys.modules if name.split(".")[0] == "Crypto" or name in ours]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Crypto", None)
    monkeypatch.delattr(medley.secure, "party", raising=False)
    assert names - {check.name for check in checks(md.FedAvg())} == {"secure sums"}
