"""medley node before it connects: what its owner learns by --check."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from medley.cli import app
from medley.contract.errors import RecipeError
from medley.flower.fleet import FleetNode

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
    for change, said in (
        (("torch.randn(n, 5)", "1 / 0"), "data(context) fails: ZeroDivisionError: division by zero"),
        (("torch.randn(n, 5)", "torch.full((n, 5), torch.nan)"), "row 0"),
        (("return Dataset", "return 5 #"), "client 1's data function returns a int; it is to return one Dataset"),
        (("return Dataset", "return [] #"), "returns a list; it is to return one Dataset"),
    ):
        data.write_text(DATA.replace(*change))
        got = CliRunner().invoke(app, words)
        assert got.exit_code == 2
        assert said in " ".join(got.output.split())
        assert not [word for word in ("Traceback", "the log of its node") if word in got.output]


@pytest.mark.parametrize("superlink", [":::", "foo", "127.0.0.1", "http://foo:9092", "foo:0", "foo:70000", "a b:9092"])
def test_a_server_that_is_no_address_is_refused_at_once(superlink: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"--superlink '{superlink}' is no address: give HOST:PORT"):
        FleetNode(superlink, tmp_path / "key", tmp_path / "ca")


@pytest.mark.parametrize("superlink", ["fl.example.org:9092", "127.0.0.1:1", "[::1]:443"])
def test_an_address_leads_to_the_key(superlink: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="key is no private key"):
        FleetNode(superlink, tmp_path / "key", tmp_path / "ca")
