"""Puts all pages of the site into one folder: those here, README and its like, the papers', and one for each method.

    python docs/sources.py build/docs

`make docs` calls it. Links are rewritten for the pages' new places.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path

import pages
import recipe_page

from medley.report.figures import DARK

ROOT = Path(__file__).parents[1]

PAPERS = ("*.md", "*.svg", "*.jsonl")
"""Files of a folder under papers/ that its page shows or leads to."""

LINKS = (
    (r"\]\((?:\.\./\.\./)?docs/", "]("),
    (r"\]\((results|heart)\.md\)", r"](path:\1.md)"),
    (r"\]\(src/medley/algorithms/(\w+)(?:/__init__)?\.py\)", r"](methods/\1.md)"),
)
"""Places in links of README and its like, and their places here."""

OUTSIDE = r"examples/|papers/|CONTRIBUTING\.md|CHANGELOG\.md"
"""What the pages of docs/ link to outside of it, and what the site has in its root."""


def main(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", folder, ignore=shutil.ignore_patterns("sources.py", "pages.py", "recipe_page.py", "__pycache__")
    )
    contents = (folder / "contents.md").read_text(encoding="utf-8")
    (folder / "contents.md").unlink()
    (folder / "index.md").write_text(moved(ROOT / "README.md") + contents, encoding="utf-8")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        (folder / name).write_text(moved(ROOT / name), encoding="utf-8")
    for name in ("LICENSE", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    for page in sorted((ROOT / "papers").glob("*/README.md")):
        there = folder / "papers" / page.parent.name
        there.mkdir(parents=True)
        for file in (f for kind in PAPERS for f in page.parent.glob(kind)):
            shutil.copy(file, there)
        (there / "README.md").write_text(moved(page, "../../"), encoding="utf-8")
    pages.main(folder / "methods")
    recipe_page.main(folder / "reference" / "recipes.md")
    for page in (ROOT / "docs").rglob("*.md"):
        here = folder / page.relative_to(ROOT / "docs")
        if here.exists():
            up = "../" * (len(here.relative_to(folder).parts) - 1)
            text = here.read_text(encoding="utf-8")
            here.write_text(re.sub(rf"\]\({up}../(?={OUTSIDE})", f"]({up}", text), encoding="utf-8")
    (folder / "gallery.md").write_text(gallery(folder / "examples"), encoding="utf-8")
    for picture in folder.rglob("*.svg"):
        picture.write_text(themed(picture.read_text(encoding="utf-8")), encoding="utf-8")


def themed(picture: str) -> str:
    """A figure with colours for a dark page too, unless it has its own."""
    if "currentColor" not in picture or "prefers-color-scheme" in picture:
        return picture
    slots = "".join(f"--c{k}:{colour};" for k, colour in enumerate(DARK))
    dark = f"@media (prefers-color-scheme:dark){{svg{{color:#e6ebf0;{slots}}}}}"
    return picture.replace(">", f"><style>svg{{color:#1f2933}}{dark}</style>", 1)


def gallery(folder: Path) -> str:
    """The page of all examples with a picture; scripts, notebooks and pictures are put into the folder."""
    folder.mkdir()
    shown, below = [], []
    for picture in sorted((ROOT / "examples").glob("*.svg")):
        script = picture.with_suffix(".py")
        shutil.copy(picture, folder)
        shutil.copy(script, folder)
        code = script.read_text(encoding="utf-8")
        said = ast.get_docstring(ast.parse(code)) or ""
        (folder / f"{script.stem}.ipynb").write_text(notebook(code), encoding="utf-8")
        links = f"[Script](path:examples/{script.name}) · [notebook](path:examples/{script.stem}.ipynb)"
        name = script.stem.replace("_", " ").capitalize()
        target = script.stem.replace("_", "-")
        shown.append(f':::{{figure}} examples/{picture.name}\n:target: "#{target}"\n:alt: {name}\n\n{name}\n:::')
        below += [f"## {name}", said, f"![{name}](examples/{picture.name})", links]
    head = f"{len(shown)} short scripts, each with the picture that it draws. The tests run all of them."
    grid = "::::{container} gallery\n" + "\n\n".join(shown) + "\n::::"
    return "\n\n".join(["# Gallery", head, grid, *below]) + "\n"


def notebook(code: str) -> str:
    """A script as a notebook: its docstring, its code, and its picture."""
    said, rest = ast.get_docstring(ast.parse(code)) or "", code.split('"""', 2)[2].strip()
    drawn = (re.search(r'"(\w+\.svg)"', rest) or [""])[1]
    cells: list[dict[str, object]] = [{"cell_type": "markdown", "metadata": {}, "source": said}]
    for source in (rest, f"from IPython.display import SVG\n\nSVG({drawn!r})"):
        cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source})
    for k, cell in enumerate(cells):
        cell["id"] = f"cell{k}"
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def moved(page: Path, up: str = "") -> str:
    """The page's text with its links to docs/ from their new place; ``up`` leads from there to the site's root."""
    text = page.read_text(encoding="utf-8")
    for old, new in LINKS:
        text = re.sub(old, new.replace("](", f"]({up}", 1) if "path:" not in new else new, text)
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
