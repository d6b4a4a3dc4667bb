"""Files of a run's folder that are of another version, missing, or damaged: their checksums and errors."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from ..contract.errors import WireError
from ..numerics.offload import release_pages


def other_format(
    folder: Path, written: object, readable: object, version: str | None, use: str = "finish"
) -> WireError:
    """The error for a run in a format that this version cannot read.

    Args:
        folder: the folder that holds the run
        written, readable: the format's number in the folder, and the one that this version reads
        version: the version of Medley that wrote the folder; None if it is not recorded
        use: the verb of the remedy, "finish" or "read"
    """
    writer = "another version of medley" if version is None else f"medley {version}"
    return WireError(
        f"{folder} holds a run that {writer} wrote in format {written}, but this version reads only format {readable}: "
        f"{use} it with the version that wrote it, or start over in another folder"
    )


def no_checkpoint(folder: Path) -> WireError:
    """The error for resuming a folder without a checkpoint."""
    return WireError(
        f"there is no checkpoint in {folder}: nothing to resume; to begin a run there, give it as checkpoint= "
        "(medley run --save)"
    )


def head_of(folder: Path) -> str:
    """The text of a folder's result.json. Raises WireError, with what to give, if there is none."""
    if not (folder / "result.json").exists():
        file = folder.is_file()
        name = "FOLDER" if file else str(folder)
        raise WireError(
            f"{folder} {'is a file' if file else 'holds no result'}: give the folder of a finished run, as in "
            f"medley run --save {name} or md.run(..., checkpoint={name!r})"
        )
    return (folder / "result.json").read_text()


def checksum(texts: Mapping[str, str], store: Mapping[str, Tensor]) -> str:
    """The checksum of texts and tensors with their names."""
    h = blake2b(digest_size=16)
    for key in sorted(texts):
        h.update(f"{key}={texts[key]}\n".encode())
    for name in sorted(store):
        h.update(f"{name} {store[name].dtype} {list(store[name].shape)}\n".encode())
        h.update(store[name].reshape(-1).view(torch.uint8).numpy().data if store[name].numel() else b"")
        release_pages(store[name])
    return h.hexdigest()


def refuse_damage(where: object, recorded: str | None, computed: str) -> None:
    """Raise WireError if a file's checksum does not match. Earlier versions' files have none: ``recorded`` is None."""
    if recorded not in (None, computed):
        raise WireError(f"{where} is damaged: its checksum does not match; take an earlier copy, or run it again")
