"""What a run leaves behind."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from . import files
from .errors import MedleyError, WireError
from .problem import State
from .wire import Ledger

Row = dict[str, float]
"""One evaluated round: round, exchanges, seconds (virtual), wall, bytes_down, bytes_up, loss, ..., by name."""

Outcome = Literal["finished", "target", "interrupted", "diverged", "stalled", "failed"]


@dataclass(frozen=True)
class Status:
    """How a run ended: a word, and a sentence with the remedy where there is one."""

    outcome: Outcome
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run did what it was asked to."""
        return self.outcome in ("finished", "target")

    def __str__(self) -> str:
        return f"{self.outcome}: {self.message}" if self.message else self.outcome


@dataclass
class Result:
    """One run of one method with one seed.

    ``x`` is the final model, a 1-d CPU tensor in the run's dtype; ``model`` the nn.Module with x loaded, where the
    problem has one; ``buffers`` its BatchNorm statistics and their like, which are not part of x. ``history`` has one
    row an evaluated round, row 0 at x₀. ``settings`` is everything that made it, in plain values.
    """

    method: str
    seed: int
    x: Tensor
    history: list[Row] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    status: Status = field(default_factory=lambda: Status("finished"))
    settings: dict[str, Any] = field(default_factory=dict)
    model: nn.Module | None = None
    buffers: State | None = None

    def __getitem__(self, name: str) -> list[float]:
        """One column of the history; nan where a row hasn't got it."""
        return [row.get(name, math.nan) for row in self.history]

    def save(self, folder: str | Path) -> Path:
        """Write result.json, history.csv, ledger.csv and x.safetensors into ``folder``, each whole or not at all."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise MedleyError(f"cannot make the folder {folder}: {e}; choose another") from e
        tensors = {"x": self.x.contiguous()}
        if self.buffers is not None:
            tensors |= dict(zip(("floats", "ints"), self.buffers, strict=True))
        with files.replacing(folder / "x.safetensors") as tmp:
            save_file(tensors, tmp)
        with files.replacing(folder / "history.csv") as tmp, tmp.open("w", newline="") as f:
            names = list(dict.fromkeys(k for row in self.history for k in row))
            w = csv.DictWriter(f, names)
            w.writeheader()
            w.writerows(self.history)
        with files.replacing(folder / "ledger.csv") as tmp:
            self.ledger.save(tmp)
        head = {
            "format": 1,
            "method": self.method,
            "seed": self.seed,
            "status": [self.status.outcome, self.status.message],
            "summary": self.summary,
            "settings": self.settings,
        }
        with files.replacing(folder / "result.json") as tmp:
            tmp.write_text(json.dumps(head, indent=1, default=files.plain))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Inverse of `save` (without ``model``). Raises WireError for a folder that holds no result."""
        folder = Path(folder)
        try:
            head = json.loads((folder / "result.json").read_text())
            if head["format"] != 1:
                raise ValueError(f"format {head['format']} is not known to this version")
            with (folder / "history.csv").open(newline="") as f:
                history = [{k: files.number(v) for k, v in row.items() if v != ""} for row in csv.DictReader(f)]
            kept = load_file(folder / "x.safetensors")
            x, buffers = kept["x"], (kept["floats"], kept["ints"]) if "floats" in kept else None
            method, seed, summary, settings = (head[k] for k in ("method", "seed", "summary", "settings"))
            status = Status(*head["status"])
        except (OSError, ValueError, KeyError, TypeError, csv.Error, SafetensorError) as e:
            raise WireError(f"{folder} holds no result that can be read: {type(e).__name__}: {e}") from None
        ledger = Ledger.load(folder / "ledger.csv")
        return cls(method, seed, x, history, summary, ledger, status, settings, buffers=buffers)


def summarise(history: list[Row]) -> dict[str, float]:
    """Final figures of a history: every column's last value, and the best loss and accuracy."""
    if not history:
        return {}
    out = dict(history[-1])
    for name, best in (("loss", min), ("accuracy", max)):
        values = [row[name] for row in history if name in row and math.isfinite(row[name])]
        if values:
            out[f"best_{name}"] = best(values)
    return out
