"""Trained networks in other formats: torch.export, and ONNX where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import medley as md

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def test_a_model_in_onnx_has_the_same_outputs(tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference", reason="onnx is not installed; make test-extras has it")
    pytest.importorskip("onnxscript")
    data = md.datasets.digits()
    fed = md.Federation(md.problems.Network(md.models.mlp(64, 10)), data=data, partition=md.scenarios.IID(10))
    model, rows = md.run(md.FedAvg(), fed, 1, progress=False).model, data.X_test[:5]
    assert model is not None
    torch.onnx.export(model, (rows,), str(tmp_path / "model.onnx"), dynamo=True, verbose=False)
    (found,) = reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"input": rows.numpy()})
    assert float((torch.from_numpy(found) - model(rows).detach()).abs().max()) < 1e-5
