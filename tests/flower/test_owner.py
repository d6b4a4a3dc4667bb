"""Damaged files of an owner's ledgers get a sentence, and none begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import medley as md
from medley.flower.account import FILE as ACCOUNT
from medley.flower.owner import ROWS, SECRET, claim, ledgers, record_of, secret
from medley.flower.record import APPROVALS

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
