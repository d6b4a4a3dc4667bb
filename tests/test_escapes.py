"""Names that others chose, such as a method's in a run folder, command nothing in any output."""

from __future__ import annotations

import csv
import io
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md
from medley.cli.shown import SIGNS
from medley.logs import TextLines
from medley.statistics.formulas import latex
from medley.storage import run_view

EVIL = '=cmd|"a"\n12:00:00 forged\x1b[2J\u202e}\\input{x}^~<script>alert(1)</script>'
"""A formula, a forged line, a clear screen, another direction, LaTeX's commands, and a script."""


@pytest.fixture(scope="module")
def board() -> md.Board:
    data = md.datasets.gaussian_classes(60, 3, 2)
    fed = md.Federation(md.problems.Softmax(mu=0.1), data=data, partition=md.partitions.IID(3))
    r = fed.run(md.FedAvg(), 1)
    r.method = EVIL
    return md.Board([r])


def harmless(text: str) -> bool:
    return not any(ord(c) in SIGNS for c in text) and "\n12:00:00 forged" not in text


def test_the_tables_of_a_board(board: md.Board, tmp_path: Path) -> None:
    text = {
        kind: board.save(tmp_path / f"b.{kind}").read_text(encoding="utf-8") for kind in ("csv", "md", "tex", "html")
    }
    rows = [*csv.reader(io.StringIO(text["csv"]))]
    assert not [c for row in rows for c in row if re.match(r"\s*[=+@]", c)]
    assert harmless(text["md"])
    assert harmless(text["tex"])
    assert r"\input" not in text["tex"]
    assert r"\}\textbackslash{}input\{x\}\textasciicircum{}\textasciitilde{}" in text["tex"]
    assert "<script>alert" not in text["html"]
    assert "<script>alert" not in text["md"]


def test_the_table_of_a_study() -> None:
    text = latex(pd.DataFrame({EVIL: [1.0]}, index=[EVIL]), 2)
    assert harmless(text)
    assert r"\input" not in text
    assert text.count(r"\textbackslash{}input\{x\}") == 2


@pytest.mark.parametrize("ask", ["glm", "describe", "cox", "kaplan_meier", "meta", "prepare"])
def test_the_summary_of_a_study(ask: str) -> None:
    name, column = "\x1b[2J\nforged\u202e", "c\x1b[1A\nforged"
    g = np.random.default_rng(0)
    sites = {
        site: pd.DataFrame(
            {
                "y": np.r_[np.nan, g.normal(size=199)],
                "t": g.integers(1, 20, 200) * 1.0,
                "e": g.integers(0, 2, 200),
                column: g.choice([name, "b"], 200),
            }
        )
        for site in (name, "Bern", "Chur")
    }
    study = md.statistics.Study(sites, rules=md.statistics.Rules(1, 1))
    of = f"C(`{column}`)"
    asked: dict[str, Any] = {
        "glm": lambda: study.glm(f"y ~ {of}"),
        "describe": lambda: study.describe([column, "y"], by=column),
        "cox": lambda: study.cox(f"t ~ {of}", "e"),
        "kaplan_meier": lambda: study.kaplan_meier("t", "e", unit=1.0, until=20.0, by=column),
        "meta": lambda: study.meta(f"y ~ {of}"),
        "prepare": lambda: study.prepare([f"{column}: mode, encode"]),
    }
    text = asked[ask]().summary()
    assert re.findall(r"forged", text)
    assert not any(ord(c) in SIGNS for c in text)
    assert not re.search(r"^\s*forged", text, re.MULTILINE)


def test_lines_of_the_log() -> None:
    record = logging.LogRecord("medley", logging.INFO, "", 0, "%s", (EVIL,), None)
    line = TextLines("%(message)s").format(record)
    assert harmless(line.replace("\n", ""))
    assert "\n    12:00:00 forged" in line


def test_prometheus(tmp_path: Path) -> None:
    data = md.datasets.gaussian_classes(60, 3, 2)
    fed = md.Federation(md.problems.Softmax(mu=0.1), data=data, partition=md.partitions.IID(3))
    fed.run(md.FedAvg(), 1, checkpoint=tmp_path / "run")
    v = replace(run_view.view(tmp_path / "run"), method=EVIL)
    text = run_view.prometheus(v)
    line = re.compile(r'(# (HELP|TYPE) .*|medley_\w+\{(\w+="([^"\\\n]|\\["\\n])*",?)*\} \S+)')
    assert [row for row in text.splitlines() if not line.fullmatch(row)] == []
    assert not any(ord(c) in SIGNS for c in text.replace("\n", ""))
