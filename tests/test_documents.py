"""Runs what README and docs tell a reader to type.

Every ```python and ```bash block is run, file by file and in order, in a folder of its own that has the repository's
example folders in it. The python blocks of one file share their variables. A block that cannot be run has
`<!-- not run: the reason -->` on the line above it. A ```text block under `<!-- printed -->` shows the output of the
block before it: the same words, and numbers that agree to a few per cent, since processors round in their own ways.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.is_file()]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<kind>python|bash)\n(?P<code>.*?)^```$"
    r"(?:\n\n<!-- printed -->\n```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"\d+(?:\.(\d+))?(?:e[+-]?\d+)?")


def blocks(page: str) -> list[tuple[str, int, str, str | None]]:
    """(kind, line of its first statement, code, output where the page shows it) of every block to be run."""
    found = ((m, page.count("\n", 0, m.start("code"))) for m in BLOCK.finditer(page))
    return [(m["kind"], line + 1, m["code"], m["printed"]) for m, line in found if not m["why"]]


def differences(shown: str, printed: str) -> list[str]:
    """The lines that differ, by more than 5 % and three units of the last place in a number, or in anything else."""
    pairs = zip_longest(shown.strip().splitlines(), printed.strip().splitlines(), fillvalue="")
    return [f"shown:   {a}\nprinted: {b}" for a, b in pairs if not alike(a, b)]


def alike(a: str, b: str) -> bool:
    if NUMBER.sub("#", a).split() != NUMBER.sub("#", b).split():
        return False
    numbers = zip(NUMBER.finditer(a), NUMBER.finditer(b), strict=True)
    return all(abs(float(m[0]) - float(n[0])) <= 0.05 * abs(float(m[0])) + 3 * place(m) for m, n in numbers)


def place(number: re.Match[str]) -> float:
    """One unit of the last decimal place; 0 for whole numbers and for powers of ten."""
    return 0.0 if not number[1] or "e" in number[0] else 10.0 ** -len(number[1])


def test_blocks_are_found_with_their_lines() -> None:
    page = (
        "one\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```bash\nfalse\n```\n\n```bash\ntrue\ntrue\n```\n"
    )
    assert blocks(page) == [("python", 3, "x = 1\n", None), ("bash", 11, "true\ntrue\n", None)]
    shown = "```python\nprint(1)\n```\n\n<!-- printed -->\n```text\n1\n```\n\n```text\n2\n```\n"
    assert blocks(shown) == [("python", 2, "print(1)\n", "1\n")]
    assert blocks("```text\nx\n```\n    ```python\n") == []


def test_output_that_a_page_shows_is_compared() -> None:
    shown = " method    accuracy\n ────────\n FedAvg  76.4 ± 12.5 %\n"
    assert not differences(shown, shown.replace("76.4 ± 12.5", " 76.9 ± 12.1") + "\n")
    for other in ("66.4 ± 12.5 %", "76.4 ± 2.5 %", "76.4 ± 12.5 pp", "76.4 %"):
        assert len(differences(shown, shown.replace("76.4 ± 12.5 %", other))) == 1, other
    assert differences("3 rounds", "4 rounds")
    assert differences("gap 1.0e-06", "gap 1.0e-05")
    assert differences("one", "one\ntwo")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_what_the_documentation_says_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "docs", "examples", "papers"):
        if (ROOT / folder).is_dir():
            (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    variables: dict[str, object] = {"__name__": "__main__"}
    for kind, line, code, shown in blocks(page.read_text(encoding="utf-8")):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), variables)
            printed = out.getvalue()
        else:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{line}\n{code}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
        wrong = [] if shown is None else differences(shown, printed)
        assert not wrong, f"{page}:{line}\n" + "\n".join(wrong)
