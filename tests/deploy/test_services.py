"""The units and the job of ``medley deploy init``: what systemd says of them, and what the job does at its end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medley.cli import app
from medley.deploy import commands

pytest.importorskip("flwr")


@pytest.mark.slow
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Paths are those of this machine: systemd looks for the programs."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    commands.init(tmp_path / "p")
    program = str(Path(sys.executable).with_name("medley"))
    for name, old, new in (
        ("node/node.service", "/srv/medley-node/venv/bin/medley", program),
        ("server.service", "/srv/medley/server.sh", str(tmp_path / "p" / "server.sh")),
    ):
        text = (tmp_path / "p" / name).read_text()
        assert old in text
        (unit := tmp_path / f"medley-{Path(name).name}").write_text(text.replace(old, new))
        done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["node.service", "node.slurm"])
def test_a_service_starts_the_node_with_arguments_that_it_takes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.init(tmp_path / "p")
    text = (tmp_path / "p" / "node" / name).read_text().replace("\\\n", " ")
    line = re.search(r"venv/bin/medley (node .+?)(?: &)?$", text, re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1])
    for option in ("--key", "--ca", "--data", "--superlink"):  # they name files of the owner's
        k = words.index(option)
        del words[k : k + 2]
    words = [word.replace("/var/lib/medley-node", str(tmp_path / "memory")) for word in words]
    monkeypatch.chdir(tmp_path / "p" / "node")
    got = CliRunner().invoke(app, [*words, "--client=0", "--check"])
    assert got.exit_code == 0, got.output


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM, None])
def test_a_job_starts_itself_again_when_its_time_is_over_and_only_then(
    sent: signal.Signals | None, tmp_path: Path
) -> None:
    # Slurm sends USR1 to the batch shell as --signal says, and TERM if somebody cancels the job.
    commands.init(tmp_path / "p")
    programs = tmp_path / "p" / "node" / "venv" / "bin"
    programs.mkdir(parents=True)
    wait = "trap 'echo left >> ended; exit 0' TERM; echo began > began; while :; do sleep 0.05; done"
    for path, script in (
        (programs / "medley", wait if sent else "exit 2"),
        (tmp_path / "scontrol", 'echo "$@" >> requeued'),
    ):
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    folder = tmp_path / "p" / "node"
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(folder),
    }
    job = subprocess.Popen(["bash", str(folder / "node.slurm")], cwd=tmp_path, env=env)
    if sent:
        while not (folder / "began").exists():
            assert job.poll() is None
        job.send_signal(sent)
    assert job.wait(30) == (0 if sent else 2)
    assert (folder / "ended").exists() is bool(sent)
    assert [p.read_text() for p in folder.glob("requeued")] == ["requeue 7\n"] * (sent == signal.SIGUSR1)
