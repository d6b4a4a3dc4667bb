"""A node's record: a line for everything it sent, each with the digest of the line before and the node's signature."""

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

from ..contract.errors import RecipeError, WireError
from ..storage.atomic import flush, writing
from .agreement import refuse_settings
from .cleaning import private
from .keys import ecdsa, private_key, public_key

log = logging.getLogger("medley.node")

LEFT, APPROVALS = "record.jsonl", "approvals.jsonl"
"""Files of a client's node: what it sent, and which recipes its owner approved or closed."""


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
        """Add a line. Raises MedleyError if it cannot be written."""
        private(self.path.parent)
        with writing(self.path), FileLock(f"{self.path}.lock"), self.path.open("ab+") as file:
            os.chmod(self.path, 0o600)
            last = _last(file)
            n, before = (0, "") if last is None else (json.loads(last)["n"] + 1, sha256(last).hexdigest())
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            line = {"n": n, "at": at, **what, "before": before}
            if self.key is not None:
                line["signature"] = private_key(self.key).sign(_bytes(line), ecdsa()).hex()
            file.write(_bytes(line) + b"\n")
            file.flush()
            flush(file.fileno())

    def head(self) -> str:
        """The digest of the last line, to note elsewhere; empty if there are no lines."""
        last = self.path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2] if self.path.exists() else b""
        return sha256(last).hexdigest() if last else ""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines, each after its check. Raises WireError with the number of the first line that was changed."""
        from cryptography.exceptions import InvalidSignature

        public = None if self.key is None else public_key(self.key)
        before = ""
        *whole, torn = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        for n, text in enumerate([*whole, torn] if torn else whole):
            try:
                line = json.loads(text)
                said = {k: v for k, v in line.items() if k != "signature"}
                if _bytes(line) != text or line["n"] != n or line["before"] != before:
                    raise ValueError
                if public is not None:
                    public.verify(raw := bytes.fromhex(line["signature"]), _bytes(said), ecdsa())
                    if raw.hex() != line["signature"]:  # a hexadecimal digit in upper case
                        raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature):
                raise WireError(
                    f"{self.path}, line {n + 1}: this line was changed, or the line before it is missing; the "
                    f"{n} lines before are intact"
                ) from None
            before = sha256(text).hexdigest()
            yield said


def digest(recipe: Path) -> str:
    """The name of a recipe in approvals: the first 32 hexadecimal digits of the SHA-256 of its file."""
    return sha256(recipe.read_bytes()).hexdigest()[:32]


def refuse_unapproved(approvals: Record, recipe: str, client: object, config: Mapping[str, Any]) -> None:
    """Raise RecipeError for a recipe that the owner closed, or for an approval that has expired.

    Once the owner has approved one recipe, the node answers only approved recipes, unchanged: the approval must allow
        every setting that the server makes in Flower's run ``config``.
    """
    said = [*approvals.lines()]
    mine = [line for line in said if line["recipe"] == recipe]
    again = f"its owner can approve it: medley node --approve, with this recipe (digest {recipe})"
    if not mine:
        if any(line["until"] is not None for line in said):
            raise RecipeError(f"client {client}: its owner has not approved this recipe; {again}", "recipe")
        return
    if (until := mine[-1]["until"]) is None:
        raise RecipeError(f"client {client}: its owner closed this study; {again}", "recipe")
    if datetime.datetime.now(datetime.UTC).date() > datetime.date.fromisoformat(until):
        raise RecipeError(f"client {client}: the approval of this recipe ended on {until}; {again}", "recipe")
    try:
        refuse_settings({"allow": mine[-1].get("allow", "")}, config, client)
    except RecipeError as e:
        raise RecipeError(f"{e}, by its approval of this recipe; {again}, and --allow 'KEYS'", "allow") from None


def _last(file: Any) -> bytes | None:
    """The last complete line of a file. Cuts the file after it: what a partial line describes was not sent."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - (1 << 16)))
    tail = file.read()
    whole, _, torn = tail.rpartition(b"\n")
    if torn:
        log.warning("%s ends in an incomplete line; removing it", file.name)
        file.truncate(end - len(torn))
    return whole.rpartition(b"\n")[2] or None


def _bytes(line: dict[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()
