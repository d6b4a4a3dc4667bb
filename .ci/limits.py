"""Lengths of functions in Python files: at most 60 lines. Ends with 1 where one is longer, and names it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION = 60
FOLDERS = ("src", "tests", "benchmarks", "papers", "examples", ".ci")


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of every function, methods with their class's name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, inside)


def too_long(root: Path, path: str) -> Iterator[str]:
    """A line for each function of the file that is too long."""
    for name, line, length in functions(ast.parse((root / path).read_text(encoding="utf-8"))):
        if length > FUNCTION:
            yield f"{path}:{line}: {name} has {length} lines, at most {FUNCTION}"


def main(root: Path) -> int:
    """Check all folders of the repository at ``root``."""
    paths = [p.relative_to(root).as_posix() for folder in FOLDERS for p in sorted((root / folder).rglob("*.py"))]
    found = [line for path in paths for line in too_long(root, path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
