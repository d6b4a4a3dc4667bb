"""The result of a run: model, history, ledger and status, in memory and in a folder."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..contract import MedleyError, RecipeError, State, WireError, pytree
from ..contract.explained import Explained
from ..contract.surroundings import set_aside
from ..numerics.scaling import Scaling
from ..runtime.frames import framed
from ..runtime.versions import version
from ..wire.ledger import Ledger
from . import atomic, modules
from .as_json import is_secret, plain, shown_seed
from .base import base_name
from .card import card
from .checkpoint import FILE as CHECKPOINT
from .client_models import ClientModels, client_model, is_untrained, load_models, save_models
from .environment import environment
from .formats import checksum, head_of, other_format, refuse_damage
from .history import Row, check_kinds, history_of, history_text
from .html import facts
from .predictions import outputs_of, predicted, probabilities, reads_missing, rows_of, scaling_of

FORMAT = 4
"""The format of result.json and the files next to it."""

RUN = "run.json"
HISTORY = "history.jsonl"
CLIENTS = "clients.jsonl"

NO_MODEL = (
    "results of a comparison keep x only, so run the method with md.run, or save it and load it with "
    "Result.load(folder, module=...)"
)

log = logging.getLogger("medley")

KINDS: Mapping[str, type] = {
    "method": str, "seed": int, "status": list, "summary": dict, "settings": dict, "environment": dict,
}  # fmt: skip
"""Kinds of the entries of result.json."""

STATUS_KINDS: Mapping[str, type] = {"outcome": str, "message": str}

Outcome = Literal["finished", "target", "interrupted", "diverged", "stalled", "spent", "failed"]


@dataclass(frozen=True)
class Status:
    """How the run ended: an outcome in one word, and a sentence with the remedy if there is one."""

    outcome: Outcome
    message: str = ""

    @property
    def ok(self) -> bool:
        """True for a run that made all its rounds or reached its target."""
        return self.outcome in ("finished", "target")

    def __str__(self) -> str:
        return f"{self.outcome}: {self.message}" if self.message else self.outcome


class Figures(dict[str, Any]):
    """Final figures by name. For a name that is not there the error says why."""

    def __missing__(self, name: str) -> Any:
        raise NoFigure.of(name, self, f"result.summary[{name!r}]: the run")


class Rows(list[Row]):
    """The rows of a history. For a column's name the error says where columns are."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise NoFigure(f"result.history is a list with a row for each evaluation; a column is result[{place!r}]")
        return super().__getitem__(place)


class NoFigure(RecipeError, KeyError):
    """A figure that a run does not have."""

    __str__ = Exception.__str__

    @classmethod
    def of(cls, name: str, names: Iterable[str], where: str) -> NoFigure:
        """The error for an unknown name; a run without test rows says how to give some."""
        names = [*names]
        untested = not any(n == "accuracy" or n.startswith("test_") for n in names)
        remedy = " It had no test rows: give Federation(..., test=(X, y)), or data.split(0.2)." * untested
        return cls(f"{cls.unknown(name, names, where)}{remedy}", name)


@dataclass(repr=False)
class Result(Explained):
    """One run of one method with one seed.

    Attributes:
        method, seed: the method's name and the seed
        x: the final parameters [d], on the CPU, in the run's dtype
        history: a row for each evaluated round; row 0 is at x₀
        summary: final figures by name
        ledger: all deliveries with their bytes
        status: the end of the run
        settings: all settings of the run, as plain values
        model: the network, or a linear model's nn.Linear, with x loaded; None if it has none, for results of a
            comparison, and if a folder cannot restore it
        buffers: BatchNorm statistics and other buffers, which are not part of x; None if there are none
        environment: versions and machine that the run used; empty in folders that do not record them
        clients: a row for each client, at the end and every ``clients_every`` rounds: round, client, rows, loss, and,
            on the client's own test rows, test_rows, test_loss, accuracy and metrics. Empty if clients have no test
            rows of their own and ``clients_every`` is not given. ``took_part`` is 1 for a client whose reply to any
            request has arrived, else 0. If clients use models of their own, the figures come from those, and
            server_loss, server_test_loss, ... from the server's model on the same rows
        personal: the clients' own models at the end, as `client_models` has them; empty if they are not kept
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
    environment: dict[str, Any] = field(default_factory=environment, repr=False, compare=False)
    clients: list[Row] = field(default_factory=list)
    personal: ClientModels = field(default_factory=dict, compare=False)
    _why: str = field(default="", init=False, repr=False, compare=False)
    """Why a folder's result has no model."""

    def __post_init__(self) -> None:
        self.summary = Figures(self.summary)
        self.history = Rows(self.history)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if any(name in row for row in vars(self).get("history", ())):
                raise AttributeError(f"Result has no {name!r}. Figures are columns: result[{name!r}][-1]", name=name)
            return super().__getattr__(name)

    @property
    def evaluation(self) -> Row:
        """The history row of the model: the last, or the best with ``run(best=...)``; empty without a history."""
        best = self.summary.get("best_round")
        return next((row for row in self.history if row["round"] == best), self.history[-1] if self.history else {})

    def __getitem__(self, name: str) -> list[float]:
        """One column of the history, with nan for rows that lack it. Raises RecipeError if all rows lack it."""
        if self.history and not any(name in row for row in self.history):
            raise NoFigure.of(name, set().union(*self.history), f"result[{name!r}]: the history")
        return [row.get(name, math.nan) for row in self.history]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names by id, as `Federation.client_names` has them; empty if there are none."""
        return tuple(self.settings.get("client_names", ()))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order, if the data had names, as frames and CSV files do; else none."""
        return tuple(self.settings.get("features", ()))

    @property
    def labels(self) -> tuple[Any, ...]:
        """The classes as the data had them, in the order of the model's outputs; empty without classes."""
        return tuple(self.settings.get("labels") or range(self.settings.get("classes") or 0))

    @property
    def scaling(self) -> Scaling | None:
        """How frames' columns were scaled and coded for training; None if they were not.

        Raises RecipeError for a private run, which does not store it.
        """
        return scaling_of(self.settings.get("scaling"), "result.scaling")

    def frame(self, of: Literal["history", "clients"] = "history") -> Any:
        """History or clients as a pandas DataFrame, with the columns method and seed first, and clients' names.

        Raises MedleyError if pandas is not installed.
        """
        rows: list[dict[str, Any]] = [*(self.history if of == "history" else self.clients)]
        if of == "clients" and (names := self.client_names):
            rows = [{"client": row["client"], "name": names[int(row["client"])], **row} for row in rows]
        named = ({"method": self.method, "seed": self.seed, **row} for row in rows)
        return framed(named, "Result.frame()", MedleyError)

    def __repr__(self) -> str:
        """Method, seed, end and last figures, in one line."""
        last = self.history[-1] if self.history else {}
        figures = ", ".join(shown(last, k) for k in ("accuracy", "test_loss", "gap", "loss") if k in last)
        ended = f"{self.status.outcome} after round {last['round']:g}" if last else self.status.outcome
        return f"Result({self.method}, seed {shown_seed(self.seed, self.settings)}: {ended}; {figures or 'no figures'})"

    def _repr_html_(self) -> str:
        last = self.history[-1] if self.history else {}
        figures = {k: f"{v:.6g}" for k, v in last.items()}
        return facts(f"{self.method}, seed {shown_seed(self.seed, self.settings)}", {"ended": self.status, **figures})

    def save(self, folder: str | Path) -> Path:
        """Write the result into ``folder``, each file whole or not at all.

        The files are result.json, history.jsonl, ledger.csv, x.safetensors, and clients.jsonl if there are rows of
        clients. Raises RecipeError if the folder holds another run, which you could then no longer resume.
        """
        folder = Path(folder)
        if any((folder / name).exists() for name in (RUN, CHECKPOINT)) and not self._begins_as(folder):
            raise RecipeError(
                f"save({str(folder)!r}): the folder holds another run, or a later state of this one. You "
                "could no longer resume it; choose another folder",
                "folder",
            )
        return self.write(folder)

    def _begins_as(self, folder: Path) -> bool:
        """Whether the history begins with the history of the run in ``folder``, wall times included."""
        path = folder / HISTORY
        return not path.exists() or history_text(self.history).startswith(path.read_text(encoding="utf-8"))

    def write(self, folder: str | Path) -> Path:
        """`save` into any folder, such as the run's own."""
        folder = atomic.make_folder(Path(folder), owner_only=is_secret(self.seed, self.settings))
        tensors = {"x": self.x}
        if self.buffers is not None:
            tensors |= dict(zip(("floats", "ints"), self.buffers, strict=True))
        with atomic.replacing(folder / "x.safetensors") as tmp, tmp.open("wb") as f:
            f.writelines(pytree.safetensors({k: t.detach().cpu().contiguous() for k, t in tensors.items()}))
        texts = {HISTORY: history_text(self.history), "ledger.csv": self.ledger.text()}
        if self.clients:
            texts[CLIENTS] = history_text(self.clients)
        else:
            (folder / CLIENTS).unlink(missing_ok=True)
        for name, text in texts.items():
            atomic.write(folder / name, text)
        head = {
            "format": FORMAT,
            "medley": version(),
            "method": self.method,
            "seed": self.seed,
            "digest": self.digest,
            "status": [self.status.outcome, self.status.message],
            "summary": self.summary,
            "settings": self.settings,
            "environment": self.environment,
            "clients": len(self.clients),
        }
        save_models(folder, self.personal)
        if self.model is not None:
            self.save_structure(folder)
        head = json.loads(json.dumps(head, default=plain))
        head["checksum"] = checksum({"head": json.dumps(head), "clients": texts.get(CLIENTS, "")}, {})
        atomic.write(folder / "result.json", json.dumps(head, indent=1))
        return folder

    def save_structure(self, folder: str | Path) -> None:
        """Write the network's structure next to the result, so that `load` finds it, or log that this is impossible."""
        if self.model is not None and (why := modules.save(Path(folder), self.model, self.x)):
            log.info("%s: the folder keeps x but not the network (%s): pass module= to Result.load", folder, why)

    def _model(self) -> nn.Module:
        """The model. Raises RecipeError, with the reason and the remedy, if there is none."""
        if self.model is None:
            raise RecipeError(f"this result has no model: {self._why or NO_MODEL}", "model")
        return self.model

    def state_dict(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name, as PyTorch has them. Raises RecipeError without a model."""
        return {name: t.detach().cpu().clone().contiguous() for name, t in self._model().state_dict().items()}

    def save_weights(self, path: str | Path) -> Path:
        """Write `state_dict` to ``path`` as safetensors, whole or not at all.

        Raises RecipeError without a model, and for a path with another format's ending.
        """
        state = self.state_dict()
        path = Path(path)
        if path.suffix not in ("", ".safetensors"):
            raise RecipeError(
                f"save_weights({str(path)!r}) writes safetensors: name the file {path.stem}.safetensors; for torch's "
                "own format call torch.save(result.state_dict(), path)",
                "path",
            )
        atomic.make_folder(path.parent)
        with atomic.replacing(path) as tmp:
            save_file(state, tmp)
        return path

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the model into ``folder`` for model hubs: weights, configuration, and a model card, README.md.

        A peft or transformers model is written by its own ``save_pretrained``; for any other the weights are
        model.safetensors. The card states data, method, rounds, ε and figures. Raises RecipeError without a model.
        """
        folder = atomic.make_folder(Path(folder))
        model = self._model()
        library = "pytorch"
        save = getattr(model, "save_pretrained", None)
        if callable(save):
            save(folder)
            library = "peft" if hasattr(model, "peft_config") else "transformers"
        else:
            self.save_weights(folder / "model.safetensors")
        about = card(
            self.method,
            self.settings,
            self.evaluation,
            base=base_name(model),
            library=library,
            medley=version(),
            failure="" if self.status.ok else str(self.status),
        )
        atomic.write(folder / "README.md", about)
        return folder

    @set_aside("predict(X)")
    def outputs(self, X: Any, batch: int = 256, client: int | str | None = None) -> Tensor:
        """The model's outputs for rows X, in evaluation mode.

        A frame holds raw rows: Medley picks its columns by the names from training, in any order, and scales them as
        `Dataset.standardise` scaled the training rows. An array or a tensor holds rows as the model saw them: columns
        in the order of `features`, already scaled.

        Args:
            X: rows [n, ...], a frame, a tensor, an array or a SciPy sparse matrix
            batch: rows in one forward pass; default 256
            client: the id or name of the client whose model to use, see `client_model`; default the server's model

        Raises RecipeError without a model, and if the server's model is (partly) untrained because clients train their
        own; BadData, naming the columns, if a frame lacks some or has some that training did not have, if cells are not
        finite numbers, and if the model cannot read the rows.
        """
        model = self._model()
        if client is None and is_untrained(model, len(self.x), self.history, self.personal, self.clients):
            raise RecipeError(
                f"predict(X): with {self.method} clients train models of their own, so the server's model, or its "
                "last layers, are untrained; pass the id or the name of a client, predict(X, client=0)",
                "client",
            )
        module = model if client is None else self.client_model(client)
        rows = rows_of(X, self.features, self.settings.get("scaling"), reads_missing(module))
        return outputs_of(module, rows, batch, self.settings.get("integers"), self.settings.get("dimensions"))

    def predict(self, X: Any, batch: int = 256, client: int | str | None = None) -> np.ndarray:
        """The model's predictions for rows X: class labels [n], or the outputs if there are no classes.

        Labels look as they did in the data: numbers, booleans or text, and 0 or 1 under binary cross-entropy. Arguments
        and errors are the same as for `outputs`.
        """
        outputs = self.outputs(X, batch, client)
        names = self.settings.get("labels")
        return predicted(outputs, self.settings.get("classes"), names, self.settings.get("decision", "argmax"))

    def predict_proba(self, X: Any, batch: int = 256, client: int | str | None = None) -> np.ndarray:
        """Probabilities [n, classes] for rows X, columns in the order of `labels`.

        Without classes, as for several yes-or-no targets, there is a probability for each output. Arguments and errors
        are the same as for `outputs`; also raises RecipeError for a loss whose outputs do not stand for probabilities.
        """
        return probabilities(self.outputs(X, batch, client), self.settings)

    def client_model(self, client: int | str) -> nn.Module:
        """The network that a client uses at the end, in evaluation mode: its own, or the server's if all use that.

        ``client`` is its id or its name. Raises RecipeError without a model, if the client does not exist, and if own
        models were not kept.
        """
        model = self._model()
        count = self.settings.get("clients")
        return client_model(model, self.personal, client, rows=self.clients, names=self.client_names, count=count)

    @property
    def digest(self) -> str:
        """Checksum of x, buffers, history (without wall times) and ledger; equal if all their bits are equal."""
        h = blake2b(digest_size=16)
        for t in (self.x, *(self.buffers or ())):
            h.update(t.contiguous().reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"")
        h.update(history_text([{k: v for k, v in row.items() if k != "wall"} for row in self.history]).encode())
        h.update(self.ledger.text().encode())
        return h.hexdigest()

    @classmethod
    def load(cls, folder: str | Path, module: nn.Module | None = None, *, model: bool = True) -> Result:
        """Inverse of `save`.

        Args:
            folder: a folder that `save` or a run wrote
            module: a module of the same architecture; ``model`` is a copy of it. By default Medley makes ``model`` from
                the structure in the folder, whose classes you must have imported; otherwise it is None, and the log
                says why
            model: whether to read the network; False leaves ``model`` None, if you only want the figures of many runs.
                Default True

        Raises WireError if a folder holds no result, is damaged, or has another format.
        """
        folder = Path(folder)
        try:
            head = json.loads(head_of(folder))
            if not isinstance(head, dict):
                raise TypeError("result.json is not a table")
            if head["format"] != FORMAT:
                raise other_format(folder, head["format"], FORMAT, head.get("medley"), use="read")
            history = history_of((folder / HISTORY).read_text(encoding="utf-8"))
            of_clients = (folder / CLIENTS).read_text(encoding="utf-8") if (folder / CLIENTS).exists() else ""
            clients = history_of(of_clients)
            tensors = load_file(folder / "x.safetensors")
            x = tensors["x"]
            buffers = (tensors["floats"], tensors["ints"]) if "floats" in tensors else None
            recorded = head.pop("checksum", None)
            check_kinds(head, KINDS)
            check_kinds(dict(zip(("outcome", "message"), head["status"], strict=True)), STATUS_KINDS)
            method, seed, summary, settings = (head[k] for k in ("method", "seed", "summary", "settings"))
            status = Status(*head["status"])
            ledger = Ledger.of((folder / "ledger.csv").read_text())
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as e:
            raise WireError(f"{folder} holds no readable result: {type(e).__name__}: {e}") from None
        result = cls(
            method=method,
            seed=seed,
            x=x,
            history=history,
            summary=summary,
            ledger=ledger,
            status=status,
            settings=settings,
            buffers=buffers,
            environment=head.get("environment", {}),
            clients=clients,
            personal=load_models(folder),
        )
        computed = checksum({"head": json.dumps(head), "clients": of_clients}, {})
        refuse_damage(f"{folder / 'result.json'}, or {CLIENTS} next to it,", recorded, computed)
        if head.get("digest", result.digest) != result.digest or head.get("clients", 0) != len(clients):
            raise WireError(f"{folder} is damaged: its files do not belong to one result; use a copy, or run it again")
        if model:
            network = modules.restored(folder, module, x, buffers)
            if isinstance(network, str):
                result._why = network
            else:
                result.model = network
        return result


def shown(row: Row, name: str) -> str:
    """A figure with its name as people read it, with its standard error if it is an estimate, or its rounding."""
    error = f" ± {row['loss_error']:.2g}" if name == "loss" and "loss_error" in row else ""
    if within := row.get(f"{name}_within"):
        error += f" (rounded: ± {f'{100 * within:.2g} %' if name == 'accuracy' else f'{within:.1g}'})"
    figure = f"{100 * row[name]:.1f} %" if name in ("accuracy", "evaluated") else f"{row[name]:.4g}"
    return f"{name.replace('_', ' ')} {figure}{error}"
