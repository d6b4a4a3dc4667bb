"""The command that prints the pages of the documentation: docs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .arguments import Debug, beginning
from .console import show, table

PLACES = (Path(__file__).parents[1] / "pages", Path(__file__).parents[3] / "docs")
"""Where the pages are: in an installed wheel, and in a clone."""


MOST = 30
"""The most lines that a search prints."""


def _lines_with(word: str, name: str, page: Path) -> list[tuple[str, str]]:
    """The page's name and each of its lines that has the word, in any case."""
    lines = page.read_text("utf-8").splitlines()
    return [(name, line.strip()[:120]) for line in lines if word.lower() in line.lower()]


def _pages() -> dict[str, Path]:
    """The pages by name, such as "tutorials/data"; none if this installation has none."""
    folder = next((p for p in PLACES if (p / "howto.md").is_file()), None)
    files = [] if folder is None else sorted(folder.rglob("*.md"))
    return {str(p.relative_to(folder).with_suffix("")).replace("\\", "/"): p for p in files if folder is not None}


def complete_page(incomplete: str) -> list[str]:
    """Pages that begin with this text."""
    return beginning(_pages(), incomplete)


def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            help="A page such as howto or tutorials/data, or a word to search.",
            metavar="[PAGE|WORD]",
            autocompletion=complete_page,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """List the pages of the documentation, which are installed with Medley, print one, or search a word in all."""
    from ..contract import RecipeError

    pages = _pages()
    if not pages:
        raise RecipeError("medley docs: this installation has no pages; use help(medley) or medley list instead")
    if page is None:
        heads = {name: p.read_text("utf-8").partition("\n")[0] for name, p in pages.items()}
        show(table(("page", ""), [(name, head.lstrip("# ")) for name, head in heads.items() if head.startswith("#")]))
        return show(f"They are Markdown files in {pages['howto'].parent}; medley docs howto prints one.")
    name_of_page = next((name for name in pages if name.lower() == page.lower().removesuffix(".md")), None)
    if name_of_page is None:
        lines = [] if "/" in page else [line for name, p in pages.items() for line in _lines_with(page, name, p)]
        if lines:
            show(table(("page", ""), sorted(lines, key=lambda line: not line[1].startswith("#"))[:MOST]))
            return show(f"{len(lines)} lines have {page!r}, headings first; medley docs PAGE prints a page.")
        raise RecipeError.unknown(page, pages, "medley docs")
    show(pages[name_of_page].read_text("utf-8"))
