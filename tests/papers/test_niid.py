"""NIID-Bench's cells: a run goes on from where it stood, and SCAFFOLD learns under momentum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from support.pretended_gpu import PretendedGPU
from support.scripts import loaded


@pytest.fixture
def niid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, with the digits in place of a cell's images."""
    module = loaded("niid/run.py")
    monkeypatch.setattr(module, "federation", lambda cell: digits())
    return module


def digits(participation: float | None = None) -> md.Federation:
    pace = md.scenarios.Pace(lr=0.1, epochs=5, batch=16, momentum=0.9)
    data, partition = md.datasets.digits(), md.partitions.Labels(10, 2)
    return md.Federation(md.problems.Softmax(), data=data, partition=partition, pace=pace, participation=participation)


def test_the_network_has_the_published_size(niid: Any) -> None:
    assert sum(p.numel() for p in niid.network().parameters()) == 44_426
    assert sum(p.numel() for p in niid.network(32, 3).parameters()) == 62_006
    assert sum(p.numel() for p in niid.CELLS["fashion-2-mlp"].network().parameters()) == 50_890
    drawn = niid.CELLS["adult-dir"].network()
    assert sum(p.numel() for p in drawn.parameters()) == 4_650
    assert 0.09 < float(drawn[0].weight.detach().std()) < 0.11
    assert (drawn[0].bias == 0.1).all()


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(niid: Any, tmp_path: Path) -> None:
    def curve(out: Path, rounds: int) -> list[list[float]]:
        out.mkdir(exist_ok=True)
        niid.fill((out, tmp_path / f"kept-{out.name}", "fashion-2", "SCAFFOLD", 1, rounds, "cpu"))
        rows = map(json.loads, niid.file_of(out, "fashion-2", "SCAFFOLD", 1).read_text().splitlines())
        return [[row["round"], row["accuracy"]] for row in rows]

    assert [r for r, _ in curve(tmp_path / "a", 2)] == [0, 1, 2]
    assert curve(tmp_path / "a", 4) == curve(tmp_path / "b", 4)
    said = niid.fill((tmp_path / "a", tmp_path, "fashion-2", "SCAFFOLD", 1, 3, "cpu"))
    assert said == "fashion-2_SCAFFOLD_1: has 4 rounds"
    assert "| fashion-2 | SCAFFOLD | 33.8 ± 41.2 | 1 |" in niid.table(tmp_path / "a")


@pytest.mark.slow
def test_scaffold_learns_under_momentum_with_two_labels_a_client(niid: Any) -> None:
    result = md.run(md.SCAFFOLD(), niid.federation("fashion-2"), 8, throw=False, progress=False)
    assert result.status.outcome == "finished"
    assert result.summary["accuracy"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("share", "same"), [pytest.param(None, True, marks=pytest.mark.slow), (0.5, False)])
def test_where_the_variates_begin_matters_to_a_part_of_the_clients_only(
    niid: Any, monkeypatch: pytest.MonkeyPatch, share: float | None, same: bool
) -> None:
    monkeypatch.setattr(niid, "drawn_model", lambda d: torch.linspace(-0.1, 0.1, d))
    runs = (md.run(m, digits(share), 4, throw=False, progress=False) for m in (md.SCAFFOLD(), niid.FromWeights()))
    a, b = (r.history[-1]["loss"] for r in runs)
    assert (a == pytest.approx(b, rel=1e-4)) == same


def test_weights_are_drawn_for_the_network_of_that_size(niid: Any) -> None:
    assert [len(niid.drawn_model(d)) for d in (44_426, 62_006)] == [44_426, 62_006]
    assert torch.equal(niid.drawn_model(44_426), niid.drawn_model(44_426))
    assert 0.001 < float(niid.drawn_model(62_006).std()) < 0.02


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


@pytest.mark.slow
def test_every_entrant_runs_on_a_gpu(niid: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(niid, "drawn_model", lambda d: torch.linspace(-0.1, 0.1, d))
    rows = torch.eye(4).repeat(4, 1), torch.arange(16) % 4
    few = md.Federation(md.problems.Softmax(), clients=[rows] * 3, classes=4, test=rows, pace=digits().scenario.pace)
    monkeypatch.setattr(niid, "federation", lambda cell: few)
    with PretendedGPU():
        for method in niid.METHODS:
            assert niid.fill((tmp_path, tmp_path / "kept", "fashion-2", method, 0, 1, "cuda")).endswith(": finished")
