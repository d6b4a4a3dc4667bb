"""Trained networks in other formats: torch.export, and ONNX where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.scripts import documented

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def test_a_model_in_onnx_has_the_same_outputs_for_any_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented block; ONNX's own evaluator does not look at the number of rows, so the file is asked for it."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; make test-extras has it")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {"__name__": "__main__"}
    exec(documented("models.md", "ONNX"), said)
    assert len(said["outputs"]) == len(said["data"].X_test) != len(said["rows"])
    assert float((torch.from_numpy(said["outputs"]) - said["model"](said["data"].X_test)).detach().abs().max()) < 1e-5
    rows, width = onnx.load("model.onnx").graph.input[0].type.tensor_type.shape.dim
    assert (rows.dim_param, width.dim_value) == ("rows", 64)
