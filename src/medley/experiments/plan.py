"""The runs of a sweep: one method with one seed each, and the folder of its result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from ..contract import Algorithm, RecipeError, Tuned, WireError, integer
from ..contract.tuned import split as split
from ..storage.as_json import plain
from ..storage.changed_settings import difference, earlier
from ..storage.environment import environment, warn_of_changes
from ..storage.result import Result

Method = Algorithm[Any, Any] | Tuned

VERSIONS = ("python", "medley", "torch", "numpy", "scipy", "platform", "machine")
"""Settings of the environment that runs of one comparison should share; their threads follow the number of jobs."""

LONGEST = 120
"""Characters of a folder's name before it is cut; file systems allow 255 bytes."""

RESERVED = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]", re.IGNORECASE)
"""Names that Windows reserves for devices."""


@dataclass(frozen=True)
class PlannedRun:
    """One method with one seed. Without a folder its result is not kept."""

    name: str
    method: Method
    seed: int
    settings: dict[str, Any]
    folder: Path | None

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """True if the folder holds a result, final or not."""
        return self.folder is not None and (self.folder / "result.json").exists()

    def saved_result(self) -> Result | None:
        """The final result from an earlier call, or None. Raises WireError if its settings differ."""
        if self.folder is None or not self.done:
            return None
        result = Result.load(self.folder, model=False)
        if changed := earlier(result.settings, self.settings):
            raise WireError(f"{self.folder} is of an earlier version: {changed} in another folder, or delete that one")
        recorded = {key: result.settings[key] for key in self.settings if key in result.settings}
        why = difference(recorded, self.settings)
        if why:
            raise WireError(f"{self.folder} holds another run: {why}; choose another folder, or delete that one")
        if result.status.outcome == "interrupted":
            return None
        current = environment()
        warn_of_changes(self.folder, result.environment, {k: current[k] for k in VERSIONS})
        return result


def settings_of(method: Method) -> dict[str, Any]:
    """The settings of a method for the record."""
    algorithm, lr = split(method)
    settings = {f"method.{k}": v for k, v in algorithm.settings().items()}
    tuning = method.tuning if isinstance(method, Tuned) else ""
    return {"method": algorithm.name, **settings, "lr multiplier": lr, **({"tuning": tuning} if tuning else {})}


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a JSON file would return them, for comparison with settings from a file."""
    return cast("dict[str, Any]", json.loads(json.dumps(settings, default=plain)))


def seeds_of(seeds: int | Sequence[int], call: str) -> list[int]:
    """A list of seeds; 5 means 0, 1, ..., 4. Raises RecipeError for an empty list and for repeated seeds."""
    out = list[int]()
    count = integer(seeds)
    if count is not None:
        out = list(range(count))
    elif isinstance(seeds, Iterable):
        integers = [integer(s) for s in seeds]
        out = [s for s in integers if s is not None] if None not in integers else []
    if not out or len(set(out)) < len(out):
        raise RecipeError(f"{call}(seeds={seeds!r}): give a number from 1, or different integers", "seeds")
    return out


def slot(folder: Path, name: str, seed: int, names: Iterable[str] = ()) -> Path:
    """The folder below ``folder`` for the result of a method with a seed.

    Different names get different folders in any file system: characters that a file system could reject or confuse are
    escaped, long names are cut, and a name that differs only in case from an earlier one of ``names`` is marked.
    """
    escaped = re.sub(r"^\.|[. ]$|^$", lambda m: f"%{ord(m[0] or '_'):02X}", quote(name, safe=" ()=,"))
    if RESERVED.fullmatch(escaped.partition(".")[0]):
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    earlier = takewhile(lambda other: other != name, names)
    if len(escaped) > LONGEST or any(other.lower() == name.lower() for other in earlier):
        escaped = f"{escaped[:LONGEST]}~{blake2b(name.encode(), digest_size=4).hexdigest()}"
    return folder / escaped / f"seed-{seed}"
