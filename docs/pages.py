"""A page for each method, from its card and its settings, and a table of all of them.

    python docs/pages.py build/docs/methods

`make docs` calls it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from medley import recipe
from medley.cli.cards import STATUSES, bibtex, card, status
from medley.contract.settings import describe

SOURCE = Path(inspect.getfile(recipe)).parents[2]
"""The folder of the package."""

LEAGUE = Path(__file__).parents[1] / "papers" / "league"


def main(folder: Path) -> None:
    """Write ``index.md`` and a page a method into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds, rows = recipe.methods(), league()
    for name, kind in kinds.items():
        text = page(name, kind)
        if name in rows:
            text = text.replace(
                "\nThe method's file is", f"\n## In the league\n\n{rows[name]}\n\nThe method's file is", 1
            )
        (folder / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    (folder / "index.md").write_text(index(kinds), encoding="utf-8")


def league() -> dict[str, str]:
    """Each method's ranks and scores in the league's development group, where all methods have finished runs."""
    sys.path.insert(0, str(LEAGUE))
    try:
        made = __import__("page")
    finally:
        sys.path.remove(str(LEAGUE))
    known = set(recipe.methods())
    finals = made.gathered(LEAGUE / "results", "development").finals
    most = max((len(known & by.keys()) for by in finals.values()), default=0)
    finals = {federation: by for federation, by in finals.items() if len(known & by.keys()) == most}
    names = sorted(known.intersection(*(by.keys() for by in finals.values())))
    table, out = made.ranking.ranks(finals, names), {}
    for k, name in enumerate(names):
        said = (
            f"Mean rank {table[:, k].mean():.1f} of {len(names)} methods, tuned alike, on the {len(finals)} "
            "federations of the league's [development group](../papers/league/README.md) that all have finished. A "
            "score is the mean of five fresh seeds."
        )
        rows = ["| federation | rank | score |", "|---|---|---|"]
        for rank, (federation, by) in zip(table[:, k], finals.items(), strict=True):
            share = made.FEDERATIONS[federation].metric == "accuracy"
            fine = [v for v in by[name] if np.isfinite(v)]
            mean = abs(float(np.mean(fine))) if fine else float("nan")
            score = f"{mean:.1%} accuracy" if share else f"{mean:.4g} test loss"
            lost = len(by[name]) - len(fine)
            rows.append(f"| {federation} | {rank:g} | {score}{f', {lost} of {len(by[name])} diverged' * bool(lost)} |")
        out[name] = said + "\n\n" + "\n".join(rows)
    return out


def index(kinds: dict[str, Any]) -> str:
    """The table of all methods, with links to their pages."""
    rows = [
        f"| [{name}]({name.lower()}.md) | {sentence(kind)} | {status(kind)} | {sends(kind)} |"
        for name, kind in kinds.items()
    ]
    meanings = "".join(f"- **{said}**: {meaning}.\n" for said, meaning in STATUSES.items())
    return (
        "# Methods\n\n"
        "Each page is the card of the method's file: paper, needs, costs, departures from the paper, and what becomes "
        "of missing replies. d is the number of parameters that are shared; numbers are floats a client.\n\n"
        "A method's status says what you may call it when you report its results:\n\n" + meanings + "\n"
        "| method | | status | one round sends |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def page(name: str, kind: Any) -> str:
    """A method's page, as Markdown."""
    head, _, rest = (inspect.getdoc(kind) or "").partition("\n\n")
    head = re.sub(rf"^{name}: ", "", " ".join(head.split()))
    rest = re.sub(r"^Attributes:\n(?: +[^\n]*\n)+\n?", "", rest, flags=re.M)  # they are the table of settings
    parts = [f"# {name}", capital(head), fenced(rest), "## A round", rules(kind)]
    if table := forms(name):
        parts += ["## Other forms", table]
    if table := settings(kind):
        parts += ["## Settings", table]
    if entry := bibtex(card(kind, "Reference")):
        parts += ["## To cite", f"```bibtex\n{entry}\n```"]
    file = Path(inspect.getfile(kind)).relative_to(SOURCE.parent)
    parts.append(f"The method's file is `{file}`. `medley list methods` prints all of them. [All methods](index.md)")
    return "\n\n".join(parts) + "\n"


def forms(name: str) -> str:
    """The table of a method's other forms, which have constructors of their own, and their status."""
    own = {n: make for n, make in recipe.constructors().items() if n.startswith(f"{name}.")}
    rows = [f"| `{n}` | {sentence(make)} | {status(make)} |" for n, make in own.items()]
    return "| form | | status |\n|---|---|---|\n" + "\n".join(rows) if rows else ""


def rules(kind: Any) -> str:
    """What the server does in a round, and each client method, by the docstrings of the method's own functions."""
    said = [("server", inspect.getdoc(kind.round))]
    said += [(name, inspect.getdoc(getattr(kind, name))) for name in kind.message_types]
    lines = [(who, " ".join((doc or "").partition("\n\n")[0].split())) for who, doc in said]
    return "| | |\n|---|---|\n" + "\n".join(
        f"| `{who}` | {cell(text).replace('*', chr(92) + '*')} |" for who, text in lines
    )


def sentence(kind: Any) -> str:
    """The first sentence of a card, without the name before it, as a cell of a table."""
    first = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return cell(capital(re.sub(r"^[\w-]+: ", "", first)))


def sends(kind: Any) -> str:
    """The costs of a round: a line an exchange, the first two of them."""
    lines = re.findall(r"^- (.+?)(?=\n-|\n\n|\Z)", section(kind, "One round sends"), re.M | re.S)
    shown = [cell(" ".join(line.split())) for line in lines]
    return "<br>".join(shown[:2]) + (" …" if len(shown) > 2 else "")


def section(kind: Any, title: str) -> str:
    """A part of a card with its line breaks."""
    found = re.search(rf"\*\*{title}\*\*[^\n]*\n(.+?)(?=\n\n\*\*|\Z)", inspect.getdoc(kind) or "", re.S)
    return found[1] if found else ""


def capital(text: str) -> str:
    """A sentence that begins with a capital letter, unless its first word is a symbol."""
    return text if re.match(r"\w\b", text) else text[:1].upper() + text[1:]


def cell(text: str) -> str:
    """A text that does not end a table's cell."""
    return text.replace("|", "\\|")


def fenced(text: str) -> str:
    """A card's text, with its example as a block of code."""
    out, example = [], False
    for line in text.splitlines():
        if line.startswith(">>>") and not example:
            out.append("```pycon")
            example = True
        elif example and not line.strip():
            out.append("```")
            example = False
        plain = not example and not line.startswith("    ")
        out.append(re.sub(r"(?<=[\w)])\*(?![*\w])", r"\\*", line) if plain else line)  # x* is no emphasis
    return "\n".join([*out, "```"] if example else out)


def settings(kind: Any) -> str:
    """The table of a method's settings: name, type, default, and the description where the class has one."""
    said = described(kind)
    rows = []
    for field in describe(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append(f"| `{field.name}` | {cell(field.accepts)} | {default} | {cell(said.get(field.name, ''))} |")
    return "| setting | type | default | |\n|---|---|---|---|\n" + "\n".join(rows) if rows else ""


def described(kind: Any) -> dict[str, str]:
    """The settings that the docstrings of a class and its bases describe under "Attributes:"."""
    out: dict[str, str] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("medley.algorithms"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(tree, ast.ClassDef)
        block = (ast.get_docstring(tree) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for names, text in re.findall(r"^    ([\w, ]+): (.+?)(?=^    \w|\Z)", block, re.M | re.S):
            for name in names.split(", "):
                out.setdefault(name, " ".join(text.split()))
    return out


if __name__ == "__main__":
    main(Path(sys.argv[1]))
