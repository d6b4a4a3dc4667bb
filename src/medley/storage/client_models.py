"""Clients' own models in a result: for each client, the tensors that differ from the server's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..contract.errors import RecipeError, WireError
from . import atomic
from .base import shared_copy
from .formats import checksum, refuse_damage

FILE = "clients.safetensors"

ClientModels = Mapping[int, Mapping[str, Tensor]]
"""By client: tensors of its model's state_dict that differ from the server's."""


def differences(model: nn.Module, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module's state_dict that differ from those in ``base``, copied to the CPU."""
    state = model.state_dict()
    return {n: state[n].detach().cpu().clone() for n, t in base.items() if not torch.equal(state[n].cpu(), t)}


def client_model(
    model: nn.Module,
    models: ClientModels,
    client: int | str,
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    count: int | None,
) -> nn.Module:
    """A copy of the server's model with a client's own tensors.

    Args:
        rows: `Result.clients`
        names: the clients' names by id; empty if there are none
        count: the number of clients, whose ids begin at 0; None if it is not known

    Raises RecipeError if the client does not exist, or if its model was not kept.
    """
    if isinstance(client, bool) or not isinstance(client, str | int | np.integer):
        raise RecipeError(
            f"client_model({client!r}): give a client's name as text, or its id as a whole number", "client"
        )
    if isinstance(client, str):
        if client not in names:
            raise RecipeError.unknown(client, names, "client_model(...): the federation")
        client = names.index(client)
    elif str(client) in names and names.index(str(client)) != client:
        raise RecipeError(
            f"client_model({client}): it may be the client called {str(client)!r}, or the one with the id {client}, "
            f"{f'called {names[client]!r}' if client < len(names) else 'which no client has'}; give the name as text",
            "client",
        )
    if client not in models:
        if any("server_loss" in row for row in rows):
            remedy = f"there are {min(models)} to {max(models)}" if models else "run(client_models=True) keeps them"
            raise RecipeError(
                f"client_model({client}): this result has no own model of that client; {remedy}", "client"
            )
        ids = {row["client"] for row in rows} or range(client + 1 if count is None else count)
        if client < 0 or client not in ids:
            last = f"; ids end at {max(ids)}" if ids else ""
            raise RecipeError(f"client_model({client}): there is no such client{last}", "client")
    out = shared_copy(model)
    with torch.no_grad():
        for name, t in out.state_dict().items():
            if name in models.get(client, {}):
                t.copy_(models[client][name])
    return out.eval()


def is_untrained(
    model: nn.Module,
    d: int,
    history: Sequence[Mapping[str, float]],
    models: ClientModels,
    rows: Sequence[Mapping[str, float]],
) -> bool:
    """Whether the server's model, or a part of it, was never trained because clients train models of their own.

    Args:
        d: the number of parameters that the server trains
        history: `Result.history`, with the losses of the server's model, beginning at x₀
        rows: `Result.clients`
    """
    is_personal = bool(models) or any("server_loss" in row for row in rows)
    losses = [row["loss"] for row in history if "loss" in row]
    stands = len(losses) > 1 and losses[0] == losses[-1]
    return is_personal and (stands or d < sum(p.numel() for p in model.parameters() if p.requires_grad))


def save_models(folder: Path, models: ClientModels) -> None:
    """Write the clients' own tensors, if there are any; delete the file of an earlier result."""
    if not models:
        (folder / FILE).unlink(missing_ok=True)
        return
    tensors: dict[str, Tensor] = {}
    for i, state in models.items():
        tensors |= {f"{i}/{name}": t.contiguous() for name, t in state.items()}
    head = {"clients": " ".join(map(str, models))}
    with atomic.replacing(folder / FILE) as tmp:
        save_file(tensors, tmp, {**head, "sum": checksum(head, tensors)})


def load_models(folder: Path) -> dict[int, dict[str, Tensor]]:
    """Inverse of `save_models`; empty if there is no file. Raises WireError for a damaged file."""
    if not (folder / FILE).exists():
        return {}
    try:
        with safe_open(folder / FILE, "pt") as f:
            head = dict(f.metadata() or {})
            tensors = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118 - it is no mapping
        refuse_damage(folder / FILE, head.pop("sum", None), checksum(head, tensors))
        out: dict[int, dict[str, Tensor]] = {int(i): {} for i in head["clients"].split()}
        for key, t in tensors.items():
            i, _, name = key.partition("/")
            out[int(i)][name] = t
        return out
    except WireError:
        raise
    except Exception as e:  # of many kinds, such as a key without a client
        raise WireError(f"{folder / FILE} holds no models of clients: {type(e).__name__}: {e}") from None
