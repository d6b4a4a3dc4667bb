"""A node's record: a line for everything it sent, each with the digest of the line before and the node's signature.

And the numbers of answers that are kept beside it, as lines of text for the owner.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from ...contract import pytree
from ...contract.errors import RecipeError, WireError
from ...contract.pieces import Content
from ...contract.place import name_of
from ...contract.text import shown
from ...storage.atomic import append, private, refuse_links, write, writing
from ..protocol.agreement import refuse_settings
from .keys import ecdsa, is_low, public_key, signed

log = logging.getLogger("medley.node")

LEFT = "record.jsonl"
"""The file of what an owner's node sent."""

APPROVALS = "approvals.jsonl"
"""The file of recipes that the owner approved or closed."""

SENT = "sent"
"""The folder of texts and answers that lines name by their digests."""

SETTINGS = 16_000
"""How many characters of settings a request may have, since the record has all of them."""

ANSWER = 1 << 20
"""The largest answer in bytes that is kept beside its line."""

LONGEST = 64
"""How many numbers of a tensor are shown; the file has them all."""

FORM = 2
"""The form of lines: from 2 on, a signature has one spelling."""


@dataclass(frozen=True)
class Record:
    """A file that only grows. The node writes a line to disk before it sends what the line describes.

    Without the node's key, nobody can change or remove a line without breaking the chain. To detect lines removed from
    the end, note the last line's digest elsewhere.

    Attributes:
        path: the file
        key: the node's private key, as ssh-keygen -t ecdsa -b 384 writes it; the public key is enough to read a record;
            None for a record without signatures
    """

    path: Path
    key: Path | None = None

    def add(self, **what: Any) -> None:
        """Add a line. Raises MedleyError if it cannot be written, and RecipeError for a link."""
        refuse_links(private(self.path.parent))
        with writing(self.path), FileLock(f"{self.path}.lock", mode=0o600):
            last, end = _last(self.path)
            number = 0
            before = ""
            if last is not None:
                number = self._number(last) + 1
                before = sha256(last).hexdigest()
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            line = {"n": number, "at": at, "form": FORM, **what, "before": before}
            if self.key is not None:
                line["signature"] = signed(self.key, _bytes(line)).hex()
            append(self.path, end, _bytes(line) + b"\n")

    def _number(self, last: bytes) -> int:
        """The number of the last line. Raises WireError if it is not a line of the record."""
        try:
            return int(json.loads(last)["n"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WireError(
                f"{self.path}: its last line is damaged, so no line can follow it. Put back a copy of the file. If you "
                "have none, stop the node, move the file elsewhere, and keep it: the next line begins "
                + (
                    "another, in which each recipe has to be approved or closed again before the node starts"
                    if self.path.name == APPROVALS
                    else "another"
                )
            ) from None

    def keep(self, content: bytes) -> str:
        """Save a text or an answer next to the record, under its digest, before a line names it. Returns the digest."""
        place = private(self.path.parent / SENT) / (name := sha256(content).hexdigest())
        if not place.is_file() or place.read_bytes() != content:
            write(place, content, owner_only=True)
        return name

    def head(self) -> str:
        """The digest of the last line, to note elsewhere; empty if there are no lines."""
        last = self.path.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2] if self.path.exists() else b""
        return sha256(last).hexdigest() if last else ""

    def torn(self) -> bool:
        """Whether the file ends in a line that was not written whole. What that line describes was not sent."""
        tail = self.path.read_bytes().rpartition(b"\n")[2] if self.path.exists() else b""
        try:
            return bool(tail) and json.JSONDecoder().raw_decode(text := tail.decode(errors="replace"))[1] == len(text)
        except (ValueError, RecursionError):
            return True

    def is_of_key(self) -> bool:
        """Whether the first line has the key's signature."""
        try:
            return next(self.lines(), None) is not None
        except WireError:
            return False

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines, each after its check. Raises WireError with the number of the first line that was changed.

        It leaves out a last line that was only partly written; see `torn`.
        """
        from cryptography.exceptions import InvalidSignature

        public = None if self.key is None else public_key(self.key)
        before = ""
        *complete, rest = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        for n, text in enumerate([*complete, rest] if rest and not self.torn() else complete):
            try:
                line = json.loads(text)
                entry = {k: v for k, v in line.items() if k != "signature"}
                if _bytes(line) != text or line["n"] != n or line["before"] != before:
                    raise ValueError
                if public is not None:
                    raw = bytes.fromhex(line["signature"])
                    public.verify(raw, _bytes(entry), ecdsa())
                    if raw.hex() != line["signature"] or (line.get("form", 1) >= FORM and not is_low(raw)):
                        raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidSignature):
                raise WireError(
                    f"{self.path}, line {n + 1}: this line was changed, or the line before it is missing; the "
                    f"{n} lines before are intact"
                ) from None
            answer = self.kept(entry)
            if answer is not None and sha256(answer).hexdigest() != entry["sha256"]:
                raise WireError(f"{self.path}, line {n + 1}: the answer kept in {SENT}/{entry['sha256']} was changed")
            before = sha256(text).hexdigest()
            yield entry

    def kept(self, line: Mapping[str, Any]) -> bytes | None:
        """The answer that a line describes, if it was kept and nobody has deleted it."""
        place = self.path.parent / SENT / str(line.get("sha256"))
        return place.read_bytes() if line.get("kept") and place.is_file() else None


def meaning(kind: str, answer: Content, study: bool) -> str:
    """What an answer of this kind says about the owner's rows, in words."""
    name = kind.partition(".")[2]
    if answer[:1] == b"!":
        return "an error, in words; no figure of the rows"
    if name.startswith("secure_"):
        return "a part of a secure sum: public keys, encrypted shares, masked numbers or shares of masks"
    if kind == "query":
        return "its name and terms" if study else "an account of its rows: their numbers, labels, names and shapes"
    if kind == "evaluate":
        return "figures of the server's model on its rows"
    return f"sums over its rows, by {name}" if study else f"the reply of {name}, computed from its rows"


def digest(file: Path) -> str:
    """The name of a recipe, or of a --data, in approvals: the first 32 hexadecimal digits of its file's SHA-256."""
    return sha256(file.read_bytes()).hexdigest()[:32]


def approvals(record: Record) -> list[dict[str, Any]]:
    """The lines of approvals. Raises RecipeError for one that names no recipe, or no day."""
    lines = [*record.lines()]
    for line in lines:
        try:
            (line["recipe"] + "", line["until"] is None or datetime.date.fromisoformat(line["until"]))
        except (KeyError, TypeError, ValueError):
            raise RecipeError(
                f"{record.path}, line {line['n'] + 1}: this approval lacks a recipe, or its day is not YYYY-MM-DD. You "
                "cannot correct a signed line: move the file elsewhere, and approve or close each recipe again with "
                "medley node",
                "until",
            ) from None
    return lines


def refuse_unapproved(ledger: Record, recipe: str, client: object, config: Mapping[str, Any], reader: str = "") -> None:
    """Raise RecipeError for a recipe that the owner closed, or for an approval that has expired.

    Once the owner has approved one recipe, the node answers only approved recipes, unchanged: the approval must allow
        every setting that the server makes in Flower's run ``config``. An approval of --data, with the queries in it,
        holds for the file with the digest ``reader`` only.
    """
    decisions = approvals(ledger)
    if len(str(config.get("set", ""))) > SETTINGS:
        raise RecipeError(
            f"{name_of(client)}: set= has more than {SETTINGS} characters, which its record does not hold; "
            "put settings into the recipe",
            "set",
        )
    mine = [line for line in decisions if line["recipe"] == recipe]
    again = f"its owner can approve it: medley node --approve, with this recipe (digest {recipe})"
    if not mine:
        if any(line["until"] is not None for line in decisions):
            raise RecipeError(f"{name_of(client)}: its owner has not approved this recipe; {again}", "recipe")
        return
    until = mine[-1]["until"]
    if until is None:
        raise RecipeError(f"{name_of(client)}: its owner closed this study; {again}", "recipe")
    if datetime.datetime.now(datetime.UTC).date() > datetime.date.fromisoformat(until):
        raise RecipeError(f"{name_of(client)}: the approval of this recipe ended on {until}; {again}", "recipe")
    if mine[-1].get("reader", reader) != reader:
        raise RecipeError(
            f"{name_of(client)}: its owner approved this recipe for other rows: the file of --data has changed, or is "
            f"another; {again}, and --data",
            "data",
        )
    try:
        refuse_settings({"allow": mine[-1].get("allow", "")}, config, client)
    except RecipeError as e:
        raise RecipeError(f"{e}, by its approval of this recipe; {again}, and --allow 'KEYS'", "allow") from None


def _last(path: Path) -> tuple[bytes | None, int]:
    """The last complete line of a file, and where it ends. What a partial line after it describes was not sent."""
    if not path.exists():
        return None, 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        size = 1 << 16
        tail = b""
        while tail.count(b"\n") < 2 and len(tail) < end:
            file.seek(max(0, end - size))
            tail = file.read()
            size = 2 * size
    complete, _, torn = tail.rpartition(b"\n")
    if torn:
        log.warning("%s ends in an incomplete line, which was not sent; removing it", path)
    return complete.rpartition(b"\n")[2] or None, end - len(torn)


def _bytes(line: dict[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()


def numbers(answer: bytes) -> Iterator[str]:
    """Lines "name: value" of the content of any kind of answer."""
    content: Any = answer[1:]
    try:
        content = json.loads(content)
    except ValueError:
        try:
            content = pytree.from_bytes(content, {})
        except WireError:
            yield f"{len(answer)} bytes in a form of their own, such as encrypted shares"
            return
    yield from _lines("", content)


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _lines(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, Tensor):
        few = ", ".join(f"{v:.10g}" for v in value.flatten()[:LONGEST].tolist())
        yield f"{shown(name)}: {list(value.shape)} {few}{', …' if value.numel() > LONGEST else ''}"
    else:
        yield f"{shown(name)}: {shown(value)}"
