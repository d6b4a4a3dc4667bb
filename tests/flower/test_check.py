"""medley node before it connects: what its owner learns by --check."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from medley.cli import app

pytest.importorskip("flwr")

RECIPE = """
[problem]
kind = "Network"
model = "mlp"
hidden = [4]

[[methods]]
kind = "FedAvg"
"""

DATA = """
import torch
from medley.datasets import Dataset

def data(context):
    n = 20 + context.node_config["partition-id"]
    y = torch.arange(n) % 3
    return Dataset(torch.randn(n, 5), y, torch.randn(6, 5), y[:6], classes=3)
"""


def test_a_node_checks_its_recipe_and_data_without_a_server(tmp_path: Path) -> None:
    (recipe := tmp_path / "recipe.toml").write_text(RECIPE)
    (data := tmp_path / "mydata.py").write_text(DATA)
    words = ["node", "--check", f"--recipe={recipe}", f"--data={data}", "--client=1"]
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 0, got.output
    assert "client 1: rows of shape (5,), 3 classes" in got.output
    assert "21 training rows, 6 test rows, labels [0, 1, 2]" in got.output
    data.write_text(DATA.replace("torch.randn(n, 5)", "1 / 0"))
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 2
    assert "client 1: its data cannot be read, ZeroDivisionError" in got.output
