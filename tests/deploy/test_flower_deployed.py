"""Flower for real: a SuperLink behind nginx, and nodes in processes of their own, over TLS, known by their keys."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import medley as md
from medley import recipe
from medley.deploy import commands
from medley.storage import events

pytest.importorskip("flwr")

from support.deployed import LAST_CLIENT, Deployment, environment, ports, started, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("deployed"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

LOGISTIC = {
    "rules": {"exact": True},
    "problem": {"kind": "Logistic", "mu": 0.01},
    "data": {"name": "breast_cancer", "standardise": True},
    "partition": {"kind": "IID", "clients": 3},
    "pace": {"lr": 0.1, "batch": "full"},
    "run": {"rounds": 3, "eval_every": 3},
    "methods": [{"kind": "FedNorton"}],
}


STREAM = {
    **LOGISTIC,
    "problem": {"kind": "Softmax", "mu": 0.01},
    "data": {"name": "digits", "flatten": True},
    "stream": {"kind": "Split", "tasks": 3, "mode": "class"},
    "replay": {"kind": "Ring", "capacity": 20},
    "run": {"rounds": 1, "eval_every": 3},  # of each task
    "methods": [{"kind": "CFLAG.joint"}],
}


@pytest.fixture(scope="module", autouse=True)
def _terminable() -> Iterator[None]:
    """What ends the tests from outside is to end what they started, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    yield
    signal.signal(signal.SIGTERM, before)


def same(there: md.Result, r: recipe.Recipe) -> None:
    """The result is that of the recipe run in one process."""
    here = r.federation().run(r.methods()[0], r.rounds, seed=0, **r.options())
    assert there.status.ok, there.status
    assert float((here.x - there.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in there.ledger] == [e._replace(overhead=0) for e in here.ledger]
    assert there.history[-1]["loss"] == pytest.approx(here.history[-1]["loss"], rel=1e-9)
    assert there.history[-1]["accuracy"] == pytest.approx(here.history[-1]["accuracy"])
    assert there.history[-1]["round"] == 3


def test_three_nodes_find_the_x_of_one_process(there: Deployment) -> None:
    """The nodes stay, and serve one run after the other; each has its method."""
    r = recipe.Recipe(LOGISTIC)
    there.app(r)
    with there.nodes() as nodes:
        for kind in ("FedNorton", "SHED", "SCAFFOLD"):
            chosen = r.with_settings([f"methods.0.kind={kind}"])
            same(there.result(kind, set=f"methods.0.kind={kind}"), chosen)
        for p, log in nodes:
            p.terminate()
            assert p.wait(30) == 0, log.read_text()
            assert "connected to" in log.read_text()
            assert log.read_text().splitlines()[-1].endswith("ended")


def test_a_robust_fold_of_real_replies(there: Deployment) -> None:
    robust = [{"kind": "SCAFFOLD", "rule": {"kind": "GeometricMedian"}}]
    r = recipe.Recipe({**LOGISTIC, "federation": {"weights": "uniform"}, "methods": robust})
    assert isinstance(r.methods()[0], md.Robust)
    there.app(r)
    with there.nodes():
        same(there.result("robust"), r)


def test_a_stream_of_tasks_on_nodes(there: Deployment) -> None:
    r = recipe.Recipe(STREAM)
    there.app(r)
    with there.nodes():
        same(there.result("CFLAG.joint"), r)


def test_a_node_comes_later_and_one_leaves(there: Deployment) -> None:
    """The run begins with two nodes, and has the numbers of a local run with the same members in each round."""
    settings = {"rounds": 30, "eval_every": 99}
    r = recipe.Recipe({**LOGISTIC, "run": settings, "methods": [{"kind": "SCAFFOLD"}]})
    there.app(r)
    folder = there.folder / "open"
    seen = lambda event: [e for e in events.read(folder) if e.get("event") == event]
    with there.node(0), there.node(1) as (leaver, left_log), there.begun("open", open=2) as (p, log):
        until(lambda: len(seen("round")) >= 2, p, log)
        with there.node(2):
            until(lambda: seen("members"), p, log)
            command = ["medley", "node", "--leave", "--client=1", "--memory=memory"]
            subprocess.run(command, cwd=there.folder, env=there.env, check=True)
            assert leaver.wait(300) == 0, left_log.read_text()
            assert "has left" in left_log.read_text()
            assert p.wait(600) == 0, log.read_text()
    changes = [(e["round"], e["joined"], e["left"]) for e in seen("members")]
    (came, joined, none), (went, nobody, left) = changes
    assert (joined, none, nobody, left) == ([2], [], [], [1])
    fed = r.federation()
    fed.membership = md.scenarios.Membership(joins={2: came}, leaves={1: went})
    here, got = fed.run(md.SCAFFOLD(), 30, eval_every=99), md.Result.load(folder)
    assert float((here.x - got.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in got.ledger] == [e._replace(overhead=0) for e in here.ledger]
    assert {e.client for e in got.ledger if e.round == 30} == {0, 2}


def test_a_run_goes_on_while_nginx_takes_up_another_certificate(there: Deployment) -> None:
    r = recipe.Recipe({**LOGISTIC, "run": {"rounds": 30, "eval_every": 99}, "methods": [{"kind": "SCAFFOLD"}]})
    there.app(r)
    folder = there.folder / "renewed"
    rounds = lambda: sum(e.get("event") == "round" for e in events.read(folder))
    served = lambda: ssl.get_server_certificate(("127.0.0.1", there.port))
    before = served()
    with there.nodes(), there.begun("renewed") as (p, log):
        until(lambda: rounds() >= 2, p, log)
        subprocess.run(["./keys.sh", "127.0.0.1", "0"], cwd=there.folder, check=True)
        os.kill(int((there.folder / "logs" / "nginx.pid").read_text()), signal.SIGHUP)
        until(lambda: served() != before, p, log)
        assert rounds() < 30
        assert p.wait(600) == 0, log.read_text()
    assert folder.joinpath("result.json").exists(), there.logs()
    here, got = r.federation().run(r.methods()[0], 30, seed=0, **r.options()), md.Result.load(folder)
    assert float((here.x - got.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in got.ledger] == [e._replace(overhead=0) for e in here.ledger]


def test_memories_outlive_their_nodes(there: Deployment) -> None:
    """The nodes end after round 2 and start again; the third round builds on the memories on disk."""
    r = recipe.Recipe({**LOGISTIC, "methods": [{"kind": "SCAFFOLD"}]})
    there.app(r)
    with there.nodes():
        there.result("half", set="run.rounds=2 run.eval_every=9")
    with there.nodes():
        whole = there.result("half", resume=str(there.folder / "half"), set="run.rounds=3 run.eval_every=9")
    here = r.federation().run(r.methods()[0], 3, seed=0)
    assert float((here.x - whole.x).abs().max()) < 1e-10
    open_ = [f for f in (there.folder / "memory").rglob("*") if f.is_file() and f.stat().st_mode & 0o077]
    assert open_ == []


def test_a_node_that_was_killed_answers_when_it_starts_again(there: Deployment) -> None:
    """Killed in the midst of an answer; the message lies in its folder, and the next process sends the same reply.

    The next one is killed while the second tree grows; where each row stands in the tree is with the client alone.
    """
    trees = {"kind": "Trees", "loss": "logistic", "trees": 3, "depth": 3}
    r = recipe.Recipe({**LOGISTIC, "problem": trees, "methods": [{"kind": "Boost"}]})
    there.app(r)
    mortal = there.folder / "mortal_twice.py"
    mortal.write_text(
        LAST_CLIENT + "import os, signal\nfrom pathlib import Path\nfrom medley.algorithms.boost import Boost\n"
        "sums = Boost.sums\n"
        "def ends(name):\n"
        "    if not Path(name).exists():\n"
        "        Path(name).touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "def felled(self, me, wanted):\n"
        "    if me.round == 2 and wanted.min() > 2:\n"
        "        ends('felled')\n"
        "    return sums(self, me, wanted)\n"
        "Boost.sums = felled\n"
        "def data(context):\n"
        "    ends('killed')\n"
        "    return last_client()\n"
    )
    with there.node(0), there.node(1), there.begun("killed_run") as (p, _):
        with there.node(2, "--data=mortal_twice.py") as (victim, _):
            assert victim.wait(300) == -signal.SIGKILL
        with there.node(2, "--data=mortal_twice.py", again=True) as (_, log):
            p.wait(600)
            assert "resuming query" in log.read_text(), log.read_text()
    assert (there.folder / "felled").exists()
    assert (there.folder / "killed_run" / "result.json").exists(), there.logs()
    result = md.Result.load(there.folder / "killed_run")
    same(result, r)
    assert torch.equal(result.x, r.federation().run(r.methods()[0], r.rounds, seed=0, **r.options()).x)


def test_a_node_that_dies_between_announcing_and_sending_its_answer_is_asked_again(there: Deployment) -> None:
    """The SuperLink takes no second reply to a message, and would miss the first one for three minutes."""
    r = recipe.Recipe({**LOGISTIC, "methods": [{"kind": "SCAFFOLD"}]})
    there.app(r)
    (there.folder / "mortal.py").write_text(
        LAST_CLIENT + "import os, signal\nfrom pathlib import Path\nfrom medley.deploy.node.fleet import FleetNode\n"
        "call, kinds = FleetNode._call, []\n"
        "def called(self, name, request):\n"
        "    out = call(self, name, request)\n"
        "    kinds.extend(m.metadata.message_type for m in getattr(out, 'messages_list', ()))\n"
        "    if name == 'PushMessages' and kinds and kinds[-1] == 'evaluate' and Path('kill').exists():\n"
        "        Path('kill').unlink(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return out\n"
        "FleetNode._call = called\n"
        "def data(context):\n"
        "    return last_client()\n"
    )
    (there.folder / "kill").touch()
    with there.node(0), there.node(1), there.node(2, "--data=mortal.py", again=True):
        same(there.result("announced_run", timeout=120), r)
    assert not (there.folder / "kill").exists()
    seen = [e["clients"] for e in events.read(there.folder / "announced_run") if e.get("event") == "awaited"]
    assert seen[-1] == []
    assert [2] in seen


def test_the_trial_shows_what_it_does_and_leaves_a_result_and_no_process(tmp_path: Path) -> None:
    """From `medley deploy init` to the result in 60 s, on idle cores."""
    folder, port, begun = tmp_path / "trial", ports(), time.monotonic()
    env = {**environment(tmp_path), "PORT": str(port)}
    subprocess.run(["medley", "deploy", "init", str(folder)], env=env, check=True, stdout=subprocess.DEVNULL)
    path = folder / "app" / "recipe.toml"
    path.write_text(f"{path.read_text()}\n[rules]\nexact = true\n")  # by default the loss is coarse
    with started(["./trial.sh", "--save", str(tmp_path / "out")], folder, env) as (p, log):
        assert p.wait(600) == 0, log.read_text()
        took, load = time.monotonic() - begun, os.getloadavg()[0]
        print(f"the trial took {took:.0f} s at a load of {load:.1f}")
        assert took < 60 * max(1, load / 2)
        with pytest.raises(ProcessLookupError):
            os.killpg(p.pid, 0)
    same(md.Result.load(tmp_path / "out"), recipe.load(folder / "app" / "recipe.toml"))
    for step in ("starts the server", "starts 3 nodes", "registers the nodes' keys", "runs the app", "round 3: 3 of 3"):
        assert step in log.read_text()
    assert log.read_text().splitlines()[-2:] == [f"finished; saved in {tmp_path / 'out'}", "ended: server and nodes"]
    open_ = [f for f in folder.rglob("*") if f.is_file() and f.stat().st_mode & 0o077]
    assert {f.parent.name for f in open_} <= {"trial", "app", "node"}, open_  # the files that deploy init wrote
    assert not Deployment.answers(port)
    assert not Deployment.answers(port + 1)


def test_a_trial_that_fails_says_so_by_its_exit_code(tmp_path: Path) -> None:
    """One client, and a key of the recipe that is none."""
    folder, port = tmp_path / "trial", ports()
    commands.init(folder, clients=1)
    words = ["./trial.sh", "--save", str(tmp_path / "out"), "--set", "run.rounds=-1"]
    with started(words, folder, {**environment(tmp_path), "PORT": str(port)}) as (p, log):
        assert p.wait(600) == 2, log.read_text()
    assert "rounds" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert log.read_text().splitlines()[-1] == "ended: server and nodes"


def test_flowers_own_supernodes_do_the_same(there: Deployment) -> None:
    """One stock SuperNode, through the same proxy."""
    r = recipe.Recipe({**LOGISTIC, "partition": {"kind": "IID", "clients": 1}, "run": {"rounds": 1, "eval_every": 3}})
    there.app(r)
    command = ["flower-supernode", "--root-certificates=keys/ca.crt", "--auth-supernode-private-key=keys/node0"]
    command += [f"--superlink=127.0.0.1:{there.port}", "--host=127.0.0.1", f"--port={ports()}"]
    with started([*command, '--node-config=partition-id=0 memory="stock"'], there.folder, there.env, "stock"):
        got = there.result("stock_run", clients=1)
    here = r.federation().run(r.methods()[0], 1, seed=0, **r.options())
    assert float((here.x - got.x).abs().max()) < 1e-10
