"""Atomic files and locked folders: a file appears whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..contract.errors import MedleyError, RecipeError, reason

log = logging.getLogger("medley")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise MedleyError, naming ``path``, if an attempt to write it fails: a full disk, no permission."""
    try:
        yield
    except MedleyError:
        raise
    except Exception as e:
        # Not OSError alone: safetensors reports a full disk with its own error.
        remedy = "run again with resume=" if (path.parent / "run.json").exists() else "run again"  # a run's folder
        raise MedleyError(
            f"cannot write {path}: {e}; the old file is untouched. Make room or choose another folder, then {remedy}"
        ) from e


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write ``path`` whole or not at all: yields a temporary path next to it.

    On success the temporary file is synced to disk and renamed over ``path``, otherwise it is removed. Raises
    MedleyError if it cannot be written; the old file is then untouched.
    """
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            yield tmp
            with tmp.open("rb+") as f:
                flush(f.fileno())
            tmp.replace(path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):  # it would hide the error that says why
            tmp.unlink(missing_ok=True)


def write(path: Path, content: str | bytes, owner_only: bool = False) -> None:
    """Write a file whole or not at all, see `replacing`; with ``owner_only`` only its owner can read it."""
    with replacing(path) as tmp:
        tmp.touch(mode=0o600 if owner_only else 0o666)
        tmp.write_bytes(content.encode() if isinstance(content, str) else content)


def append(path: Path, end: int, content: bytes) -> None:
    """Put content on the disk at the place ``end`` of a file for its owner alone, instead of what follows there.

    Raises MedleyError if it cannot be written, or is a link; then no part of it is there.
    """
    with writing(path), open(path, "r+b" if path.exists() else "xb", opener=_owner_only) as file:
        file.truncate(end)
        file.seek(end)
        try:
            file.write(content)
            file.flush()
            flush(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)
            raise
    if not end:
        sync(path.parent)


def _owner_only(path: str, flags: int) -> int:
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)
    return fd


def flush(fd: int) -> None:
    """Force a file to disk. macOS needs another call, because ``fsync`` leaves it in the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # a network drive may lack it
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


def sync(folder: Path) -> None:
    """Force the names in ``folder`` to disk; a renamed file survives a power cut only then."""
    if sys.platform == "win32":  # Windows cannot open a folder, and its file system keeps a journal of names
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path, *, owner_only: bool = False) -> Path:
    """Make the folder, with its parents, unless it exists; with ``owner_only`` only its owner can look into it.

    Raises MedleyError if it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700 if owner_only else 0o777, parents=True, exist_ok=True)
        if owner_only:
            folder.chmod(0o700)
    except OSError as e:
        raise MedleyError(f"cannot make the folder {folder}: {reason(e)}; choose another") from e
    return folder


def writable(path: Path, call: str) -> None:
    """Raise MedleyError, naming ``call``, unless a file can be written at ``path``; its folder is made.

    For a file that is written only after hours of work.
    """
    remedy = f"{call}: {path} cannot be written"
    if path.is_dir():
        raise RecipeError(f"{remedy}: it is a folder; give the name of a file", "save")
    probe = make_folder(path.parent) / f".{path.name}.{os.getpid()}.tmp"
    try:
        probe.touch()
        probe.unlink()
    except OSError as e:
        raise RecipeError(f"{remedy}: {reason(e)}; choose another place", "save") from e


def refuse_links(folder: Path) -> None:
    """Raise RecipeError for a link in ``folder`` unless it leads to a folder: writing would change a file elsewhere."""
    for path in folder.iterdir():
        if path.is_symlink() and not path.is_dir():
            raise RecipeError(
                f"{path} is a link to {path.readlink()}, and Medley would write there: replace the link by "
                "the file itself, or delete the link if somebody else gave you the folder",
                "checkpoint",
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other writers, in this process and in others. The lock ends with the process.

    A forked child does not inherit it. Raises RecipeError if the folder is locked already, and for links in it.
    """
    path = make_folder(folder) / ".lock"
    writer = folder / ".writer"
    refuse_links(folder)
    with writing(path):
        path.touch()
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        # Not in the locked file itself: Windows lets nobody else read that.
        pid = writer.read_text(encoding="utf-8") if writer.exists() else ""
        raise RecipeError(
            f"{folder} is in use: process {pid or '?'} is writing to it; wait for it, or choose another folder",
            "checkpoint",
        ) from None
    except OSError as e:  # a network file system without locks
        log.warning("%s cannot be locked (%s): make sure that only one run writes to it", folder, e)
    try:
        with writing(writer):
            writer.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        lock.release()


def private(folder: Path) -> Path:
    """Make a folder and its missing parents, readable by their owner only (0700); existing ones stay as they are."""
    for place in reversed([folder, *folder.parents]):
        if not place.exists():
            make_folder(place, owner_only=True)
    return folder
