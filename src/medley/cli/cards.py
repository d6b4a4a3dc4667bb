"""Parts of methods' cards, which are their docstrings, and their references in BibTeX."""

from __future__ import annotations

import inspect
import re
import unicodedata


def card(method: object, part: str) -> str:
    """A part of a method's card on one line, e.g. its **Reference**; empty if the card has no such part."""
    text = inspect.getdoc(method) or ""
    found = re.search(rf"\*\*{part}\*\*:\s*(.+?)(?=\n\s*\n\*\*|\Z)", text, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


STATUSES = {
    "published": "with its default settings it is the paper's algorithm, or its authors' code if the two differ; only "
    "the weights of clients follow this library",
    "published with corrections": "it is the paper's algorithm except for what its card lists under Departures",
    "this library's own": "no paper has it, so report its results under this name",
}
"""The values of a card's **Status**, and their meanings."""


def status(method: object) -> str:
    """One of `STATUSES`, from a method's card or the docstring of a form's constructor; empty if it has none."""
    return card(method, "Status")


def bibtex(reference: str) -> str:
    """A BibTeX entry of a card's reference: surnames, title, venue, year; empty for a reference in another form."""
    pattern = r'(?P<names>[^"“]+?),? ["“](?P<title>.+?),?["”](?P<venue>.*?)[ ,(]+(?P<year>(?:19|20)\d\d)\b'
    found = re.match(pattern, reference)
    if found is None:
        return ""
    people = [p for p in re.split(r",\s*(?:and\s+|&\s*)?|\s+(?:and|&)\s+", found["names"].strip()) if p]
    others = people[-1].endswith("et al.")
    if others:
        people = [*people[:-1], people[-1].removesuffix("et al.").strip(), "others"]
    key = unicodedata.normalize("NFKD", people[0]).encode("ascii", "ignore").decode()
    word = next((w for w in re.findall(r"[A-Za-z]+", found["title"]) if len(w) > 3), "paper")
    fields = {
        "author": " and ".join(p for p in people if p),
        "title": f"{{{found['title']}}}",
        "howpublished": re.sub(r"\([^)]*\)", "", found["venue"]).strip(" ,"),
        "year": found["year"],
    }
    body = "\n".join(f"  {k} = {{{v}}}," for k, v in fields.items() if v)
    return f"@misc{{{re.sub('[^A-Za-z]', '', key).lower()}{found['year']}{word.lower()},\n{body}\n}}"
