"""Parts of methods' cards, which are their docstrings, and their references in BibTeX."""

from __future__ import annotations

import inspect
import re
import unicodedata


def card(method: object, part: str) -> str:
    """A part of a method's card on one line, e.g. its **Reference**; empty if the card has no such part."""
    text = inspect.getdoc(method) or ""
    match = re.search(rf"\*\*{part}\*\*:\s*(.+?)(?=\n\s*\n\*\*|\Z)", text, re.DOTALL)
    return " ".join(match[1].split()) if match else ""


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


NAME = r"[^\W\d_a-z][\w'’-]*(?: (?:y |de |van |von )?[^\W\d_a-z][\w'’-]*)*"
"""Surnames; some have two words: Agüera y Arcas, Dal Fabbro."""

PAPER = re.compile(
    rf"(?P<names>{NAME}(?:, {NAME})*(?:,? (?:&|and) {NAME}| et al\.)?),? "
    r'["“](?P<title>[^"”]+?),?["”]'
    r'(?P<venue>[^"“;]*?)[ ,(]+(?P<year>(?:18|19|20)\d\d)\b(?!\.\d)'
)
"""Names, a title in quotes, and the first year after it."""


CONFERENCES = {
    "AAAI": "AAAI Conference on Artificial Intelligence",
    "ACL": "Annual Meeting of the Association for Computational Linguistics",
    "AISTATS": "International Conference on Artificial Intelligence and Statistics",
    "CDC": "IEEE Conference on Decision and Control",
    "CVPR": "IEEE/CVF Conference on Computer Vision and Pattern Recognition",
    "ECCV": "European Conference on Computer Vision",
    "ICCV": "IEEE/CVF International Conference on Computer Vision",
    "ICDE": "IEEE International Conference on Data Engineering",
    "ICLR": "International Conference on Learning Representations",
    "ICML": "International Conference on Machine Learning",
    "KDD": "ACM SIGKDD Conference on Knowledge Discovery and Data Mining",
    "MLSys": "Conference on Machine Learning and Systems",
    "NeurIPS": "Advances in Neural Information Processing Systems",
    "OPT Workshop": "NeurIPS Workshop on Optimization for Machine Learning",
    "UAI": "Conference on Uncertainty in Artificial Intelligence",
}
JOURNALS = {"JMLR": "Journal of Machine Learning Research", "PNAS": "Proceedings of the National Academy of Sciences"}


def bibtex(reference: str) -> str:
    """A BibTeX entry of a card's first paper: its conference, its journal and volume, or its number at arXiv.

    Cards have only surnames, so the entry has no given names. Empty if the reference has another form.
    """
    match = PAPER.search(reference)
    if match is None:
        return ""
    people = re.split(r",? & |,? and |, ", match["names"].removesuffix(" et al."))
    if match["names"].endswith(" et al."):
        people.append("others")
    word = next((w for w in re.findall(r"[A-Za-z]+", _plain(match["title"])) if len(w) > 3), "paper")
    fields = {"author": " and ".join(f"{{{p}}}" if " " in p else p for p in people), "title": f"{{{match['title']}}}"}
    venue = re.sub(r"\([^)]*\)", "", match["venue"]).strip(" ,")
    kind = "misc"
    number = re.search(r"arXiv[: ](\d{4}\.\d{4,5})", re.split(r"[“\";]", reference[match.start("venue") :])[0])
    if number:
        fields |= {"eprint": number[1], "archivePrefix": "arXiv"}
    elif venue in CONFERENCES:
        kind = "inproceedings"
        fields["booktitle"] = CONFERENCES[venue]
    elif journal := re.fullmatch(r"(\D+?)(?: (\d+))?", venue):
        kind = "article"
        fields["journal"] = JOURNALS.get(journal[1], journal[1])
        fields |= {"volume": journal[2]} if journal[2] else {}
    fields["year"] = match["year"]
    body = "\n".join(f"  {k} = {{{v}}},".replace("&", r"\&") for k, v in fields.items())
    return f"@{kind}{{{re.sub('[^A-Za-z]', '', _plain(people[0])).lower()}{match['year']}{word.lower()},\n{body}\n}}"


def _plain(text: str) -> str:
    """The text without accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def spelled(name: str) -> str:
    """A method's name without case, hyphens and other signs: "C-FLAG" and "cflag" are one; a form keeps its dot."""
    return re.sub(r"[^a-z0-9.]", "", unicodedata.normalize("NFKD", name).lower())
