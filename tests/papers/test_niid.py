"""NIID-Bench's cells: a run goes on from where it stood, and SCAFFOLD learns under momentum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import medley as md
from support.scripts import loaded


@pytest.fixture
def niid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, with the digits in place of a cell's images."""
    module = loaded("niid/run.py")
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


def test_scaffold_learns_under_momentum_with_two_labels_a_client(niid: Any) -> None:
    result = md.run(md.SCAFFOLD(), niid.federation("fashion-2"), 8, throw=False, progress=False)
    assert result.status.outcome == "finished"
    assert result.summary["accuracy"] > 0.8


def test_a_stop_and_an_error_have_exit_codes(
    niid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(*given: str) -> int:
        monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path), "--kept", str(tmp_path / "kept"), *given])
        return int(niid.main())

    def stopped(*_: object) -> str:
        raise KeyboardInterrupt

    assert main("fashion-4") == 2
    assert "unknown: fashion-4" in capsys.readouterr().err
    monkeypatch.setattr(niid, "runs", stopped)
    assert main("fashion-2") == 130
    assert "goes on" in capsys.readouterr().err
    monkeypatch.setattr(niid, "runs", lambda *_: (_ for _ in ()).throw(md.MedleyError("no data")))
    assert main("fashion-2") == 2
    assert "Error: no data" in capsys.readouterr().err
