"""Model cards: what a model was trained on, by which method, for how many rounds, at which ε, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..contract.text import markdown

HEAD = "---\nlibrary_name: {library}\ntags:\n- federated-learning\n- medley\n{base}---\n\n"
"""The part of a card that programs read, in the form that model hubs use."""

FIGURES = {
    "loss": "loss on training rows",
    "test_loss": "loss on {} rows",
    "accuracy": "accuracy on {} rows",
    "gap": "loss on training rows above the optimum",
}
"""Figures of a history that a card shows, and what they are called, in addition to a user's metrics."""


def card(
    name: str,
    settings: Mapping[str, Any],
    figures: Mapping[str, float],
    *,
    base: str | None,
    library: str,
    medley: str,
    failure: str = "",
) -> str:
    """The text of a model card in Markdown.

    Args:
        name: the method
        settings: the run's settings, as a result has them
        figures: the row of the history at which the model was taken
        base: the name of the model that an adapter is for; None for a whole model
        library: the library that loads the folder, as model hubs name it: "peft", "transformers" or "pytorch"
        medley: the version of Medley
        failure: how the run ended if it did not end well
    """
    clients = {
        "Method": name,
        "Rounds": f"{figures['round']:g}" if "round" in figures else "0",
        "Ended": failure or None,
        "Clients": settings.get("clients"),
        "Data": settings.get("data"),
        "Partition": settings.get("partition"),
        "Local training": settings.get("pace"),
        "Participation": settings.get("participation"),
        "Base model": base,
    }
    names = FIGURES | {k: f"{k} on {{}} rows" for k in settings.get("metrics", ())}
    held_out = settings.get("evaluate_on", "test")
    shown = {name.format(held_out): f"{figures[k]:.4g}" for k, name in names.items() if k in figures}
    parts = [
        HEAD.format(library=library, base=f"base_model: {base}\n" if base else ""),
        "# Model trained by federated learning\n\n",
        f"Trained with Medley {medley}. The rows stayed with the clients.\n\n",
        _table(("Training", ""), {k: v for k, v in clients.items() if v is not None}),
        "\n## Privacy\n\n",
        _privacy(settings, figures),
        "\n## Figures\n\n",
        _table(("figure", "value"), shown) if shown else "None were measured.\n",
    ]
    return "".join(parts)


def _privacy(settings: Mapping[str, Any], figures: Mapping[str, float]) -> str:
    if "epsilon" not in figures:
        text = "The model is not differentially private."
    else:
        unit = next((v for k, v in settings.items() if k.endswith(".private.unit")), "client")
        delta = next((v for k, v in settings.items() if k.endswith(".private.delta")), None)
        at = "" if delta is None else f" at δ = {delta:g}"
        text = f"The model is differentially private by {unit}: ε = {figures['epsilon']:.4g}{at}."
        text += " If the figures below come from clients' rows, ε does not cover them."
    return f"{text}{' Replies were added up by secure aggregation.' if settings.get('secure') else ''}\n"


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> str:
    first, *rest = (f"| {markdown(a)} | {markdown(str(b))} |" for a, b in (head, *rows.items()))
    return "\n".join([first, "| --- | --- |", *rest]) + "\n"
