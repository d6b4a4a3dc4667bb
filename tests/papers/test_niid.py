"""NIID-Bench's cells: a run goes on from where it stood, and SCAFFOLD without the momentum's length diverges."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import medley as md


@pytest.fixture
def niid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, with the digits in place of a cell's images."""
    file = Path(__file__).parents[2] / "papers" / "niid" / "run.py"
    spec = importlib.util.spec_from_file_location("papers_niid_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pace = md.scenarios.Pace(lr=0.1, epochs=5, batch=16, momentum=0.9)
    fed = md.Federation(
        md.problems.Softmax(), data=md.datasets.digits(), partition=md.scenarios.Labels(10, 2), pace=pace
    )
    monkeypatch.setattr(module, "federation", lambda cell: fed)
    return module


def test_the_network_has_the_published_size(niid: Any) -> None:
    assert sum(p.numel() for p in niid.network().parameters()) == 44_426


def test_a_run_goes_on_from_its_checkpoint(niid: Any, tmp_path: Path) -> None:
    def curve(out: Path, rounds: int) -> list[list[float]]:
        out.mkdir(exist_ok=True)
        niid.fill((out, tmp_path / f"kept-{out.name}", "fashion-2", "SCAFFOLD", rounds))
        return [json.loads(line) for line in niid.file_of(out, "fashion-2", "SCAFFOLD").read_text().splitlines()]

    assert [r for r, _ in curve(tmp_path / "a", 2)] == [0, 1, 2]
    assert curve(tmp_path / "a", 4) == curve(tmp_path / "b", 4)
    assert niid.fill((tmp_path / "a", tmp_path, "fashion-2", "SCAFFOLD", 3)) == "fashion-2 SCAFFOLD: has 4 rounds"
    assert "| fashion-2 | SCAFFOLD | 10.0 |" in niid.table(tmp_path / "a")


def test_the_length_of_momentum_decides(niid: Any) -> None:
    fed = niid.federation("fashion-2")
    ours = md.run(md.SCAFFOLD(), fed, 8, throw=False, progress=False)
    theirs = md.run(niid.Uncorrected(), fed, 8, throw=False, progress=False)
    assert ours.status.outcome == "finished"
    assert ours.summary["accuracy"] > 0.8
    assert theirs.status.outcome == "diverged"
