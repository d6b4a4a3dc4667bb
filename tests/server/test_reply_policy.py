"""Reply policies: the number of replies that is enough, and the values that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from medley.contract.errors import RecipeError
from medley.server.reply_policy import ReplyPolicy


@pytest.mark.parametrize(
    ("replies", "asked", "enough"),
    [
        (None, 10, None),
        (3, 10, 3),
        (3.0, 2, 3),  # more than were asked: the deadline ends the exchange
        (1, 10, 1),  # 1 is a number, not a share
        (0.5, 10, 5),
        (0.5, 5, 3),  # shares are rounded up
        (0.01, 5, 1),
        (0.999, 1, 1),
    ],
)
def test_enough_replies(replies: float | None, asked: int, enough: int | None) -> None:
    assert ReplyPolicy(replies=replies).enough(asked) == enough


def test_only_the_default_is_endless() -> None:
    assert ReplyPolicy().endless
    others: list[dict[str, Any]] = [{"deadline": 9.0}, {"replies": 2}, {"quorum": 0.1}, {"retries": 1}]
    assert [ReplyPolicy(**other).endless for other in [*others, {"faulty": "drop"}]] == [False] * 5


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("deadline", 0, "must be above 0 and finite, or None"),
        ("deadline", -1.0, "must be above 0"),
        ("deadline", math.inf, "finite"),
        ("deadline", math.nan, "finite"),
        ("replies", 0, "a share below 1 or a whole number"),
        ("replies", 1.5, "a share below 1 or a whole number"),
        ("quorum", 1.01, r"a share in \[0, 1\]"),
        ("quorum", -0.1, r"a share in \[0, 1\]"),
        ("quorum", math.nan, r"a share in \[0, 1\]"),
        ("retries", -1, "a whole number, 0 or more"),
    ],
)
def test_values_out_of_range_are_refused_by_name(key: str, value: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=rf"ReplyPolicy\({key}=.*\): .*{says}") as caught:
        ReplyPolicy(**{key: value})
    assert caught.value.key == key


def test_the_bounds_themselves_are_taken() -> None:
    policy = ReplyPolicy(deadline=1e-9, replies=1, quorum=1.0, retries=0)
    assert (policy.deadline, policy.quorum) == (1e-9, 1.0)


def test_a_quorum_is_met_by_its_share_and_missed_by_one_reply_less():
    policy = ReplyPolicy(quorum=0.5)
    assert [policy.lacks(replied, 10) for replied in (4, 5, 6)] == [True, False, False]
    assert [policy.lacks(replied, 11) for replied in (5, 6)] == [True, False]


def test_a_policy_is_recorded_as_before_there_was_another_clock() -> None:
    before = "ReplyPolicy(deadline=3.0, replies=None, quorum=0.0, retries=0, faulty='raise')"
    assert repr(ReplyPolicy(deadline=3.0)) == before
    assert repr(ReplyPolicy(deadline=3.0, clock="wall")) == before.replace(")", ", clock='wall')")
