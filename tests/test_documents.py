"""Runs what README and docs tell a reader to type.

Every ```python and ```bash block is run, file by file and in order, in a folder of its own that has the repository's
example folders in it. The python blocks of one file share their variables. A block that cannot be run has
`<!-- not run: the reason -->` on the line above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.is_file()]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<kind>python|bash)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


def blocks(page: str) -> list[tuple[str, int, str]]:
    """(kind, line of its first statement, code) of every block to be run."""
    found = ((m, page.count("\n", 0, m.start("code"))) for m in BLOCK.finditer(page))
    return [(m["kind"], line + 1, m["code"]) for m, line in found if not m["why"]]


def test_blocks_are_found_with_their_lines() -> None:
    page = (
        "one\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```bash\nfalse\n```\n\n```bash\ntrue\ntrue\n```\n"
    )
    assert blocks(page) == [("python", 3, "x = 1\n"), ("bash", 11, "true\ntrue\n")]
    assert blocks("```text\nx\n```\n    ```python\n") == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_what_the_documentation_says_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "docs", "examples", "papers"):
        if (ROOT / folder).is_dir():
            (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    variables: dict[str, object] = {"__name__": "__main__"}
    for kind, line, code in blocks(page.read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), variables)
        else:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{line}\n{code}\n{done.stdout}\n{done.stderr}"
