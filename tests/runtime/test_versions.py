"""A copy on PYTHONPATH that is not installed runs, saves and resumes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley.cli import app
from medley.contract.errors import RecipeError
from medley.flower.agreement import own_version
from medley.runtime.versions import OWN, found, version


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    found.cache_clear()
    yield
    found.cache_clear()


def test_of_what_is_here() -> None:
    assert version() == importlib.metadata.version(OWN)
    assert version("torch").split("+")[0] == torch.__version__.split("+")[0]


def test_a_copy_that_is_not_installed_runs_saves_and_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = importlib.metadata.version

    def without_own(package: str) -> str:
        if package == OWN:
            raise importlib.metadata.PackageNotFoundError(package)
        return there(package)

    monkeypatch.setattr(importlib.metadata, "version", without_own)
    assert version() == "(not installed)"
    with pytest.raises(RecipeError, match=r"Medley is not installed here.*install it with pip"):
        own_version()
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == 2
    assert "Medley is not installed" in " ".join(said.output.split())
    q = md.problems.quadratics(clients=3, d=2)
    fed = md.Federation(q.problem, clients=q.clients)
    whole = md.run(md.FedNorton(), fed, 4, progress=False)
    md.run(md.FedNorton(), fed, 2, progress=False, checkpoint=tmp_path / "run")
    rest = md.run(md.FedNorton(), fed, 4, progress=False, resume=tmp_path / "run")
    assert torch.equal(rest.x, whole.x)
    assert rest.environment["medley"] == "(not installed)"
    rest.save(tmp_path / "saved")
    assert md.Result.load(tmp_path / "saved").digest == whole.digest
