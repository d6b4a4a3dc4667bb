"""Ready training loops for `Network(module, train=...)`, and how a loop keeps an optimizer's state.

Side: the client's, where the loop trains on its rows.

>>> import medley as md
>>> import torch
>>> def loop(module, rows, pace, seed):
...     optimizer = torch.optim.SGD(module.parameters(), lr=pace.lr)
...     for X, y in rows.batches():
...         optimizer.zero_grad()
...         torch.nn.functional.cross_entropy(module(X), y).backward()
...         optimizer.step()
>>> net = md.problems.Network(md.models.mlp(64, 10, (16,)), train=loop)
>>> fed = md.Federation(net, data=md.datasets.digits(), partition=md.partitions.IID(4))
>>> md.run(md.FedAvg(), fed, rounds=20, progress=False).summary["accuracy"] > 0.4
True
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from .contract import Pace, RecipeError
from .contract.public import public
from .engines.own_loop import LoopRows
from .problems.network.spec import Train
from .runtime.versions import install

OF_THE_PACE = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "per_device_train_batch_size": "batch",
}
"""The arguments of Hugging Face's Trainer that `Pace` has, and their names there."""

QUIET = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
"""A round saves and prints nothing by itself: the run does."""


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], name: str = "optimizer") -> None:
    """Give an optimizer the state that `save` kept in an earlier round; without one, nothing changes.

    Args:
        optimizer: a new one, on the same parameters in the same order
        state: the last argument of a loop ``(module, rows, pace, seed, state)``
        name: the optimizer's name in the state, if there are several; default "optimizer"
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, value in state.items():
        of, _, key = place.partition("/")
        if of == name and key:
            index, _, entry = key.partition(".")
            optimizer.state[parameters[int(index)]][entry] = value.clone() if isinstance(value, Tensor) else value


def save(optimizer: torch.optim.Optimizer, state: MutableMapping[str, Any], name: str = "optimizer") -> None:
    """Keep an optimizer's state, its tensors and numbers by parameter, until the client's next round.

    Args:
        optimizer: any of torch.optim
        state: the last argument of a loop ``(module, rows, pace, seed, state)``; what it has under other names stays
        name: the optimizer's name in the state, if there are several; default "optimizer"
    """
    for place in [place for place in state if place.startswith(f"{name}/")]:
        del state[place]
    for index, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for entry, value in optimizer.state.get(p, {}).items():
            state[f"{name}/{index}.{entry}"] = value


class ItemsByName(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A client's rows as Hugging Face's models take them: the inputs by name, and ``labels``.

    Args:
        name: the name of the input, if rows have only one
    """

    def __init__(self, rows: LoopRows, name: str) -> None:
        self.rows = rows
        self.name = name

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """One row."""
        inputs, label = self.rows[row]
        by_name = inputs if isinstance(inputs, dict) else {self.name: inputs}
        return {**by_name, "labels": label}  # type: ignore[dict-item]


def trainer(args: Any, **options: Any) -> Train:
    """A loop that trains each client by Hugging Face's Trainer, for ``Network(module, train=trainer(args))``.

    The pace of the federation decides learning rate, epochs or steps, and the batch; ``args`` decides the rest: the
    optimizer, its schedule within a round, clipping, precision, accumulation. A round saves nothing and reports
    nothing. Each client and round has its own seed.

    Args:
        args: a transformers.TrainingArguments
        options: further arguments of transformers.Trainer, such as ``data_collator`` or ``callbacks``

    Raises RecipeError without transformers, and as a client trains, for an argument in which the pace differs.
    """
    try:
        from transformers import PrinterCallback, Trainer, TrainingArguments
    except ImportError:
        raise RecipeError(f"loops.trainer() needs transformers: {install('adapters')}", "train") from None
    if not isinstance(args, TrainingArguments):
        raise RecipeError(f"loops.trainer({args!r}): give a transformers.TrainingArguments", "args")
    for name in ("model", "args", "train_dataset"):
        if name in options:
            raise RecipeError(f"loops.trainer({name}=...): each client has its own; leave it out", name)
    default = {f.name: f.default for f in fields(TrainingArguments)}
    chosen = {name: getattr(args, name) for name in OF_THE_PACE if getattr(args, name) != default[name]}

    def train_by_trainer(module: nn.Module, rows: LoopRows, pace: Pace, seed: int) -> None:
        """Train the module on the client's rows by one Trainer."""
        by_pace: dict[str, Any] = {
            "learning_rate": pace.lr,
            "num_train_epochs": pace.epochs,
            "max_steps": -1 if pace.steps is None else pace.steps,
            "per_device_train_batch_size": pace.batch or len(rows),
        }
        for name, value in chosen.items():
            if value != by_pace[name]:
                raise RecipeError(
                    f"loops.trainer(args): {name} is {value}, and the pace says {by_pace[name]}; leave it out of the "
                    f"arguments, and give Federation(pace=Pace({OF_THE_PACE[name]}={value}))",
                    name,
                )
        of_round = replace(args, **by_pace, **QUIET, seed=seed, data_seed=seed)
        items = ItemsByName(rows, getattr(module, "main_input_name", "input_ids"))
        of_client = Trainer(model=module, args=of_round, train_dataset=items, **options)
        of_client.remove_callback(PrinterCallback)
        of_client.train()

    return train_by_trainer


__all__ = ["LoopRows", "Train", "restore", "save", "trainer"]

public(__name__)
