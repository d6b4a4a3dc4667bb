"""The pages on architecture agree with pyproject.toml and with the tree."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARCHITECTURE, NAMES, CONTRIBUTING = (ROOT / p for p in ("docs/architecture.md", "docs/names.md", "CONTRIBUTING.md"))
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [[room.strip() for room in line.split("|")] for line in LINTER[0]["layers"]]


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next one of its level."""
    return re.split(r"^## ", page.read_text().split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_the_table_of_rooms_is_the_linters_list() -> None:
    cells = re.findall(r"^\| (`[^|]*) \|", section(ARCHITECTURE, "Rooms"), re.MULTILINE)
    assert [re.findall(r"`(\w+)`", cell) for cell in cells] == LAYERS


def test_the_list_of_rooms_in_contributing_is_the_linters_list() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section(CONTRIBUTING, "Where things go"), re.DOTALL)
    assert [[room.strip() for room in line.split("|")] for line in block.splitlines()] == LAYERS


@pytest.mark.parametrize("room", [room for layer in LAYERS for room in layer if room != "_public"])
def test_every_room_says_on_whose_side_it_runs(room: str) -> None:
    """`deploy` has parts on both sides, each in a folder that says so in its first line."""
    place = ROOT / "src/medley" / room
    parts = [place / part for part in ("node", "protocol", "server")] if room == "deploy" else [place]
    for part in parts:
        file = part / "__init__.py" if part.is_dir() else part.with_suffix(".py")
        doc = ast.get_docstring(ast.parse(file.read_text())) or ""
        assert re.search(r"\A[^\n]+ machine" if room == "deploy" else r"^Side: \S", doc, re.MULTILINE), file


def paths(page: Path) -> set[str]:
    """Everything in backticks that looks like a path, without patterns such as <name>."""
    found = re.findall(r"`([\w.-]+(?:/[\w.-]*)+)`", page.read_text())
    return {p for p in found if not p.startswith(".venv")}


@pytest.mark.parametrize("page", [ARCHITECTURE, NAMES, CONTRIBUTING], ids=lambda p: p.name)
def test_every_path_exists(page: Path) -> None:
    there = paths(page)
    assert len(there) > 5
    missing = [p for p in there if not any((base / p).exists() for base in (ROOT, ROOT / "src/medley"))]
    assert missing == []


@pytest.mark.parametrize("page", [ARCHITECTURE, NAMES, CONTRIBUTING], ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def terms() -> list[tuple[str, str]]:
    """(term, file) of the glossary."""
    return re.findall(r"^\| (\w[\w, ]*) \| .* \| `([^`]+)` \|$", NAMES.read_text(), re.MULTILINE)


def test_every_term_stands_in_its_file() -> None:
    found = terms()
    assert len(found) > 40
    for words, file in found:
        text = (ROOT / "src/medley" / file).read_text()
        name = words.split(", ")[-1] if words.startswith("lr") else words.split(", ")[0]
        pattern = rf"\b(class|def) {name}\b" if name[0].isupper() else rf"\b{name}"
        assert re.search(pattern, text) or Path(file).stem == name, f"{name} is not in {file}"
