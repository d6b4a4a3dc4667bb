"""Lines that change as a training script becomes a federation: in Medley, by Flower's `fit`, by NVFlare's client API.

    python benchmarks/elsewhere/count.py --write       # puts the table into docs/elsewhere.md

Lines of code count; blank lines, comments and docstrings do not. A changed line counts as one added and one removed.
"""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "elsewhere.md"
BEGIN = "<!-- lines: begin -->\n"
END = "<!-- lines: end -->\n"
WAYS = {
    ("a plain loop", "Medley"): (["plain.py"], ["with_medley.py"]),
    ("a plain loop", "Flower's `fit`"): (["plain.py"], ["with_flower.py"]),
    ("a plain loop", "NVFlare's client API"): (["plain.py"], ["with_nvflare.py", "with_nvflare_job.py"]),
    ("Flower's `fit`", "Medley"): (["with_flower.py"], ["with_medley.py"]),
    ("NVFlare's client API", "Medley"): (["with_nvflare.py", "with_nvflare_job.py"], ["with_medley.py"]),
}


def code(names: list[str]) -> list[str]:
    """The lines of code of some scripts, one after the other."""
    lines = []
    for name in names:
        text = (FOLDER / name).read_text(encoding="utf-8")
        first = ast.parse(text).body[0]
        assert isinstance(first, ast.Expr), f"{name} begins with a docstring"
        after = text.splitlines()[first.end_lineno :]
        lines += [line for line in after if line.strip() and not line.lstrip().startswith("#")]
    return lines


def changed(before: list[str], after: list[str]) -> tuple[int, int]:
    """The numbers of lines that were added and removed."""
    diff = [*difflib.ndiff(code(before), code(after))]
    return sum(line.startswith("+ ") for line in diff), sum(line.startswith("- ") for line in diff)


def table() -> str:
    """A line for each way from one form of the script to another."""
    lines = ["| from | to | lines added | removed |", "|---|---|---|---|"]
    for (before, after), files in WAYS.items():
        added, removed = changed(*files)
        lines.append(f"| {before} | {after} | {added} | {removed} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table())
    if "--write" in sys.argv:
        start, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(start + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")
