"""What one must read to do a job: the entry file and the files that it imports, against the budgets in `jobs.toml`.

Ends with 1 if a job is over its budget, and names it. A name that a package only passes on counts as the file that
defines it. Imports for types count: a reader looks there, too.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

Modules = dict[str, Path]


def modules(source: Path) -> Modules:
    """Every module below ``source``, by its dotted name."""
    named = Modules()
    for path in sorted(source.rglob("*.py")):
        dotted = ".".join(path.relative_to(source).with_suffix("").parts)
        named[dotted.removesuffix(".__init__")] = path
    return named


def imports(module: str, files: Modules) -> Iterator[tuple[str, str]]:
    """(module, name) of each `from … import name` in a file that leads to a file of ours."""
    package = module.split(".") if files[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(files[module].read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*base, node.module] if node.module else base)
        for alias in node.names:
            yield origin, alias.name


def defining(origin: str, name: str, files: Modules) -> str | None:
    """The module of ours that defines ``name``, if ``origin`` or what it passes on has it."""
    if f"{origin}.{name}" in files:
        return f"{origin}.{name}"
    if origin not in files:
        return None
    if files[origin].name == "__init__.py":
        for further, alias in imports(origin, files):
            if alias == name:
                return defining(further, name, files) or origin
    return origin


def to_read(entry: str, files: Modules) -> set[str]:
    """The entry's module and those that it imports directly."""
    direct = {defining(origin, name, files) for origin, name in imports(entry, files)}
    return {entry} | {module for module in direct if module}


def main(root: Path) -> int:
    """Compare each job of `jobs.toml` with its budget; print the table with ``--table``."""
    source = root / "src"
    files = modules(source)
    failed = False
    for job, budget in tomllib.loads((root / ".ci/jobs.toml").read_text(encoding="utf-8"))["job"].items():
        entry = ".".join(Path(budget["entry"]).with_suffix("").parts).removesuffix(".__init__")
        read = to_read(entry, files)
        lines = sum(files[module].read_text(encoding="utf-8").count("\n") for module in read)
        over = len(read) > budget["files"] or lines > budget["lines"]
        failed = failed or over
        if over or "--table" in sys.argv:
            size = f"{len(read)} files of {budget['files']}, {lines} lines of {budget['lines']}"
            print(f"{job}: {size} ({budget['entry']})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
