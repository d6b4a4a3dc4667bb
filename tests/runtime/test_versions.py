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
from medley.deploy.protocol.agreement import own_version
from medley.runtime.versions import OWN, install, version, version_of


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    version_of.cache_clear()
    yield
    version_of.cache_clear()


def test_of_what_is_here() -> None:
    assert version() == importlib.metadata.version(OWN)
    assert version("torch").split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///a%20b/medley"}', "pip install -e '/a b/medley[ray]'"),
        ('{"archive_info": {}, "url": "file:///gone/medley_fl-9-py3-none-any.whl"}', "pip install '{WHEEL}[ray]'"),
        (None, "pip install '{WHEEL}[ray]'"),
        ("{HERE}", "pip install '{HERE}[ray]'"),
    ],
)
def test_an_extra_is_installed_from_where_medley_came(
    said: str | None, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never by its name alone, which is free in package indexes."""
    (wheel := tmp_path / "medley_fl-1-py3-none-any.whl").touch()
    if said == "{HERE}":
        said, command = f'{{"url": "{wheel.as_uri()}", "archive_info": {{}}}}', command.replace("{HERE}", str(wheel))
    made = type("Made", (), {"version": "7.0", "read_text": lambda self, name: said})
    monkeypatch.setattr(importlib.metadata, "distribution", lambda package: made())
    assert install("ray") == command.replace("{WHEEL}", "medley_fl-7.0-py3-none-any.whl")


def test_the_command_for_a_clone_works() -> None:
    """pip takes the path with the extra, and finds what is here."""
    command = install("privacy")
    assert "medley-fl" not in command
    assert str(Path(__file__).parents[2]) in command


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
    q = md.problems.synthetic_quadratics(clients=3, d=2)
    fed = md.Federation(q.problem, clients=q.clients)
    whole = md.run(md.FedNorton(), fed, 4, progress=False)
    md.run(md.FedNorton(), fed, 2, progress=False, checkpoint=tmp_path / "run")
    rest = md.run(md.FedNorton(), fed, 4, progress=False, resume=tmp_path / "run")
    assert torch.equal(rest.x, whole.x)
    assert rest.environment["medley"] == "(not installed)"
    rest.save(tmp_path / "saved")
    assert md.Result.load(tmp_path / "saved").digest == whole.digest
