"""The SuperLink's database under large messages: removed in time, and a writer waits."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from medley.contract.errors import MedleyError
from medley.deploy.server import superlink
from medley.runtime import versions

pytest.importorskip("flwr")

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import event
from sqlalchemy.pool import Pool

# Flower's migrations of its database take 2 s, and warn of its configuration.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of messages as a SuperLink of `serve` opens it."""
    opened = []

    def program() -> None:
        opened.append(SqlObjectStore(str(tmp_path / "superlink.db"), verify=False))
        opened[0].initialize()

    monkeypatch.setattr(EntryPoint, "load", lambda entry: program)
    monkeypatch.setattr("sys.argv", [])
    superlink.serve(["--insecure"])
    yield opened[0]
    event.remove(Pool, "checkout", superlink.configure)
    opened[0]._engine.dispose()


def name(k: object) -> str:
    return hashlib.sha256(repr(k).encode()).hexdigest()


def test_removing_a_large_message_writes_little(store: Any, tmp_path: Path) -> None:
    assert sys.argv == ["flower-superlink", "--insecure"]
    assert store.query("PRAGMA busy_timeout") == [{"timeout": 25_000}]  # Flower's own is 5 s
    store.preregister(1, ObjectTree(object_id=name("all"), children=[ObjectTree(object_id=name(k)) for k in range(20)]))
    for k in range(20):
        store.put(name(k), bytes(1 << 19))
    with sqlite3.connect(tmp_path / "superlink.db") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.delete(name("all"))
    assert len(store) == 0
    assert (tmp_path / "superlink.db-wal").stat().st_size < 1 << 20  # 10 MB where what is removed is overwritten


def test_a_writer_waits_longer_than_flower_does(store: Any, tmp_path: Path) -> None:
    store.preregister(1, ObjectTree(object_id=name("part")))
    with sqlite3.connect(tmp_path / "superlink.db", check_same_thread=False, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        free: Callable[[], object] = lambda: db.execute("COMMIT")
        begun = time.monotonic()
        timer = threading.Timer(6.0, free)
        timer.start()
        store.put(name("part"), b"content")
        assert time.monotonic() > begun + 5.9
        timer.join()
    assert store.get(name("part")) == b"content"


def test_without_flower_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "is_installed", lambda name: False)
    with pytest.raises(MedleyError, match="Flower is not installed: "):
        superlink.serve([])
