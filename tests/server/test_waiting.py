"""The end of an exchange on the virtual clock, by hand, and the cut of a cohort into blocks."""

from __future__ import annotations

import pytest

from medley.server.reply_policy import ReplyPolicy
from medley.server.waiting import exchange_end, in_order
from medley.wire.exchange import in_blocks
from medley.wire.fold import Fold


@pytest.mark.parametrize(
    ("policy", "arrivals", "silent", "want"),
    [
        (ReplyPolicy(), [11.0, 14.0], False, 14.0),  # all are in
        (ReplyPolicy(replies=1), [11.0, 14.0], False, 11.0),  # enough are in
        (ReplyPolicy(replies=0.5), [11.0, 14.0, 15.0], False, 14.0),
        (ReplyPolicy(replies=3), [11.0, 14.0], True, 14.0),  # never enough, and no deadline
        (ReplyPolicy(deadline=3.0), [11.0, 14.0], False, 13.0),  # the deadline cuts the last one off
        (ReplyPolicy(deadline=9.0), [11.0, 14.0], False, 14.0),
        (ReplyPolicy(deadline=9.0), [11.0, 14.0], True, 19.0),  # a silent client is waited for until the deadline
        (ReplyPolicy(deadline=9.0, replies=2), [11.0, 14.0], True, 14.0),  # not if there are enough
        (ReplyPolicy(deadline=9.0), [], True, 19.0),
        (ReplyPolicy(retries=1), [], True, 10.0),
        (ReplyPolicy(), [], False, 12.5),  # all are at work: until one is free
        (ReplyPolicy(replies=1), [8.0, 11.0], False, 10.0),  # a late reply that has arrived before the exchange
    ],
)
def test_an_exchange_ends_with_enough_replies_or_all_or_at_the_deadline(
    policy: ReplyPolicy, arrivals: list[float], silent: bool, want: float
):
    asked = len(arrivals) + silent
    assert exchange_end(policy, arrivals, asked, sent=10.0, silent=silent, start=10.0, first_free=12.5) == want


def test_a_second_attempt_has_a_deadline_of_its_own():
    policy = ReplyPolicy(deadline=5.0, retries=1)
    assert exchange_end(policy, [11.0], 2, sent=15.0, silent=True, start=10.0, first_free=10.0) == 20.0
    assert exchange_end(policy, [11.0, 17.0], 2, sent=15.0, silent=False, start=10.0, first_free=10.0) == 17.0


def test_blocks_come_in_order_and_those_that_never_come_are_skipped():
    folds = [Fold(k) for k in (2, 0, 4, 1)]
    assert [fold.block for fold in in_order(iter(folds), 5)] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("clients", "stack_size", "sizes"),
    [(0, 8, []), (5, 8, [5]), (5, 3, [2, 3]), (9, 8, [4, 5]), (100, 2, [5] * 20), (1000, 8, [31] * 24 + [32] * 8)],
)
def test_blocks_are_of_one_size_and_an_even_number(clients: int, stack_size: int, sizes: list[int]):
    blocks = in_blocks(tuple(range(clients)), stack_size)
    assert sorted(map(len, blocks)) == sizes
    assert [i for block in blocks for i in block] == list(range(clients))
