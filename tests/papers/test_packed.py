"""Finished runs in a compressed table: plain files join it, stand in its place, and come out of it to the byte."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAPERS = Path(__file__).parents[2] / "papers"
OLD = {"a/One": [{"seed": 0, "score": 0.1}, {"seed": 1, "score": None}], "a/Two": [{"seed": 0}], "b/One": [{"seed": 7}]}


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PAPERS))
    import packed

    return packed


@pytest.fixture
def folder(packed: Any, tmp_path: Path) -> Path:
    """A folder of results whose three files are in its table."""
    for name, lines in OLD.items():
        for line in lines:
            packed.append(tmp_path / "results" / f"{name}.jsonl", line)
    assert packed.fold(tmp_path / "results") == 3
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["results", "results.jsonl.xz"]
    return tmp_path / "results"


def test_a_run_that_ctrl_c_ended_is_not_kept(packed: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        packed.append(tmp_path / "One.jsonl", {"seed": 0, "status": "interrupted"})
    assert not (tmp_path / "One.jsonl").exists()


def command(packed: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["packed.py", *words])
    return int(packed.main())


def test_rows_are_read_as_the_files_were(packed: Any, folder: Path) -> None:
    assert {name: packed.read(folder / f"{name}.jsonl") for name in OLD} == OLD
    assert packed.read(folder / "a" / "Three.jsonl") == []
    assert packed.files(folder / "a") == [folder / "a" / "One.jsonl", folder / "a" / "Two.jsonl"]
    assert len(packed.files(folder)) == 3


def test_a_new_run_comes_behind_the_rows_and_other_files_stay(packed: Any, folder: Path) -> None:
    path = folder / "a" / "One.jsonl"
    packed.append(path, {"seed": 2})
    with path.open("a") as f:
        f.write('{"seed": 3, "sc')  # a kill in the middle of a line
    assert packed.read(path) == [*OLD["a/One"], {"seed": 2}]
    packed.append(path, {"seed": 3})
    assert [json.loads(x)["seed"] for x in path.read_text().splitlines()] == [0, 1, 2, 3]
    before = packed.table_of(folder).read_bytes()
    assert packed.fold(folder) == 1
    assert not path.exists()
    assert [x["seed"] for x in packed.read(path)] == [0, 1, 2, 3]
    assert packed.read(folder / "b" / "One.jsonl") == OLD["b/One"]
    assert packed.fold(folder) == 0
    assert packed.table_of(folder).read_bytes() != before


def test_a_file_stands_in_the_place_of_its_rows(packed: Any, folder: Path) -> None:
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "One.jsonl").write_text('{"seed": 9}\n')
    (folder / "a" / "Two.jsonl").write_text('{"see')
    assert packed.read(folder / "a" / "One.jsonl") == [{"seed": 9}]
    assert packed.read(folder / "a" / "Two.jsonl") == OLD["a/Two"]
    assert packed.fold(folder) == 1
    assert {name: packed.read(folder / f"{name}.jsonl") for name in OLD} == OLD | {"a/One": [{"seed": 9}]}


def test_out_and_in_again_are_the_same_bytes(
    packed: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = packed.table_of(folder)
    before = table.read_bytes()
    assert command(packed, monkeypatch, "unfold", str(folder.parent)) == 0
    assert not table.exists()
    assert (folder / "a" / "One.jsonl").read_text() == '{"seed": 0, "score": 0.1}\n{"seed": 1, "score": null}\n'
    assert command(packed, monkeypatch, "fold", str(folder.parent)) == 0
    assert capsys.readouterr().out == f"{folder.parent}: 3 files\n" * 2
    assert table.read_bytes() == before


def test_nothing_is_folded_while_runs_are_made(
    packed: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with packed.used(folder), packed.used(folder / "a"):  # two commands, one of them on a folder in it
        assert command(packed, monkeypatch, "fold", str(folder.parent)) == 2
        assert "in use by another process" in capsys.readouterr().err
    assert command(packed, monkeypatch, "fold", str(folder.parent)) == 0


@pytest.mark.parametrize("paper", ["cflag", "league", "niid", "tables"])
def test_the_tables_are_whole(packed: Any, paper: str) -> None:
    found = packed.rows(packed.table_of(PAPERS / paper / "results"))
    assert len(found) >= {"cflag": 5, "league": 700, "niid": 20, "tables": 140}[paper]
    assert all(json.loads(line) for text in found.values() for line in text.splitlines())
