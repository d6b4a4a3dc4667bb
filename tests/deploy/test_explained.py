"""What a deployment says of a slow upload, of a key that is in use, of another version: the real ones, over TLS."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import medley as md
from medley import recipe
from medley.storage import events

pytest.importorskip("flwr")

from support.deployed import Deployment, started, until
from support.link import Link

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("deployed"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

OTHER_MEDLEY = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: "0.0.9" if name.startswith("medley") else version(name)
"""


def table(hidden: int, rounds: int = 2) -> recipe.Recipe:
    return recipe.Recipe(
        {
            "rules": {"exact": True},
            "problem": {"kind": "Network", "model": "mlp", "hidden": [hidden, hidden]},
            "data": {"name": "digits", "flatten": True, "train": 300},
            "partition": {"kind": "IID", "clients": 3},
            "pace": {"lr": 0.01, "steps": 1, "batch": 32},
            "run": {"rounds": rounds, "eval_every": rounds, "dtype": "float32", "engine": "seq"},
            "methods": [{"kind": "FedAvg"}],
        }
    )


def run_command(name: str) -> list[str]:
    return ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={name}", "--timeout=300", "--restarts=2"]


def test_one_slow_upload_is_named_as_that_clients_and_a_cut_one_is_sent_again(there: Deployment) -> None:
    """The other two replies, of 4 MB each, are not held up by it. Then the link is cut in an upload."""
    there.app(r := table(1000))
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(Link.to(there.port, 400e3))
        for k in (0, 1):
            stack.enter_context(there.node(k))
        slow = Deployment(there.folder, link.port, there.env)
        stack.enter_context(slow.node(2))
        p, log = stack.enter_context(started(run_command("slow"), there.folder, there.env, "slow"))
        folder = there.folder / "slow"
        named = lambda: [e["clients"] for e in events.read(folder) if e.get("event") == "awaited" and e["clients"]]
        until(lambda: [2] in named(), p, log)
        sent = link.sent
        until(lambda: link.sent > sent + 1e6, p, log)
        link.cut()
        link.rate = None
        link.mend()
        assert p.wait(300) == 0, log.read_text() + there.logs()
    assert re.search(r"waiting for clients \[2\]|waits for clients \[2\]", log.read_text()), log.read_text()
    one = r.federation().run(r.methods()[0], r.rounds, seed=r.seed, engine="seq", dtype="float32", progress=False)
    assert md.Result.load(folder).x.tolist() == one.x.tolist()


def test_a_second_process_with_a_key_is_told_so_and_the_first_goes_on(there: Deployment) -> None:
    copy = there.folder / "elsewhere" / "node0"  # as on another machine, without the note of where the ledgers are
    copy.parent.mkdir()
    shutil.copy(there.folder / "keys" / "node0", copy)
    words = ["medley", "node", f"--superlink=127.0.0.1:{there.port}", f"--key={copy}", "--ca=keys/ca.crt"]
    words += ["--recipe=app/recipe.toml", "--client=0", "--memory=elsewhere"]
    with there.node(0) as (first, log):
        until(lambda: "connected to" in log.read_text(), first, log)
        with started(words, there.folder, there.env, "second") as (second, other):
            until(lambda: "this node's key is in use: another process" in other.read_text(), second, other, 60)
        assert first.poll() is None, log.read_text()


@pytest.fixture
def two(there: Deployment) -> Iterator[Deployment]:
    """The server, with an app for two clients."""
    project = there.folder / "app" / "pyproject.toml"
    before = project.read_text()
    project.write_text(before.replace("clients = 3", "clients = 2"))
    yield there
    project.write_text(before)


def test_a_recipes_next_version_while_nodes_run(two: Deployment) -> None:
    """The steps of docs/deploy.md: a node whose owner has not restarted it is named; the next run goes on from x."""
    first = table(8).with_settings(["partition.clients=2"])
    second = table(8, rounds=3).with_settings(["partition.clients=2", "pace.lr=0.02"])
    there = two
    sites = [there.folder / f"site{k}.toml" for k in range(2)]
    node = lambda k: there.node(k, f"--recipe={sites[k]}")

    def run(name: str, *more: str) -> tuple[int, str]:
        with started([*run_command(name), *more], there.folder, there.env, name) as (p, log):
            return p.wait(300), " ".join(log.read_text().split())

    there.app(first)
    for site in sites:
        site.write_text(first.dumps())
    with node(1):
        with node(0):
            assert run("v1")[0] == 0, there.logs()
        there.app(second)
        for site in sites:
            site.write_text(second.dumps())
        with node(0):
            code, text = run("early")
    assert code == 2, text
    assert "client 1: its recipe's file has changed since its node started; its owner has to restart the node" in text
    with node(0), node(1):
        code, text = run("v2", f"--set=run.init={there.folder / 'v1'}")
        assert code == 0, text + there.logs()
    x = None
    for r in (first, second):
        one = r.federation().run(
            r.methods()[0], r.rounds, seed=r.seed, engine="seq", dtype="float32", init=x, progress=False
        )
        x = one.x
    assert md.Result.load(there.folder / "v2").x.tolist() == one.x.tolist()


COLUMNS = """
import pandas as pd
import medley as md

def data(context):
    k = context.node_config["partition-id"]
    rows = pd.DataFrame({"age": [40 + k, 55, 61, 70] * 6, "bmi": [22, 31 + k, 27, 24] * 6, "crp": [1, 9, 3, k] * 6})
    rows = rows.assign(died=["no", "yes", "yes", "no"] * 6, back=["home", "ward"] * 12)
    return md.datasets.frame(rows[INPUTS], target=INPUTS[-1])
"""


def test_a_next_version_with_other_columns_and_another_target(two: Deployment) -> None:
    """Client 1's owner has the new recipe and the old data function; one step later both fit, and the run goes."""
    there = two
    features, labels = ["age", "bmi", "crp"], ["home", "ward"]
    r = recipe.Recipe(
        {
            "problem": {"kind": "Softmax"},
            "clients": {"features": features, "labels": labels},
            "pace": {"lr": 1e-4, "steps": 1},
            "run": {"rounds": 1},
            "methods": [{"kind": "FedAvg"}],
        }
    )
    there.app(r)

    def site(k: int, *columns: str) -> contextlib.AbstractContextManager[object]:
        (there.folder / f"site{k}.toml").write_text(r.dumps())
        (there.folder / f"site{k}.py").write_text(COLUMNS.replace("INPUTS", repr([*columns])))
        return there.node(k, f"--recipe=site{k}.toml", f"--data=site{k}.py")

    with site(0, *features, "back"):
        with site(1, "age", "bmi", "died"), started(run_command("half"), there.folder, there.env, "half") as (p, log):
            assert p.wait(300) == 2, log.read_text()
        assert "client 1" in log.read_text()
        assert "client 0" not in log.read_text()
        with site(1, *features, "back"), started(run_command("whole"), there.folder, there.env, "whole") as (p, log):
            assert p.wait(300) == 0, log.read_text() + there.logs()
    settings = md.Result.load(there.folder / "whole").settings
    assert (settings["features"], settings["labels"]) == (features, labels)


def test_another_version_is_named_and_the_run_not_started_again(there: Deployment, tmp_path: Path) -> None:
    there.app(table(8))
    (tmp_path / "sitecustomize.py").write_text(OTHER_MEDLEY)
    path = f"{tmp_path}:{there.env['PYTHONPATH']}"
    older = Deployment(there.folder, there.port, {**there.env, "PYTHONPATH": path})
    run = started(run_command("versions"), there.folder, there.env, "versions")
    with there.node(0), there.node(1), older.node(2), run as (p, log):
        assert p.wait(200) == 2, log.read_text()
    text = " ".join(log.read_text().split())
    assert re.search(r"client 2.*0\.0\.9.*install the same version on both sides", text), text
    assert "more restart" not in text
