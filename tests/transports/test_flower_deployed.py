"""Flower for real: a SuperLink and three SuperNodes in processes of their own, over TLS, known by their keys."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import medley as md
from medley import deploy, recipe

pytest.importorskip("flwr")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

LOGISTIC = {
    "problem": {"kind": "Logistic", "mu": 0.01},
    "data": {"name": "breast_cancer", "standardise": True},
    "partition": {"kind": "IID", "clients": 3},
    "pace": {"lr": 0.1, "batch": "full"},
    "run": {"rounds": 3, "eval_every": 3},
}


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def trial(folder: Path, env: dict[str, str], **config: str) -> md.Result:
    said = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
    here = {**env, "PORT": str(port())}
    done = subprocess.run(["./trial.sh", "--run-config", said], cwd=folder, env=here, capture_output=True, text=True)
    logs = "\n".join(p.read_text()[-3000:] for p in sorted((folder / "logs").iterdir()))
    out = Path(config.get("save") or config["resume"])
    assert (out / "result.json").exists(), f"{done.stdout}\n{done.stderr}\n{logs}"
    return md.Result.load(out)


@pytest.mark.parametrize("kind", ["FedECADO", "SHED", "CFLAG"])
def test_three_nodes_find_the_x_of_one_process(kind: str, tmp_path: Path, env: dict[str, str]) -> None:
    r = None if kind == "FedECADO" else recipe.Recipe({**LOGISTIC, "methods": [{"kind": kind}]})
    deploy.init(tmp_path / "trial", r)
    there = trial(tmp_path / "trial", env, save=str(tmp_path / "out"))
    r = recipe.load(tmp_path / "trial" / "app" / "recipe.toml")
    here = r.federation().run(r.methods()[0], 3, seed=0, **r.options())
    assert there.status.ok, there.status
    assert float((here.x - there.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in there.ledger] == [e._replace(overhead=0) for e in here.ledger]
    assert there.history[-1]["loss"] == pytest.approx(here.history[-1]["loss"], rel=1e-10)
    assert there.history[-1]["accuracy"] == pytest.approx(here.history[-1]["accuracy"])


def test_what_clients_remember_outlives_their_supernodes(tmp_path: Path, env: dict[str, str]) -> None:
    """SuperLink and SuperNodes end after round 2 and start again; the third round builds on the memories on disk."""
    deploy.init(tmp_path / "trial", recipe.Recipe({**LOGISTIC, "methods": [{"kind": "SCAFFOLD"}]}))
    trial(tmp_path / "trial", env, save=str(tmp_path / "out"), set="run.rounds=2 run.eval_every=9")
    there = trial(tmp_path / "trial", env, resume=str(tmp_path / "out"), set="run.rounds=3 run.eval_every=9")
    r = recipe.load(tmp_path / "trial" / "app" / "recipe.toml")
    here = r.federation().run(r.methods()[0], 3, seed=0)
    assert float((here.x - there.x).abs().max()) < 1e-10


@pytest.fixture
def superlink(tmp_path: Path, env: dict[str, str]) -> Iterator[tuple[Path, int]]:
    folder, at = tmp_path / "trial", port()
    deploy.init(folder)
    subprocess.run(["./keys.sh"], cwd=folder, env=env, check=True)
    keys = {"ssl-ca-certfile": "keys/ca.crt", "ssl-certfile": "keys/server.pem", "ssl-keyfile": "keys/server.key"}
    command = ["flower-superlink", *(f"--{k}={v}" for k, v in keys.items()), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", "--host=127.0.0.1", f"--port={at}"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log) as p,
    ):
        until = time.monotonic() + 120
        while True:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", at)) == 0:
                    break
            assert p.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        yield folder, at
        p.terminate()


def test_a_node_whose_key_is_not_registered_is_refused(superlink: tuple[Path, int], env: dict[str, str]) -> None:
    folder, at = superlink
    command = ["flower-supernode", "--root-certificates=keys/ca.crt", "--auth-supernode-private-key=keys/node0"]
    command += [f"--superlink=127.0.0.1:{at}", "--host=127.0.0.1", f"--port={port()}", "--max-retries=1"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "auth" in (done.stdout + done.stderr).lower()
