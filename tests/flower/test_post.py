"""The server's way to its clients: an operator reads who is waited for."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from medley.flower import flwr_api, post
from medley.flower.envelope import sealed
from medley.flower.flwr_api import Reply
from medley.flower.post import Post

pytest.importorskip("flwr")


class Grid:
    def get_node_ids(self) -> list[int]:
        return [100, 101]


@pytest.mark.parametrize(("usual", "named"), [(0.0, True), (5.0, False)])
def test_an_exchange_that_takes_long_names_the_clients_it_waits_for(
    usual: float, named: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, answer = time.monotonic(), sealed(b"x")
    late = {"m0": 0.0, "m1": 1.0}

    def pull(grid: Any, waiting: Any) -> list[Reply]:
        there = [m for m in waiting if time.monotonic() > begun + late[m]]
        return [Reply(m, answer, 1, 0, "") for m in there]

    monkeypatch.setattr(flwr_api, "records", lambda letter: letter)
    monkeypatch.setattr(flwr_api, "size", lambda content: 1)
    monkeypatch.setattr(flwr_api, "push", lambda grid, kind, content, ttl: {f"m{n - 100}": n for n in content})
    monkeypatch.setattr(flwr_api, "pull", pull)
    monkeypatch.setattr(post, "LONG", 0.4)
    p = Post(Grid(), timeout=60)  # type: ignore[arg-type]
    p.nodes, p._usual = {0: 100, 1: 101}, usual
    with caplog.at_level(logging.WARNING, "medley"):
        assert sorted(p.send("train", {0: {}, 1: {}})) == [0, 1]
    said = [r.getMessage() for r in caplog.records]
    assert said == (["waits for clients [1], for 0 s so far and 60 s at most"] if named else [])
    assert 1.0 < p._usual < 5.0
