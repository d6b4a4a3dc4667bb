"""Tables and curves as files for a paper."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from medley.contract.errors import RecipeError
from medley.experiments import board as saved
from medley.experiments.board import Board
from medley.report import latex
from support.made_up_runs import board, run


def test_a_table_for_latex_has_whole_rows_and_no_sign_of_its_own() -> None:
    runs = board(5, noise=0.001) + [run("100% a_b #{c} & ~^\\", s, top=0.5) for s in range(5)]
    text = latex(runs)
    body = text.split("\\begin{tabular}")[1].split("\\end{tabular}")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    columns = re.search(r"\{(lr+)\}", body)[1]  # type: ignore[index]
    assert len(rows) == 5
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}
    assert r"100\% a\_b \#\{c\} \& \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert not re.search(r"[±−ε–]|(?<!\\)[%#_]", text)
    assert r"\textbf{B} & \textbf{80" in text
    assert "status" in rows[0]
    assert "wall" not in rows[0]
    assert "status" not in latex([run("A", s) for s in (0, 1)])


def test_a_board_is_saved_as_table_and_curves(tmp_path: Path) -> None:
    made = Board(board(3))
    assert made.save(tmp_path / "a" / "t.tex").read_text() == latex(made.results)
    assert (tmp_path / "a" / "t.md").exists() is False
    assert made.save(tmp_path / "t.md").read_text(encoding="utf-8") == made.markdown()
    svg = made.save(tmp_path / "c.svg", metric="loss", over="bytes").read_text(encoding="utf-8")
    root = ET.fromstring(svg)
    assert root.findtext("{http://www.w3.org/2000/svg}title") == "loss over bytes sent, up and down"
    assert {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")} >= {"A", "B", "C"}
    assert "accuracy over round" in made.save(tmp_path / "d.svg").read_text(encoding="utf-8")


def test_a_figure_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = Board(board(2))
    with pytest.raises(
        RecipeError, match=r"a figure over round: the history has no 'acuracy'. Did you mean 'accuracy'"
    ):
        made.save(tmp_path / "c.svg", metric="acuracy")
    with pytest.raises(RecipeError, match=r"has no 'byte'. Did you mean 'bytes'"):
        made.save(tmp_path / "c.svg", over="byte")
    with pytest.raises(RecipeError, match="the runs have no epsilon; use over='round'"):
        made.save(tmp_path / "c.svg", over="epsilon")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("metric", "over"), [(None, "round"), ("gap", "bytes"), ("loss", "seconds")])
def test_a_pdf_holds_the_curves_with_embedded_fonts(tmp_path: Path, metric: str | None, over: str) -> None:
    pytest.importorskip("matplotlib")
    path = Board(board(3, gap=True)).save(tmp_path / "c.pdf", metric=metric, over=over)
    raw = path.read_bytes()
    assert raw.startswith(b"%PDF-")
    assert b"/FontFile2" in raw
    assert raw == Board(board(3, gap=True)).save(tmp_path / "d.pdf", metric=metric, over=over).read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
@pytest.mark.parametrize("kwargs", [{}, {"gap": True}], ids=str)
def test_latex_compiles_the_table(tmp_path: Path, kwargs: dict[str, bool]) -> None:
    odd = [replace(r, method=f"{r.method} & 5_% ε ± −") for r in board(3, **kwargs)]
    Board(odd).save(tmp_path / "t.tex")
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{t.tex}\end{document}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF-")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "is_installed", lambda name: name != "matplotlib")
    with pytest.raises(RecipeError, match=r"pip install .*\[figures\]'; or save as .svg"):
        Board(board(2)).save(tmp_path / "c.pdf")
    assert not list(tmp_path.iterdir())
