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

import copy
import inspect
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, replace
from typing import Any, Literal

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
    "dataloader_drop_last": "drop_last",
}
"""The arguments of Hugging Face's Trainer that `Pace` has, and their names there."""

OF_THE_TRAINER = {
    "optimizer": "optim",
    "momentum": "optim_args",
    "weight_decay": "weight_decay",
    "clip": "max_grad_norm",
}
"""The settings of `Pace` that Trainer's arguments decide, and their names there."""

REFUSED = {
    **dict.fromkeys(("model", "args", "train_dataset", "model_init"), "each client has its own; leave it out"),
    "optimizers": "an optimizer has the parameters of one model, and each client trains a copy; give "
    "optimizer_cls_and_kwargs=(torch.optim.SGD, {'momentum': 0.9}), or a trainer_class with create_optimizer",
    "push_to_hub": "a round saves nothing; leave it out",
    "load_best_model_at_end": "a round saves nothing; leave it out",
}
"""Options of Trainer and arguments that a client cannot have, and why."""

QUIET = {
    "output_dir": tempfile.gettempdir(),
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}
"""A round saves and prints nothing by itself: the run does. Trainer would make its output folder: this one exists."""


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


def trainer(
    args: Any,
    trainer_class: type[Any] | None = None,
    optimizer_state: Literal["fresh", "kept"] = "fresh",
    **options: Any,
) -> Train:
    """A loop that trains each client by Hugging Face's Trainer, for ``Network(module, train=trainer(args))``.

    The pace of the federation decides learning rate, epochs or steps, and the batch; ``args`` decides the rest: the
    optimizer, its schedule within a round, clipping, precision, accumulation. A round saves nothing and reports
    nothing. Each client and round has its own seed and copies of the callbacks.

    Args:
        args: a transformers.TrainingArguments
        trainer_class: a class of your own after transformers.Trainer; default None: that one
        optimizer_state: "fresh" (default) in every round, or "kept": it stays with the client
        options: further arguments of the Trainer, such as ``data_collator`` or ``compute_loss_func``

    Raises RecipeError for options that a client cannot have, and as it trains, for arguments that differ from its pace.
    """
    try:
        from transformers import PrinterCallback, Trainer, TrainingArguments
    except ImportError:
        raise RecipeError(f"loops.trainer() needs transformers: {install('adapters')}", "train") from None
    if not isinstance(args, TrainingArguments):
        raise RecipeError(f"loops.trainer({args!r}): give a transformers.TrainingArguments", "args")
    kind = trainer_class or Trainer
    if not (isinstance(kind, type) and issubclass(kind, Trainer)):
        raise RecipeError(f"loops.trainer(trainer_class={kind!r}): give a class after Trainer", "trainer_class")
    if optimizer_state not in ("fresh", "kept"):
        raise RecipeError.unknown(optimizer_state, ("fresh", "kept"), "loops.trainer(optimizer_state=...)")
    _refuse(args, kind, options)
    default = {f.name: f.default for f in fields(TrainingArguments)}
    chosen = {name: getattr(args, name) for name in OF_THE_PACE if getattr(args, name) != default[name]}

    def train_by_trainer(
        module: nn.Module, rows: LoopRows, pace: Pace, seed: int, state: MutableMapping[str, Any] | None = None
    ) -> None:
        """Train the module on the client's rows by one Trainer."""
        by_pace = _by_pace(chosen, pace, len(rows))
        labels = args.label_names or ["labels"]  # Trainer drops inputs that neither this nor the forward names
        of_round = replace(args, **by_pace, **QUIET, seed=seed, data_seed=seed, label_names=labels)
        if rows.weights is not None:
            raise RecipeError("loops.trainer(): these rows have weights, which Trainer does not read", "weights")
        first = next(iter(inspect.signature(module.forward).parameters), "input_ids")
        items = ItemsByName(rows, getattr(module, "main_input_name", first))
        of_client = kind(model=module, args=of_round, train_dataset=items, **_of_client(options, pace, len(rows)))
        of_client.remove_callback(PrinterCallback)
        if optimizer_state == "fresh":
            of_client.train()
        elif state is None:
            raise RecipeError("loops.trainer(optimizer_state='kept'): pass the loop your function's state", "train")
        else:
            of_client.create_optimizer()
            restore(of_client.optimizer, state)
            of_client.train()
            save(of_client.optimizer, state)
        getattr(module, "disable_input_require_grads", int)()  # a hook that gradient checkpointing leaves

    return train_by_trainer


def _refuse(args: Any, kind: type[Any], options: Mapping[str, Any]) -> None:
    """Raise RecipeError for options of Trainer that a client cannot have, and for unknown ones."""
    for name, why in REFUSED.items():
        if name in options or getattr(args, name, False):
            raise RecipeError(f"loops.trainer({name}=...): {why}", name)
    try:
        inspect.signature(kind).bind_partial(**options)
    except TypeError as e:
        raise RecipeError(f"loops.trainer(): {kind.__name__} has no such argument: {e}", "train") from None


def _of_client(options: Mapping[str, Any], pace: Pace, n: int) -> dict[str, Any]:
    """Options of Trainer for a client of n rows: with callbacks of its own, and an optimizer at the pace's rate."""
    more = {**options, "callbacks": copy.deepcopy(options.get("callbacks"))}
    if options.get("optimizer_cls_and_kwargs"):
        optimizer, settings = options["optimizer_cls_and_kwargs"]
        _by_pace({"learning_rate": settings.get("lr", pace.lr)}, pace, n)
        more["optimizer_cls_and_kwargs"] = optimizer, {**settings, "lr": pace.lr}
    return more


def _by_pace(chosen: Mapping[str, Any], pace: Pace, n: int) -> dict[str, Any]:
    """Trainer's arguments by the pace of a client of n rows. Raises RecipeError where ``chosen`` ones differ, and for
    settings of the pace that Trainer's arguments decide.
    """
    by_pace: dict[str, Any] = {
        "learning_rate": pace.lr,
        "num_train_epochs": pace.epochs,
        "max_steps": -1 if pace.steps is None else pace.steps,
        "per_device_train_batch_size": pace.batch or n,
        "dataloader_drop_last": pace.drop_last,
    }
    for name, value in chosen.items():
        if value != by_pace[name]:
            raise RecipeError(
                f"loops.trainer(args): {name} is {value}, and the pace says {by_pace[name]}; leave it out of the "
                f"arguments, and give Federation(pace=Pace({OF_THE_PACE[name]}={value}))",
                name,
            )
    for name, argument in OF_THE_TRAINER.items():
        if getattr(pace, name) != getattr(Pace, name):
            raise RecipeError(
                f"Pace({name}={getattr(pace, name)!r}): the Trainer's arguments decide that; leave it out, and give "
                f"TrainingArguments({argument}=...)",
                name,
            )
    return by_pace


__all__ = ["LoopRows", "Train", "restore", "save", "trainer"]

public(__name__)
