"""A node's record: what left it, line by line, in a chain that shows a changed bit; and recipes approved or closed."""

from __future__ import annotations

import datetime
import json
import random
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

import medley as md
from medley.cli import app as cli
from medley.flower.record import APPROVALS, LEFT, Record, digest, refuse_unapproved

pytest.importorskip("cryptography")

RECIPE = """
[data]
kind = "gaussian_classes"
n = 60
features = 3
classes = 2

[problem]
kind = "Softmax"

[partition]
kind = "IID"
clients = 2

[run]
rounds = 2

[[methods]]
kind = "FedAvg"
"""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "node0"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def record(tmp_path: Path, key: Path) -> Record:
    made = Record(tmp_path / "client0" / LEFT, key)
    for k in range(5):
        made.add(run="7", kind="query.train", bytes=k, sha256=sha256(b"%d" % k).hexdigest())
    return made


def test_lines_are_as_written_and_for_their_owner_only(record: Record) -> None:
    assert [(line["n"], line["bytes"]) for line in record.lines()] == [(k, k) for k in range(5)]
    assert record.path.stat().st_mode & 0o077 == 0


def test_a_flipped_bit_is_found_wherever_it_is(record: Record) -> None:
    whole, g = record.path.read_bytes(), random.Random(0)
    for at in [*g.sample(range(len(whole)), 60), len(whole) - 1]:
        changed = bytearray(whole)
        changed[at] ^= 1 << g.randrange(8)
        record.path.write_bytes(changed)
        line = 1 + whole[:at].count(b"\n")
        with pytest.raises(md.WireError, match=rf"line {line}: this line was changed"):
            [*record.lines()]


def test_a_line_that_is_gone_or_moved_is_found(record: Record) -> None:
    lines = record.path.read_bytes().splitlines(keepends=True)
    for order in ([0, 2, 3, 4], [1, 2, 3, 4], [0, 2, 1, 3, 4], [0, 0, 1, 2, 3, 4]):
        record.path.write_bytes(b"".join(lines[k] for k in order))
        with pytest.raises(md.WireError, match="this line was changed, or the line before it is missing"):
            [*record.lines()]


def test_a_chain_made_anew_with_another_key_is_no_record(record: Record, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(other)], check=True)
    record.path.unlink()
    Record(record.path, other).add(kind="query", bytes=1)
    with pytest.raises(md.WireError, match="line 1"):
        [*record.lines()]


def test_whoever_has_the_public_key_alone_checks_the_signatures(record: Record, key: Path, tmp_path: Path) -> None:
    (public := tmp_path / "node0.pub").write_bytes(Path(f"{key}.pub").read_bytes())
    where = ("--memory", tmp_path, "--key", public)
    code, said = ask("--log", "verify", *where)
    assert (code, "5 lines, whole, signed" in said) == (0, True), said
    lines = record.path.read_bytes().splitlines(keepends=True)
    forged = json.loads(lines[4])
    forged["signature"] = json.loads(lines[3])["signature"]
    last = json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()
    record.path.write_bytes(b"".join([*lines[:4], last + b"\n"]))
    code, said = ask("--log", "verify", *where)
    assert code != 0
    assert "line 5: this line was changed" in said
    public.write_bytes(public.read_bytes()[:60])
    assert "is not a public key as ssh-keygen" in ask("--log", "verify", *where)[1]


def test_a_line_that_was_not_written_whole_is_taken_off(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    with record.path.open("ab") as file:
        file.write(b'{"n":5,"bytes":')
    record.add(kind="query", bytes=9)
    assert [line["bytes"] for line in record.lines()] == [0, 1, 2, 3, 4, 9]
    assert "incomplete line" in caplog.text


def test_approvals_end_and_close(tmp_path: Path, key: Path) -> None:
    approvals = Record(tmp_path / APPROVALS, key)
    refuse_unapproved(approvals, "a", 0, {})  # nothing is approved or closed
    today = datetime.datetime.now(datetime.UTC).date()
    approvals.add(recipe="b", until=None)
    refuse_unapproved(approvals, "a", 0, {})
    with pytest.raises(md.RecipeError, match="client 0: its owner closed this study"):
        refuse_unapproved(approvals, "b", 0, {})
    approvals.add(recipe="a", until=today.isoformat())
    refuse_unapproved(approvals, "a", 0, {})
    with pytest.raises(md.RecipeError, match="client 0: its owner has not approved this recipe"):
        refuse_unapproved(approvals, "c", 0, {})
    approvals.add(recipe="a", until=(today - datetime.timedelta(days=1)).isoformat())
    with pytest.raises(md.RecipeError, match="the approval of this recipe ended on"):
        refuse_unapproved(approvals, "a", 0, {})
    approvals.add(recipe="b", until=today.isoformat())
    refuse_unapproved(approvals, "b", 0, {})


def test_an_approval_is_of_the_recipe_as_it_stands(tmp_path: Path, key: Path) -> None:
    approvals = Record(tmp_path / APPROVALS, key)
    asks = {"set": "run.rounds=9 pace.lr=0.5"}
    refuse_unapproved(approvals, "a", 0, asks)  # without approvals --allow is the owner's word
    for allow, refused in (("", "run.rounds"), ("run.*", "pace.lr"), ("run.* pace.lr", "")):
        approvals.add(recipe="a", until="2999-01-01", allow=allow)
        refuse_unapproved(approvals, "a", 0, {})
        if refused:
            with pytest.raises(md.RecipeError, match=f"does not let the server set {refused}: .* by its approval"):
                refuse_unapproved(approvals, "a", 0, asks)
        else:
            refuse_unapproved(approvals, "a", 0, asks)


def ask(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(cli, ["node", *map(str, arguments)])
    said = found.output if found.exception is None or isinstance(found.exception, SystemExit) else str(found.exception)
    return found.exit_code, said


def test_a_run_is_in_the_record_and_a_closed_study_gets_no_answer(tmp_path: Path, key: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict

    from medley.flower import client_app, server_app
    from support.bench import Bench

    path, memory = tmp_path / "recipe.toml", tmp_path / "memory"
    path.write_text(RECIPE, encoding="utf-8")

    def run(name: str, **more: str) -> None:
        config = {"clients": 2, "save": str(tmp_path / name), "timeout": 5, **more}
        grid = Bench([client_app(path)] * 2, config, memory=str(memory), key=str(key))
        server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))

    run("first")
    lines = [*Record(memory / "client1" / LEFT, key).lines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "query"
    assert kinds.count("query.train") == 2
    assert {"evaluate"} < set(kinds)
    assert {line["recipe"] for line in lines} == {digest(path)}
    where = ("--memory", memory, "--client", 1, "--key", key)
    code, said = ask("--log", "verify", *where)
    assert code == 0
    assert f"{len(lines)} lines, whole, signed" in said
    assert "kind query.train" in ask("--log", "show", *where)[1]

    assert ask("--approve", "--until", "tomorrow", "--recipe", path, *where)[0] != 0
    assert "is closed" in ask("--close", "--recipe", path, *where)[1]
    with pytest.raises(md.RecipeError, match="client 1: its owner closed this study"):
        run("second")
    errors = [*Record(memory / "client1" / LEFT, key).lines()][len(lines) :]
    assert {line["kind"] for line in errors} == {"query"}  # the refusal is in the record too
    assert "nothing" in ask("--approve", "--until", "2999-01-01", "--recipe", path, *where)[1]
    with pytest.raises(md.RecipeError, match=r"client 1 does not let the server set run.rounds: .* by its approval"):
        run("third", set="run.rounds=1")
    ask("--approve", "--until", "2999-01-01", "--allow", "run.rounds", "--recipe", path, *where)
    run("third", set="run.rounds=1")

    changed = json.loads((memory / "client1" / LEFT).read_text().splitlines()[0])
    (memory / "client1" / LEFT).write_text(json.dumps({**changed, "bytes": 1}) + "\n")
    code, said = ask("--log", "verify", *where)
    assert code != 0
    assert "line 1: this line was changed" in said


def test_every_answer_has_a_line_and_is_of_the_recipe_that_the_line_names(tmp_path: Path, key: Path) -> None:
    """A file that is written anew while its node runs is not what the node serves, so nothing of it is approved."""
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from medley.flower import client_app
    from medley.flower.checked_json import opened

    path, memory = tmp_path / "recipe.toml", tmp_path / "memory"
    path.write_text(RECIPE, encoding="utf-8")
    app, node = client_app(path), {"partition-id": 0, "memory": str(memory), "key": str(key)}

    def ask(content: RecordDict) -> bytes:
        message = Message(content, dst_node_id=100, message_type="query")
        context = Context(7, 100, {**node}, RecordDict(), {"clients": 2})
        answer = app(message, context).content["answer"]
        assert isinstance(answer, ConfigRecord)
        return bytes(answer["bytes"])  # type: ignore[arg-type]

    assert b'"rows"' in opened(ask(RecordDict()))
    with pytest.raises(md.WireError):
        opened(ask(RecordDict({"run": ConfigRecord({"other": 1})})))
    before = digest(path)
    path.write_text(RECIPE + "# changed\n", encoding="utf-8")
    with pytest.raises(md.RecipeError, match="client 0: its recipe's file has changed since its node started"):
        opened(ask(RecordDict()))
    lines = [*Record(memory / "client0" / LEFT, key).lines()]
    assert [line["recipe"] for line in lines] == [before, before, before]
