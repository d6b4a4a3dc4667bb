"""The table of folds against liars: runs are kept, and not run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.scripts import loaded


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command with few runs."""
    module = loaded("robust/run.py")
    for name, value in {
        "SEEDS": 1,
        "MORE": 1,
        "RULES": ("mean", "Krum"),
        "SHARES": (0.4,),
        "ROUNDS": 5,
    }.items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(paper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "results.jsonl"
    monkeypatch.setattr("sys.argv", ["run.py", "--only", "ipm,backdoor", "--out", str(out)])
    assert paper.main() == 0
    lines = out.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(r["fold"], r["attack"], r["share"]) for r in found[:2]] == [("mean", "none", 0.0), ("Krum", "none", 0.0)]
    assert len(found) == 2 + 2 * 2
    assert all("attack_success" in r for r in found if r["attack"] in ("none", "backdoor"))
    out.write_text("\n".join(lines[:-1]) + "\n")
    assert paper.main() == 0
    assert out.read_text().splitlines() == lines
    assert "ipm: accuracy" in out.with_suffix(".md").read_text()
    assert "<svg" in out.with_suffix(".svg").read_text()
    assert "Where each breaks" in out.with_suffix(".html").read_text()


def test_clients_are_a_root_and_twenty_unequal_ones(paper: Any) -> None:
    clients = paper.clients(1)
    assert len(clients) == 21
    assert len(clients[0][1]) == paper.ROOT_ROWS
    assert sum(len(y) for _, y in clients) == 1438
    assert len(clients[0][1].unique()) == 10
    assert min(len(y.unique()) for _, y in clients) < 6
