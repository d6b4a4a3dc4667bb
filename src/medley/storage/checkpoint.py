"""Checkpoints: one file, whole or not at all, with a checksum. A run that resumes from it gets the same bits.

The file is in the safetensors format. Its metadata hold the format's number, the version of Medley that wrote it, the
run's settings, the skeleton of the state (see `pytree.pack`) and the checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..contract import pytree
from ..contract.errors import WireError
from ..numerics.offload import offload, release_pages
from ..runtime.versions import version
from ..wire.arrival import Arrival
from . import atomic
from .as_json import plain
from .changed_settings import difference, earlier
from .environment import device_of
from .formats import checksum, no_checkpoint, other_format
from .spill import LazyMapping

FILE = "checkpoint.safetensors"

FORMAT = "6"

PART = 1 << 28
"""Bytes of clients' memories in one file."""

DESCRIBING = frozenset(
    {"features", "scaling", "test_rows", "test_majority", "classes", "labels", "integers", "dimensions", "decision"}
)
"""Settings that describe data: names and scaling of its features; number of test rows and their commonest label; number
and names of its classes and the outputs that stand for them; which inputs are whole numbers; and the number of
dimensions of X."""


def save(folder: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a checkpoint into ``folder``. Raises MedleyError if it cannot be written.

    Args:
        state: pytrees by name. Its "memories" may exceed RAM: above `PART` bytes they go into separate files next to
            the checkpoint. Each file's name holds its checksum, so the files of the previous checkpoint stay until the
            new checkpoint is complete.
    """
    parts = list[str]()
    last = dict[int, Any]()
    size = 0
    for i, m in state.get("memories", {}).items():
        more = sum(t.numel() * t.element_size() for _, t in pytree.tensors(m))
        if last and size + more > PART:
            parts.append(_save_part(atomic.make_folder(folder), last))
            last = {}
            size = 0
        last[i] = m
        size += more
    if "memories" in state:
        state = state | {"memories": last, "parts": parts}
    store: dict[str, Tensor] = {}
    text = json.dumps(pytree.pack(state, store, copy=False))
    head = {"format": FORMAT, "tree": text, "settings": json.dumps(settings, default=plain)}
    head["medley"] = version()
    pieces = pytree.safetensors(store, {**head, "sum": checksum(head, store)})  # safetensors' own would copy them twice
    with atomic.replacing(atomic.make_folder(folder) / FILE) as tmp, tmp.open("wb") as f:
        f.writelines(pieces)
    for t in store.values():
        release_pages(t)
    for old in folder.glob("memories-*.safetensors"):
        if old.name not in parts:
            old.unlink(missing_ok=True)


def _save_part(folder: Path, memories: dict[int, Any]) -> str:
    raw = pytree.to_bytes(memories)
    name = _part_name(raw)
    atomic.write(folder / name, raw)
    for _, t in pytree.tensors(memories):
        release_pages(t)
    return name


def _part_name(raw: bytes) -> str:
    return f"memories-{blake2b(raw, digest_size=16).hexdigest()}.safetensors"


def _load_memories(
    folder: Path, parts: list[str], last: dict[int, Any], classes: dict[str, type]
) -> Iterator[tuple[int, Any]]:
    """Clients' memories, one file at a time: those in ``parts``, then ``last``, which the checkpoint itself holds."""
    for name in parts:
        path = folder / name
        try:
            raw = path.read_bytes()
        except OSError as e:
            raise WireError(f"{path} is a part of the checkpoint and cannot be read: {e}; start over") from None
        if name != _part_name(raw):
            raise WireError(f"{path} is damaged: its checksum does not match; take an earlier copy of {folder}")
        yield from pytree.from_bytes(raw, classes).items()
    yield from last.items()


def load(folder: Path, classes: dict[str, type], settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state that `save` wrote; its "memories" are read from disk when they are needed.

    Args:
        settings: the settings that the checkpoint must have; by default they are not compared

    Raises WireError if the checkpoint is missing, damaged, in another format, or from a run with other settings.
    """
    path = folder / FILE
    try:
        with safe_open(path, "pt") as f:
            head = dict(f.metadata() or {})
            # Copied to memory that torch aligns: some kernels give other bits at other alignments.
            store = {name: offload(f.get_tensor(name).clone()) for name in f.keys()}  # noqa: SIM118 (not a dict)
        if head.get("format") != FORMAT:
            raise other_format(folder, head.get("format"), FORMAT, head.get("medley"))
        if head.pop("sum") != checksum(head, store):
            raise WireError(
                f"{path} is damaged: its checksum does not match; take an earlier copy of {folder}, or start over"
            )
        if settings is not None:
            # Compared before the state is unpacked: this run's classes could not hold another method's state.
            same_settings(folder, json.loads(head["settings"]), settings)
        state = pytree.unpack(json.loads(head["tree"]), store, {**classes, "Arrival": Arrival})
    except pytree.OtherVersion as e:
        raise WireError(
            f"the run in {folder}, of medley {head.get('medley')}, cannot go on: {e}. Finish it with the version of "
            "Medley that began it, or start it again in another folder"
        ) from None
    except FileNotFoundError:
        raise no_checkpoint(folder) from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise WireError(
            f"{path} is not a checkpoint that can be read ({type(e).__name__}: {e}); take an earlier copy of {folder}, "
            "or start over"
        ) from None
    if "parts" in state:
        parts = state.pop("parts")
        last = state["memories"]
        state["memories"] = LazyMapping(partial(_load_memories, folder, parts, last, classes))
    return dict(state)


def same_settings(folder: Path, recorded: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise WireError, naming the first setting that differs, unless ``recorded`` (those in ``folder``) are equal.

    Settings that only describe the data, `DESCRIBING`, are not compared, because the data's identity is. A run may
    resume on another device, with the engine that is chosen there (see `environment.warn_of_changes`).
    """
    plain_settings = json.loads(json.dumps(settings, default=plain))
    left = DESCRIBING | {"device"} | (set() if device_of(recorded) == device_of(plain_settings) else {"engine"})
    expected = {k: v for k, v in recorded.items() if k not in left}
    requested = {k: v for k, v in plain_settings.items() if k not in left}
    if changed := earlier(expected, requested):
        raise WireError(f"the checkpoint in {folder} is of an earlier version: {changed} in another folder")
    why = difference(expected, requested)
    if why:
        raise WireError(
            f"the checkpoint in {folder} is from another run: {why}; resume with the data, model and settings that it "
            "was started with"
        )
