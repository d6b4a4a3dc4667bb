"""Planted bugs follow the source: each text that one replaces is there once, and its tests' files exist."""

from __future__ import annotations

from pathlib import Path

import medley as md
from support.scripts import BENCHMARKS, loaded

SOURCE = Path(md.__file__).parent
PLANTS = loaded("planted_bugs.py", BENCHMARKS).PLANTS


def test_each_planted_bug_has_one_place_in_the_source() -> None:
    assert len(PLANTS) > 50
    stale = [p.name for p in PLANTS if (SOURCE / p.file).read_text(encoding="utf-8").count(p.old) != 1]
    assert stale == []


def test_the_files_of_its_tests_exist() -> None:
    files = {name.partition("::")[0] for p in PLANTS for name in p.tests}
    assert [file for file in sorted(files) if not (BENCHMARKS.parent / file).exists()] == []
