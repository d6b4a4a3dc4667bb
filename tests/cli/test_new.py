"""A new project runs, compares and passes its own tests; names that cannot be a module are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli.test_cli import medley
from medley.cli.watch import _ago


@pytest.mark.slow
def test_a_new_project_runs_at_once_and_passes_its_own_tests(tmp_path: Path):
    project = tmp_path / "wards"
    result = medley("new", project)
    assert result.exit_code == 0, result.output
    assert {p.name for p in project.iterdir()} == {
        "wards.py",
        "recipe.toml",
        "test_wards.py",
        "README.md",
        "data.csv",
        ".gitignore",
    }
    assert not any("$" in p.read_text() for p in project.iterdir())
    result = medley("compare", project / "recipe.toml", "--rounds", 2, "--seeds", 1, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "SCAFFOLD" in result.stdout
    assert "2 passed" in own_tests(project)
    # The three words of the tutorial on data: the file, the target and the key.
    rng = np.random.default_rng(0)
    lines = [f"{x:.2f},{'yes' if x > 0 else 'no'},{'ns'[k % 2]}" for k, x in enumerate(rng.normal(size=300))]
    (project / "shops.csv").write_text("\n".join(["price,returned,shop", *lines]))
    for file in ("wards.py", "recipe.toml"):
        text = (project / file).read_text()
        for old, new in (("data.csv", "shops.csv"), ("ill", "returned"), ("hospital", "shop")):
            text = text.replace(f'"{old}"', f'"{new}"')
        (project / file).write_text(text)
    assert "2 passed" in own_tests(project)


@pytest.mark.slow
def test_a_new_method_passes_the_battery_and_its_own_tests(tmp_path: Path):
    project = tmp_path / "half_step"
    result = medley("new", project, "--method")
    assert result.exit_code == 0, result.output
    assert {p.name for p in project.iterdir()} == {
        "half_step.py",
        "recipe.toml",
        "test_half_step.py",
        "README.md",
        ".gitignore",
    }
    assert not any("$" in p.read_text() for p in project.iterdir())
    assert " failed" not in own_tests(project)
    result = medley("compare", project / "recipe.toml", "--rounds", 2, "--seeds", 1, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "HalfStep" in result.stdout
    source = project / "half_step.py"
    source.write_text(source.read_text().replace("self.server_lr * step", "step"))
    with pytest.raises(AssertionError, match="test_half_the_server_lr"):
        own_tests(project)


def own_tests(project: Path) -> str:
    """The output of a project's own tests. Asserts that they pass."""
    call = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c"]
    done = subprocess.run(
        [sys.executable, *call, os.devnull, "--rootdir", project, project],
        capture_output=True,
        text=True,
        cwd=project,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(project), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["Wards", "two words", "class", "medley", "1st"])
def test_a_name_that_is_no_module_is_refused(name, tmp_path):
    result = medley("new", tmp_path / name)
    assert result.exit_code == 2
    assert "the name of a Python module" in result.stderr
    assert not (tmp_path / name).exists()


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    result = medley("new", tmp_path / "mine")
    assert result.exit_code == 2
    assert "something already" in result.stderr
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_full_disk_leaves_no_half_of_a_project(tmp_path, monkeypatch):
    write = Path.write_text
    left = [3]

    def fills(self, text, encoding=None):
        left[0] -= 1
        if not left[0]:
            write(self, text[:10], encoding)
            raise OSError(28, "No space left on device", str(self))
        return write(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", fills)
    result = medley("new", tmp_path / "wards")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert not (tmp_path / "wards").exists()
    (tmp_path / "mine").mkdir()
    left[0] = 3
    assert medley("new", tmp_path / "mine").exit_code == 2
    assert not any((tmp_path / "mine").iterdir())


def test_the_readme_names_pages_that_medley_docs_has_and_what_tests_need(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, more in (("mine", []), ("rule", ["--method"])):
        assert medley("new", name, *more).exit_code == 0
        text = Path(name, "README.md").read_text()
        assert "pip install pytest" in text
        named = re.findall(r"medley docs\s+(\w[\w/]+)", text) + re.findall(r"`(tutorials/\w+)`", text)
        assert named
        for page in named:
            result = medley("docs", page)
            assert result.exit_code == 0, result.output
            assert result.stdout.startswith("# ")


def test_docs_lists_every_page_with_its_title_and_names_the_nearest():
    result = medley("docs")
    assert re.search(r"howto +How do I", result.stdout)
    assert re.search(r"tutorials/comparison +1\. A first comparison", result.stdout)
    wrong = medley("docs", "tutorials/dat")
    assert wrong.exit_code == 2
    assert "Did you mean 'tutorials/data'?" in wrong.stderr


def test_a_word_that_is_no_page_is_searched_in_all_pages() -> None:
    """Headings come first; a word that no page has is an error."""
    result = medley("docs", "scaffold")
    assert result.exit_code == 0
    assert re.search(r"\d+ lines have 'scaffold', headings first", result.output)
    assert len(result.output.splitlines()) <= 36
    assert medley("docs", "zygomorphic").exit_code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s ago"), (95, "95 s ago"), (720, "12 min ago"), (9000, "2 h ago"), (4e5, "5 d ago")]
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert _ago(seconds) == text
