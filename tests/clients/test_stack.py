"""Stacking clients' states, and taking them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import medley as md
from medley.clients.stack import alike, rows, stack
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.message import Message
from medley.contract.types import Num, Vec
from medley.engines import choose
from medley.testing.faults import Rewired
from medley.wire.connection import Connection
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold
from support.toys import federation

like = torch.zeros(0, dtype=torch.float64)


@dataclass
class State:
    v: Vec | None = None
    T: Num = 0.0
    calls: int = 0
    name: str = ""


def test_states_come_apart_as_they_were_stacked():
    states = [State(torch.tensor([1.0, 2.0]) * i, i / 3, i, "a") for i in range(4)]
    whole = stack(states, like)
    assert whole.v.shape == (4, 2)
    assert (whole.T.shape, whole.T.dtype, whole.calls.dtype) == ((4, 1), torch.float64, torch.int64)
    back = [State(**fields) for fields in rows(State, vars(whole), 4, "here")]
    for a, b in zip(states, back, strict=True):
        assert torch.equal(a.v, b.v)  # type: ignore[arg-type]
        assert (a.T, a.calls, a.name) == (b.T, b.calls, b.name)
        assert type(b.calls) is int
    assert len({b.v.untyped_storage().data_ptr() for b in back}) == 4  # type: ignore[union-attr]


def test_a_vector_of_length_one_is_no_number():
    whole = stack([State(torch.tensor([2.0]), 1.0), State(torch.tensor([3.0]), 2.0)], like)
    first = next(rows(State, vars(whole), 2, "here"))
    assert first["v"].shape == (1,)
    assert first["T"] == 1.0


def test_shapes_that_belong_to_nobody_are_refused():
    with pytest.raises(md.MedleyError, match=r"here: 'v' of a stack of 3 clients has shape \[2, 5\]"):
        list(rows(State, {"v": torch.zeros(2, 5)}, 3, "here"))


def test_stacks_are_cut_where_states_differ():
    v = torch.zeros(2)
    held: dict[int, tuple[Any, ...]] = {1: (State(v),), 4: (State(v),), 5: (State(),), 7: (State(v),), 8: (State([v]),)}  # type: ignore[arg-type]
    assert [*alike(held)] == [(1, 4), (5,), (7,), (8,)]


class Model(Message):
    x: Vec


class Seen(Message):
    v: Vec
    p: Num
    rate: Num
    shared: float


@dataclass
class Server:
    x: Vec


@dataclass(frozen=True)
class Looking(Algorithm[Server]):
    """Shows the columns of a stack; ``fault`` is called with the stack first."""

    fault: Any = None

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        for i, seen in clients.ask(self.look, Model(s.x)).each().items():
            clients.note(**{f"p{i}": seen.p, f"lr{i}": seen.rate, f"v{i}": float(seen.v[0])})

    @on_client(vectorized=True)
    def look(self, me: Client, request: Model) -> Seen:
        if self.fault is not None:
            self.fault(me)
        return Seen(me.problem.grad(request.x, me.first_batch), me.p, me.pace.lr, 2.5)


def test_a_stack_sees_its_clients_in_columns():
    fed = federation(pace=md.scenarios.Pace(lr=[0.1, 0.2, 0.3, 0.4, 0.5], batch=2))
    row = md.run(Looking(), fed, rounds=1, progress=False).history[-1]
    sim = fed.draw(0)
    engine = choose("seq", sim.problem, "cpu")
    for i in range(5):
        me = sim.client(i, 1, engine)
        g = me.problem.grad(torch.zeros(3, dtype=torch.float64), me.first_batch)
        assert (row[f"p{i}"], row[f"lr{i}"], row[f"v{i}"]) == (me.p, (i + 1) / 10, float(g[0]))


def test_of_a_stack_that_fails_the_client_is_named_or_the_stack():
    def third(me: Client[Any]) -> None:
        if any(c.id == 2 for c in me.members):
            raise ValueError("no")

    with pytest.raises(md.ClientFailed, match="client 2"):
        md.run(Looking(third), federation(), rounds=1, progress=False)
    with pytest.raises(md.MedleyError, match=r"clients 0..4 one by one, but not as a stack .*has no attribute 'id'"):
        md.run(Looking(lambda me: me.id), federation(), rounds=1, progress=False)


def test_a_block_of_a_large_cohort_is_several_stacks(monkeypatch):
    """One sum for five clients of a hundred, who are served two at a time; of a few clients every stack is a block."""
    monkeypatch.setattr(md.engines, "stack_size", lambda d, device="cpu": 2)
    served, blocks = list[int](), list[int]()

    def deliver(connection: Connection, exchange: Exchange) -> Iterator[Fold]:
        blocks.extend(map(len, exchange.blocks))
        yield from connection.exchange(exchange)

    for clients in (100, 7):
        there = Rewired(md.transports.InProcess(), deliver)
        look = Looking(lambda me: served.append(len(me.members)))
        md.run(look, federation(clients), rounds=1, progress=False, transport=there)
    assert blocks == [5] * 20 + [1, 2, 2, 2]
    assert served == [2, 2, 1] * 20 + [1, 2, 2, 2]
