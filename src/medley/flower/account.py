"""A node's own account of its trainings under `medley.Private(unit="row")`: the server's word does not count."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract.errors import WireError
from ..storage.atomic import replacing
from .cleaning import private

FILE, ANSWER = "trainings.json", "training"
"""Files of a client's node: the number of its trainings, and the answer to the last request."""


@dataclass(frozen=True)
class Trainings:
    """Counts a client's trainings over all runs. The last request has the same answer again, which is no training.

    Attributes:
        folder: of the client's node
        client: its id
        most: the number of trainings by each client method: the rounds of its owner's recipe
    """

    folder: Path
    client: int
    most: int

    def once(self, digest: str, answer: Callable[[], bytes]) -> bytes:
        """The answer to a request with this digest: that which was given, if it was the last one."""
        if self._kept().get("last") == digest:
            return (self.folder / ANSWER).read_bytes()
        out = answer()
        self._keep(ANSWER, out)
        self._keep(FILE, json.dumps({**self._kept(), "last": digest}).encode())
        return out

    def charge(self, method: str) -> None:
        """Count a training by this client method, before it begins. Raises WireError beyond the rounds."""
        kept = self._kept()
        counts = dict(kept.get("trainings", {}))
        if (done := counts.get(method, 0)) >= self.most:
            raise WireError(
                f"client {self.client} refuses: it has trained {done} times on rows that are private, and its recipe "
                f"has {self.most} rounds. A further training would tell more of them than its ε says; its owner begins "
                f"a new account, whose ε adds to the old one's, by deleting {FILE} in the node's folder of memories"
            )
        self._keep(FILE, json.dumps({"trainings": {**counts, method: done + 1}}).encode())

    def _kept(self) -> dict[str, Any]:
        path = self.folder / FILE
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as e:
            raise WireError(f"client {self.client}: {FILE} cannot be read, {type(e).__name__}") from None

    def _keep(self, name: str, raw: bytes) -> None:
        with replacing(private(self.folder) / name) as tmp:
            tmp.touch(mode=0o600)
            tmp.write_bytes(raw)
