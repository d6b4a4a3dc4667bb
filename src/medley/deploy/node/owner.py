"""The ledgers of a node's owner: record, approvals, account and register. They belong to the key, not to a number.

A node that starts again under another number has the same ledgers. With another key it does not serve the rows that
these ledgers limit: its owner hands them over, see `renew`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from ...contract.errors import MedleyError, RecipeError
from ...contract.place import name_of
from ...datasets.ingest.queries import collected_queries
from ...rows.lazy import Lazy
from ...rows.sparse import Sparse
from ...storage.atomic import private, refuse_links
from ...storage.atomic import write as written
from .account import FILE as ACCOUNT
from .keys import public_key
from .record import APPROVALS, LEFT, SENT, Record, approvals

log = logging.getLogger("medley.node")

REGISTER = "left.jsonl"
"""The file of the sets of rows whose sums have left."""

ROWS = "rows.json"
"""The file of the digests of some rows."""

SECRET = "rows.key"
"""The file of the secret of these digests."""

OLD = (LEFT, APPROVALS, ACCOUNT, REGISTER)
"""Ledgers that earlier versions kept in a folder named by the client's number."""

SKETCH = 1024
"""How many digests of rows are kept: the smallest."""

MOST_ROWS = 50_000
"""Of how many rows digests are taken at most."""


def memories(config: Mapping[str, Any]) -> Path:
    """The folder of memories that a node config names; by default ``~/.medley``."""
    return Path(str(config.get("memory") or os.environ.get("MEDLEY_HOME") or "~/.medley")).expanduser()


def own_folder(config: Mapping[str, Any]) -> Path:
    """The folder of a client's process, below that of its memories, from Flower's node config."""
    i = config.get("partition-id")
    return memories(config) / f"client{i if isinstance(i, int) and i >= 0 else ''}"


def ledgers(config: Mapping[str, Any]) -> Path:
    """The folder of the owner's ledgers: by its key, or by the client's number if the node has no key.

    Raises RecipeError if the key's ledgers are in another place too, and for links.
    """
    if config.get("key") is None:
        return _plain(own_folder(config))
    key = Path(str(config["key"]))
    folder = _of_key(config)
    noted = refuse_elsewhere(config)
    if not folder.exists():
        _adopt(config, key, folder)
    if noted != folder.resolve():
        try:
            written(_place(key), f"{folder.resolve()}\n", owner_only=True)
        except MedleyError:  # keys on a medium that cannot be written
            log.info("%s cannot be written, so nothing refuses another --memory: always give this one", _place(key))
    return _plain(folder)


def refuse_elsewhere(config: Mapping[str, Any]) -> Path | None:
    """The folder of ledgers that is noted beside the key; None if none is. Raises RecipeError if it is another one."""
    key = Path(str(config["key"]))
    folder = _of_key(config)
    place = _place(key)
    noted = _noted(place) if place.is_file() and not place.is_symlink() else None
    if noted is not None and noted != folder.resolve() and (noted.exists() or not folder.exists()):
        raise RecipeError(
            f"the ledgers of {key} (record, approvals, account, register) are in {noted}"
            + ("" if noted.exists() else ", which is gone: bring it back, or put it into the new folder of memories")
            + f"; start the node with --memory {shlex.quote(str(noted.parent))}, or with the key that took them over. "
            f"If they are lost, delete {place}: what they counted comes on top of what the new ones count",
            "memory",
        )
    return noted


def ledgers_to_read(config: Mapping[str, Any]) -> Path:
    """The folder of ledgers, or a copy of it, for reading. Changes nothing."""
    if config.get("key") is not None:
        folder = _of_key(config)
        return folder if folder.exists() else own_folder(config)
    owners = [*memories(config).glob("owner-*")]
    return owners[0] if len(owners) == 1 and not (own_folder(config) / LEFT).exists() else own_folder(config)


def _of_key(config: Mapping[str, Any]) -> Path:
    return memories(config) / f"owner-{fingerprint(Path(str(config['key'])))}"


def _place(key: Path) -> Path:
    """The file beside a key that notes where its ledgers are."""
    return key.with_name(f"{key.name.removesuffix('.pub')}.ledgers")


def _noted(place: Path) -> Path:
    """The folder of ledgers that a file beside a key notes. Raises RecipeError for a damaged one."""
    try:
        text = place.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as e:
        text = f"{place} cannot be read ({e.strerror}): give it the owner of the key, who runs this node"
        raise RecipeError(text, "key") from None
    folder = Path(text)
    if not folder.is_absolute() or {"\0", "\N{REPLACEMENT CHARACTER}"} & {*text}:
        raise RecipeError(
            f"{place} is damaged: it should name the folder of the key's ledgers (record, approvals, account, "
            "register). Put back a copy of it, or write the path of that folder into it",
            "memory",
        )
    return folder


def fingerprint(key: Path) -> str:
    """The name of a key: 16 hexadecimal digits of the SHA-256 of its public half."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = public_key(key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(raw).hexdigest()[:16]


def _plain(folder: Path) -> Path:
    """The folder, which is neither a link nor holds one. Raises RecipeError otherwise."""
    if folder.is_symlink():
        raise RecipeError(f"{folder} is a link to {folder.readlink()}: put the folder itself there", "memory")
    refuse_links(private(folder))
    return folder


def _adopt(config: Mapping[str, Any], key: Path, folder: Path) -> None:
    """Move ledgers of an earlier version into ``folder``. Raises RecipeError if it is unclear whose they are."""
    mine = list[Path]()
    unclear = list[Path]()
    for place in sorted(memories(config).glob("client*")):
        if any((place / name).exists() for name in OLD):
            signed = [Record(place / name, key) for name in (LEFT, APPROVALS) if (place / name).exists()]
            if signed and all(record.is_of_key() for record in signed):
                mine.append(place)
            elif place == own_folder(config):
                unclear.append(place)
            else:
                log.warning(
                    "the ledgers in %s are not signed by the key %s: what they approve, close or count does not hold "
                    "for it. If they are of these rows, approve or close the recipes again with --key", place, key,
                )  # fmt: skip
    if unclear or len(mine) > 1:
        names = ", ".join(map(str, [*mine, *unclear]))
        raise RecipeError(
            f"{names}: an earlier version wrote these ledgers, and Medley cannot tell which of them belong to the key "
            f"{key}. Each key has one folder of ledgers now. Leave the folder that counts what your rows have spent "
            "where it is, and move the others elsewhere. If it belongs to an earlier key: medley node --renew OLDKEY "
            "--key NEWKEY",
            "memory",
        )
    private(folder)
    for place in mine:
        for name in OLD:
            if (place / name).exists():
                (place / name).replace(folder / name)
        log.info("the ledgers in %s are now in %s", place, folder)


def renew(config: Mapping[str, Any], old: Path) -> Path:
    """Hand the ledgers of an earlier key over to the node's key. Returns their folder.

    The old record and approvals stay beside the new ones, signed by the old key; each recipe keeps its last approval.
    """
    before = ledgers({**config, "key": str(old)})
    key = Path(str(config["key"]))
    after = _of_key(config)
    if after.exists():
        raise RecipeError(f"{after} exists: the key {key} has ledgers of its own already; give a new key", "key")
    last = {line["recipe"]: line for line in approvals(Record(before / APPROVALS, old))}
    head = Record(before / LEFT, old).head()
    past = private(before / f"until-{fingerprint(old)}")
    for name in (LEFT, APPROVALS):
        if (before / name).exists():
            (before / name).replace(past / name)
    before.replace(after)
    Record(after / LEFT, key).add(kind="key", what=f"the key of {past.name[6:]} was replaced by this one", head=head)
    for recipe, line in last.items():
        kept = {"allow": ""} | {k: line[k] for k in ("allow", "reader") if k in line}
        Record(after / APPROVALS, key).add(recipe=recipe, until=line["until"], **kept)
    _place(old).unlink(missing_ok=True)
    written(_place(old), f"{after.resolve()}\n", owner_only=True)
    return ledgers(config)


@contextmanager
def recording_queries(config: Mapping[str, Any], noted: bool) -> Iterator[None]:
    """A context in which the owner's rows are read; the record keeps the queries by which a database gave them.

    Args:
        noted: whether to note them; a check of the data does not
    """
    with collected_queries() as queries:
        yield
    if queries and noted:
        record = record_of(config)
        kept = ", ".join(f"{SENT}/{record.keep(query.encode())}" for query in queries)
        record.add(kind="rows", what=f"nothing left; its rows were read by the query in {kept}")


def record_of(config: Mapping[str, Any], name: str = LEFT) -> Record:
    """The record of a node's owner, found by Flower's node config: of what it sent, or of approvals."""
    key = config.get("key")
    return Record(ledgers(config) / name, None if key is None else Path(str(key)))


def bytes_of(*columns: Tensor) -> Iterator[bytes]:
    """The rows of tensors [n, ...] as bytes, up to 256 MiB."""
    size = max(1, sum(c.shape[1:].numel() * c.element_size() for c in columns))
    for k in range(0, min(len(columns[0]), MOST_ROWS, (1 << 28) // size), 256):
        flat = [_dense(c[k : k + 256]) for c in columns]
        dense = [f.contiguous().reshape(len(f), -1).view(torch.uint8).numpy() for f in flat if f.shape[1:].numel()]
        yield from (b"".join(map(bytes, row)) for row in zip(*dense, strict=True))


def _dense(rows: Tensor) -> Tensor:
    if isinstance(rows, Sparse):
        return torch.from_numpy(rows.matrix.toarray())
    return rows.read() if isinstance(rows, Lazy) else rows.cpu()


def secret(config: Mapping[str, Any]) -> bytes:
    """The secret of the folder of memories, which never leaves it."""
    place = private(memories(config)) / SECRET
    if place.is_symlink():
        raise RecipeError(f"{place} is a link to {place.readlink()}: put the file itself there", "memory")
    with FileLock(f"{place}.lock", mode=0o600):
        if not place.exists() and not any(place.parent.glob(f"*/{ROWS}")):
            written(place, secrets.token_bytes(32), owner_only=True)
        key = place.read_bytes() if place.exists() else b""
    if len(key) != 32:
        raise RecipeError(
            f"{place} is {'damaged' if place.exists() else 'missing'}, and without it nobody knows which rows belong "
            f"to which ledgers: put back a copy of it, with the files {ROWS} of the same day. If it is lost, delete "
            f"{place} and {place.parent}/*/{ROWS}, and before any other key is used start each owner's node once with "
            "the key that it had: that notes its rows anew",
            "memory",
        )
    return key


def _limits(folder: Path) -> bool:
    """Whether ledgers limit what else may leave: an approval or a closed recipe, spent ε, or sums of a study."""
    return bool(_read(folder / ACCOUNT, {}).get("spent")) or any((folder / n).exists() for n in (APPROVALS, REGISTER))


def _read(file: Path, empty: Any) -> Any:
    """The value of a file of JSON, of the kind of ``empty``, which it is if there is no file.

    Raises RecipeError for a damaged file.
    """
    if not file.exists():
        return empty
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if type(value) is type(empty) and all(isinstance(v, str) for v in value):
            return value
    except (ValueError, RecursionError):
        pass
    raise RecipeError(f"{file} is damaged, and it holds the limits of these rows: put back a copy of it", "memory")


def _noted_rows(folder: Path, of: str) -> set[str]:
    """The digests of rows of a folder of ledgers. Raises RecipeError if they were made with another secret."""
    first, *digests = _read(folder / ROWS, []) or [of]
    if len(first) > 16 and first != of:
        raise RecipeError(
            f"{folder / ROWS} was made with another secret than {folder.parent / SECRET}: put back copies of both from "
            "the same day. "
            f"If they are lost, delete {folder / ROWS}, and start the node of these ledgers with its key before any "
            "other: that notes its rows anew",
            "memory",
        )
    return {*digests} if len(first) > 16 else {first, *digests}  # earlier versions did not note the secret


def claim(config: Mapping[str, Any], rows: Iterable[bytes]) -> None:
    """Note that these rows are in the owner's ledgers. Raises RecipeError if most of them are another key's.

    If ledgers have no key, they count if they limit what may leave. The file has keyed digests of some rows. Without
    the secret beside it, nobody can look for a row in it.
    """
    root = private(memories(config))
    mine = ledgers(config)
    with FileLock(root / f"{ROWS}.lock", mode=0o600):
        key = secret(config)
        of = f"secret {blake2b(b'secret', key=key, digest_size=8).hexdigest()}"
        digests = {blake2b(row, key=key, digest_size=8).hexdigest() for row in islice(rows, MOST_ROWS)}
        for other in sorted(root.glob(f"*/{ROWS}")):
            keys = all(folder.name.startswith("owner-") for folder in (mine, other.parent))
            if other.parent != mine and (_limits(other.parent) or keys):
                theirs = _noted_rows(other.parent, of)
                few = set(sorted(digests | theirs)[:SKETCH])  # a sample of all rows of both
                if 2 * len(few & digests & theirs) >= min(len(few & digests), len(few & theirs)) > 0:
                    raise RecipeError(
                        f"{name_of(config.get('partition-id'))}: most of its rows have their ledgers in {other.parent}"
                        f", and this node would use {mine}: start it with the key or the number of those ledgers. "
                        "After a change of the key: medley node --renew OLDKEY --key NEWKEY. If they are the rows of "
                        "somebody else and only look alike, give this node its own --memory"
                        + (
                            ""
                            if _limits(other.parent)
                            else f". Nothing is limited there so far: if its key is not used any more, delete {other}"
                        ),
                        "key",
                    )
        noted = [of, *sorted(digests | _noted_rows(mine, of))[:SKETCH]]
        if noted != _read(mine / ROWS, []):
            written(mine / ROWS, json.dumps(noted), owner_only=True)
