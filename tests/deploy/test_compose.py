"""The containers of ``medley deploy init``: their files fit the others, and they start where a Docker daemon runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from medley.cli import app
from medley.deploy import commands

pytest.importorskip("flwr")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    commands.init(tmp_path / "project", clients=2)
    return tmp_path / "project"


def services(project: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load((project / "compose.yaml").read_text(encoding="utf-8"))["services"])


def test_ports_and_paths_are_those_of_the_other_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, folder = services(project), project.resolve()
    assert list(there) == ["server", "node0", "node1"]
    port = re.search(r"port:-(\d+)", (project / "server.sh").read_text(encoding="utf-8"))
    assert port is not None
    assert there["server"]["ports"] == [f"{port[1]}:{port[1]}"]
    assert (project / there["server"]["command"]).is_file()
    assert all(s["cap_drop"] == ["ALL"] and (folder / s["build"] / "Dockerfile").is_file() for s in there.values())
    made = r"\./keys/(node[01]|ca\.crt)|\./memory/node[01]"  # by keys.sh, and as the file's first lines say
    assert "ca.crt" in (project / "keys.sh").read_text(encoding="utf-8")
    for k in range(2):
        node = there[f"node{k}"]
        command, inside = shlex.split(node["command"]), node["working_dir"]
        mounts = dict(m.removesuffix(":ro").split(":") for m in node["volumes"])
        assert all((project / m).exists() or re.fullmatch(made, m) for m in mounts)
        assert {f"{inside}/{m.removeprefix('./')}" for m in mounts} >= {f"{inside}/keys/node{k}", f"{inside}/node"}
        assert mounts[f"./memory/node{k}"] == f"{inside}/memory"
        assert f"server:{port[1]}" in command
        monkeypatch.chdir(project)
        at = command.index("--key")  # keys.sh has not made the files of --key and --ca
        assert command[at + 2] == "--ca"
        words = [*command[1:at], "--client", command[at + 1][-1], *command[at + 4 :]]
        found = CliRunner().invoke(app, [*words, "--check"])
        assert found.exit_code == 0, found.output
        assert f"client {k}: rows of shape" in found.output


@pytest.mark.slow
def test_the_containers_start(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image takes a wheel from dist/, and packages from the network."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no Docker daemon runs here")
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose")
    if not (wheels := [*(Path(__file__).parents[2] / "dist").glob("medley_fl-*.whl")]):
        pytest.skip("there is no wheel in dist/: make release builds it")
    shutil.copy(wheels[-1], project)
    subprocess.run(["./keys.sh", "server", "2"], cwd=project, check=True)
    for k in range(2):
        (project / "memory" / f"node{k}").mkdir(parents=True)
    monkeypatch.setenv("USER_ID", f"{os.getuid()}:{os.getgid()}")
    compose = [docker, "compose"]
    try:
        subprocess.run([*compose, "up", "--build", "--wait"], cwd=project, check=True)
        there = subprocess.run([*compose, "ps", "--services"], cwd=project, check=True, capture_output=True, text=True)
        assert {*there.stdout.split()} == {"server", "node0", "node1"}
    finally:
        subprocess.run([*compose, "down"], cwd=project, check=False)
