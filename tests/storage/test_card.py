from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import medley as md


class Adapter(nn.Module):
    """A module that writes itself, as peft's do."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 8).requires_grad_(False)
        self.head = nn.Linear(8, 10)
        self.peft_config = {"default": SimpleNamespace(base_model_name_or_path="some/base")}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.base(x))

    def save_pretrained(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
        (folder / "README.md").write_text("peft's own")


def federation(module: nn.Module) -> md.Federation:
    return md.Federation(
        md.problems.Network(module, start="module"),
        data=md.datasets.digits(),
        partition=md.partitions.IID(20),
        participation=md.participation.Bernoulli(0.5),
        weights="uniform",
    )


def test_a_card_says_data_rounds_privacy_and_figures(tmp_path: Path) -> None:
    method = md.Private(md.FedAvg(), clip=1.0, noise=1.0, delta=1e-5)
    result = md.run(method, federation(md.models.mlp(64, 10)), 3, progress=False)
    folder = result.save_pretrained(tmp_path / "model")
    text = (folder / "README.md").read_text(encoding="utf-8")
    for line in (
        "library_name: pytorch",
        "| Method | DP-FedAvg |",
        "| Rounds | 3 |",
        "| Clients | 20 |",
        "| Partition | IID(clients=20) |",
        f"private by client: ε = {result.summary['epsilon']:.4g} at δ = 1e-05.",
        f"| accuracy on test rows | {result.summary['accuracy']:.4g} |",
    ):
        assert line in text
    assert r"digits \[1438, 64\]" in text
    assert "base_model" not in text
    assert {f.name for f in folder.iterdir()} == {"README.md", "model.safetensors"}


def test_a_model_that_writes_itself_does_and_its_card_names_the_base(tmp_path: Path) -> None:
    result = md.run(md.FedAvg(), federation(Adapter()), 1, progress=False, metrics={"ten": (lambda z, y: 10.0, "max")})
    folder = result.save_pretrained(tmp_path)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: peft\n")
    assert "base_model: some/base\n---\n" in text
    assert "The model is not differentially private." in text
    assert "| ten on test rows | 10 |" in text
    assert {f.name for f in folder.iterdir()} == {"README.md", "adapter_config.json"}
    result.model = None
    with pytest.raises(md.RecipeError, match="this result has no model"):
        result.save_pretrained(tmp_path)


def test_a_card_says_how_a_run_ended_and_escapes_names(tmp_path: Path) -> None:
    fed = federation(nn.Sequential(nn.Linear(64, 10)))
    metrics = {"a|b<i>_c": (lambda z, y: 1.0, "max")}
    result = md.run(md.FedAvg(server_lr=1e38), fed, 2, progress=False, throw=False, metrics=metrics)
    text = (result.save_pretrained(tmp_path) / "README.md").read_text()
    assert "| Ended | diverged: the loss ends at " in text
    assert r"| a\|b&lt;i>\_c on test rows | 1 |" in text
    assert "<i>" not in text


def test_a_plain_module_with_a_named_base_is_no_adapter_of_peft(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, 10))
    fed = md.Federation(
        md.problems.Network(module, base="some/base", start="module"),
        data=md.datasets.digits(),
        partition=md.partitions.IID(5),
    )
    text = (md.run(md.FedAvg(), fed, 1, progress=False).save_pretrained(tmp_path) / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: pytorch\n")
    assert "base_model: some/base" in text
