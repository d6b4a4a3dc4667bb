"""Memories: two phases, two versions, save and load."""

from __future__ import annotations

import pytest
import torch

from medley.clients.memories import Memories
from medley.contract.errors import WireError
from support.toys import Toy

x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
toy = Toy()


def test_a_pending_version_counts_only_once_it_is_acknowledged():
    m = Memories()
    assert m.get(0, None, 1) is None
    m.put(0, (1, 0), "first")
    assert m.save({}) == {}
    assert m.save({0: (1, 0)}) == {0: "first"}
    assert m.get(0, (1, 0), 2) == "first"
    m.put(0, (2, 0), "second, lost")
    assert m.get(0, (1, 0), 2) == "first"  # the reply was lost: the server still means the first
    m.put(0, (2, 0), "second")
    assert m.get(0, (2, 0), 3) == "second"
    assert m.save({0: (2, 0)}) == {0: "second"}


def test_a_first_reply_that_is_lost_leaves_nothing():
    m = Memories()
    m.put(0, (1, 0), "lost")
    assert m.get(0, None, 1) is None
    with pytest.raises(WireError, match=r"client 0: the server expects .* \(1, 0\), but the client holds nothing"):
        m.get(0, (1, 0), 2)


def test_the_server_can_go_back_to_the_start_of_its_round_after_several_exchanges():
    m = Memories()
    m.put(0, (1, 2), "start of round 2")
    acked = (1, 2)
    for k in range(4):
        m.get(0, acked, 2)
        m.put(0, acked := (2, k), f"2.{k}")
    assert m.get(0, (2, 3), 2) == "2.3"
    assert m.get(0, (1, 2), 2) == "start of round 2"
    with pytest.raises(WireError, match="the client holds"):
        m.get(0, (2, 3), 2)


def test_versions_do_not_pile_up():
    m = Memories()
    acked = None
    for round in range(1, 20):
        for k in range(3):
            m.get(0, acked, round)
            m.put(0, (round, k), (round, k))
            acked = (round, k)
            assert len(m.versions[0]) <= 3
    assert m.get(0, acked, 20) == (19, 2)


def test_load_puts_back_what_save_gave():
    m = Memories()
    m.put(3, (1, 0), "a")
    m.put(5, (2, 1), "b")
    acked = {3: (1, 0), 5: (2, 1)}
    n = Memories()
    n.load(m.save(acked), acked)
    assert n.get(5, (2, 1), 3) == "b"
    assert n.save(acked) == {3: "a", 5: "b"}


def test_load_keeps_the_version_that_a_client_at_work_began_with():
    m = Memories()
    m.load({3: "begun with"}, {3: (1, 0)})
    m.load({3: "late"}, {3: (2, 0)})
    assert m.peek(3, (1, 0)) == "begun with"
    assert m.get(3, (2, 0), 4) == "late"
