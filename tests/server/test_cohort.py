"""The cohort: asks, sums, the ledger and the virtual clock of an exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley.codecs import Cast
from medley.contract.errors import MedleyError, TooFewReplies, WireError
from medley.contract.message import nbytes
from medley.runtime.clock import Device
from medley.server.bookkeeping import Bookkeeping
from medley.server.cohort import LiveCohort
from medley.transports.inprocess import InProcessConnection
from medley.wire.exchange import Exchange
from medley.wire.ledger import Entry
from support.toys import Lossy, Own, Say, Shuffled, Toy, cohort, federation, host

toy = Toy()
x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
sizes = [4, 5, 6, 7, 8]  # rows of the toys' clients
p = [n / 30 for n in sizes]


def lossy(**lost: str) -> Callable[[Any], Lossy]:
    """lossy(c2="reply"): of exchange 0 in round 1."""
    return lambda host: Lossy(InProcessConnection(host), {(1, 0, int(k[1:])): v for k, v in lost.items()})


def test_mean_sum_and_each_by_hand():
    replies = cohort(toy).ask(toy.echo, Say(x))
    mean = replies.mean()
    want = sum(q * (i + 1) for i, q in enumerate(p))
    assert torch.allclose(mean.v, want * x, rtol=1e-14)
    assert mean.count == pytest.approx(sum(q * i for i, q in enumerate(p)), rel=1e-14)
    assert mean.weight == pytest.approx(mean.count / 4, rel=1e-14)
    assert replies.ids == (0, 1, 2, 3, 4)
    assert replies.share == pytest.approx(1.0, abs=1e-15)
    total = cohort(toy).ask(toy.echo, Say(x)).sum({i: 1.0 for i in range(5)})
    assert torch.equal(total.v, 15 * x)
    assert (total.count, total.weight) == (10, 2.5)
    each = cohort(toy).ask(toy.echo, Say(x)).each()
    assert list(each) == [0, 1, 2, 3, 4]
    assert [type(each[i]).__name__ for i in each] == ["Heard"] * 5
    assert torch.equal(each[3].v, 4 * x)
    assert (each[3].count, each[3].weight) == (3, 0.75)


def test_mean_renormalises_over_who_answered_and_sum_does_not():
    there = [0, 1, 3]
    for how in ("reply", "request"):
        replies = cohort(toy, connection=lossy(c2=how, c4=how)).ask(toy.echo, Say(x))
        mean = replies.mean()
        share = sum(p[i] for i in there)
        assert torch.allclose(mean.v, sum(p[i] * (i + 1) for i in there) / share * x, rtol=1e-14)
        assert replies.ids == (0, 1, 3)
        assert replies.share == pytest.approx(share, rel=1e-14)
        total = cohort(toy, connection=lossy(c2=how, c4=how)).ask(toy.echo, Say(x)).sum()
        assert torch.allclose(total.v, sum(p[i] * (i + 1) for i in there) * x, rtol=1e-14)
        assert list(cohort(toy, connection=lossy(c2=how, c4=how)).ask(toy.echo, Say(x)).each()) == there


def test_a_cohort_that_is_part_of_the_population():
    c = cohort(toy, ids=(1, 4))
    assert (len(c), c.population, c.fraction) == (2, 5, 0.4)
    replies = c.ask(toy.echo, Say(x))
    assert torch.allclose(replies.mean().v, (5 * 2 + 8 * 5) / 13 * x, rtol=1e-14)
    assert replies.share == pytest.approx(13 / 30, rel=1e-15)


def test_an_ask_can_go_to_some_of_the_cohort():
    c = cohort(toy)
    replies = c.ask(toy.each, Say(x), {2: Own(1.0), 0: Own(2.0)}, ids=(2, 0))
    assert {i: m.weight for i, m in replies.each().items()} == {0: 2.0, 2: 1.0}
    assert replies.ids == (0, 2)
    nobody = c.ask(toy.each, Say(x), {}, ids=())
    assert nobody.each() == {}
    assert c.bookkeeping.ledger.exchanges == 1


def test_what_each_gets_is_its_own():
    got = cohort(toy).ask(toy.each, Say(x), {i: Own(float(i)) for i in range(5)}).each()
    assert all(torch.equal(m.v, x + i) for i, m in got.items())


def test_nobody_answers():
    connection = lossy(c0="request", c1="reply", c2="request", c3="reply", c4="reply")
    with pytest.raises(TooFewReplies, match="none of the 5 clients asked in round 1 answered"):
        cohort(toy, connection=connection).ask(toy.echo, Say(x)).mean()
    with pytest.raises(TooFewReplies):
        cohort(toy, connection=connection).ask(toy.echo, Say(x)).sum()
    assert cohort(toy, connection=connection).ask(toy.echo, Say(x)).each() == {}


def test_replies_are_read_once_and_before_the_next_question():
    c = cohort(toy)
    replies = c.ask(toy.echo, Say(x))
    with pytest.raises(MedleyError, match=r"ask\(echo\) was never read"):
        c.ask(toy.train, Say(x))
    with pytest.raises(MedleyError, match=r"ask\(echo\) was never read"):
        c.settle()
    replies.mean()
    with pytest.raises(MedleyError, match=r"ask\(echo\): its replies have been read already"):
        replies.sum()
    c.settle()
    second = c.ask(toy.echo, Say(x))
    with pytest.raises(MedleyError, match="read already"):
        replies.each()
    second.each()


def test_questions_that_make_no_sense_are_refused_before_anybody_is_asked():
    c = cohort(toy)
    with pytest.raises(MedleyError, match=r"ask\(not_marked\): mark it with @on_client"):
        c.ask(toy.not_marked, Say(x))
    with pytest.raises(MedleyError, match="mark it with @on_client"):
        c.ask(lambda me, got: got, Say(x))
    with pytest.raises(
        MedleyError, match=r"ask\(each\): give every client its Own in each=; clients \[0, 1, 2, 3, 4\]"
    ):
        c.ask(toy.each, Say(x))
    with pytest.raises(MedleyError, match=r"clients \[2, 4\] have none"):
        c.ask(toy.each, Say(x), {0: Own(1.0), 1: Own(1.0), 3: Own(1.0)})
    with pytest.raises(MedleyError, match=r"ask\(echo\): it takes no messages for single clients; leave each= out"):
        c.ask(toy.echo, Say(x), {i: Own(1.0) for i in range(5)})
    with pytest.raises(MedleyError, match=r"ask\(echo\): the message to all is Own, not Say"):
        c.ask(toy.echo, Own(1.0))
    with pytest.raises(MedleyError, match=r"ask\(each\): the message of client 2 is Say, not Own"):
        c.ask(toy.each, Say(x), {i: Say(x) if i == 2 else Own(1.0) for i in range(5)})  # type: ignore[misc]
    assert len(c.bookkeeping.ledger) == 0


def test_a_bool_has_no_mean():
    with pytest.raises(MedleyError, match=r"'flag' is a bool and has no mean; read these replies with \.each\(\)"):
        cohort(toy).ask(toy.flag, Say(x)).mean()
    assert {i: m.flag for i, m in cohort(toy).ask(toy.flag, Say(x)).each().items()} == {
        0: True, 1: False, 2: True, 3: False, 4: True,
    }  # fmt: skip


def test_a_field_that_nobody_sends_is_none():
    assert cohort(toy).ask(toy.nothing, Say(x)).mean().v is None
    assert cohort(toy).ask(toy.nothing, Say(x)).sum().v is None


@pytest.mark.parametrize("block", [2, 4, 5])  # within one block, and between blocks
@pytest.mark.parametrize("method", [toy.now_and_then, toy.then_and_now])
def test_a_field_that_some_send_cannot_be_summed(method: Any, block: int):
    with pytest.raises(WireError, match=r"'v' came from some clients and not from others"):
        cohort(toy, block=block).ask(method, Say(x)).sum()
    assert len(cohort(toy, block=block).ask(method, Say(x)).each()) == 5


@pytest.mark.parametrize("block", [4, 5])
def test_shapes_that_differ_cannot_be_summed_not_even_by_broadcasting(block: int):
    with pytest.raises(WireError, match=r"'v' has shape \(1,\) at one client and \(3,\) at another"):
        cohort(toy, block=block).ask(toy.ragged, Say(x)).mean()


eight = federation(8)


@settings(max_examples=10)
@given(st.permutations([0, 1, 2, 3]), st.integers(0, 2**31))
def test_sums_have_the_same_bits_in_whatever_order_blocks_arrive(order: list[int], seed: int):
    fed = eight
    x = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain = cohort(toy, 8, fed=fed).ask(toy.train, Say(x)).mean()
    shuffled = cohort(toy, 8, fed=fed, connection=lambda s: Shuffled(InProcessConnection(s), tuple(order)))
    assert torch.equal(shuffled.ask(toy.train, Say(x)).mean().v, plain.v)


def test_a_folded_sum_is_the_sum_of_the_replies_whatever_the_blocks():
    for block in (1, 2, 3, 8):
        each = cohort(toy, block=block).ask(toy.train, Say(x)).each()
        plain = sum(p[i] * m.v for i, m in each.items())
        folded = cohort(toy, block=block).ask(toy.train, Say(x)).sum().v
        assert float((folded - plain).abs().max()) < 1e-15


def test_blocks_are_consecutive_ids_of_the_cohort():
    seen: list[Exchange] = []

    class Watching(InProcessConnection):
        def exchange(self, exchange: Exchange) -> Any:
            seen.append(exchange)
            return super().exchange(exchange)

    def connection(host: Any) -> Watching:
        return Watching(host)

    for block, blocks in ((8, ((0, 2, 3, 5, 7),)), (3, ((0, 2), (3, 5, 7))), (1, ((0,), (2,), (3,), (5,), (7,)))):
        cohort(toy, 8, ids=(0, 2, 3, 5, 7), block=block, connection=connection).ask(toy.echo, Say(x)).mean()
        assert seen[-1].blocks == blocks


def test_the_ledger_has_every_delivery():
    c = cohort(toy, ids=(0, 2, 3), connection=lossy(c2="reply"))
    c.ask(toy.each, Say(x), {i: Own(1.0) for i in range(5)}).mean()
    c.ask(toy.flag, Say(x)).each()
    up, down = 3 * 8 + 8 + 8, 3 * 8
    assert list(c.bookkeeping.ledger) == [
        Entry(1, 0, "each", 0, down + 8, up),
        Entry(1, 0, "each", 2, down + 8, 0),
        Entry(1, 0, "each", 3, down + 8, up),
        *(Entry(1, 1, "flag", i, down, 1) for i in (0, 2, 3)),
    ]
    assert (c.bookkeeping.ledger.exchanges, c.bookkeeping.ledger.down, c.bookkeeping.ledger.up) == (
        2,
        3 * 32 + 3 * 24,
        2 * up + 3,
    )


def test_a_codec_is_in_the_bytes_and_in_the_numbers():
    third = x / 3
    c = cohort(toy, codec=Cast("float16"))
    got = c.ask(toy.echo, Say(third)).each()[0].v
    assert got.dtype == torch.float64
    assert torch.equal(got, third.half().double())
    first = next(iter(c.bookkeeping.ledger))
    assert (first.down, first.up) == (3 * 2, 3 * 2 + 16)
    assert nbytes(Say(third).pack()) == 4 * first.down


def test_the_virtual_clock_waits_for_the_slowest_who_answers():
    devices = {i: Device(speed=10.0 * (i + 1), down=100.0, up=50.0, latency=0.5 * i) for i in range(5)}
    c = cohort(toy, ids=(0, 1, 3), connection=lossy(c3="reply"), device=devices.__getitem__)
    c.ask(toy.shift, Say(x)).each()  # one full gradient: n_i rows of work
    by_hand = {i: 0.5 * i + 24 / 100 + sizes[i] / (10.0 * (i + 1)) + 40 / 50 for i in (0, 1)}
    assert c.bookkeeping.seconds == pytest.approx(max(by_hand.values()), rel=1e-14)
    c.ask(toy.flag, Say(x)).each()  # no work, one byte up; client 3 answers this time
    assert c.bookkeeping.seconds == pytest.approx(max(by_hand.values()) + 1.5 + 24 / 100 + 1 / 50, rel=1e-14)


def test_notes_end_in_the_bookkeeping():
    c = cohort(toy)
    c.note(a=1.0)
    c.note(b=2.0, a=3.0)
    assert c.bookkeeping.notes == {"a": 3.0, "b": 2.0}


def test_a_new_cohort_goes_on_with_the_same_bookkeeping():
    fed, books = federation(), Bookkeeping()
    connection = InProcessConnection(host(fed, toy))
    shares = fed.draw(0).p
    for round in (1, 2, 3):
        LiveCohort((0, 1), shares, round, connection, books).ask(toy.train, Say(x)).mean()
    assert books.acked == {0: (3, 0), 1: (3, 0)}
    assert connection.save(books.acked)[0].calls == 3


def test_ids_of_numpy_are_taken_and_one_that_is_there_twice_is_not():
    c = cohort(toy)
    replies = c.ask(toy.each, Say(x), {2: Own(1.0), 0: Own(2.0)}, ids=np.array([2, 0]))
    assert {i: m.weight for i, m in replies.each().items()} == {0: 2.0, 2: 1.0}
    assert [type(e.client) for e in c.bookkeeping.ledger] == [int, int]
    assert [type(i) for i in (*replies.ids, *c.bookkeeping.acked)] == [int] * 4
    with pytest.raises(MedleyError, match=r"ask\(echo\): client 2 is in ids= twice; give each client once"):
        c.ask(toy.echo, Say(x), ids=[2, 0, 2])
    with pytest.raises(MedleyError, match=r"ask\(echo\): ids=\['Lyon'\]: give clients' ids, whole numbers"):
        c.ask(toy.echo, Say(x), ids=["Lyon"])
    assert c.bookkeeping.ledger.exchanges == 1


def test_buffers_are_averaged_over_those_that_came_alone():
    """Two of three clients take part: their statistics are those of a federation of the two."""
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 4, generator=g) + n, torch.arange(n) % 3) for n in (5, 8, 4)]
    net = md.problems.Network(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)), start="module")
    pace = md.scenarios.Pace(lr=0.1, steps=2, batch=None)
    of_three = md.Federation(net, clients=data, pace=pace, participation=md.participation.Fixed([[0, 2]]))
    of_two = md.Federation(net, clients=[data[0], data[2]], pace=pace)
    some, all_of_them = (md.run(md.FedAvg(), fed, 1, progress=False).buffers for fed in (of_three, of_two))
    assert some is not None
    assert all_of_them is not None
    assert float((some[0] - all_of_them[0]).abs().max()) < 1e-5
    assert float(some[0].abs().max()) > 0.5  # they have moved
