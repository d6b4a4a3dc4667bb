"""FedECADO's departures from its paper, each taken back alone, on three federations of the league.

    python papers/fedecado/taken_back.py

Each variant is tuned in lr and L as a method of the league is, with 8 runs at most, and then has three fresh seeds. A
finished run is a line of `taken_back.jsonl`; the same command goes on, and prints the table. MEDLEY_DATA names the
folder of the data sets.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import medley as md
from medley.algorithms.fedecado import Flow
from medley.contract.algorithm import on_client
from medley.contract.client import Client
from medley.contract.message import Message
from medley.contract.messages import Model, TimedStep
from medley.contract.types import Num, Vec
from medley.numerics.chunks import Stack, gather
from medley.numerics.circuit.step import EVERY, Window

sys.path.insert(0, str(Path(__file__).parents[1] / "league"))
import run as league
from entrants import ENTRANTS, Point, search
from federations import FEDERATIONS

HERE = Path(__file__).with_name("taken_back.jsonl")
SEEDS = (0, 1, 2)
NAMES = ("digits-softmax-dirichlet", "mnist-mlp-two-labels", "a9a-logistic-sizes")


class ClientSign(md.FedECADO):
    """Line 11 of Algorithm 2 as printed: dx_i/dt = −∇f_i − J_i."""

    @on_client(vectorized=True)
    def simulate(self, me: Client, request: Model, flow: Flow) -> TimedStep:
        update = me.descend(request.x, shift=flow.J)
        return TimedStep(update.step, update.T)


class Rising(Window):
    def step(self, u, K, t, dt, c=EVERY):
        beta = self.column([1 / (self.L / dt + 1 / G) for G in self.G])
        E = self.L / dt * K - self.gamma(t + dt, c)
        w = self.column(self.w) * beta
        u1 = (u + dt * (self.S[c] + (w.T @ E)[0])) / (1 - dt * w.sum())
        return u1, beta * (E + u1)


class NodeSign(md.FedECADO):
    """The last row of (33) as printed: dx_c/dt = +Σ I_i."""

    def window(self, s, clients, replies):
        return Rising(**vars(super().window(s, clients, replies)))


@dataclass(frozen=True)
class OnGradient(md.FedECADO):
    """(17): p_i on the gradient, equal capacitors; with ``n`` the number of clients, learning rates times n."""

    n: float = 1.0

    @on_client(vectorized=True)
    def simulate(self, me: Client, request: Model, flow: Flow) -> TimedStep:
        update = me.descend(request.x, scale=self.n * me.p, shift=-flow.J)
        return TimedStep(update.step, update.T)

    def window(self, s, clients, replies):
        window = super().window(s, clients, replies)
        G = [1 / max(window.T) + w * s.h.get(i, 0.0) for i, w in zip(replies, window.w, strict=True)]
        return dataclasses.replace(window, w=[1.0] * len(replies), G=G)


class NoWeights(md.FedECADO):
    """Algorithm 2 as printed: p_i is neither on the gradient nor on the capacitor."""

    def window(self, s, clients, replies):
        return dataclasses.replace(super().window(s, clients, replies), w=[1.0] * len(replies))


class ActiveOnly(md.FedECADO):
    """(33) as printed: Kirchhoff's sum over the clients that reply."""

    def window(self, s, clients, replies):
        window = super().window(s, clients, replies)
        none = torch.zeros_like(s.x)
        S = sum((w * s.J.get(i, none) for i, w in zip(replies, window.w, strict=True)), none)
        return dataclasses.replace(window, S=S)


class OwnStep(Message):
    """Up: x_i(T_i) − x_i(0) [d], T_i, and x_i(0) − x_c [d]."""

    delta: Vec
    T: Num
    start: Vec


@dataclass
class Own:
    x: Vec | None = None


@dataclass(frozen=True)
class Apart(Window):
    """A window of clients that began at ``A``, less x_c, [a, d] or a vectors [d]."""

    A: Stack = ()

    def gamma(self, t, c=EVERY):
        return gather(self.A, c) + super().gamma(t, c)


class OwnStart(md.FedECADO):
    """Steps 2, 8 and 11 of Algorithm 2 as printed: a client goes on from its own last state."""

    memory = Own

    @on_client
    def simulate(self, me: Client[Own], request: Model, flow: Flow) -> OwnStep:
        x = request.x if me.memory.x is None else me.memory.x
        update = me.descend(x, shift=-flow.J)
        me.memory.x = x + update.step
        return OwnStep(update.step, update.T, x - request.x)

    def window(self, s, clients, replies):
        return Apart(**vars(super().window(s, clients, replies)), A=[up.start for up in replies.values()])


class Epochs(md.FedECADO):
    """(27) as printed: T_i sums the learning rate over epochs, not over steps."""

    @on_client
    def simulate(self, me: Client, request: Model, flow: Flow) -> TimedStep:
        update = me.descend(request.x, shift=-flow.J)
        return TimedStep(update.step, update.T * min(1.0, (me.pace.batch or math.inf) / me.problem.n))


class AbsoluteL(md.FedECADO):
    """L in the paper's units, on a ladder of decades."""

    def window(self, s, clients, replies):
        return dataclasses.replace(super().window(s, clients, replies), L=self.L)


class NoCurvature(md.FedECADO):
    """(22) without its H̄_i."""

    def sense(self, s, clients):
        pass


class Printed(OwnStart, ActiveOnly, AbsoluteL, NoWeights):
    """Algorithm 2 but for its signs, Γ's time and the right side of (33)."""


N = -1.0
"""Stands for the number of clients."""

USUAL = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DECADES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
VARIANTS: dict[str, tuple[type[md.FedECADO], dict[str, Any], tuple[float, ...], int]] = {
    "FedECADO": (md.FedECADO, {}, USUAL, 2),
    "client's sign as printed": (ClientSign, {"delta": 1e30}, USUAL, 2),
    "node's sign as printed": (NodeSign, {"delta": 1e30}, USUAL, 2),
    "p_i on the gradient, (17)": (OnGradient, {}, USUAL, 2),
    "the same, learning rates times N": (OnGradient, {"n": N}, USUAL, 2),
    "no p_i, Algorithm 2": (NoWeights, {}, USUAL, 2),
    "active clients only, (33)": (ActiveOnly, {}, USUAL, 2),
    "clients go on from their own state": (OwnStart, {}, USUAL, 2),
    "T over epochs, (27)": (Epochs, {}, USUAL, 2),
    "L in the paper's units": (AbsoluteL, {}, DECADES, 3),
    "all of these but signs and epochs": (Printed, {}, DECADES, 3),
    "control: no curvature in (22)": (NoCurvature, {}, USUAL, 2),
    "control: delta = 0.01": (md.FedECADO, {"delta": 0.01}, USUAL, 2),
    "control: delta = 1, one step": (md.FedECADO, {"delta": 1.0}, USUAL, 2),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default=",".join(NAMES))
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--nice", type=int, default=19, help="added to the priority, 19 the lowest (default)")
    args = parser.parse_args()
    os.nice(args.nice)
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for name in args.federations.split(","):
        for label in VARIANTS:
            finish(name, label, lines, args.out)
    print(table(lines))
    return 0


def finish(name: str, label: str, lines: list[dict[str, Any]], out: Path) -> None:
    """Make the runs that a variant lacks on a federation."""
    kind, settings, ladder, start = VARIANTS[label]
    if settings.get("n") == N:
        settings = {"n": float(len(league.federation(name).draw(0).p))}
    entrant = dataclasses.replace(ENTRANTS["FedAvg"], method=kind(**settings), knob="L", ladder=ladder, start=start)

    def line(point: Point, seed: int, on: str) -> dict[str, Any]:
        key = {"federation": name, "variant": label, "on": on, "seed": seed, "point": list(point)}
        run = next((x for x in lines if key.items() <= x.items()), None)
        if run is None:
            ran = league.once(name, entrant, point, seed, on)
            outcome = {k: ran.get(k) for k in ("settings", "status", "score")}
            outcome["score"] = None if outcome["score"] is None else float(f"{outcome['score']:.6g}")
            run = key | outcome
            lines.append(run)
            with out.open("a", encoding="utf-8") as f:
                f.write(json.dumps(run) + "\n")
        return run

    best = search(entrant, lambda point: league.merit(FEDERATIONS[name], line(point, league.TUNING_SEED, "validation")))
    for seed in SEEDS:
        line(best, seed, "test")


def table(lines: list[dict[str, Any]]) -> str:
    """Means of the test scores and their standard deviations over seeds, as Markdown."""
    names = list(dict.fromkeys(x["federation"] for x in lines))
    rows = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for label in VARIANTS:
        cells = []
        for name in names:
            final = [x for x in lines if (x["federation"], x["variant"], x["on"]) == (name, label, "test")]
            fine = [x["score"] for x in final if x["status"] == "finished" and x["score"] is not None]
            lost = f"{len(final) - len(fine)} of {len(final)} diverge" if len(fine) < len(final) else ""
            spread = f"{fmean(fine):.4f} ± {stdev(fine):.4f}" if len(fine) > 1 else ""
            cells.append(", ".join(filter(None, (spread, lost))))
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
