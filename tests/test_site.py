"""The site: every public name is in the reference, and every method has a page made from its card."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import runpy
from pathlib import Path

import pytest

import medley as md
from medley import recipe
from medley.cli.cards import STATUSES
from medley.contract.needs import Need
from medley.testing import checks

DOCS = Path(__file__).parents[1] / "docs"

ROOMS = [
    "problems",
    "models",
    "scenarios",
    "partitions",
    "participation",
    "distributions",
    "devices",
    "tasks",
    "replay",
    "robust",
    "privacy",
    "datasets",
    "transports",
    "codecs",
    "metrics",
    "sinks",
]
"""Modules whose public names are for users."""


def documented() -> set[str]:
    """Names under ``:::``; of a module that has ``__all__``, those in it too."""
    pages = [DOCS / "reference.md", *(DOCS / "reference").glob("*.md")]
    named = set(re.findall(r"^::: ([\w.]+)$", "\n".join(p.read_text() for p in pages), re.M))
    for name in sorted(named):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        named |= {f"{name}.{own}" for own in getattr(module, "__all__", ())}
    return named


def public(module: str) -> list[str]:
    """The classes and functions of a room that users call."""
    room = importlib.import_module(module)
    names = getattr(room, "__all__", None) or [n for n in vars(room) if not n.startswith("_")]
    own = [n for n in names if inspect.isclass(getattr(room, n)) or inspect.isfunction(getattr(room, n))]
    home = "medley" if hasattr(room, "__path__") else module
    return [n for n in own if getattr(room, n).__module__.startswith(home)]


@pytest.mark.parametrize("room", ["medley", *(f"medley.{room}" for room in ROOMS)])
def test_every_public_name_is_in_the_reference(room: str):
    homes = documented()
    elsewhere = {*recipe.methods(), *(n for n in md.__all__ if f"medley.{n}" in homes)}
    errors = {n for n in md.__all__ if inspect.isclass(e := getattr(md, n)) and issubclass(e, Exception)}
    passed_on = {n for n in public(room) if f"{getattr(importlib.import_module(room), n).__module__}.{n}" in homes}
    missing = [n for n in public(room) if f"{room}.{n}" not in homes and n not in elsewhere | errors | passed_on]
    assert not missing, f"add them to a page of docs/reference: {missing}"


def test_names_in_the_reference_exist():
    for name in documented():
        parent, _, own = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(parent), own), name


def test_every_page_is_in_the_navigation():
    nav = (DOCS / "contents.md").read_text()
    entries = set(re.findall(r"^(?:.* <)?([\w/.-]+)>?$", nav, re.M))
    there = {str(p.relative_to(DOCS).with_suffix("")) for p in DOCS.rglob("*.md") if p.parent.name != "decisions"}
    there |= {f"papers/{p.parent.name}/README" for p in (DOCS.parent / "papers").glob("*/README.md")}
    assert there - {"contents"} <= entries, f"add them to docs/contents.md: {sorted(there - entries)}"
    decisions = (DOCS / "decisions" / "README.md").read_text()
    for page in (DOCS / "decisions").glob("[a-z]*.md"):
        assert f"({page.name})" in decisions, page


def test_guides_stand_in_groups_that_say_whom_they_are_for_and_readme_has_the_same_groups():
    nav, readme = (DOCS / "contents.md").read_text(), (DOCS.parent / "README.md").read_text()
    groups = re.findall(r':caption: "([^"]+): [^"]+"\n\n(.*?)\n```', nav, re.S)
    assert len(groups) == 5
    for title, lines in groups:
        pages = lines.split()
        assert len(pages) <= 6, title
        rows = [row for row in readme.splitlines() if row.startswith("| **")]
        (row,) = [row for row in rows if f"(docs/{pages[-1]}.md)" in row]
        unlinked = [page for page in pages if f"(docs/{page}.md)" not in row]
        assert set(unlinked) <= {"howto", "gallery"}, (title, unlinked)  # README names these two in its first rows


def test_no_line_of_a_page_is_too_long_for_an_editor():
    """Tables, code and lines that are one link or picture stand as they are."""
    for page in [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m[0]), page.read_text(), flags=re.M | re.S)
        long = [n for n, line in enumerate(text.split("\n"), 1) if len(line) > 130 and line[0] not in "|!"]
        assert not long, f"{page.name}: break the lines {long} before column 130"


def test_every_need_is_in_the_reference():
    page = (DOCS / "reference" / "contract.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `Need.")] == [
        f"| `Need.{need.name}` | {need.description} |" for need in Need
    ]


def test_every_check_of_the_battery_is_explained():
    said = (DOCS / "reference" / "contract.md").read_text()
    rows = {name for line in re.findall(r"^\| ([^|]+) \|", said, re.M) for name in line.split(", ")}
    assert {c.name for c in checks(md.FedAvg())} <= rows


def test_tutorials_are_in_order_and_each_names_the_next():
    order = [f"{name}.md" for name in re.findall(r"^tutorials/(\w+)$", (DOCS / "contents.md").read_text(), re.M)]
    assert len(order) == 16
    for number, (page, after) in enumerate(zip(order, [*order[1:], "../howto.md"], strict=True), 1):
        text = (DOCS / "tutorials" / page).read_text()
        assert text.startswith(f"# {number}. "), page
        assert re.search(r"(Ten|Fifteen) minutes\.", text), page
        assert f"]({after})" in text.split("## ")[-1], f"{page} does not lead to {after}"
        assert "<!-- printed -->\n```text\n```" not in text, f"{page} shows an empty output"


def test_questions_each_with_a_short_block_and_a_line_in_the_contents():
    contents, *sections = re.split(r"^### ", (DOCS / "howto.md").read_text(), flags=re.M)
    linked = re.findall(r"\]\(#([\w-]+)\)", contents)
    titles = [section.partition("\n")[0] for section in sections]
    assert sorted(linked) == sorted(re.sub(r"[^\w-]", "", t.lower().replace(" ", "-")) for t in titles)
    assert len(titles) >= 25
    for title, section in zip(titles, sections, strict=True):
        (code,) = re.findall(r"^```(?:python|bash)\n(.*?)^```$", section, re.M | re.S)
        assert len(code.splitlines()) <= 30, title
        assert "not run" not in section, title


def test_the_picture_at_the_top_shows_the_table_below_it():
    shown = re.findall(r">([^<]+ ± [^<]+)<", (DOCS / "medley.svg").read_text())
    assert len(shown) == 7
    assert all(figure in (DOCS.parent / "README.md").read_text() for figure in shown)


def test_pictures_take_the_colours_of_a_dark_page(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    themed = runpy.run_path(str(DOCS / "sources.py"))["themed"]
    plain = (DOCS.parent / "examples" / "pairing.svg").read_text()
    assert "prefers-color-scheme" not in plain
    assert re.search(r"prefers-color-scheme:dark\){svg{color:#\w+;--c0:#", themed(plain))
    for own in (themed(plain), (DOCS / "medley.svg").read_text(), "<svg></svg>"):
        assert themed(own) == own


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    runpy.run_path(str(DOCS / "pages.py"))["main"](folder)
    return folder


def test_every_method_has_a_page_and_a_row(pages: Path):
    index = (pages / "index.md").read_text()
    assert {p.name for p in pages.iterdir()} == {"index.md", *(f"{n.lower()}.md" for n in recipe.methods())}
    for name, kind in recipe.methods().items():
        (row,) = re.findall(rf"^\| \[{name}]\({name.lower()}\.md\) \|(.*)\|$", index, re.M)
        said, status, sends = (cell.strip() for cell in row.split(" | "))
        assert status in STATUSES, name
        assert said[-1:] == ".", name
        assert "down" in sends or "nothing" in sends, (name, sends)
        text = (pages / f"{name.lower()}.md").read_text()
        assert "Attributes:" not in text, name
        assert text.count("```") % 2 == 0, name
        for field in dataclasses.fields(kind):
            assert f"| `{field.name}` |" in text, (name, field.name)
    rows = {n: (pages / f"{n.lower()}.md").read_text().partition("## In the league")[2] for n in recipe.methods()}
    ranked = {n: float(re.search(r"Mean rank ([\d.]+) of (\d+)", row)[1]) for n, row in rows.items() if row}
    assert {"FedAvg", "FedNorton", "SCAFFOLD"} <= ranked.keys()
    assert len(ranked) >= 19
    k = len(ranked)
    assert sum(ranked.values()) == pytest.approx(k * (k + 1) / 2, abs=0.05 * k)  # ranks of each federation sum to this


def test_a_methods_page_has_its_status_and_that_of_its_other_forms(pages: Path):
    for name, form in (("shed", "SHED.fast"), ("cflag", "CFLAG.joint")):
        text = (pages / f"{name}.md").read_text()
        assert "\n**Status**: published" in text
        assert re.search(rf"## Other forms\n\n.*\| `{re.escape(form)}` \| .* \| this library's own \|", text, re.S)
    assert "\n**Status**: this library's own\n" in (pages / "cflag.joint.md").read_text()
    for said, meaning in STATUSES.items():
        assert f"- **{said}**: {meaning}." in (pages / "index.md").read_text()


def test_a_page_has_settings_reference_example_and_no_stray_emphasis(pages: Path):
    text = (pages / "fedecado.md").read_text()
    for part in ("**Reference**: Agarwal", "```pycon\n>>> import medley", "```bibtex\n@inproceedings{agarwal2025"):
        assert part in text
    text = (pages / "fednorton.md").read_text()
    assert "| `flows` | " in text
    assert "∇f_i(x\\*), and" in text


def test_the_gallery_shows_every_picture_and_its_notebooks_run_the_scripts(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    sources = runpy.run_path(str(DOCS / "sources.py"))
    page = sources["gallery"](tmp_path / "examples")
    for picture in (DOCS.parent / "examples").glob("*.svg"):
        assert f"(examples/{picture.name})" in page
        notebook = json.loads((tmp_path / "examples" / f"{picture.stem}.ipynb").read_text())
        said, code, shown = (cell["source"] for cell in notebook["cells"])
        script = picture.with_suffix(".py").read_text()
        assert script.endswith(f'"""\n\n{code}\n')
        assert ast.get_docstring(ast.parse(script)) == said
        assert f"'{picture.name}'" in shown


def test_the_reference_of_recipes_has_every_table_kind_and_key(tmp_path):
    page = runpy.run_path(str(DOCS / "recipe_page.py"))["page"]()
    for table in set(recipe.schema.TABLES) - {"name", "methods", "study"}:
        assert f"## [{table}]" in page, table
    assert "## [[study]]" in page
    kinds = {**recipe.schema.readers(), **recipe.schema.model_functions()}
    named = (*recipe.schema.KINDS.values(), recipe.schema.RULES, recipe.schema.DISTRIBUTIONS)
    for name in [*kinds, *recipe.schema.ANALYSES, *(n for names in named for n in names)]:
        assert f"**`{name}`**" in page, name
    run = page.partition("## [run]")[2].partition("\n## ")[0]
    for key in (*recipe.schema.COUNTS, *recipe.schema.RUN):
        assert f"| `{key}` |" in run, key
    assert "| `share` | a number in [0, 1) | needed | The share of clients that attack, rounded down." in page
    assert "| `client` | text |  | The column of each row's client; default none. |" in page
    assert "``" not in page
