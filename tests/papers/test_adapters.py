"""The comparison under AdamW and Muon: a cell is tuned, run on five seeds, and not run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.scripts import loaded


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = loaded("adapters/run.py")
    monkeypatch.setattr(found, "ROUNDS", 1)
    monkeypatch.setattr(found, "PRETRAINED", 5)
    return found


def test_six_federations_under_each_optimizer_with_a_base_for_exact_sums_alone(run: Any) -> None:
    assert len(run.EXPERIMENTS) == 2 * 6
    sizes = {m: run.EXPERIMENTS["digits-lora-adamw"].build(m).draw(0).problem.d for m in ("FedAvg", "FedExLoRA")}
    assert sizes["FedExLoRA"] - sizes["FedAvg"] == 64 * 64 + 64 * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("digits-lora-adamw", "FedExLoRA"),
        ("digits-mlp-adamw", "FedAdamW"),
        pytest.param(
            "digits-lora-muon",
            "FedExLoRA",
            marks=pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon"),
        ),
    ],
)
def test_a_cell_is_tuned_run_and_resumed(run: Any, tmp_path: Path, name: str, method: str) -> None:
    said = run.fill((tmp_path, name, method))
    lines = [json.loads(line) for line in (tmp_path / name / f"{method}.jsonl").read_text().splitlines()]
    assert {line["status"] for line in lines} == {"finished"}
    assert sorted(line["seed"] for line in lines if line["kind"] == "final") == [0, 1, 2, 3, 4]
    assert said.endswith(f"{len(lines)} runs")
    assert run.fill((tmp_path, name, method)).endswith(", 0 runs")
