"""A run's folder: killed at any moment, damaged, of another version, or in use."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import medley as md
from medley.contract import pytree
from medley.contract.errors import RecipeError, WireError
from medley.storage import atomic, checkpoint, run_folder
from medley.storage.history import history_of
from medley.storage.result import Result
from support.interrupts import lines_of
from support.pairs import quick
from support.toys import Toy, federation

ROUNDS = 3


def go(path: Path | None = None, **options: Any) -> Result:
    options = {"checkpoint_every": 2} | options
    if path is not None:
        options |= {"resume" if run_folder.holds_run(path) else "checkpoint": path}
    return md.run(Toy(), federation(3), ROUNDS, **options)


@pytest.fixture(scope="module")
def uninterrupted() -> Result:
    return go()


def forked(work: Callable[[], object]) -> int:
    """How a forked child that does this ends: its signal, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Fatal:
    """Passes calls on, and kills its process in place of the ``last``-th of all."""

    def __init__(self, last: int) -> None:
        self.left = last

    def wrap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*args, **options)

        return call


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_killed_before_any_write_it_resumes_to_the_same_bits(uninterrupted: Result, tmp_path: Path, step: int):
    """One child for each write, sync and renaming of a whole run, which dies in its place."""

    def work(path: Path, last: int) -> None:
        fatal = Fatal(last)
        for name in ("fsync", "pwrite", "ftruncate", "open"):
            setattr(os, name, fatal.wrap(getattr(os, name)))
        Path.replace = fatal.wrap(Path.replace)  # type: ignore[method-assign]
        go(path)

    for last in range(1, 99, step):
        path = tmp_path / str(last)
        if (end := forked(partial(work, path, last))) == 0:
            break
        assert end == -signal.SIGKILL
        again = go(path)
        assert again.digest == uninterrupted.digest, last
        assert Result.load(path).digest == uninterrupted.digest
        assert [row["round"] for row in history_of((path / "history.jsonl").read_text())] == [0, 1, 2, 3]
        assert not [*path.glob(".*.tmp")]
    assert 40 < last < 92


def test_a_folder_says_what_made_it_and_every_start(tmp_path: Path):
    go(tmp_path / "a", recipe="[run]\n")
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    assert about["settings"]["method"] == "Toy"
    assert about["settings"]["seed"] == 0
    assert {"python", "torch", "medley", "platform", "threads"} <= about["starts"][0].keys()
    md.run(Toy(), federation(3), 5, resume=tmp_path / "a")
    starts = json.loads((tmp_path / "a" / "run.json").read_text())["starts"]
    assert [s["round"] for s in starts] == [0, 3]
    assert (tmp_path / "a" / "recipe.toml").read_text() == "[run]\n"


def test_other_versions_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    go(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    about["starts"][-1]["torch"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(about))
    go(tmp_path)
    assert "was written with torch 1.0 and resumes with" in caplog.text


def test_history_and_ledger_grow_round_by_round(tmp_path: Path):
    lines = []

    def count(row: md.storage.result.Row) -> None:
        lines.append([len((tmp_path / name).read_text().splitlines()) for name in ("history.jsonl", "ledger.csv")])

    go(tmp_path, checkpoint_every=100, on_round=count)
    assert lines[1:] == [[2, 7], [3, 13], [4, 19]]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(uninterrupted: Result, tmp_path: Path):
    go(tmp_path)
    (tmp_path / checkpoint.FILE).unlink()
    with pytest.raises(WireError, match=r"method\.lr was 1\.0 there and is 2\.0 here"):
        md.run(Toy(lr=2.0), federation(3), ROUNDS, resume=tmp_path)
    assert go(tmp_path).digest == uninterrupted.digest


def test_a_second_run_in_a_folder_is_refused_and_harms_nothing(uninterrupted: Result, tmp_path: Path):
    def second(row: md.storage.result.Row) -> None:
        if row["round"] == 2:
            with pytest.raises(RecipeError, match=rf"in use: process {os.getpid()} is writing to it; .*another folder"):
                md.run(Toy(), federation(3), 1, checkpoint=tmp_path)
            with pytest.raises(RecipeError, match="in use"):
                md.run(Toy(), federation(3), 9, resume=tmp_path)

    assert go(tmp_path, on_round=second).digest == uninterrupted.digest
    with pytest.raises(RecipeError, match=r"holds a run already: resume it with resume='.*', choose another"):
        md.run(Toy(), federation(3), 1, checkpoint=tmp_path)
    assert Result.load(tmp_path).digest == uninterrupted.digest
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(RecipeError, match=r"resume it with .* \(medley run --resume /.*\), choose"):
        md.run(Toy(), federation(3), 1, checkpoint=tmp_path)


def test_a_result_is_saved_into_its_own_runs_folder_and_into_no_other(tmp_path: Path):
    first = go(tmp_path)
    short = md.run(Toy(), federation(3), 1)
    with pytest.raises(RecipeError, match=r"the folder holds another run, or a later state of this one"):
        short.save(tmp_path)
    assert first.save(tmp_path) == Result.load(tmp_path).save(tmp_path) == tmp_path
    assert md.run(Toy(), federation(3), 10, resume=tmp_path).save(tmp_path)
    with pytest.raises(RecipeError, match="another folder"):
        first.save(tmp_path)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_lock_ends_with_its_process_and_not_with_its_children(tmp_path: Path):
    def work() -> None:
        begun, begins = os.pipe()
        with atomic.locked(tmp_path):
            if os.fork() == 0:
                (tmp_path / "child").write_text(str(os.getpid()))
                os.write(begins, b".")
                time.sleep(3600)  # outlives its parent, as a worker does
            os.read(begun, 1)
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(work) == -signal.SIGKILL
    child = int((tmp_path / "child").read_text())
    with atomic.locked(tmp_path):
        os.kill(child, signal.SIGKILL)  # an error where it was gone


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_neither_holds_the_lock_nor_lets_it_go(tmp_path: Path):
    """The child leaves the block that it was born in; a third process is refused after that, as before."""

    class InChild(Exception):
        pass

    def third() -> None:
        with pytest.raises(RecipeError, match=f"in use: process {owner} is writing"), atomic.locked(tmp_path):
            pass

    owner = os.getpid()
    try:
        with atomic.locked(tmp_path):
            if (child := os.fork()) == 0:
                raise InChild
            os.waitpid(child, 0)
            assert forked(third) == 0
    except InChild:
        os._exit(0)


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with atomic.locked(tmp_path):
        assert "cannot be locked ([Errno" in caplog.text
        assert "only one run writes to it" in caplog.text


@pytest.mark.parametrize("name", ["history.jsonl", "ledger.csv", "checkpoint.safetensors", "run.json"])
@pytest.mark.parametrize("how", quick(2, ["away", "half", "noise"]))
def test_a_damaged_folder_is_refused_with_a_remedy(tmp_path: Path, name: str, how: str):
    go(tmp_path)
    path = tmp_path / name
    raw = path.read_bytes()
    if how == "away":
        path.unlink()
    else:
        path.write_bytes(raw[: len(raw) // 2] if how == "half" else raw[:20] + b"\xff" + raw[21:])
    if how == "away" and name in ("checkpoint.safetensors", "run.json"):
        assert go(tmp_path).status.ok
        return
    with pytest.raises(WireError, match="or start over") as caught:
        go(tmp_path)
    assert name in str(caught.value) or "history and ledger" in str(caught.value)
    assert "\n" not in str(caught.value)


REMEDY = "finish it with the version that wrote it, or start over in another folder"


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "FORMAT", "3")
    go(tmp_path)
    monkeypatch.undo()
    with pytest.raises(WireError) as caught:
        go(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds a run that medley {version('medley-fl')} wrote in format 3, but this version reads only "
        f"format 6: {REMEDY}"
    )


def test_a_run_of_another_format_without_a_checkpoint_is_refused(tmp_path: Path):
    """Killed before its first checkpoint, by the version before."""
    starts = [{"at": "2026-01-01 00:00:00 UTC", "round": 0, "medley": "0.0.9"}]
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "settings": {"method": "Toy"}, "starts": starts}))
    with pytest.raises(WireError) as caught:
        go(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds a run that medley 0.0.9 wrote in format 1, but this version reads only format 3: {REMEDY}"
    )


@pytest.mark.parametrize(
    "entry", [{"starts": 5}, {"starts": []}, {"starts": [1]}, {"settings": [1]}, {"settings": None}]
)
def test_a_run_json_of_other_kinds_is_refused(entry: dict[str, Any], tmp_path: Path) -> None:
    go(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(about | entry))
    with pytest.raises(WireError, match=r"run\.json cannot be read"):
        go(tmp_path)


def test_ctrl_c_at_any_line_of_an_addition_leaves_a_journal_that_goes_on(tmp_path: Path):
    def added(stop: int | None) -> tuple[str, list[Any]]:
        """Two additions, of which the first is stopped before this line of the function, and is made again."""
        journal = run_folder.Journal(tmp_path / "journal", "head\n", 1)
        with contextlib.suppress(KeyboardInterrupt):
            lines.append(lines_of(lambda: journal.add("one\n", 1), run_folder, stop, "add"))
        if journal.lines == 1:
            journal.add("one\n", 1)
        journal.add("two\n", 1)
        synced = journal.sync()
        journal.close()
        return (tmp_path / "journal").read_text(), synced

    lines: list[int] = []
    text = "head\none\ntwo\n"
    state = (text, [len(text), blake2b(text.encode(), digest_size=16).hexdigest()])
    assert added(None) == state
    assert lines[0] > 7
    assert [added(stop) for stop in range(1, lines[0] + 1)] == [state] * lines[0]
    assert len(lines) == 1


def test_a_run_does_not_replace_a_saved_result(tmp_path: Path):
    saved = md.run(Toy(), federation(3), 1)
    saved.save(tmp_path)
    with pytest.raises(RecipeError, match=r"holds a saved result, which this run would replace; choose another folder"):
        md.run(Toy(), federation(3), 1, checkpoint=tmp_path)
    assert Result.load(tmp_path).digest == saved.digest


@pytest.mark.slow
def test_clients_rows_are_appended_and_a_checkpoint_does_not_grow_with_them(tmp_path: Path):
    def sized(rounds: int) -> tuple[Result, int]:
        folder = tmp_path / str(rounds)
        r = md.run(md.FedAvg(), federation(20), rounds, clients_every=1, checkpoint=folder, checkpoint_every=1)
        return r, (folder / checkpoint.FILE).stat().st_size

    (short, few), (first_result, many) = sized(2), sized(12)
    assert len(first_result.clients) == 6 * len(short.clients) == 240
    assert many - few < 200  # bytes; a row takes a hundred
    assert history_of((tmp_path / "12" / "clients.jsonl").read_text()) == first_result.clients
    resumed = md.run(md.FedAvg(), federation(20), 12, clients_every=1, resume=tmp_path / "2")
    assert resumed.clients == first_result.clients
    assert history_of((tmp_path / "2" / "clients.jsonl").read_text()) == first_result.clients


def test_a_checkpoint_that_holds_the_clients_rows_itself_is_still_read(tmp_path: Path):
    uninterrupted = md.run(md.FedAvg(), federation(3), 4, clients_every=1)
    first = md.run(md.FedAvg(), federation(3), 2, clients_every=1, checkpoint=tmp_path)
    state = checkpoint.load(tmp_path, pytree.dataclasses_in(md.FedAvg().start(first.x)))
    for name in ("client rows", "earlier", "begun with", "last"):
        del state[name]
    settings = run_folder.described(tmp_path)["settings"]
    checkpoint.save(tmp_path, state | {"clients": first.clients}, settings)
    (tmp_path / "clients.jsonl").unlink()
    resumed = md.run(md.FedAvg(), federation(3), 4, clients_every=1, resume=tmp_path)
    assert (resumed.digest, resumed.clients) == (uninterrupted.digest, uninterrupted.clients)
