"""The conditions of a comparison: data, model, clients, participation and tuning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...storage.result import Result
from ..document import text
from ..figures import Markup
from ..numbers import last_round
from ..units import plural
from .comparison import Comparison, listed


def title(c: Comparison) -> str:
    """The methods and the data: "FedAvg, SCAFFOLD and 3 others on digits"."""
    names = list(c.groups)
    if not names:
        return "Comparison"
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} others"]
    text = listed(names)
    data = _shared(c, "data").split(" ")[0]
    return f"{text} on {data}" if data and not data[0].isdigit() else text


def compared(c: Comparison) -> list[Markup]:
    """Numbers of methods, seeds and rounds; the conditions that all runs share; the tuning of each method."""
    seeds = {r.seed for r in c.results}
    rounds = max((last_round(r) for r in c.results), default=0)
    facts = [plural(len(c.groups), "method"), plural(len(seeds), "seed"), f"up to {plural(rounds, 'round')}"]
    out: list[Markup] = [text(" · ".join(facts), "facts")]
    where = [_data(_shared(c, "data")), _model(c), *(_short(_shared(c, k)) for k in ("partition", "stream"))]
    where += [_part(_shared(c, "participation")), _short(_shared(c, "pace"))]
    if any(where):
        out.append(text(" · ".join(w for w in where if w), "facts"))
    tuning = _tuning(c)
    if tuning:
        out.append(text(tuning, "facts"))
    return out


def _shared(c: Comparison, key: str) -> str:
    """A setting as text if all runs have the same; else empty."""
    values = {str(r.settings.get(key) or "") for r in c.results}
    return values.pop() if len(values) == 1 else ""


def _data(words: str) -> str:
    """The data's name and shape, without its digest."""
    return re.sub(r" #[0-9a-f]+$", "", words)


def _model(c: Comparison) -> str:
    """The problem and its network, with the number of parameters."""
    problem = _shared(c, "problem")
    module = _shared(c, "module")
    sizes = {r.x.numel() for r in c.results}
    name = f"{problem} {module.split('(')[0]}".strip() if module else problem
    return f"{name}, {plural(sizes.pop(), 'parameter')}" if name and len(sizes) == 1 else name


def _part(words: str) -> str:
    share = re.search(r"fraction=([0-9.]+)", words)
    return f"{100 * float(share[1]):g} % of the clients a round" if share else _short(words)


def _short(words: str) -> str:
    """The text of an object without the settings that are switched off."""
    off = r"\w+=(?:None|False|0\.0|'sgd'|'fresh')|pairs=1|minimum=1"
    words = re.sub(rf", (?:{off})(?=[,)])", "", words)
    return words if len(words) <= 160 else words[:159] + "…"


def _tuning(c: Comparison) -> str:
    """The search for each method's settings: its grid, its budget and its choice."""
    notes: dict[str, list[str]] = {}
    tuned = False
    for method, runs in c.groups.items():
        tuned |= any("lr multiplier" in r.settings for r in runs)
        notes.setdefault(_searched(runs[0]), []).append(method)
    if not tuned:
        return ""
    if list(notes) == ["untuned"]:
        return "Tuning: every method is untuned, with the settings given."
    return "Tuning: " + "; ".join(f"{', '.join(names)} {how}" for how, names in notes.items()) + "."


def _searched(r: Result) -> str:
    settings = in_rates(r.settings)
    tuning = settings.get("tuning")
    if tuning:
        return str(tuning)
    return "untuned" if r.settings.get("lr multiplier", 1.0) == 1 else f"with {settings['clients']}, untuned"


def in_rates(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with the clients' learning rate, and the rates that tuning tried, instead of factors on it.

    If clients differ in their rate, the factors stay, and look like factors: "lr=×2".
    """
    base = re.match(r"Pace\(lr=([\d.e+-]+),", str(settings.get("pace")))
    rate: Callable[[str], str] = lambda v: f"{float(base[1]) * float(v):.4g}" if base else f"×{float(v):.4g}"
    rates: Callable[[re.Match[str]], str] = lambda m: re.sub(r"\d[\d.e+-]*", lambda v: rate(v[0]), m[0])
    out = dict(settings)
    if "lr multiplier" in out:
        out = {"clients" if k == "lr multiplier" else k: v for k, v in out.items()}
        out["clients"] = f"lr={rate(out['clients'])}"
    if "tuning" in out:
        number = r"\d[\d.e+-]*"
        out["tuning"] = re.sub(rf"\blr={number}(?: of {number}(?:, {number})*)?", rates, str(out["tuning"]))
    return out
