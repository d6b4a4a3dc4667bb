"""A node in a container of node/Dockerfile: each step in a chroot under the uid that the file says, to a run's end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import medley as md
from medley.deploy import commands
from medley.statistics import Study

pytest.importorskip("flwr")

from support import container
from support.deployed import Deployment, started, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("deployed"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

RECIPE = """
[problem]
kind = "Softmax"
mu = 0.01
[pace]
lr = 0.1
batch = "full"
[run]
rounds = 6
[clients]
prepared = "prepared.json"
[[methods]]
kind = "SCAFFOLD"
"""

DATA = """
import errno, os, stat
from pathlib import Path
import pandas as pd
from medley.datasets import frame

here = Path(__file__).parent

def data(context):
    if Path("/medley").exists():  # in the container
        assert (os.getuid(), os.getgid(), Path.cwd()) == (10001, 10001, Path("/node")), os.getuid()
        assert stat.S_IMODE((here / "node1").stat().st_mode) == 0o600
        for folder in ("/", "/usr/local", "/usr/local/lib/python3.11/site-packages", "/etc", "/node"):
            try:
                (Path(folder) / "x").write_text("")
            except OSError as e:
                assert e.errno == errno.EROFS, (folder, e)
            else:
                raise AssertionError(f"{folder} can be written")
        assert "CapEff:\\t0000000000000000" in Path("/proc/self/status").read_text()
    return frame(pd.read_csv(here / "rows.csv"), "died", prepared=here / "prepared.json")
"""


def serving(port: int) -> list[int]:
    """Processes of ``medley node`` as uid 10001 whose server has this port."""
    out = list[int]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if f"--superlink=127.0.0.1:{port}".encode() in words and path.stat().st_uid == 10001:
                out.append(int(path.name))
        except OSError:
            continue
    return out


def test_the_container_serves_a_run_to_its_end_and_comes_back_when_it_is_killed(tmp_path: Path) -> None:
    if not container.works():
        pytest.skip("needs root, and mount namespaces with overlays")
    sites = {k: pd.DataFrame({"age": [30.0 + 7 * j + k for j in range(20)], "died": [0, 1, 1, 0] * 5}) for k in (0, 1)}
    study = Study({"Bern": sites[0], "Basel": sites[1]}, rules=md.statistics.Rules(rows=2))
    prepared = study.prepare(["age: standardise"])
    prepared.save(tmp_path / "prepared.json")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    commands.init(tmp_path / "project", md.recipe.load(tmp_path / "recipe.toml"), clients=2)
    with Deployment.running(tmp_path / "server", keys=2) as server:
        shutil.copytree(tmp_path / "project" / "app", server.folder / "app", dirs_exist_ok=True)
        for k, rows in sites.items():
            shutil.copytree(tmp_path / "project" / "node", site := tmp_path / f"site{k}")
            (site / "mydata.py").write_text(DATA)
            rows.to_csv(site / "rows.csv", index=False)
            for name in (f"node{k}", "ca.crt"):
                shutil.copy(server.folder / "keys" / name, site)
        inside = tmp_path / "site1"
        container.wheel(inside)
        (inside / "memory").mkdir()
        for path in (inside, *inside.rglob("*")):
            os.chown(path, 10001, 10001)
        for path in (inside, *inside.parents):  # pytest's folders are their user's alone
            if path.stat().st_mode & 0o77 == 0:
                path.chmod(0o711)
        words = [sys.executable, str(Path(container.__file__)), str(inside), "PIP=--no-index", "--"]
        words += [f"--superlink=127.0.0.1:{server.port}", "--key=node1", "--ca=ca.crt", "--data=mydata.py", "--verbose"]
        command = ["medley", "deploy", "run", ".", "--superlink=medley", "--save=run", "--timeout=300"]
        at_home = server.node(
            0, f"--data={tmp_path / 'site0' / 'mydata.py'}", f"--memory={tmp_path / 'site0' / 'memory'}"
        )
        with started(words, tmp_path, server.env, "container") as (engine, log), at_home:
            seen: Callable[[str], bool] = lambda text: text in log.read_text()
            until(lambda: seen("connected to"), engine, log, 120)
            until(lambda: seen("\nhealthy"), engine, log)
            with started(command, server.folder, server.env, "run") as (run, out):
                until(lambda: "round 2" in out.read_text(), run, out)
                (node,) = serving(server.port)
                os.kill(node, signal.SIGKILL)
                until(
                    lambda: seen("ended with -9") and len(re.findall(r"\nstarted: ", log.read_text())) == 2, engine, log
                )
                assert run.wait(300) == 0, out.read_text() + log.read_text()
            (badge,) = (inside / "memory").glob("client1/node")
            os.utime(badge, (0, 0))
            until(lambda: seen("\nunhealthy"), engine, log, 30)
            until(lambda: log.read_text().count("\nhealthy") == 2, engine, log, 60)  # its next sign of life
            engine.terminate()
            assert engine.wait(30) == 0, log.read_text()
            assert not serving(server.port)
    assert (inside / "memory" / "client1").stat().st_uid == 10001
    text = log.read_text()
    assert "Successfully installed medley-fl" in text
    assert "FROM python:" in text
    everybody = pd.concat([rows.assign(site=k) for k, rows in sites.items()])
    data = md.datasets.frame(everybody, "died", client="site", prepared=prepared)
    fed = md.Federation(md.problems.Softmax(mu=0.01), clients=data, pace=md.scenarios.Pace(lr=0.1, batch=None))
    one = md.run(md.SCAFFOLD(), fed, 6, engine="seq")
    assert md.Result.load(server.folder / "run").x.tolist() == one.x.tolist()
