"""Whole numbers out of shares, in all places that make them."""

from __future__ import annotations

import pytest
import torch

from medley.codecs import TopK
from medley.numerics.shares import least_of, most_of
from medley.scenarios import Attack
from medley.secure.settings import SecureSum
from medley.server.reply_policy import ReplyPolicy


@pytest.mark.parametrize("n", [1, 7, 50, 100, 1000, 10**8])
def test_a_share_in_hundredths_of_n_is_what_it_is_in_decimals(n: int) -> None:
    for k in range(101):
        assert least_of(k / 100, n) == -(-k * n // 100)
        assert most_of(k / 100, n) == k * n // 100


def test_policies_codecs_attacks_and_thresholds_have_one_rule() -> None:
    """In floating point 0.55 · 100 is 55.00000000000001, and 0.29 · 100 is 28.999999999999996."""
    assert ReplyPolicy(replies=0.55).enough(100) == 55
    assert [ReplyPolicy(quorum=0.55).lacks(n, 100) for n in (54, 55)] == [True, False]
    sent = TopK(0.07, feedback=False).encode({"v": torch.arange(100.0)}, {}, torch.Generator)["v"]
    assert isinstance(sent, torch.Tensor)
    assert sent.tolist() == [93, 94, 95, 96, 97, 98, 99]
    assert len(Attack("sign flip", share=0.29).attackers(0, 100)) == 29
    assert SecureSum(threshold=0.55).needed(20) == 11
