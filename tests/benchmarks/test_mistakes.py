"""Beginners' mistakes: each message names the cause and a remedy, and the remedy works when a script follows it."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pairs import quick

FILE = Path(__file__).parents[2] / "benchmarks" / "mistakes.py"
SCRIPT = runpy.run_path(str(FILE))
MISTAKES = SCRIPT["MISTAKES"]
MESSAGES = json.loads(FILE.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A folder with the files that mistakes name, and the names in lines of Python."""
    before = Path.cwd()
    yield SCRIPT["begin"](tmp_path_factory.mktemp("mistakes"))
    os.chdir(before)


@pytest.mark.parametrize("case", quick(12, [m.wrong for m in MISTAKES["python"]]))
def test_the_remedy_works_in_python(case: str, names: dict[str, Any]) -> None:
    follow(case, "python", names)


@pytest.mark.parametrize("case", quick(6, [m.wrong for m in MISTAKES["shell"]]))
def test_the_remedy_works_at_the_shell(case: str, names: dict[str, Any]) -> None:
    follow(case, "shell", None)


def follow(case: str, kind: str, names: dict[str, Any] | None) -> None:
    (mistake,) = (m for m in MISTAKES[kind] if m.wrong == case)
    message = SCRIPT["follow"](mistake, names)
    assert mistake.cause in message
    assert mistake.remedy in message


def test_the_saved_messages_are_those_of_the_table() -> None:
    assert [len(MISTAKES[kind]) for kind in ("python", "shell")] == [79, 63]
    assert {kind: [*messages] for kind, messages in MESSAGES.items()} == {
        kind: [m.wrong for m in mistakes] for kind, mistakes in MISTAKES.items()
    }
