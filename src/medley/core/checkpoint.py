"""Checkpoints: one file, whole or not at all, with a checksum; resuming gives the same bits."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from . import files, tree
from .cohort import Books
from .errors import MedleyError, WireError
from .patience import Late
from .wire import Entry, Ledger

FILE = "checkpoint.safetensors"
FORMAT = "2"


def save(folder: Path, state: dict[str, Any], books: Books, settings: dict[str, Any]) -> None:
    """Write ``state`` (a state tree by name) and the books into ``folder``. Raises MedleyError when it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MedleyError(f"cannot make the folder {folder}: {e}; choose another") from e
    store: dict[str, Tensor] = {}
    methods = list(dict.fromkeys(e.method for e in books.ledger))
    number = {m: k for k, m in enumerate(methods)}
    ledger = [(e.round, e.exchange, number[e.method], e.client, e.down, e.up, e.overhead) for e in books.ledger]
    kept = {
        "state": state,
        "methods": methods,
        "ledger": torch.tensor(ledger, dtype=torch.int64).reshape(-1, len(Entry._fields)),
        "seconds": books.seconds,
        "acked": books.acked,
        "buffers": books.buffers,
        "late": books.late,
    }
    text = json.dumps(tree.pack(kept, store))
    head = {"format": FORMAT, "tree": text, "settings": json.dumps(settings, default=files.plain)}
    with files.replacing(folder / FILE) as tmp:
        save_file(store, tmp, metadata={**head, "sum": _checksum(head, store)})


def load(
    folder: Path, classes: dict[str, type], settings: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Books, dict[str, Any]]:
    """Inverse of `save`: state, books, settings. Raises WireError for a missing or damaged checkpoint, or, where
    ``settings`` are given, one of a run with others.
    """
    path = folder / FILE
    try:
        with safe_open(path, "pt") as f:
            head = dict(f.metadata() or {})
            store = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
        if head.get("format") != FORMAT:
            raise WireError(f"{path} has format {head.get('format')!r}; this version reads {FORMAT!r}")
        if head.pop("sum") != _checksum(head, store):
            raise WireError(f"{path} is damaged: its checksum does not fit; take an earlier copy, or start anew")
        theirs = json.loads(head["settings"])
        ours = theirs if settings is None else json.loads(json.dumps(settings, default=files.plain))
        # Before the state, which another method's classes could not hold.
        differ = [k for k in ours | theirs if ours.get(k) != theirs.get(k)]
        if differ:
            k = differ[0]
            raise WireError(
                f"the checkpoint in {folder} is of another run: {k} was {theirs.get(k)!r} there and is {ours.get(k)!r} "
                "here; resume with what it was started with"
            )
        kept = tree.unpack(json.loads(head["tree"]), store, {**classes, "Late": Late})
    except FileNotFoundError:
        raise WireError(f"there is no checkpoint in {folder}: nothing to resume") from None
    except (OSError, SafetensorError, ValueError, KeyError) as e:
        raise WireError(f"{path} is not a checkpoint that can be read: {type(e).__name__}: {e}") from None
    names = kept["methods"]
    entries = [Entry(r, x, names[m], *rest) for r, x, m, *rest in kept["ledger"].tolist()]
    books = Books(Ledger.of(entries), kept["seconds"], kept["acked"], kept["buffers"], late=kept["late"])
    return kept["state"], books, theirs


def _checksum(head: dict[str, str], store: dict[str, Tensor]) -> str:
    h = blake2b(digest_size=16)
    for key in sorted(head):
        h.update(f"{key}={head[key]}\n".encode())
    for name in sorted(store):
        h.update(f"{name} {store[name].dtype} {list(store[name].shape)}\n".encode())
        h.update(store[name].reshape(-1).view(torch.uint8).numpy().data if store[name].numel() else b"")
    return h.hexdigest()
