"""The scripts beside docs/elsewhere.md run, compute one model, and differ in as many lines as the page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import medley as md

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "elsewhere"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"elsewhere_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_medley(hospitals: int, rounds: int) -> torch.Tensor:
    own = script("with_medley")
    problem = md.problems.Network(own.network(), train=own.loop, start="module")
    fed = md.Federation(problem, clients=[own.rows(k) for k in range(hospitals)])
    return md.run(md.FedAvg(), fed, rounds=rounds, progress=False).x


def test_the_page_has_the_lines_that_are_counted() -> None:
    count = script("count")
    page = (ROOT / "docs" / "elsewhere.md").read_text(encoding="utf-8")
    assert count.BEGIN + count.table() + count.END in page
    assert count.changed(["plain.py"], ["plain.py"]) == (0, 0)


def test_one_hospital_in_medley_is_the_plain_script() -> None:
    plain = script("plain")
    net = plain.network()
    plain.train(net, plain.rows(0))
    expected = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    assert torch.allclose(by_medley(1, 1), expected, atol=1e-6)


def test_flowers_clients_give_the_same_mean() -> None:
    pytest.importorskip("flwr")
    flower = script("with_flower")
    parameters = flower.arrays(flower.network())
    for _ in range(2):
        replies = [flower.Hospital(k).fit(parameters, {}) for k in range(4)]
        total = sum(n for _, n, _ in replies)
        parameters = [sum(n / total * values[part] for values, n, _ in replies) for part in range(len(parameters))]
    flat = np.concatenate([p.reshape(-1) for p in parameters])
    assert torch.allclose(by_medley(4, 2), torch.from_numpy(flat), atol=1e-5)


def test_nvflares_scripts_are_python() -> None:
    for name in ("with_nvflare", "with_nvflare_job"):
        compile((FOLDER / f"{name}.py").read_text(encoding="utf-8"), name, "exec")
