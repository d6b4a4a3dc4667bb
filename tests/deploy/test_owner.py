"""Damaged files of an owner's ledgers get a sentence, and none begins anew."""

from __future__ import annotations

import contextlib
import json
import shlex
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import medley as md
from medley.deploy.node.account import FILE as ACCOUNT
from medley.deploy.node.owner import ROWS, SECRET, claim, ledgers, record_of, secret
from medley.deploy.node.record import APPROVALS, refuse_unapproved
from medley.recipe.toml import with_settings

PATIENTS = [f"row {k}".encode() for k in range(100)]
OTHERS = [f"other {k}".encode() for k in range(100)]


def key(path: Path) -> Path:
    of = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    path.write_bytes(of.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


def repr_of(content: bytes) -> str:
    """The name of a test's case."""
    return repr(content[:8])


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A node that has closed a recipe."""
    mine = {"memory": str(tmp_path / "memory"), "partition-id": 0, "key": str(key(tmp_path / "key"))}
    claim(mine, PATIENTS)
    record_of(mine, APPROVALS).add(recipe="a" * 32, until=None)
    return mine


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"memory/owner", b"/a\0b"])
def test_a_damaged_note_of_the_place(config: dict[str, Any], tmp_path: Path, content: bytes) -> None:
    before = (note := tmp_path / "key.ledgers").read_bytes()
    note.write_bytes(content)
    for memory in ("memory", "another"):
        with pytest.raises(md.RecipeError, match=r"key\.ledgers is damaged"):
            ledgers({**config, "memory": str(tmp_path / memory)})
    note.write_bytes(before)  # the remedy
    assert (ledgers(config) / APPROVALS).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[1, {}]", b'{"a": 1}', b"null", b"[" * 100_000], ids=repr_of)
@pytest.mark.parametrize("name", [ROWS, ACCOUNT])
def test_damaged_ledgers_limit_other_keys_still(
    config: dict[str, Any], tmp_path: Path, name: str, content: bytes
) -> None:
    if name == ACCOUNT and content.startswith(b'{"a"'):
        pytest.skip("this is an account")
    (ledgers(config) / name).write_bytes(content)
    other = {**config, "key": str(key(tmp_path / "other"))}
    for rows in (PATIENTS, OTHERS):
        with pytest.raises(md.RecipeError, match=f"{name} is damaged"):
            claim(other, rows)


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_without_its_secret_a_folder_of_ledgers_serves_nobody(
    config: dict[str, Any], tmp_path: Path, content: bytes | None
) -> None:
    place = tmp_path / "memory" / SECRET
    before = place.read_bytes()
    place.unlink()
    if content is not None:
        place.write_bytes(content)
    other = {**config, "key": str(key(tmp_path / "other"))}
    for node in (config, other):
        with pytest.raises(md.RecipeError, match="put back a copy"):
            claim(node, PATIENTS)
    with pytest.raises(md.RecipeError, match="damaged" if content is not None else "missing"):
        secret(config)  # of which coarse figures take their random numbers
    place.write_bytes(before)  # the remedy
    claim(config, PATIENTS)
    with pytest.raises(md.RecipeError, match="most of its rows have their ledgers in"):
        claim(other, PATIENTS)


@pytest.mark.parametrize(("end", "torn"), [(b"\n", False), (b"", True)])
def test_a_line_that_nests_too_deep_is_a_changed_line_or_an_incomplete_one(
    config: dict[str, Any], end: bytes, torn: bool
) -> None:
    record = record_of(config, APPROVALS)
    record.path.write_bytes(record.path.read_bytes() + b"[" * 100_000 + end)
    assert record.torn() is torn
    if torn:
        assert len([*record.lines()]) == 1
    else:
        with pytest.raises(md.WireError, match="line 2: this line was changed"):
            [*record.lines()]


def test_who_reads_the_file_of_rows_without_the_secret_finds_no_patient(config: dict[str, Any], tmp_path: Path) -> None:
    """Digests are keyed: two folders of the same rows have none in common, nor with those of an empty key."""
    other = {**config, "memory": str(tmp_path / "another"), "key": str(key(tmp_path / "other"))}
    claim(other, PATIENTS)
    one, two = ({*json.loads((ledgers(c) / ROWS).read_text())[1:]} for c in (config, other))
    assert len(one) == len(two) == len(PATIENTS)
    assert not one & two
    assert not one & {blake2b(row, digest_size=8).hexdigest() for row in PATIENTS}


def test_a_restored_file_of_rows_with_another_secret_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    """Whoever began a new secret and puts back an old file of rows would hide whose they are; the remedy binds them."""
    other = {**config, "key": str(key(tmp_path / "other"))}
    memory, rows = tmp_path / "memory", ledgers(config) / ROWS
    before = rows.read_bytes()
    (memory / SECRET).unlink()
    rows.unlink()
    claim(config, PATIENTS)  # begins a new secret
    rows.write_bytes(before)
    for node in (config, other):
        with pytest.raises(md.RecipeError, match=r"rows\.json was made with another secret"):
            claim(node, PATIENTS)
    rows.unlink()  # the remedy
    claim(config, PATIENTS)
    with pytest.raises(md.RecipeError, match="most of its rows have their ledgers in"):
        claim(other, PATIENTS)


def test_two_keys_do_not_claim_one_table_before_a_limit(tmp_path: Path) -> None:
    one, other = ({"memory": str(tmp_path), "partition-id": 0, "key": str(key(tmp_path / name))} for name in "ab")
    claim(one, PATIENTS)
    claim(other, OTHERS)
    with pytest.raises(md.RecipeError, match=r"Nothing is limited there so far: .* delete .*rows\.json") as e:
        claim(other, PATIENTS)
    Path(str(e.value).rpartition("delete ")[2]).unlink()  # the remedy
    claim(other, PATIENTS)
    with pytest.raises(md.RecipeError, match="most of its rows have their ledgers in"):
        claim(one, PATIENTS)


def test_a_signed_approval_that_is_none_and_a_line_of_rubbish_get_sentences(config: dict[str, Any]) -> None:
    record = record_of(config, APPROVALS)
    record.add(recipe="b" * 32, until="2999-99-99")
    with pytest.raises(md.RecipeError, match="line 2: this approval lacks a recipe, or its day"):
        refuse_unapproved(record, "b" * 32, 0, {})
    with record.path.open("ab") as file:
        file.write(b"rubbish\n")
    with pytest.raises(md.WireError, match=r"its last line is damaged.* approved or closed again"):
        record.add(recipe="c" * 32, until=None)


@pytest.mark.parametrize(
    "settings",
    ["run.rounds=3;private.epsilon=9", "'run.rounds=3 private.epsilon=9'", "run.rounds=3\nprivate.epsilon=9"],
)
def test_an_approval_covers_each_setting_as_the_recipe_reads_it(tmp_path: Path, settings: str) -> None:
    """What is one setting for the approval is one for the recipe, whatever stands in it."""
    mine = {"memory": str(tmp_path), "partition-id": 0, "key": str(key(tmp_path / "key"))}
    record = record_of(mine, APPROVALS)
    record.add(recipe="a" * 32, until="2999-12-31", allow="run.rounds")
    many = len(shlex.split(settings)) > 1
    with pytest.raises(md.RecipeError, match=r"set private\.epsilon") if many else contextlib.nullcontext():
        refuse_unapproved(record, "a" * 32, 0, {"set": settings})
    if not many:
        assert with_settings({"private": {"epsilon": 1}}, shlex.split(settings))["private"] == {"epsilon": 1}
    record.add(recipe="a" * 32, until="2999-12-31", allow="")
    with pytest.raises(md.RecipeError, match=r"does not let the server set run\.rounds"):
        refuse_unapproved(record, "a" * 32, 0, {"set": settings})


def test_ledgers_that_are_not_signed_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (old := tmp_path / "client0").mkdir()
    (old / APPROVALS).write_text('{"recipe": "a"}\n')
    ledgers({"memory": str(tmp_path), "partition-id": 1, "key": str(key(tmp_path / "key"))})
    assert "are not signed by the key" in caplog.text
