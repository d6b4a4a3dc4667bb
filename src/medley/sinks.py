"""Sinks: trackers that take the rows of a run, ``md.run(..., on_round=sinks.TensorBoard("runs/a"))``.

Each sink is a function of a row, a few lines over the tracker's own client. An extra installs it:
``tensorboard``, ``mlflow`` or ``wandb``. Figures are filed under the round, and in ``md.compare`` below
their method and seed. Call ``close`` at the end, or use the sink in ``with contextlib.closing(...)``. In a recipe it
is the table ``[sink]``, such as ``kind = "MLflow"``, which files the recipe's settings too.

Side: the server's. A sink gets the rows of a run's history, that is figures of rounds, and never a row of data.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .contract import MedleyError, checked
from .contract.public import public
from .runtime.versions import install

__all__ = ["MLflow", "Sink", "TensorBoard", "WandB"]


class Sink(ABC):
    """A function of rows that is closed at the end."""

    @abstractmethod
    def __call__(self, row: Mapping[str, Any]) -> None:
        """File the figures of a row."""

    @abstractmethod
    def settings(self, values: Mapping[str, str]) -> None:
        """File the settings of the runs, before their rows."""

    @abstractmethod
    def close(self) -> None:
        """Write all that is buffered, and end."""


class TensorBoard(Sink):
    """Event files in ``folder``, for ``tensorboard --logdir``."""

    @checked("sinks")
    def __init__(self, folder: str | Path) -> None:
        self.writer = _client("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def settings(self, values: Mapping[str, str]) -> None:
        """File them as the text "settings"."""
        self.writer.add_text("settings", f"```json\n{json.dumps(dict(values), indent=1, ensure_ascii=False)}\n```")

    def __call__(self, row: Mapping[str, Any]) -> None:
        """File a scalar for each column."""
        for name, value in figures(row).items():
            self.writer.add_scalar(name, value, int(row["round"]))

    def close(self) -> None:
        """Write all that is buffered, and end."""
        self.writer.close()


class MLflow(Sink):
    """A run of MLflow.

    Args:
        experiment: name of the experiment, made where it does not exist. Default "medley"
        uri: a server or a database. Default None: MLflow's own default
        name: name of the run. Default None: MLflow invents one
        params: settings to record with the run. Default none
    """

    @checked("sinks")
    def __init__(
        self,
        experiment: str = "medley",
        *,
        uri: str | None = None,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        tracking = _client("mlflow.tracking", "mlflow").MlflowClient(uri)
        existing = tracking.get_experiment_by_name(experiment)
        experiment_id = tracking.create_experiment(experiment) if existing is None else existing.experiment_id
        self.client = tracking
        self.run = tracking.create_run(experiment_id, run_name=name).info.run_id
        self.settings(params or {})

    def settings(self, values: Mapping[str, Any]) -> None:
        """Record them as the run's parameters."""
        for key, value in values.items():
            self.client.log_param(self.run, key, value)

    def __call__(self, row: Mapping[str, Any]) -> None:
        """File a metric for each column."""
        for name, value in figures(row).items():
            self.client.log_metric(self.run, name, value, step=int(row["round"]))

    def close(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run)


class WandB(Sink):
    """A run of Weights & Biases in ``project``; ``options`` go to ``wandb.init``, such as ``mode="offline"``."""

    @checked("sinks")
    def __init__(self, project: str = "medley", **options: Any) -> None:
        self.run = _client("wandb", "wandb").init(project=project, **options)

    def settings(self, values: Mapping[str, str]) -> None:
        """Record them as the run's configuration."""
        self.run.config.update(dict(values))

    def __call__(self, row: Mapping[str, Any]) -> None:
        """File the row."""
        self.run.log(figures(row), step=None if "method" in row else int(row["round"]))

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row by name. Those of a comparison stand below their method and seed."""
    below = f"{row['method']}/seed {row['seed']}/" if "method" in row else ""
    return {below + name: value for name, value in row.items() if name not in ("method", "seed")}


def _client(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise MedleyError(f"sinks: {e}; {install(extra)}") from e


public(__name__)
