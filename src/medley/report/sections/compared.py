"""The conditions of a comparison: data, model, clients, participation and tuning."""

from __future__ import annotations

import re

from ...storage.result import Result
from ..document import Block, Text
from ..numbers import last_round
from .comparison import Comparison, plural


def title(c: Comparison) -> str:
    """The methods and the data: "FedAvg, SCAFFOLD and 3 others on digits"."""
    names = list(c.groups)
    if not names:
        return "Comparison"
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} others"]
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    data = _shared(c, "data").split(" ")[0]
    return f"{text} on {data}" if data and not data[0].isdigit() else text


def compared(c: Comparison) -> list[Block]:
    """Numbers of methods, seeds and rounds; the conditions that all runs share; the tuning of each method."""
    seeds = {r.seed for r in c.results}
    rounds = max((last_round(r) for r in c.results), default=0)
    facts = [plural(len(c.groups), "method"), plural(len(seeds), "seed"), f"up to {plural(rounds, 'round')}"]
    out: list[Block] = [Text(" · ".join(facts), "facts")]
    where = [_data(_shared(c, "data")), _model(c), *(_short(_shared(c, k)) for k in ("partition", "stream"))]
    where += [_part(_shared(c, "participation")), _short(_shared(c, "pace"))]
    if any(where):
        out.append(Text(" · ".join(w for w in where if w), "facts"))
    if tuning := _tuning(c):
        out.append(Text(tuning, "facts"))
    return out


def _shared(c: Comparison, key: str) -> str:
    """A setting as text where all runs have the same; else empty."""
    values = {str(r.settings.get(key) or "") for r in c.results}
    return values.pop() if len(values) == 1 else ""


def _data(text: str) -> str:
    """The data's name and shape, without its digest."""
    return re.sub(r" #[0-9a-f]+$", "", text)


def _model(c: Comparison) -> str:
    """The problem and its network, with the number of parameters."""
    problem, module = _shared(c, "problem"), _shared(c, "module")
    sizes = {r.x.numel() for r in c.results}
    name = f"{problem} {module.split('(')[0]}".strip() if module else problem
    return f"{name}, {plural(sizes.pop(), 'parameter')}" if name and len(sizes) == 1 else name


def _part(text: str) -> str:
    share = re.search(r"fraction=([0-9.]+)", text)
    return f"{100 * float(share[1]):g} % of the clients a round" if share else _short(text)


def _short(text: str) -> str:
    """The text of an object without the settings that are off."""
    off = r"\w+=(?:None|False|0\.0|'sgd'|'fresh')|pairs=1|minimum=1"
    text = re.sub(rf", (?:{off})(?=[,)])", "", text)
    return text if len(text) <= 160 else text[:159] + "…"


def _tuning(c: Comparison) -> str:
    """The search behind each method: its grid, its budget and its choice."""
    said: dict[str, list[str]] = {}
    known = False
    for method, runs in c.groups.items():
        known |= any("lr multiplier" in r.settings for r in runs)
        said.setdefault(_searched(runs[0]), []).append(method)
    if not known:
        return ""
    if list(said) == ["untuned"]:
        return "Tuning: every method is untuned, with the settings given."
    return "Tuning: " + "; ".join(f"{', '.join(names)} {how}" for how, names in said.items()) + "."


def _searched(r: Result) -> str:
    if text := r.settings.get("tuning"):
        return str(text)
    factor = r.settings.get("lr multiplier", 1.0)
    alone = isinstance(factor, int | float) and factor == 1
    return "untuned" if alone else f"with clients' lr times {factor:g}, untuned"
