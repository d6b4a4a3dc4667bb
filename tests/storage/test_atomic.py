from __future__ import annotations

import os
from pathlib import Path

import pytest

from medley.contract.errors import MedleyError, RecipeError, WireError
from medley.storage import atomic
from medley.storage.events import Events


def write_half(path: Path, error: BaseException) -> None:
    with atomic.replacing(path) as tmp:
        tmp.write_text("half")
        raise error


def test_a_file_appears_whole(tmp_path: Path):
    with atomic.replacing(tmp_path / "a.txt") as tmp:
        tmp.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("odd")])
def test_what_was_there_stays_when_writing_fails(tmp_path: Path, error: Exception):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(MedleyError, match=r"cannot write .*a\.txt") as caught:
        write_half(tmp_path / "a.txt", error)
    assert caught.value.__cause__ is error
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}


def test_the_error_of_clearing_up_does_not_hide_the_first(tmp_path: Path):
    (tmp_path / "file").write_text("in the place of a folder")
    with pytest.raises(MedleyError, match=r"cannot write .*report\.html: .*Not a directory"):
        write_half(tmp_path / "file" / "report.html", RuntimeError("unreached"))


def test_a_place_is_tried_before_there_is_something_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in the place of a folder")
    atomic.writable(tmp_path / "new" / "a.html", "compare")
    (tmp_path / "new" / "a.html").write_text("old")
    atomic.writable(tmp_path / "new" / "a.html", "compare")
    assert [(p.name, p.read_text()) for p in (tmp_path / "new").iterdir()] == [("a.html", "old")]
    with pytest.raises(MedleyError, match=r"cannot make the folder .*file: .*; choose another"):
        atomic.writable(tmp_path / "file" / "a.html", "compare")
    with pytest.raises(RecipeError, match="new cannot be written: it is a folder; give the name of a file"):
        atomic.writable(tmp_path / "new", "compare")
    monkeypatch.setattr(Path, "touch", refused)  # permissions do not stop root
    with pytest.raises(RecipeError, match=r"compare: .*a\.html cannot be written: .*permission denied"):
        atomic.writable(tmp_path / "new" / "a.html", "compare")


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system has no flag against links")
@pytest.mark.parametrize("name", [".writer", ".lock", "events.jsonl", "history.jsonl"])
def test_a_link_in_a_folder_of_somebody_else_is_not_written_through(tmp_path: Path, name: str):
    (victim := tmp_path / "victim").write_text("mine")
    (folder := tmp_path / "run").mkdir()
    (folder / "seeds").symlink_to(tmp_path)
    with atomic.locked(folder):
        pass
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    Events(folder, listen=False).add("start")
    with pytest.raises(RecipeError, match=rf"{name} is a link to .*victim"), atomic.locked(folder):
        pass
    assert victim.read_text() == "mine"


def refused(path: Path, *_: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_ctrl_c_while_writing_leaves_what_was_there(tmp_path: Path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "a.txt", KeyboardInterrupt())
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}


def test_errors_of_our_own_pass_through(tmp_path: Path):
    with pytest.raises(WireError, match="mine"), atomic.replacing(tmp_path / "a.txt"):
        raise WireError("mine")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(MedleyError, match="cannot write"), atomic.replacing(tmp_path / "no" / "a.txt") as tmp:
        tmp.write_text("x")


def test_only_files_of_a_run_are_written_again_with_resume(tmp_path: Path):
    with pytest.raises(MedleyError, match=r"then run again$"), atomic.writing(tmp_path / "page.html"):
        raise OSError("full")
    (tmp_path / "run.json").touch()
    with pytest.raises(MedleyError, match=r"then run again with resume=$"), atomic.writing(tmp_path / "history.jsonl"):
        raise OSError("full")
