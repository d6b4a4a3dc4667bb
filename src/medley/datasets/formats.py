"""Files of numbers: idx, records of bytes, and npz."""

from __future__ import annotations

import gzip
import io
import logging
import struct
import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from ..contract.errors import BadData, RecipeError

log = logging.getLogger("medley")


def read_bytes(path: Path, call: str) -> bytes:
    """The content of a file, unpacked if it starts like gzip.

    Raises ``BadData``, naming ``call`` and file, if the gzip stream is damaged or larger than `unpacked_limit`.
    """
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            most = unpacked_limit(len(raw))
            content = stream.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise BadData(f"{call}: {path} is a damaged or truncated gzip file ({error}). Fetch it again.") from None
    if len(content) > most:
        raise too_large(f"{call}: {path}", len(raw), most)
    return content


def unpacked_limit(packed: int) -> int:
    """The most bytes that so many packed bytes may unpack to: 256 MiB, or 100 times as many if that is more. Images and
    text become 2 to 10.
    """
    return max(1 << 28, 100 * packed)


def too_large(what: str, packed: int, most: int) -> BadData:
    """The error for a file that would fill the memory."""
    return BadData(
        f"{what}: {packed} packed bytes become more than {most}, as no data set's do. If it is meant, unpack it first."
    )


def read_idx(path: Path, dims: int, call: str) -> np.ndarray:
    """An array of unsigned bytes from an idx file, packed with gzip or not.

    Raises BadData if the file has another magic number, or a size that its header does not announce.
    """
    raw = read_bytes(path, call)
    head = 4 + 4 * dims
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, dims)):
        raise BadData(
            f"{call}: {path} starts with {raw[:4].hex() or 'nothing'}, not with {bytes((0, 0, 8, dims)).hex()}: "
            f"it is not an idx file of bytes with {dims} dimensions. Fetch the file again."
        )
    shape = struct.unpack(f">{dims}I", raw[4:head])
    size = int(np.prod(shape, dtype=object))
    if len(raw) - head != size:
        raise BadData(
            f"{call}: the header of {path} promises {'×'.join(map(str, shape))} = {size} bytes, but {len(raw) - head} "
            "follow: the file is truncated or damaged. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def read_records(path: Path, labels: int, pixels: int, call: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of label bytes and pixel bytes (CIFAR's binary versions), as [n, labels] and [n, pixels].

    Args:
        labels: Label bytes of a record, which come first.
        pixels: Pixel bytes of a record.

    Raises BadData if the file is empty or ends in the middle of a record.
    """
    raw = read_bytes(path, call)
    size = labels + pixels
    if not raw or len(raw) % size:
        raise BadData(
            f"{call}: {path} has {len(raw)} bytes, not a multiple of a record's {size}: it is truncated, or in another "
            "format. Fetch the binary version of the data set."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return rows[:, :labels], rows[:, labels:]


def read_npz(path: Path, names: Sequence[str], call: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name; nothing is unpickled.

    Raises RecipeError if the file lacks a name, and BadData if the file is damaged or holds an array of objects.
    """
    try:
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise BadData(
                    f"{call}: {path} is a single array; write an archive of named arrays, np.savez(path, X=X, y=y)"
                )
            for name in names:
                if name not in archive.files:
                    raise RecipeError.unknown(name, archive.files, f"{call}: {path}")
            members = {*names, *(f"{name}.npy" for name in names)}
            size = sum(part.file_size for part in archive.zip.infolist() if part.filename in members)
            most = unpacked_limit(path.stat().st_size)
            if size > most:
                raise too_large(f"{call}: {path}", path.stat().st_size, most)
            return {name: archive[name] for name in names}
    except (BadData, RecipeError):
        raise
    except ValueError:
        raise BadData(
            f"{call}: {path} holds Python objects, or is no npz file; save arrays of numbers or text, "
            "np.savez(path, X=X.astype(float), y=y.astype(str))"
        ) from None
    except (OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise BadData(f"{call}: {path} cannot be read as an npz file of plain arrays ({error}).") from None


def warn_of_unread(path: Path, names: Collection[str], call: str) -> None:
    """Say in the log which arrays of an npz file are not among these names."""
    with np.load(path, allow_pickle=False) as archive:
        rest = [name for name in archive.files if name not in names]
        if rest:
            log.warning(
                "%s does not read %s; name a test set's arrays in X_test= and y_test=, and clients in client=",
                call, ", ".join(rest),
            )  # fmt: skip
