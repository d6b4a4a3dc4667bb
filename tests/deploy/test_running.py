"""`medley deploy run` follows a run in its folder. The app here is a local run in a process; test-deploy has Flower."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley.cli import app
from medley.contract.errors import MedleyError, RecipeError
from medley.deploy import commands
from medley.deploy.commands import Deployment
from medley.deploy.node.cleaning import clean, seconds
from medley.deploy.node.serve import Shelf
from medley.storage import events
from medley.storage.atomic import locked, private
from medley.storage.result import Status

APP = """
import json, os, pathlib, signal, sys
import medley as md
from medley.storage.events import Events
folder, resume, kill, readmit = pathlib.Path(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3]), json.loads(sys.argv[4])
folder.mkdir(exist_ok=True)
(folder / "flower.json").write_text("{}")
Events(folder, listen=False).add("app", pid=os.getpid())
q = md.problems.synthetic_quadratics(clients=3, d=4)
def stop(row):
    if row["round"] == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    if row["round"] == kill - 100:
        raise KeyboardInterrupt  # as Flower interrupts its app when the SuperLink ends
    if row["round"] == -kill:
        raise md.BadData("client 1: row 3 is empty", client=1)
where = {"resume": folder, "readmit": readmit} if resume else {"checkpoint": folder}
md.run(md.SCAFFOLD(), md.Federation(q.problem, clients=q.clients), 8, checkpoint_every=1, on_round=stop, **where)
"""


class Local(Deployment):
    """A deployment whose app is a local run in a process of its own; round ``kills.pop(0)`` ends it."""

    kills: list[int]
    started: list[tuple[bool, str]]
    state = ""

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        if words[0] != "run":
            return subprocess.CompletedProcess(words, 0, self.state, "")
        said = dict(re.findall(r'(\w+)="([^"]*)"', words[-1]))
        folder, resume = said.get("save") or said["resume"], "resume" in said
        self.started.append((resume, said.get("readmit", "")))
        kill = self.kills.pop(0) if self.kills else 0
        source = os.pathsep.join([str(Path(md.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        readmit = f"[{said.get('readmit', '')}]"
        command = [sys.executable, "-c", APP, folder, str(int(resume)), str(kill), readmit]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source}, stderr=subprocess.DEVNULL)
        children.append(process)
        return subprocess.CompletedProcess(words, 0, '{"run-id": "7"}', "")


children: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _waited_for() -> Iterator[None]:
    yield
    while children:
        children.pop().wait(30)


def deployment(project: Path, *kills: int) -> tuple[Local, list[str]]:
    commands.init(project)
    said: list[str] = []
    local = Local(project, said.append, "ours")
    local.kills, local.started = [*kills], []
    return local, said


@pytest.mark.slow
def test_a_killed_app_goes_on_by_itself_to_the_digest_of_the_undisturbed_run(tmp_path: Path) -> None:
    local, said = deployment(tmp_path / "project", 3, 5)
    status = local.run(tmp_path / "run", {}, restarts=3)
    assert status.ok, said
    assert local.started == [(False, ""), (True, ""), (True, "")]
    assert sum("has died; continuing from the last checkpoint" in line for line in said) == 2
    assert sum(bool(re.search(r"round \d: 3 of 3 answers", line)) for line in said) >= 8
    q = md.problems.synthetic_quadratics(clients=3, d=4)
    whole = md.run(md.SCAFFOLD(), md.Federation(q.problem, clients=q.clients), 8)
    assert md.Result.load(tmp_path / "run").digest == whole.digest


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_an_app_that_flower_interrupts_goes_on_unless_somebody_stopped_the_run(tmp_path: Path, stopped: bool) -> None:
    local, said = deployment(tmp_path / "project", 103)
    local.state = '{"status": "finished:stopped"}' if stopped else ""
    status = local.run(tmp_path / "run", {}, restarts=2)
    assert status.outcome == ("interrupted" if stopped else "finished"), said
    assert any("interrupted the server app" in line for line in said) is not stopped
    assert local.started == [(False, ""), (True, "")][: 1 if stopped else 2]


@pytest.mark.slow
def test_a_run_that_cannot_go_on_ends_with_its_sentence_and_goes_on_when_told_so(tmp_path: Path) -> None:
    local, _ = deployment(tmp_path / "project", 3, -5)
    status = local.run(tmp_path / "run", {})
    assert status.outcome == "failed"
    assert re.search(r"the server app, process \d+, has died", status.message)
    with pytest.raises(RecipeError, match="already holds a run; continue it with --resume"):
        local.run(tmp_path / "run", {})
    status = local.run(tmp_path / "run", {}, resume=True)
    assert str(status) == "failed: client 1: row 3 is empty"
    assert local.run(tmp_path / "run", {}, resume=True, readmit=[1]).ok
    assert local.started[-1] == (True, "1")
    with pytest.raises(RecipeError, match="nothing to resume"):
        local.run(tmp_path / "nowhere", {}, resume=True)


def test_the_command_ends_with_a_code_and_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.init(tmp_path / "project")
    for outcome, code in (("finished", 0), ("failed", 2), ("diverged", 1), ("interrupted", 130)):
        status = md.storage.result.Status(outcome, "client 1 is gone\nTraceback")  # type: ignore[attr-defined]
        monkeypatch.setattr(Deployment, "run", lambda *_, status=status: status)
        got = CliRunner().invoke(app, ["deploy", "run", str(tmp_path / "project"), "--save", str(tmp_path / "r")])
        assert got.exit_code == code, got.output
        assert code == 0 or "Traceback" not in got.output
    got = CliRunner().invoke(app, ["deploy", "run", str(tmp_path)])
    assert got.exit_code == 2
    got = CliRunner().invoke(app, ["deploy", "run", str(tmp_path / "project"), "--readmit", "1"])
    assert "--readmit needs --resume" in got.output


def test_a_resumed_run_has_the_settings_that_it_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, started = deployment(tmp_path / "project")[0], list[dict[str, object]]()
    save = tmp_path / "run"
    save.mkdir()
    (save / "events.jsonl").write_text("")
    (save / "flower.json").write_text('{"run": "7", "config": {"open": 2, "set": "run.rounds=9", "timeout": 60}}')
    monkeypatch.setattr(Local, "_start", lambda _, config, patience: started.append(dict(config)) or "7")
    monkeypatch.setattr(Local, "_follow", lambda *_: (Status("finished", ""), False))
    local.run(save, {"timeout": 5}, resume=True)
    assert started == [{"open": 2, "set": "run.rounds=9", "timeout": 5, "resume": str(save)}]


def test_what_another_start_would_not_mend_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, _ = deployment(tmp_path / "project")
    starts = list[int]()
    for final, wanted in ((True, 1), (False, 3)):
        starts.clear()
        monkeypatch.setattr(Local, "_start", lambda *_: starts.append(1) or "7")
        monkeypatch.setattr(Local, "_follow", lambda *_, final=final: (Status("failed", "no [data]"), final))
        assert local.run(tmp_path / "run", {}, restarts=2).outcome == "failed"
        assert len(starts) == wanted


def test_modules_of_the_users_own_travel_with_the_app(tmp_path: Path) -> None:
    (tmp_path / "wardnet.py").write_text("import torch\n\n\ndef Net():\n    return torch.nn.Linear(64, 10)\n")
    (tmp_path / "other.py").write_text("")
    r = md.recipe.loads('[problem]\nkind = "Network"\nmodel = "wardnet:Net"\n[[methods]]\nkind = "FedAvg"\n')
    r = md.recipe.Recipe(r.tables, "recipe.toml", tmp_path)
    written = commands.init(tmp_path / "project", r, clients=2)
    there = {str(path.relative_to(tmp_path / "project")) for path in written}
    assert {"app/wardnet.py", "node/wardnet.py"} <= there
    assert not any("other" in path for path in there)
    for name in ("trial.sh", "node/node.service"):
        assert "--allow-code wardnet:Net" in (tmp_path / "project" / name).read_text()
    commands.init(tmp_path / "plain")
    assert not any(b"CODE" in path.read_bytes() for path in (tmp_path / "plain").rglob("*.s*"))


def test_files_that_a_recipe_names_travel_or_are_missed_with_their_place(tmp_path: Path) -> None:
    """Modules with what they import, packages, and a preparation; absent ones are named with where they belong."""
    (tmp_path / "wardnet.py").write_text("import math, layers\nfrom ward.net import X\nfrom torch import nn\n")
    (tmp_path / "layers.py").write_text("")
    (tmp_path / "ward").mkdir()
    for name in ("__init__.py", "net.py"):
        (tmp_path / "ward" / name).write_text("X = 1\n")
    sites = {name: pd.DataFrame({"age": [30.0, 40.0 + k, 50.0] * 8}) for k, name in enumerate(("Bern", "Basel"))}
    study = md.statistics.Study(sites, rules=md.statistics.Rules(rows=2))
    study.prepare(["age: standardise"]).save(tmp_path / "prepared.json")

    def init(model: str, prepared: str, to: str) -> set[str]:
        text = f'[problem]\nkind = "Network"\nmodel = "{model}"\n[clients]\nprepared = "{prepared}"\n'
        r = md.recipe.Recipe(md.recipe.loads(f'{text}[[methods]]\nkind = "FedAvg"\n').tables, "r.toml", tmp_path)
        return {str(path.relative_to(tmp_path / to)) for path in commands.init(tmp_path / to, r, clients=2)}

    written = init("wardnet:Net", "prepared.json", "project")
    for side in ("app", "node"):
        files = ("wardnet.py", "layers.py", "ward/__init__.py", "ward/net.py", "prepared.json")
        assert {f"{side}/{name}" for name in files} <= written
    with pytest.raises(RecipeError, match=r"names the module 'mynet', but there is no mynet.py next to the recipe, in"):
        init("mynet:Net", "prepared.json", "b")
    with pytest.raises(md.BadData, match=r"there is no file .*/other.json; a study with an analysis"):
        init("wardnet:Net", "other.json", "b")
    with pytest.raises(
        RecipeError, match=r"not next to the recipe: put the file into .*, and write prepared = 'p.json"
    ):
        init("wardnet:Net", "../p.json", "b")
    assert not (tmp_path / "b").exists()


def test_init_copies_a_recipe_as_its_author_wrote_it_unless_it_changes_it(tmp_path: Path) -> None:
    text = '# ours\n[problem]\nkind = "Softmax"\n[data]\nname = "digits"\n[partition]\nkind = "IID"\nclients = 2\n'
    (path := tmp_path / "mine.toml").write_text(f'{text}[run]\nrounds = 2  # few\n[[methods]]\nkind = "FedAvg"\n')
    for clients, kept in ((None, True), (2, True), (5, False)):
        commands.init(tmp_path / f"project {clients}", md.recipe.load(path), clients)
        written = (tmp_path / f"project {clients}" / "node" / "recipe.toml").read_text()
        assert (written == path.read_text()) == kept
        assert written == (tmp_path / f"project {clients}" / "app" / "recipe.toml").read_text()


def test_init_writes_a_recipe_that_runs_with_so_many_clients_or_refuses(tmp_path: Path) -> None:
    for n in (1, 2, 5):
        commands.init(tmp_path / str(n), clients=n)
        r = md.recipe.load(tmp_path / str(n) / "app" / "recipe.toml")
        ran = r.federation().run(r.methods()[0], 1, seed=0)
        assert ran.ledger.text().count("\n") == 1 + n
    r = md.recipe.load(tmp_path / "5" / "app" / "recipe.toml")
    with pytest.raises(RecipeError, match="lists 5 values for 2 clients"):
        commands.init(tmp_path / "new", r, clients=2)
    assert not (tmp_path / "new").exists()


def test_flowers_refusal_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, _ = deployment(tmp_path / "project")
    refused = subprocess.CompletedProcess(
        [], 1, '{"success": false, "error-message": "The key \'x\' is unknown\\nat"}', ""
    )
    monkeypatch.setattr(Local, "_flwr", lambda *_: refused)
    with pytest.raises(MedleyError, match=r"^flwr run did not start the app: The key 'x' is unknown at$"):
        local.run(tmp_path / "run", {})


def test_init_of_a_recipe_without_data_gives_each_node_the_file_that_reads_them(tmp_path: Path) -> None:
    r = md.recipe.loads('methods = [{ kind = "FedAvg" }]\n[problem]\nkind = "Softmax"\n[run]\nrounds = 1\n')
    commands.init(tmp_path / "project", r, clients=2)
    scripts = [(tmp_path / "project" / name).read_text() for name in ("trial.sh", "compose.yaml")]
    assert all("--data node/mydata.py" in script for script in scripts)
    assert (tmp_path / "project" / "node" / "mydata.py").exists()


def test_what_would_fail_later_is_refused_before_an_app_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, _ = deployment(tmp_path / "project")
    events.Events(private(tmp_path / "run"), listen=False).add("app", pid=0)
    with locked(tmp_path / "run"), pytest.raises(RecipeError, match=r"in use: .* goes on without its command: follow"):
        local.run(tmp_path / "run", {}, resume=True)
    (tmp_path / "project" / "app" / "recipe.toml").write_text("methods = [{ kind = 'FedProx'")
    with pytest.raises(RecipeError, match=r"app/recipe\.toml is not TOML: Unclosed inline table"):
        local.run(tmp_path / "other", {})
    (tmp_path / "project" / "app" / "recipe.toml").write_text("methods = [{ kind = 'FedProx', proximal = 1 }]")
    for config, text in (({}, r"app/recipe\.toml: .*'proximal'"), ({"set": "run.round=3"}, "'round'.*'rounds'")):
        with pytest.raises(RecipeError, match=text):
            local.run(tmp_path / "other", config)
    assert not local.started
    code = tmp_path / "project" / "app" / "server_app.py"
    code.write_text(code.read_text().replace('.toml"))', '.toml"), FedAvg())'))  # its own method
    monkeypatch.setattr(local, "_run", lambda *_: Status("finished", ""))
    with pytest.raises(RecipeError, match=r"'round'.*'rounds'"):
        local.run(tmp_path / "other", {"set": "run.round=3"})
    assert local.run(tmp_path / "other", {}).outcome == "finished"


def test_a_run_that_failed_before_its_rounds_ends_the_command_at_once(tmp_path: Path) -> None:
    """Its server app lives on for seconds: Flower takes its leave."""
    local, _ = deployment(tmp_path / "project")
    told = events.Events(private(tmp_path / "run"), listen=False)
    told.add("app", pid=os.getpid())
    told.add("end", outcome="failed", message="client 1: its recipe's file has changed", final=True)
    begun = time.monotonic()
    status, final = local._follow(tmp_path / "run", "7", 0.0)
    assert (status.outcome, final) == ("failed", True)
    assert time.monotonic() - begun < commands.SAVED / 4


def listening(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[socket.socket, int]:
    """A listener at the SuperLink's address of a Flower configuration in ``home``."""
    link = socket.create_server(("127.0.0.1", 0))
    port = link.getsockname()[1]
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "ours"\n[superlink.ours]\naddress = "127.0.0.1:{port}"\n'
    )
    monkeypatch.setenv("FLWR_HOME", str(home))
    return link, port


def test_a_superlink_that_is_down_is_named_and_waited_for_only_if_the_run_may_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, said = deployment(tmp_path / "project")
    link, port = listening(tmp_path / "flwr", monkeypatch)
    link.close()
    with pytest.raises(MedleyError, match=rf"the SuperLink at 127.0.0.1:{port} does not answer: start .*server.sh,"):
        local.run(tmp_path / "run", {})
    assert (said, local.started) == ([], [])
    monkeypatch.setattr(commands, "SUPERLINK", 1.5)
    with pytest.raises(MedleyError, match=r"does not answer for 1.5 s: start .*server.sh, and repeat the command$"):
        local.run(tmp_path / "run", {}, restarts=3)
    assert [line.split(":")[0] for line in said] == ["waiting for the SuperLink at 127.0.0.1"]
    assert "at most 1.5 s" in said[0]
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "nowhere"))
    local.superlink = ""
    with pytest.raises(RecipeError, match=r"no address of a server of Medley: start .*server.sh; if another folder's"):
        local.run(tmp_path / "run", {})


def test_a_superlink_that_dies_in_a_run_is_named_within_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app waits for its SuperLink; the command ends it, and the run's folder says why."""
    local, said = deployment(tmp_path / "project")
    link, port = listening(tmp_path / "flwr", monkeypatch)
    monkeypatch.setattr(commands, "GONE", 0.2)
    (save := tmp_path / "run").mkdir()
    waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    children.append(waits)
    events.Events(save, listen=False).add("app", pid=waits.pid)
    link.close()
    begun = time.monotonic()
    local._patience = 300.0  # the run may restart
    status, final = local._follow(save, "7", 0.0)
    assert (status.outcome, final) == ("failed", False)
    assert status.message.startswith(f"the SuperLink at 127.0.0.1:{port} has ended: start ")
    assert status.message.endswith("again; `medley deploy run` waits for it, at most 300 s")
    assert said == [f"{status.message}. The run's app ends"]
    assert waits.wait(5) == -signal.SIGTERM
    assert time.monotonic() - begun < 10
    assert events.read(save)[-1]["message"] == status.message


def test_settings_with_quotes_reach_flower_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("flwr.common.config")
    local, said = deployment(tmp_path / "project")[0], list[str]()
    done = subprocess.CompletedProcess([], 0, '{"run-id": "7"}', "")
    monkeypatch.setattr(Local, "_flwr", lambda _, *words: said.append(words[-1]) or done)
    values = {"set": """'pace.optimizer="adam"' 'data.name=it\\'s \\' x.y=ä€😀""", "open": 2, "save": "/tmp/a b\\"}
    local._start(values, 0.0)
    assert config.parse_config_args(said) == values


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_stops_its_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A second signal meanwhile changes nothing."""
    local, stopped = deployment(tmp_path / "project")[0], list[str]()

    def told(*_: object) -> tuple[Status, bool]:
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError("nobody ended this")

    def stop(_: object, save: Path, run: str, began: float) -> None:
        os.kill(os.getpid(), number)
        stopped.append(run)

    before = signal.signal(number, signal.SIG_IGN)
    try:
        monkeypatch.setattr(Local, "_start", lambda *_: "7")
        monkeypatch.setattr(Local, "_follow", told)
        monkeypatch.setattr(Local, "_stop", stop)
        with pytest.raises(SystemExit) as caught:
            local.run(tmp_path / "run", {})
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert (caught.value.code, stopped) == (128 + number, ["7"])


def test_memories_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Shelf(tmp_path / "memory" / "run" / "3", {}).put((1, 0), {"c": torch.ones(2)})
    finally:
        os.umask(before)
    for place in (tmp_path / "memory").rglob("*"):
        assert place.stat().st_mode & 0o777 == (0o700 if place.is_dir() else 0o600), place
    assert (tmp_path / "memory").stat().st_mode & 0o777 == 0o700
    assert private(tmp_path / "memory") == tmp_path / "memory"


def test_old_memories_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    for run, age in (("old", 100_000), ("new", 0)):
        Shelf(tmp_path / run / "0", {}).put((1, 0), {})
        for p in (tmp_path / run).rglob("*"):
            os.utime(p, (time.time() - age,) * 2)
    (other := tmp_path / "photos").mkdir()
    (other / "cat.jpg").write_bytes(b"x")
    assert clean(tmp_path, seconds("1d"), keep="old") == []
    assert clean(tmp_path, seconds("1d")) == [tmp_path / "old"]
    assert clean(tmp_path) == [tmp_path / "new"]
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]
    assert clean(tmp_path / "nowhere") == []
    assert [seconds(age) for age in ("90s", "1.5m", "2h", "30d", "2w")] == [90, 90, 7200, 2_592_000, 1_209_600]
    for age in ("30", "d", "-1d", "1y"):
        with pytest.raises(RecipeError, match="write an age as a number"):
            seconds(age)


MEDLEY = str(Path(sys.executable).with_name("medley"))


@pytest.mark.slow
def test_a_node_deletes_its_memories_when_told_to(tmp_path: Path) -> None:
    for run, age in (("old", 100_000), ("new", 0)):
        Shelf(tmp_path / run / "0", {}).put((1, 0), {})
        for p in (tmp_path / run).rglob("*"):
            os.utime(p, (time.time() - age,) * 2)
    command = [MEDLEY, "node", "--clean", "--memory", str(tmp_path)]
    by_age = subprocess.run([*command, "--keep", "1d"], capture_output=True, text=True)
    assert (by_age.returncode, by_age.stdout) == (0, f"deleted {tmp_path / 'old'}\n"), by_age.stderr
    every = subprocess.run(command, capture_output=True, text=True)
    assert (every.returncode, every.stdout) == (0, f"deleted {tmp_path / 'new'}\n"), every.stderr
    none = subprocess.run(command, capture_output=True, text=True)
    assert none.stdout == f"{tmp_path} holds no memories to delete\n"
    bare = subprocess.run([MEDLEY, "node"], capture_output=True, text=True)
    assert bare.returncode != 0
    assert "give --superlink" in bare.stderr
    assert "Traceback" not in bare.stderr


@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen")
def test_keys_again_are_another_certificate_of_the_same_ca(tmp_path: Path) -> None:
    """Nodes keep their ca.crt, their keys and the keyring."""
    commands.init(project := tmp_path / "project")
    read = lambda: {p.name: p.read_bytes() for p in (project / "keys").iterdir()}
    subprocess.run(["./keys.sh", "localhost", "2"], cwd=project, check=True)
    before = read()
    subprocess.run(["./keys.sh", "localhost", "0"], cwd=project, check=True)
    after = read()
    assert {k for k in before if before[k] != after[k]} == {"server.pem", "server.key", "server.csr", "ca.srl"}
    assert len(after["keyring"].splitlines()) == 2
    verify = ["openssl", "verify", "-CAfile", "keys/ca.crt", "keys/server.pem"]
    subprocess.run(verify, cwd=project, check=True)
