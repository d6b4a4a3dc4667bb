"""A node's own account of what it has disclosed about its rows, over all studies. It does not rely on the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...contract import Client
from ...contract.errors import WireError
from ...contract.pieces import Content
from ...contract.place import name_of
from ...contract.tuned import split
from ...privacy import accountant
from ...privacy.accountant import Release
from ...privacy.private import private_part
from ...recipe import Recipe
from ...storage.atomic import private, write
from ..protocol.agreement import Method

FILE = "account.json"
"""The file of what each study has spent."""

ANSWER = "training"
"""The file of the answer to the last training request."""


@dataclass(frozen=True)
class Account:
    """What a client has disclosed, by study. A repeated last request gets the same answer, which discloses nothing
    more.

    Attributes:
        study: short text that names the owner's recipe
    """

    folder: Path
    client: int
    study: str

    def once(self, digest: str, answer: Callable[[], Content]) -> Content:
        """The answer already given to the training with this digest, if it was the last one."""
        with self._lock():
            if self._load().get("last") == digest:
                return (self.folder / ANSWER).read_bytes()
        out = answer()
        with self._lock():
            self._save(ANSWER, bytes(out))
            self._save(FILE, json.dumps({**self._load(), "last": digest}))
        return out

    def charge(
        self, method: Method, approved: Callable[[], Method], r: Recipe, lot: Any, me: Client[Any], total: Any
    ) -> None:
        """Count a training of the client ``me`` on private rows by its ε, before it begins; see `train`.

        Args:
            method: the method that the server asks for
            approved: makes the method of the owner's recipe
            r: the owner's recipe
            lot: the client's rows of a task
            total: the ε of all studies together; None for the recipe's
        """
        part = private_part(split(method)[0])
        assert part is not None
        limit = part.epsilon
        if limit is None:
            recipe_part = private_part(split(approved())[0]) or part
            paces = r.scenario(tuple(lot.X.shape[1:]), lot.classes).pace
            allowed: list[Release] = []
            for t in range(1, (recipe_part.rounds or r.rounds) + 1):
                law = recipe_part.law(paces.of(r.seed, me.id, t), me.problem)
                for _ in ["round"] if recipe_part.bounds_trees else recipe_part.message_types:
                    allowed = accountant.added(allowed, recipe_part.released(law, request=False))
            limit = accountant.epsilon(allowed, recipe_part.delta)
        release = part.released(part.law(me.pace, me.problem))
        self.train(release, limit, None if total is None else float(str(total)), part.delta)

    def train(self, release: Release, limit: float, total: float | None, delta: float) -> None:
        """Count a training on private rows, before it begins.

        Args:
            limit: the ε of the owner's recipe
            total: the ε of all studies together; None for the recipe's
            delta: δ, for the ε of all studies

        Raises WireError, with what was spent, if the training would exceed either limit.
        """
        with self._lock():
            self._train(release, limit, total, delta)

    def _train(self, release: Release, limit: float, total: float | None, delta: float) -> None:
        saved = self._load()
        spent = {study: [Release(**r) for r in lines] for study, lines in saved.get("spent", {}).items()}
        before = [*chain.from_iterable(spent.values())]
        spent[self.study] = accountant.added(spent.get(self.study, []), release)
        after = [*chain.from_iterable(spent.values())]
        shared = ("its owner, for all studies,", total) if total is not None else ("its recipe", limit)
        for releases, (what, most) in ((spent[self.study], ("its recipe", limit)), (after, shared)):
            epsilon = accountant.epsilon(releases, delta)
            if epsilon > most * (1 + 1e-9):
                raise WireError(
                    f"{name_of(self.client)} refuses: its rows have spent ε = "
                    f"{accountant.epsilon(before, delta):.4g} in all (δ = {delta:g}), {what} allows {most:.4g}, "
                    f"and this training would make it {epsilon:.4g}. Its owner can allow more by medley node "
                    f"--epsilon; if the owner begins a new account by deleting {FILE} in the node's folder of "
                    "memories, its ε comes on top of the old one's"
                )
        plain = {study: [*map(asdict, each)] for study, each in spent.items()}
        self._save(FILE, json.dumps({**saved, "spent": plain, "last": None}))

    def evaluate(self, digest: str, most: int) -> None:
        """Count an evaluation of the training loss alone, unless it repeats the last one.

        Raises WireError after more than ``most`` evaluations in one study.
        """
        with self._lock():
            self._evaluate(digest, most)

    def _evaluate(self, digest: str, most: int) -> None:
        saved = self._load()
        counts = saved.get("evaluations", {})
        count, last = counts.get(self.study, (0, ""))
        if digest == last:
            return
        if count >= most:
            raise WireError(
                f"{name_of(self.client)} refuses: it has sent the loss of its rows for {count} models, as many as "
                "its recipe allows. From the losses of many models the server could compute a client's "
                "gradient or find out who is among its rows. For another run, give a new recipe that the owner "
                "agrees to"
            )
        self._save(FILE, json.dumps({**saved, "evaluations": {**counts, self.study: (count + 1, digest)}}))

    def _lock(self) -> FileLock:
        """Held while the account is read and written, because a node may answer several runs at once."""
        return FileLock(private(self.folder) / f"{FILE}.lock", mode=0o600)

    def _load(self) -> dict[str, Any]:
        path = self.folder / FILE
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as e:
            raise WireError(f"{name_of(self.client)}: {FILE} cannot be read, {type(e).__name__}") from None

    def _save(self, name: str, content: str | bytes) -> None:
        write(private(self.folder) / name, content, owner_only=True)
