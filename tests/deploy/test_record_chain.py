"""What each part of the record's chain is for: without one of them, a change goes unseen."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import medley as md
from medley.deploy.node.record import LEFT, Record
from medley.storage import atomic

pytest.importorskip("cryptography")


def made(path: Path, key: Path | None) -> Record:
    out = Record(path / LEFT, key)
    for k in range(4):
        out.add(run="7", kind="query.train", bytes=k, sha256="0" * 64)
    return out


@pytest.fixture
def key(tmp_path: Path) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(tmp_path / "node0")], check=True
    )
    return tmp_path / "node0"


def test_without_a_key_a_changed_line_breaks_the_line_after_it(tmp_path: Path) -> None:
    """Its number and its form are right, and there is no signature: only the digest in the next line tells."""
    r = made(tmp_path, None)
    lines = r.path.read_text().splitlines()
    lines[1] = lines[1].replace('"bytes":1', '"bytes":9')
    r.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(md.WireError, match="line 3: this line was changed, or the line before it is missing"):
        [*r.lines()]


@pytest.mark.parametrize("at", [0, 3])
def test_a_line_without_its_signature_is_refused(at: int, tmp_path: Path, key: Path) -> None:
    """The last line has no successor whose digest would show it."""
    r = made(tmp_path / "record", key)
    lines = r.path.read_text().splitlines()
    bare = {k: v for k, v in json.loads(lines[at]).items() if k != "signature"}
    lines[at] = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    r.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(md.WireError, match=f"line {at + 1}: this line was changed"):
        [*r.lines()]


def test_a_line_is_on_the_disk_before_add_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it describes is sent after that."""
    r, flushed = made(tmp_path, None), list[int]()
    right = atomic.flush
    monkeypatch.setattr(atomic, "flush", lambda number: (flushed.append(len(r.path.read_bytes())), right(number)))
    r.add(run="7", kind="query.train", bytes=5, sha256="0" * 64)
    assert flushed == [len(r.path.read_bytes())]
    assert r.path.stat().st_mode & 0o077 == 0
