"""A node's record: what left it, line by line, in a chain that shows a changed bit; and recipes approved or closed."""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley.cli import app as cli
from medley.deploy.node.keys import ORDER
from medley.deploy.node.owner import fingerprint, ledgers, secret
from medley.deploy.node.record import APPROVALS, LEFT, Record, digest, refuse_unapproved

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


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (path := tmp_path / "keys" / "node0").parent.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def record(tmp_path: Path, key: Path) -> Record:
    made = Record(tmp_path / f"owner-{fingerprint(key)}" / LEFT, key)
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


def test_an_approval_may_be_of_one_file_of_rows(tmp_path: Path, key: Path) -> None:
    """The file has the query; another file, or none, is refused, and an approval without one holds for all."""
    pytest.importorskip("flwr")
    folder = str(tmp_path)
    rows, recipe = tmp_path / "mydata.py", tmp_path / "recipe.toml"
    rows.write_text("QUERY = 'SELECT age FROM stays'")
    recipe.write_text('[[study]]\nkind = "describe"\n')
    approve = ("--approve", "--until", "2999-01-01", "--recipe", str(recipe), "--memory", folder, "--key", str(key))
    assert ask(*approve, "--data", str(tmp_path / "other.py"))[0] != 0
    code, said = ask(*approve, "--data", str(rows))
    assert code == 0
    assert f"its rows are those of mydata.py (digest {digest(rows)})" in " ".join(said.split())
    approvals = Record(next(tmp_path.rglob(APPROVALS)), key)
    refuse_unapproved(approvals, digest(recipe), 0, {}, digest(rows))
    for other in ("", "0" * 32):
        with pytest.raises(md.RecipeError, match="approved this recipe for other rows: the file of --data has changed"):
            refuse_unapproved(approvals, digest(recipe), 0, {}, other)
    assert ask(*approve)[0] == 0
    refuse_unapproved(approvals, digest(recipe), 0, {}, "0" * 32)


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
    owner = memory / f"owner-{fingerprint(key)}"

    def run(name: str, **more: str) -> None:
        config = {"clients": 2, "save": str(tmp_path / name), "timeout": 5, **more}
        grid = Bench([client_app(path)] * 2, config, memory=str(memory), key=str(key))
        server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))

    run("first")
    lines = [*Record(owner / LEFT, key).lines()]
    kinds = [line["kind"] for line in lines]
    assert kinds[0] == "query"
    assert kinds.count("query.train") == 4
    assert {"evaluate"} < set(kinds)
    assert {line["recipe"] for line in lines} == {digest(path)}
    where = ("--memory", memory, "--client", 1, "--key", key)
    code, said = ask("--log", "verify", *where)
    assert code == 0
    assert f"{len(lines)} lines, whole, signed" in said
    assert "kind query.train" in ask("--log", "show", *where)[1]

    assert ask("--approve", "--until", "tomorrow", "--recipe", path, *where)[0] != 0
    assert "is closed" in ask("--close", "--recipe", path, *where)[1]
    with pytest.raises(md.RecipeError, match=r"client [01]: its owner closed this study"):
        run("second")
    errors = [*Record(owner / LEFT, key).lines()][len(lines) :]
    assert {line["kind"] for line in errors} == {"query"}  # the refusal is in the record too
    assert "nothing" in ask("--approve", "--until", "2999-01-01", "--recipe", path, *where)[1]
    with pytest.raises(md.RecipeError, match=r"client [01] does not let the server set run.rounds: .* by its approval"):
        run("third", set="run.rounds=1")
    ask("--approve", "--until", "2999-01-01", "--allow", "run.rounds", "--recipe", path, *where)
    run("third", set="run.rounds=1")

    changed = json.loads((owner / LEFT).read_text().splitlines()[0])
    (owner / LEFT).write_text(json.dumps({**changed, "bytes": 1}) + "\n")
    code, said = ask("--log", "verify", *where)
    assert code != 0
    assert "line 1: this line was changed" in said


def test_every_answer_has_a_line_and_is_of_the_recipe_that_the_line_names(tmp_path: Path, key: Path) -> None:
    """A file that is written anew while its node runs is not what the node serves, so nothing of it is approved."""
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from medley.deploy.protocol.checked_json import opened
    from medley.flower import client_app

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
    lines = [*Record(memory / f"owner-{fingerprint(key)}" / LEFT, key).lines()]
    assert [line["recipe"] for line in lines] == [before, before, before]


def test_a_signature_has_one_form_and_a_line_cut_short_was_not_sent(record: Record, key: Path) -> None:
    """Whoever has no key can still write (r, n − s) for (r, s): it verifies, too."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    lines = record.path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    r, s = decode_dss_signature(bytes.fromhex(last["signature"]))
    last["signature"] = encode_dss_signature(r, ORDER - s).hex()
    other = json.dumps(last, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    record.path.write_bytes(b"".join([*lines[:-1], other]))
    with pytest.raises(md.WireError, match="line 5: this line was changed"):
        [*record.lines()]
    where = ("--memory", record.path.parents[1], "--key", key)
    for torn in (lines[-1][:-1], lines[-1][:40]):
        record.path.write_bytes(b"".join(lines[:-1]) + torn)
        code, said = ask("--log", "verify", *where)
        assert (code, "4 lines, whole, signed" in said, "line 5: incomplete, not sent" in said) == (0, True, True)


def test_the_record_holds_all_settings_and_long_lines(record: Record) -> None:
    long = "x" * 200_000
    record.add(kind="query", set=long)
    record.add(kind="query", set="")
    assert [line["set"] for line in record.lines() if "set" in line] == [long, ""]
    with pytest.raises(md.RecipeError, match="more than 16000 characters, which its record does not hold"):
        refuse_unapproved(Record(record.path.parent / APPROVALS), "a", 0, {"set": long})


def test_foreign_text_is_shown_on_its_line(record: Record, key: Path) -> None:
    forged = "pace.lr=1\nn 9  nothing left the node\x1b[2J\u202e\u200b\r"
    record.add(kind="query", set=forged)
    said = ask("--log", "show", "--memory", record.path.parents[1], "--key", key)[1]
    assert not any(line.startswith("n 9") for line in said.splitlines())
    assert r"pace.lr=1\nn 9  nothing left the node\x1b[2J\u202e\u200b\r" in said
    assert all(c.isprintable() or c == "\n" for c in said)


@pytest.mark.skipif(os.name != "posix", reason="links and modes of POSIX")
def test_the_ledgers_are_no_links_and_for_their_owner_alone(record: Record, key: Path, tmp_path: Path) -> None:
    assert {p.stat().st_mode & 0o777 for p in record.path.parent.iterdir()} == {0o600}
    moved = tmp_path / "elsewhere"
    record.path.rename(moved)
    record.path.symlink_to(moved)
    with pytest.raises(md.RecipeError, match="is a link to"):
        record.add(kind="query")
    assert len(moved.read_bytes().splitlines()) == 5
    config = {"memory": str(tmp_path), "partition-id": 0, "key": str(key)}
    with pytest.raises(md.RecipeError, match="is a link to"):
        ledgers(config)
    record.path.unlink()
    (record.path.parent / "account.json").symlink_to(moved)
    with pytest.raises(md.RecipeError, match="is a link to"):
        ledgers(config)
    (tmp_path / "rows.key").symlink_to(moved)
    with pytest.raises(md.RecipeError, match="is a link to"):
        secret(config)


def test_a_record_of_an_earlier_version_is_shown_where_it_lies(tmp_path: Path, key: Path) -> None:
    Record(tmp_path / "client0" / LEFT, key).add(kind="query")
    for where in (("--key", key), ("--key", f"{key}.pub"), ("--client", 0), ()):
        code, said = ask("--log", "verify", "--memory", tmp_path, *where)
        assert (code, "1 lines, whole" in said) == (0, True), said
    assert not [*tmp_path.glob("owner-*")]


def test_an_approval_without_a_key_or_for_a_day_that_is_past_is_not_written(tmp_path: Path, key: Path) -> None:
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    where = ("--recipe", path, "--memory", tmp_path / "memory", "--client", 0)
    for what in (["--approve", "--until", "2999-01-01"], ["--close"]):
        code, said = ask(*what, *where)
        assert code != 0
        assert "give --key" in said
    yesterday = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)
    code, said = ask("--approve", "--until", yesterday, *where, "--key", key)
    assert code != 0
    assert f"--until {yesterday}: this day is past" in said
    assert not [*(tmp_path / "memory").rglob(APPROVALS)]


class Node:
    """A node of Flower's objects, asked without a network."""

    def __init__(self, path: Path, memory: Path, key: Path | None, client: int = 0, data: Any = None) -> None:
        from medley.flower import client_app

        self.app = client_app(path, data)
        self.config = {"partition-id": client, "memory": str(memory), **({} if key is None else {"key": str(key)})}

    def ask(self, **config: Any) -> bytes:
        from flwr.app import Context, Message, RecordDict

        import support.bench  # noqa: F401 - it names the task, as Flower does in a task's process
        from medley.deploy.protocol.checked_json import opened

        context = Context(7, 100, {**self.config}, RecordDict(), {"clients": 2, **config})
        answer = self.app(Message(RecordDict(), dst_node_id=100, message_type="query"), context).content["answer"]
        return opened(bytes(answer["bytes"]))


def second_key(key: Path) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(other := key.parent / "new1")], check=True
    )
    return other


def test_ledgers_belong_to_the_key_whatever_the_number_the_folder_and_the_rows(tmp_path: Path, key: Path) -> None:
    """A hospital that closed a recipe does not answer it as another client, from another folder, or by another key."""
    pytest.importorskip("flwr")
    rows = md.datasets.gaussian_classes(60, 3, 2)
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (closed := tmp_path / "closed.toml").write_text(RECIPE + "# closed\n", encoding="utf-8")
    memory, other = tmp_path / "memory", second_key(key)
    start = lambda recipe=path, memory=memory, key=key, client=0, data=rows: Node(
        recipe, memory, key, client, lambda _: data
    )
    start().ask()
    assert ask("--close", "--recipe", closed, "--memory", memory, "--key", key)[0] == 0
    for client in (0, 1):
        with pytest.raises(md.RecipeError, match="its owner closed this study"):
            start(closed, client=client).ask()
    with pytest.raises(md.WireError, match="its record cannot be written"):
        start(memory=tmp_path / "second").ask()
    grown = md.datasets.Dataset(torch.cat([rows.X, rows.X[:1] + 1]), torch.cat([rows.y, rows.y[:1]]), classes=2)
    for node in (start(key=other), start(key=other, data=grown, client=1), start(key=None)):
        with pytest.raises(md.RecipeError, match="most of its rows have their ledgers in"):
            node.ask()
    assert start(key=other, data=md.datasets.gaussian_classes(60, 3, 2, seed=1)).ask()  # another hospital's rows


def test_a_new_key_takes_the_ledgers_over_and_the_old_one_has_none(tmp_path: Path, key: Path) -> None:
    pytest.importorskip("flwr")
    rows, memory, other = md.datasets.gaussian_classes(60, 3, 2), tmp_path / "memory", second_key(key)
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    Node(path, memory, key, 0, lambda _: rows).ask()
    ask("--close", "--recipe", path, "--memory", memory, "--key", key)
    code, said = ask("--renew", key, "--key", other, "--memory", memory)
    assert (code, f"are now those of {other}" in said) == (0, True), said
    with pytest.raises(md.RecipeError, match="its owner closed this study"):
        Node(path, memory, other, 0, lambda _: rows).ask()
    with pytest.raises(md.WireError, match="its record cannot be written"):
        Node(path, memory, key, 0, lambda _: rows).ask()
    assert ask("--log", "verify", "--memory", memory, "--key", other)[0] == 0
    past = memory / f"owner-{fingerprint(other)}" / f"until-{fingerprint(key)}"
    assert [line["kind"] for line in Record(past / LEFT, key).lines()] == ["query"]


def test_a_new_key_keeps_which_rows_an_approval_is_for(tmp_path: Path, key: Path) -> None:
    pytest.importorskip("flwr")
    memory, other = tmp_path / "memory", second_key(key)
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (data := tmp_path / "rows.py").write_text("def data(client): ...\n", encoding="utf-8")
    approve = ("--approve", "--recipe", path, "--data", data, "--until", "2999-12-31", "--memory", memory, "--key", key)
    code, said = ask(*approve)
    assert code == 0, said
    code, said = ask("--renew", key, "--key", other, "--memory", memory)
    assert code == 0, said
    ledger = Record(memory / f"owner-{fingerprint(other)}" / APPROVALS, other)
    refuse_unapproved(ledger, digest(path), 0, {}, digest(data))
    with pytest.raises(md.RecipeError, match="approved this recipe for other rows"):
        refuse_unapproved(ledger, digest(path), 0, {}, "another")


def test_ledgers_of_earlier_versions_are_read_if_it_is_clear_whose_they_are(tmp_path: Path, key: Path) -> None:
    pytest.importorskip("flwr")
    memory = tmp_path / "memory"
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    for client in (0, 1):
        Record(memory / f"client{client}" / LEFT, key).add(kind="query")
    Record(memory / "client1" / APPROVALS, key).add(recipe=digest(path), until=None)
    with pytest.raises(md.WireError, match="its record cannot be written"):
        Node(path, memory, key, 0).ask()
    with pytest.raises(md.RecipeError, match=r"client0, .*client1: an earlier version wrote these ledgers, .* move"):
        ledgers({"memory": str(memory), "partition-id": 0, "key": str(key)})
    (memory / "client0").rename(tmp_path / "old")  # the remedy
    with pytest.raises(md.RecipeError, match="its owner closed this study"):
        Node(path, memory, key, 0).ask()
    assert not (memory / "client1" / LEFT).exists()


def test_a_hospital_sees_the_numbers_that_it_sent(tmp_path: Path, key: Path) -> None:
    """Figures are kept beside the record, under the digest in their line; a file that differs from it is noticed."""
    pytest.importorskip("flwr")
    (path := tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    Node(path, memory := tmp_path / "memory", key).ask()
    where = ("--memory", memory, "--key", key)
    said = ask("--log", "sent", *where)[1]
    assert "what an account of its rows: their numbers, labels, names and shapes" in said
    assert "    client: 0\n" in said
    line = next(iter(Record(memory / f"owner-{fingerprint(key)}" / LEFT, key).lines()))
    sent = memory / f"owner-{fingerprint(key)}" / "sent"
    assert (sent / sha256(path.read_bytes()).hexdigest()).read_bytes() == path.read_bytes()
    (sent / line["sha256"]).write_bytes(b"=other")
    assert "line 1: the answer kept in sent/" in ask("--log", "verify", *where)[1]
    (sent / line["sha256"]).unlink()
    assert "of 1 answers only the digest is left" in ask("--log", "verify", *where)[1]
