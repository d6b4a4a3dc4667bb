"""Errors for runs that another version of Medley wrote."""

from __future__ import annotations

from pathlib import Path

from ..contract.errors import WireError


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
