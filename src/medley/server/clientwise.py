"""Figures of each client, on the models that clients use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..contract import Algorithm, MedleyError, PartlyShared, PersonalModel, Problem
from ..contract.place import name_of
from ..storage.history import Row
from ..wire.connection import Connection
from ..wire.exchange import Exchange, Tag, in_blocks
from .protocols import Evaluator
from .run_state import RunState

log = logging.getLogger("medley")


@dataclass(frozen=True)
class OwnModels:
    """Asks clients for their own models. Implements `PersonalModels`.

    Attributes:
        acked: the version of each client's memory from which its model is made; no entry before its first reply
    """

    ask: Callable[[Sequence[int]], Mapping[int, PersonalModel]]
    acked: Mapping[int, Tag]

    def __call__(self, ids: Sequence[int]) -> Mapping[int, PersonalModel]:
        """The models of these clients."""
        return self.ask(ids)


MOST_KEPT = 1 << 28
"""A result keeps at most so many bytes of clients' models, 256 MiB, unless you ask for all."""


@dataclass
class Clientwise:
    """Measures clients one by one, out of band.

    Attributes:
        keep: whether the last models of clients are kept; None keeps them up to `MOST_KEPT` bytes
    """

    algorithm: Algorithm[Any, Any]
    problem: Problem
    connection: Connection
    evaluator: Evaluator
    stack_size: int = 8
    keep: bool | None = None
    models: dict[int, PersonalModel] = field(default_factory=dict)

    @property
    def personal(self) -> bool:
        """Whether clients use models of their own."""
        return self.algorithm.is_personal or isinstance(self.problem, PartlyShared)

    def rows(self, state: RunState, last: bool = False) -> list[Row]:
        """A row for each client after this round, as in `Result.clients`. The last call keeps their models."""
        b = state.bookkeeping
        x = self.algorithm.model(state.s)
        self.models = {}
        if not self.personal:
            rows = self.evaluator.by_client(*(state.result(x) if last else (x, b.buffers)), state.round)
        else:

            def models(ids: Sequence[int]) -> Mapping[int, PersonalModel]:
                models_of_clients = self._ask(state, x, ids)
                if last and self.keep is not False:
                    self._keep(models_of_clients)
                return models_of_clients

            rows = self.evaluator.by_client(x, b.buffers, state.round, OwnModels(models, b.acked))
        replied = b.acked.keys() | b.earlier
        figures: Mapping[Any, dict[str, float]] = self.algorithm.by_client(state.s)
        return [
            {"round": state.round, **row, "took_part": int(row["client"] in replied), **figures.get(row["client"], {})}
            for row in rows
        ]

    def last(self, state: RunState) -> list[Row]:
        """All rows, including the last round's, measured once. The result keeps the models that this call asks for.

        If the clients cannot give their models, the log says why, and the rows are from earlier rounds.
        """
        measured = bool(state.clients) and state.clients[-1]["round"] == state.round
        if measured and state.best is not None:
            measured = False
            state.clients = [row for row in state.clients if row["round"] != state.round]
        if measured and (not self.personal or self.keep is False):
            return state.clients
        try:
            rows = self.rows(state, last=True)
        except MedleyError as e:
            if not self.personal:
                raise
            log.warning("the clients' own models are not measured after round %d: %s", state.round, e)
            return state.clients
        return state.clients if measured else [*state.clients, *rows]

    def _keep(self, models: Mapping[int, PersonalModel]) -> None:
        ids = {*self.models, *models}
        first = next(iter(models.values()), None)
        size = 0 if first is None else sum(t.numel() * t.element_size() for t in _tensors(first))
        if self.keep is None and size * len(ids) > MOST_KEPT:
            if self.models:
                log.info("clients' models take more than 256 MiB and are not kept; run(client_models=True) keeps them")
            self.models = {}
            self.keep = False
            return
        self.models |= models

    def _ask(self, state: RunState, x: Tensor, ids: Sequence[int]) -> dict[int, PersonalModel]:
        """The models of these clients. If one fails, it is left out, and the log says why."""
        b = state.bookkeeping
        exchange = Exchange(
            max(1, state.round),
            -1,
            "personal",
            in_blocks(tuple(ids), self.stack_size),
            {"x": x},
            {},
            {i: b.acked[i] for i in ids if i in b.acked},
            dict.fromkeys(ids, 0.0),
            None,
            b.buffers,
        )
        out: dict[int, PersonalModel] = {}
        failed: dict[int, str] = {}
        for fold in self.connection.exchange(exchange):
            failed |= fold.failed
            for i, packed in fold.replies.items():
                out[i] = model_of(packed)
        for i, why in sorted(failed.items()):
            log.warning("round %d: %s's own model is not measured: %s", state.round, name_of(i), why)
        missing = sorted(set(ids) - out.keys() - failed.keys())
        if missing:
            raise MedleyError(f"round {state.round}: clients {missing} gave no model of their own")
        return out


def model_of(packed: Mapping[str, Any]) -> PersonalModel:
    """The model in a client's answer to a request out of band, see `medley.clients.personal`."""
    parts = {name.removeprefix("own."): t for name, t in packed.items() if name.startswith("own.")}
    buffers = (packed["floats"], packed["ints"]) if "floats" in packed else None
    return PersonalModel(packed["x"], buffers, parts or None)


def _tensors(model: PersonalModel) -> list[Tensor]:
    return [model.x, *(model.buffers or ()), *(model.own or {}).values()]


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Figures over the clients' own models; empty if none was measured.

    personal_loss: the mean of f_i, weighted by training rows
    personal_test_loss, personal_accuracy: means over all clients' own test rows
    personal_accuracy_mean, personal_accuracy_worst: over clients with equal weights; the worst tenth's mean
    """
    mine = [row for row in rows if "server_loss" in row and "loss" in row]
    if not mine:
        return {}
    sizes = np.array([row["rows"] for row in mine])
    out = {"personal_loss": float(np.average([row["loss"] for row in mine], weights=sizes))}
    for name in ("test_loss", "accuracy"):
        have = [row for row in mine if name in row]
        if have:
            values = np.array([row[name] for row in have])
            out[f"personal_{name}"] = float(np.average(values, weights=[row["test_rows"] for row in have]))
            if name == "accuracy":
                values.sort()
                out["personal_accuracy_mean"] = float(values.mean())
                out["personal_accuracy_worst"] = float(values[: max(1, round(len(values) / 10))].mean())
    return out
