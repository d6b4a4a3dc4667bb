"""What makes Medley findable: llms.txt, the paper, the conda recipe and the classifiers agree with the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_llms_txt_has_its_form_and_every_link_leads_to_a_page() -> None:
    said = text("llms.txt")
    assert re.match(r"# Medley\n\n> .+\n", said)
    links = re.findall(r"\]\(([^)]+)\)", said)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_citation_of_the_paper_is_an_entry_and_every_entry_is_cited() -> None:
    paper, entries = text("joss/paper.md"), re.findall(r"^@\w+\{(\w+),$", text("joss/paper.bib"), re.MULTILINE)
    assert sorted(set(re.findall(r"@(\w+\d{4}\w+)", paper))) == sorted(entries)
    for heading in ("Summary", "Statement of need", "References"):
        assert f"\n# {heading}\n" in paper
    body = paper.split("---")[2]
    assert 250 <= len(body.split()) <= 1750  # the journal's bounds


def test_the_conda_recipe_has_the_dependencies_and_the_version() -> None:
    recipe = text("conda/recipe.yaml")
    wanted = {re.sub(r"^torch(?=>)", "pytorch", d).replace(">", " >", 1) for d in PROJECT["dependencies"]}
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    assert set(re.findall(r"- (.+)", run)) == wanted | {"python " + PROJECT["requires-python"]}
    assert f'version: "{PROJECT["version"]}"' in recipe


def test_every_python_of_the_classifiers_is_in_a_workflow() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert named[0] == PROJECT["requires-python"].removeprefix(">=")
    flows = text(".github/workflows/ci.yml") + text(".github/workflows/platforms.yml")
    assert [v for v in named if f'"{v}"' not in flows] == []
    folders = re.findall(r"tests/\w+", text(".github/workflows/platforms.yml"))
    assert folders
    assert all((ROOT / folder).is_dir() for folder in folders)
