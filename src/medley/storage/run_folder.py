"""Run folders: the settings of a run, its growing history and ledger, and its last checkpoint.

One run at a time writes to a folder. Its files:

- ``run.json``: settings, and an entry for every start: time, round, versions and machine
- ``recipe.toml``: the recipe, if the run was made from one
- ``history.jsonl``, ``ledger.csv``: one line per row or delivery, added during the run
- ``checkpoint.safetensors``: server, clients' memories, clock, and the lengths of history, ledger and clients' rows at
    that time
- ``memories-….safetensors``: the part of the memories that is too large for one file
- ``clients.jsonl``: one line per client's figures after a round, added during the run; absent without such figures
- ``result.json``, ``x.safetensors``: the result, once the run has ended
- ``events.jsonl``, ``events.earlier.jsonl``: the end of each exchange and round, warnings, starts and ends, with times;
    for `medley watch`, and not part of the result
- ``.lock``, ``.writer``: the lock of the process that writes, and its number

A process killed at any moment leaves its last checkpoint. The history, the ledger and the clients' rows that it leaves
begin with the lines that the checkpoint counts.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..contract.errors import RecipeError, WireError
from ..wire.ledger import Ledger
from . import atomic, checkpoint
from .as_json import is_secret, plain
from .environment import device_of, environment, warn_of_changes
from .formats import no_checkpoint, other_format
from .history import Row, history_of, history_text
from .result import CLIENTS, HISTORY, RUN

log = logging.getLogger("medley")

FORMAT = 3
"""The format of run.json and of the folder's layout."""

LEDGER = "ledger.csv"
RECIPE = "recipe.toml"
RESULT = "result.json"

COMMAND = "medley run --resume"
"""The command that resumes the run in a folder, if the folder has a recipe."""


class Grown(NamedTuple):
    """The parts of a run that only grow, one file each."""

    history: list[Row]
    ledger: Ledger
    clients: list[Row]


class Journal:
    """A growing file, with a checksum of its content. It begins as ``text``, which has ``lines`` lines.

    A file that was at ``path`` before is replaced as a whole.
    """

    def __init__(self, path: Path, text: str, lines: int) -> None:
        raw = text.encode()
        self.path = path
        self._end = (len(raw), lines, blake2b(raw, digest_size=16))
        atomic.write(path, raw)
        with atomic.writing(path):
            self._file = path.open("rb+", buffering=0)

    @property
    def lines(self) -> int:
        """The number of its lines."""
        return self._end[1]

    def add(self, text: str, lines: int) -> None:
        """Append. If a write failed or was stopped half-way, the next one overwrites it."""
        raw = text.encode()
        size, before, digest = self._end
        with atomic.writing(self.path):
            done = 0
            while done < len(raw):
                self._file.seek(size + done)
                done += self._file.write(raw[done:])
        digest = digest.copy()
        digest.update(raw)
        self._end = size + len(raw), before + lines, digest  # at once: Ctrl-C may come between two lines

    def sync(self) -> list[Any]:
        """Force the file to disk. Returns its size in bytes and its checksum."""
        size, _, digest = self._end
        with atomic.writing(self.path):
            self._file.truncate(size)
            atomic.flush(self._file.fileno())
        return [size, digest.hexdigest()]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RunFolder:
    """The folder of a run, locked until `close`. Raises RecipeError if another run has locked it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._resources = ExitStack()
        self._resources.enter_context(atomic.locked(path))
        self._history: Journal | None = None
        self._clients: Journal | None = None  # most runs have no such rows

    def begin(self, grown: Grown, settings: dict[str, Any], round: int, is_new: bool, recipe: str | None) -> None:
        """Write run.json, the history, the ledger and the clients' rows as of the start.

        Args:
            grown: rows and deliveries before the start; empty for a new run
            round: the last completed round
            is_new: True if the run does not resume the run in this folder
            recipe: the text of the recipe; None leaves recipe.toml as it is

        Raises RecipeError for a new run in a folder that holds a checkpoint, a saved result or a comparison.
        """
        starts: list[dict[str, Any]] = []
        if is_new and (self.path / checkpoint.FILE).exists():
            command = f" ({COMMAND} {self.path})" if (self.path / RECIPE).exists() else ""
            raise RecipeError(
                f"{self.path} holds a run already: resume it with resume={str(self.path)!r}{command}, choose "
                "another folder, or delete it",
                "checkpoint",
            )
        if is_new and (self.path / RESULT).exists():
            raise RecipeError(
                f"{self.path} holds a saved result, which this run would replace; choose another folder, or delete it",
                "checkpoint",
            )
        if is_new and holds_comparison(self.path):
            raise RecipeError(f"{self.path} holds a comparison; choose another folder for this run", "checkpoint")
        current = environment() | _where(settings)
        about = {} if is_new else described(self.path)
        starts = about.get("starts", [])
        if starts:
            warn_of_changes(self.path, _where(about["settings"]) | starts[-1], current)
        old_clients = [] if grown.clients else [self.path / CLIENTS]
        for stale in [*self.path.glob(".*.tmp"), self.path / RESULT, *old_clients]:
            stale.unlink(missing_ok=True)
        atomic.make_folder(self.path, owner_only=is_secret(settings.get("seed", 0), settings))
        starts.append({"at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "round": round, **current})
        about = {"format": FORMAT, "settings": settings, "starts": starts}
        atomic.write(self.path / RUN, json.dumps(about, indent=1, default=plain))
        if recipe is not None:
            atomic.write(self.path / RECIPE, recipe)
        self._history = self._journal(HISTORY, history_text(grown.history), len(grown.history))
        self._ledger = self._journal(LEDGER, grown.ledger.text(), len(grown.ledger))
        self._grow_clients(grown.clients)

    def _journal(self, name: str, text: str, lines: int) -> Journal:
        journal = Journal(self.path / name, text, lines)
        self._resources.callback(journal.close)
        return journal

    def _grow_clients(self, rows: list[Row]) -> None:
        if self._clients is not None:
            self._clients.add(history_text(rows[self._clients.lines :]), len(rows) - self._clients.lines)
        elif rows:
            self._clients = self._journal(CLIENTS, history_text(rows), len(rows))

    def grow(self, grown: Grown) -> None:
        """Append the rows and deliveries that the files lack."""
        assert self._history is not None
        history, ledger, clients = grown
        self._history.add(history_text(history[self._history.lines :]), len(history) - self._history.lines)
        self._ledger.add(ledger.text(self._ledger.lines), len(ledger) - self._ledger.lines)
        self._grow_clients(clients)

    def save(self, state: dict[str, Any], grown: Grown, settings: dict[str, Any]) -> None:
        """Write a checkpoint of ``state`` and update the files to match. Raises MedleyError if that fails."""
        assert self._history is not None
        self.grow(grown)
        clients = None if self._clients is None else self._clients.sync()
        lengths = {"history": self._history.sync(), "ledger": self._ledger.sync(), "client rows": clients}
        checkpoint.save(self.path, state | lengths, settings)

    def close(self) -> None:
        """Close the files and release the lock."""
        self._resources.close()


def holds_run(folder: Path) -> bool:
    """True if ``folder`` holds a run that can be resumed."""
    return (folder / checkpoint.FILE).exists() or (folder / RUN).exists()


def holds_comparison(folder: Path) -> bool:
    """True if ``folder`` holds finished runs of a comparison."""
    return next(folder.glob("*/seed-*/result.json"), None) is not None


def resuming(folder: Path) -> str:
    """The command that resumes the run in ``folder``, or the call in Python if the run was not made from a recipe."""
    return f"{COMMAND} {folder}" if (folder / RECIPE).exists() else f"run(resume={str(folder)!r})"


def _where(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Device and engine, which may change from start to start."""
    return {"device": device_of(settings), "engine": settings.get("engine")}


def no_run(folder: Path) -> WireError:
    """The error for resuming ``folder`` when it holds no run."""
    if holds_comparison(folder):
        return WireError(f"{folder} holds a comparison: resume it by compare(save={str(folder)!r}) or sweep(save=...)")
    return no_checkpoint(folder)


def load(
    folder: Path, classes: dict[str, type], settings: dict[str, Any]
) -> tuple[dict[str, Any], list[Row], Ledger] | None:
    """State, history and ledger as of the checkpoint; None for a run that ended before its first checkpoint.

    Raises WireError for missing or damaged files, another format, and a run with other settings.
    """
    if not (folder / checkpoint.FILE).exists() and (folder / RUN).exists():
        checkpoint.same_settings(folder, described(folder)["settings"], settings)
        return None
    state = checkpoint.load(folder, classes, settings)
    try:
        history = history_of(_prefix(folder / HISTORY, *state.pop("history")))
        ledger = Ledger.of(_prefix(folder / LEDGER, *state.pop("ledger")))
        rows = state.pop("client rows", None)
        # Earlier checkpoints hold the rows themselves.
        state.setdefault("clients", [] if rows is None else history_of(_prefix(folder / CLIENTS, *rows)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
        raise WireError(
            f"history, ledger or clients' rows in {folder} do not match its checkpoint ({e}); take an earlier "
            "copy of the folder, or start over"
        ) from None
    return state, history, ledger


def described(folder: Path) -> dict[str, Any]:
    """The content of run.json; empty if there is none. Raises WireError for another format, or a damaged file."""
    path = folder / RUN
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written = about["format"]
        starts = about["starts"]
        if not isinstance(starts, list) or not starts or not all(isinstance(start, dict) for start in starts):
            raise TypeError("starts is not a list of tables")
        if written != FORMAT:
            raise other_format(folder, written, FORMAT, starts[-1].get("medley"))
        if not isinstance(about["settings"], dict):
            raise TypeError("settings is not a table")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise WireError(
            f"{path} cannot be read ({type(e).__name__}: {e}); take an earlier copy of the folder, or start over"
        ) from None
    return about


MOST_THREADS = 1024
"""The largest number of threads that a damaged folder can ask for."""


def threads_of(folder: Path) -> int | None:
    """The number of torch's threads that the run in ``folder`` began with; None if the folder does not record it.

    A resumed run computes with as many, because their number changes the last digits of sums.
    """
    try:
        start = (described(folder).get("starts") or [{}])[0]
    except WireError:  # whoever loads the run raises it again, in its turn
        return None
    threads = start.get("threads")
    if type(threads) is not int or not 0 < threads <= MOST_THREADS:
        return None
    current = torch.get_num_threads()
    if threads != current:
        log.info(
            "the run in %s began with %d as torch's number of threads, on which its bits depend, and goes on with it; "
            "this process has %d",
            *(folder, threads, current),
        )
    return threads


def _prefix(path: Path, size: int, digest: str) -> str:
    with path.open("rb") as f:
        raw = f.read(size)
    if len(raw) < size or blake2b(raw, digest_size=16).hexdigest() != digest:
        raise ValueError(f"{path.name} was changed or cut off")
    return raw.decode()
