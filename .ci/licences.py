"""The licences of the packages that Medley needs, as they state them, in Markdown.

    .venv/bin/python .ci/licences.py [EXTRA ...]        # default: all extras for use that are installed here

A package that states none is an error, and so is one whose licence asks to publish changes of Medley (GPL, AGPL).
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from packaging.requirements import Requirement

OWN = "medley-fl"
BACKSTAGE = {"dev", "docs", "hooks", "fuzz", "oracles", "notebook"}
STRICT = re.compile(r"\bA?GPL|Affero|(?<!Lesser )General Public", re.IGNORECASE)
ELSEWHERE = {"nvidia": "NVIDIA's own, with PyTorch's CUDA build"}
"""Packages that come with others, by the beginning of their name."""


def needed(name: str, extras: set[str], seen: dict[str, set[str]]) -> dict[str, set[str]]:
    """The installed packages that a package needs with these extras, and those that they need: name -> extras."""
    for line in metadata.requires(name) or ():
        r = Requirement(line)
        if r.marker is not None and not any(r.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            found = metadata.metadata(r.name)["Name"]
        except metadata.PackageNotFoundError:
            continue
        if found not in seen or not r.extras <= seen[found]:
            seen[found] = seen.get(found, set()) | r.extras
            needed(found, seen[found], seen)
    return seen


def licence(name: str) -> str:
    """What the package says of its licence: the expression, its classifiers, or the first line of its text."""
    said = metadata.metadata(name)
    if (expression := said.get("License-Expression")) is not None:
        return str(expression)
    classifiers = [c.rpartition(" :: ")[2] for c in said.get_all("Classifier") or () if c.startswith("License ::")]
    named = [c for c in classifiers if c != "OSI Approved"]
    text = str(said.get("License") or "").strip().partition("\n")[0]
    if named or (text and len(text) < 80):
        return ", ".join(named) or text
    return next((words for start, words in ELSEWHERE.items() if name.startswith(start)), "")


def main() -> int:
    """The table; 1 if a licence is missing or strict."""
    extras = {*sys.argv[1:]} or {*metadata.metadata(OWN).get_all("Provides-Extra", ())} - BACKSTAGE
    names = sorted({*needed(OWN, extras, {})} - {OWN}, key=str.lower)
    rows = [(name, metadata.version(name), licence(name)) for name in names]
    print("| package | version | licence |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    wrong = [name for name, _, said in rows if not said or STRICT.search(said)]
    if wrong:
        print(f"look at the licences of {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
