"""The host of clients: repeated and lost requests, receipts, and checks of what a client method does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley.contract.errors import ClientFailed, Diverged, MedleyError, MemoryLost
from medley.server.bookkeeping import Bookkeeping
from medley.server.cohort import LiveCohort
from medley.server.ending import LASTING
from medley.transports.inprocess import InProcessConnection
from support.toys import Lossy, LossyTransport, Memory, Say, Toy, cohort, federation, host

x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
toy = Toy()


def test_a_memory_that_another_run_left_is_refused_with_what_is_held():
    c = cohort(toy)
    c.ask(toy.train, Say(x)).mean()
    c.bookkeeping.acked = dict.fromkeys(range(5), (7, 1))
    held = r"\(7, 1\), but the client holds \[\(1, 0\)\].*readmit=\[\d\], --readmit \d at"
    with pytest.raises(MemoryLost, match=held) as e:
        c.ask(toy.train, Say(x)).mean()
    assert isinstance(e.value, LASTING)  # no restart brings it back


def test_a_repeated_request_gets_the_same_bits():
    made = host(federation(), toy)
    connection, books = InProcessConnection(made), Bookkeeping()
    c = LiveCohort((0, 1, 2), federation().draw(0).p, 1, connection, books)
    seen: list[Any] = []
    inner = connection.exchange
    connection.exchange = lambda e: seen.append(e) or inner(e)  # type: ignore[method-assign,func-returns-value]
    c.ask(toy.train, Say(x)).each()
    c.ask(toy.shift, Say(x)).each()
    c.round, c._exchanges = 2, 0
    first = c.ask(toy.train, Say(x)).each()
    again = {i: v for reply in inner(seen[-1]) for i, v in reply.replies.items()}
    assert all(torch.equal(first[i].v, again[i]["v"]) for i in (0, 1, 2))
    assert {i: m.calls for i, m in connection.save(books.acked).items()} == {0: 3, 1: 3, 2: 3}


which = st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(0, 3))
lost = st.dictionaries(which, st.sampled_from(["request", "reply"]), max_size=12)
full = federation(pace=md.scenarios.Pace(lr=0.05, batch=None))


@settings(max_examples=20)
@given(lost)
def test_whatever_is_lost_the_server_and_the_clients_agree(lost: dict[tuple[int, int, int], str]):
    """Toy keeps Σ p_i c_i on both sides: the server's sum of what arrived, and the clients' own memories."""
    # Somebody answers always: client 4 is never lost.
    connection, books, p = Lossy(InProcessConnection(host(full, toy)), lost), Bookkeeping(), full.draw(0).p
    s = toy.start(torch.zeros(3, dtype=torch.float64))
    for round in range(1, 6):  # nothing is lost in round 5, so that everything is acknowledged
        toy.round(s, LiveCohort(tuple(range(5)), p, round, connection, books, stack_size=2))
        memories = connection.save(books.acked)
        ours = sum(p[i] * m.c for i, m in memories.items())
        assert torch.allclose(s.c, ours, atol=1e-13)
    calls = {i: sum((r, e, i) not in lost for r in range(1, 6) for e in (0, 1)) for i in range(5)}
    assert {i: m.calls for i, m in memories.items()} == calls


def test_a_lost_request_and_a_lost_reply_make_the_same_run():
    lost = [(2, 0, 1), (2, 1, 1), (3, 1, 0), (4, 0, 3)]
    runs = [
        md.run(toy, federation(), 5, transport=LossyTransport(dict.fromkeys(lost, how))) for how in ("request", "reply")
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert not torch.equal(runs[0].x, md.run(toy, federation(), 5).x)
    assert list(runs[0].ledger) == list(runs[1].ledger)


def test_memory_begins_with_what_remember_gives_and_nothing_is_shared():
    made = host(federation(), toy)
    exchange_memory = {}
    connection, books = InProcessConnection(made), Bookkeeping()
    c = LiveCohort((0, 1), federation().draw(0).p, 1, connection, books)
    c.ask(toy.shift, Say(x)).mean()
    for i, m in connection.save(books.acked).items():
        assert isinstance(m, Memory)
        sim = federation().draw(0)
        X, y, _ = sim.rows.of(0, i)
        assert torch.allclose(m.c, X.T @ (X @ x - y) / len(y) + 0.1 * x)
        exchange_memory[i] = m.c.data_ptr()
    assert len(set(exchange_memory.values())) == 2


def test_work_done_is_in_the_receipts():
    made = host(federation(), toy)
    c = LiveCohort((0, 3), federation().draw(0).p, 1, InProcessConnection(made), Bookkeeping())
    rows = []
    inner = c.connection.exchange
    c.connection.exchange = lambda e: map(lambda b: rows.extend((r.client, r.work) for r in b.receipts) or b, inner(e))  # type: ignore[method-assign]
    c.ask(toy.train, Say(x)).each()  # two epochs
    c.ask(toy.shift, Say(x)).each()  # one full gradient
    assert rows == [(0, 8), (3, 14), (0, 4), (3, 7)]


def test_client_code_that_fails_is_named_with_its_traceback():
    with pytest.raises(ClientFailed, match=r"client 0 failed in round 1 in fail\(\): IndexError") as caught:
        cohort(toy).ask(toy.fail, Say(x)).mean()
    e = caught.value
    assert (e.client, e.round, e.method) == (0, 1, "fail")
    assert "return Maybe(request.x[torch.tensor([999])])" in e.traceback
    assert isinstance(e.__cause__, IndexError)


def test_numbers_that_are_not_finite_name_client_field_and_round():
    with pytest.raises(Diverged, match=r"client 0 sent numbers that are not finite \('v' of Toy\.explode, round 1\)"):
        cohort(toy).ask(toy.explode, Say(x)).mean()


def test_changing_a_message_in_place_is_caught():
    with pytest.raises(MedleyError, match=r"Toy\.in_place_message changed the message's x in place \(client 0, r"):
        cohort(toy).ask(toy.in_place_message, Say(x.clone())).mean()


def test_changing_memory_in_place_is_caught():
    c = cohort(toy)
    c.ask(toy.train, Say(x)).mean()
    with pytest.raises(MedleyError, match=r"changed memory\.c in place .* write m\.c = m\.c \+ step"):
        c.ask(toy.in_place_memory, Say(x)).mean()
