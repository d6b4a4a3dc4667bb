"""Run SHED and its rivals to f − f* < 1e-8 and tell what it took: exchanges, vectors, bytes, Hessians.

    python papers/shed/run.py fm@1e-5 fmB@1e-6 w8a@1e-6 --out runs/shed.json
    python papers/shed/run.py fm@1e-5 --methods Fib-SHED,SHED.fast --seeds 5 --out runs/shed.json
    python papers/shed/run.py --table --out runs/shed.json

A name is a problem of settings.py and its ridge μ. Every run is added to the file as it ends, with its whole curve;
what is there already is not run again. The table beside it (.md) has medians over partitions, with the range; the
picture (.svg) has partition 0's curves of the problems and methods that were named.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import settings

import medley as md
from medley.codecs import Cast, Codec, Delta, Quantise, TwoWay
from medley.report import figures
from medley.storage.atomic import replacing

GOAL = 1e-8
CHANNEL = md.scenarios.Pace(pairs=md.distributions.Rayleigh(), redraw=True)


class Trial(NamedTuple):
    """A method as it is run, and where it stops if it does not get there."""

    method: md.Algorithm
    rounds: int
    pace: md.scenarios.Pace | None = None
    codec: Codec | None = None
    fresh: bool = False
    """Clients take a Hessian, or products with one, every iteration."""


EIGHT = Delta(Quantise(8))
SIXTEEN = TwoWay(EIGHT, Cast("float16"))
THIRTY_TWO = TwoWay(EIGHT, Cast("float32"))
"""Replies in 8 bits, requests in 16 or 32: the bits of SHED.fast's own wire, and twice as many down."""
METHODS = {
    "Fib-SHED": Trial(md.SHED(), 1000),
    "Fib-SHED+": Trial(md.SHED(), 1000, CHANNEL),
    "Fib-SHED d=3": Trial(md.SHED(pairs=3), 1000),
    "Fib-SHED d=6": Trial(md.SHED(pairs=6), 1000),
    "Fib-SHED d=30": Trial(md.SHED(pairs=30), 1000),
    "GN-SHED": Trial(md.SHED(renewal="gradient_norm"), 1000),
    "SHED-periodic": Trial(md.SHED(renewal="periodic", period=40), 1000),
    "SHED.fast": Trial(md.SHED.fast(), 400),
    "SHED.fast d=1": Trial(md.SHED.fast(pairs=1), 400),
    "SHED-LS": Trial(md.SHED(), 200),
    "SHED-LS+": Trial(md.SHED(), 200, CHANNEL),
    "SHED-LS λ": Trial(md.SHED(rho="lambda", search="none"), 200),
    "SHED-LS T=30": Trial(md.SHED(renewal="periodic", period=30), 300),
    "Mont-Dec+": Trial(md.MontDec(), 200, CHANNEL, fresh=True),
    "Newton": Trial(md.Newton(), 40, fresh=True),
    "LBFGS": Trial(md.LBFGS(), 1000),
    "LBFGS 8 bits": Trial(md.LBFGS(), 1000, codec=EIGHT),
    "LBFGS 8/16 bits": Trial(md.LBFGS(), 300, codec=SIXTEEN),
    "LBFGS 8/32 bits": Trial(md.LBFGS(), 1000, codec=THIRTY_TWO),
    "GIANT": Trial(md.GIANT(), 100, fresh=True),
    "GIANT 8 bits": Trial(md.GIANT(speculative=True), 100, codec=EIGHT, fresh=True),
    "GIANT 8/16 bits": Trial(md.GIANT(speculative=True), 100, codec=SIXTEEN, fresh=True),
    "GIANT 8/32 bits": Trial(md.GIANT(speculative=True), 100, codec=THIRTY_TWO, fresh=True),
    "DONE": Trial(md.DONE(), 200, fresh=True),
    "FedNL": Trial(md.FedNL(), 400, fresh=True),
    "FedNL ahead": Trial(md.FedNL(speculative=True), 400, fresh=True),
    "FedNL 8 bits": Trial(md.FedNL(speculative=True), 400, codec=EIGHT, fresh=True),
    "AGD": Trial(md.AGD(), 3000),
    "GD": Trial(md.GradientDescent(), 3000),
}
COLUMNS = ("round", "exchanges", "vectors", "bytes_up", "bytes_down", "hessians", "gap")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="problem@mu, e.g. fm@1e-6")
    parser.add_argument("--methods", default="Fib-SHED,SHED.fast", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of CPU time, after which a run is given up")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only write the table of what is there")
    args = parser.parse_args()
    runs = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(r["problem"], r["mu"], r["method"], r["seed"]) for r in runs}
    try:
        for seed in range(0 if args.table else args.seeds):
            for name in args.names:
                problem, _, mu = name.partition("@")
                for method in args.methods.split(","):
                    if (problem, float(mu), method, seed) in done:
                        continue
                    runs.append(once(problem, float(mu), method, seed, args.seconds))
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(args.out) as tmp:
                        tmp.write_text(json.dumps(runs))
    except md.MedleyError as e:
        print(f"Error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130
    with replacing(args.out.with_suffix(".md")) as tmp:
        tmp.write_text(table(runs), encoding="utf-8")
    with replacing(args.out.with_suffix(".svg")) as tmp:
        tmp.write_text(picture(runs, args.names, args.methods.split(",")), encoding="utf-8")
    print(table(runs))
    return 0


def once(problem: str, mu: float, method: str, seed: int, limit: float) -> dict:
    if method not in METHODS:
        raise md.RecipeError.unknown(method, METHODS, "papers/shed/run.py")
    trial = METHODS[method]
    fed = settings.federation(problem, mu, seed, pace=trial.pace)
    began = time.process_time()

    def watch(row: dict) -> None:
        if time.process_time() - began > limit:
            raise KeyboardInterrupt

    result = md.run(
        trial.method,
        fed,
        trial.rounds,
        seed=seed,
        target={"gap": GOAL},
        codec=trial.codec,
        on_round=watch,
        throw=False,
        progress=False,
    )
    seconds = time.process_time() - began
    if result.status.outcome == "interrupted" and seconds <= limit:
        raise KeyboardInterrupt
    d = len(result.x)
    agents = len(fed.sizes)
    rows = [row | {"vectors": row["bytes_up"] / (8 * d * agents)} for row in result.history]
    if trial.fresh:
        rows = [row | {"hessians": row["round"]} for row in rows]
    last = rows[-1]
    print(
        f"{problem} μ={mu:g} {method} partition {seed}: {result.status.outcome}, {last['exchanges']} exchanges, "
        f"gap {last['gap']:.2g}, {seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )
    return {
        "problem": problem,
        "mu": mu,
        "method": method,
        "seed": seed,
        "status": result.status.outcome,
        "seconds": seconds,
        "curve": [[row.get(k, 0) for k in COLUMNS] for row in rows],
    }


def table(results: list[dict]) -> str:
    """Medians over partitions, (least–most); times fewer than Fib-SHED where that ran on the same partitions."""
    order = [list(settings.SETTINGS), list(METHODS)]
    results = sorted(results, key=lambda r: (order[0].index(r["problem"]), -r["mu"], order[1].index(r["method"])))
    lines = [
        f"To f − f* < {GOAL:g}; medians over partitions (least–most). Vectors are a client's, up, of 8 d bytes; bytes "
        "are all clients', both ways.",
        "",
        "| problem | μ | method | partitions | reached | iterations | exchanges | Hessians | vectors | MB | gap "
        "| CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem, mu, method in dict.fromkeys((r["problem"], r["mu"], r["method"]) for r in results):
        runs = [r for r in results if (r["problem"], r["mu"], r["method"]) == (problem, mu, method)]
        last = [dict(zip(COLUMNS, r["curve"][-1], strict=True)) for r in runs]

        def spread(values: list[float]) -> str:
            return f"{median(values):.0f}{f' ({min(values):.0f}–{max(values):.0f})' * (len(values) > 1)}"

        cells = [spread([row[k] for row in last]) for k in ("round", "exchanges", "hessians", "vectors")]
        reached = sum(r["status"] == "target" for r in runs)
        total = [(row["bytes_up"] + row["bytes_down"]) / 1e6 for row in last]
        lines.append(
            f"| {problem} | {mu:g} | {method} | {len(runs)} | {reached} | {' | '.join(cells)} | "
            f"{median(total):.1f} | {median(row['gap'] for row in last):.1e} | "
            f"{median(r['seconds'] for r in runs):.1f} |"
        )
    return "\n".join([*lines, "", *ratios(results), ""])


def picture(results: list[dict], names: list[str], methods: list[str]) -> str:
    """f − f* over exchanges, vectors and bytes, a row a problem, of partition 0."""
    wide = 380
    high = 250
    panels = []
    for at, name in enumerate(names):
        problem, _, mu = name.partition("@")
        runs = {r["method"]: r for r in results if (r["problem"], r["mu"], r["seed"]) == (problem, float(mu), 0)}
        curves = {m: dict(zip(COLUMNS, thinned(runs[m]["curve"]).T, strict=True)) for m in methods if m in runs}
        for column, (label, kind, of) in enumerate(
            [
                ("exchanges", "count", lambda c: c["exchanges"]),
                ("vectors up, an agent", "count", lambda c: c["vectors"]),
                ("bytes, all agents, both ways", "bytes", lambda c: c["bytes_up"] + c["bytes_down"]),
            ]
        ):
            series = [
                figures.Line(m, slot, of(c), np.maximum(c["gap"], GOAL / 10), broken=runs[m]["status"] != "target")
                for slot, (m, c) in enumerate(curves.items())
            ]
            svg = figures.lines(
                series, title=f"{name}, {label}", xlabel=label, ylabel=f"{name}: f − f*", x=kind, log=True
            )
            # The legend makes figures taller, by as much for all of a row.
            high = max(high, int(svg.split('height="')[1].split('"')[0]))
            panels.append((column * wide, at, svg))
    size = f'width="{3 * wide}" height="{high * len(names)}"'
    body = "".join(f'<g transform="translate({x},{at * high})">{svg}</g>' for x, at, svg in panels)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect {size} fill="#fff"/>{body}</svg>\n'


def thinned(curve: list[list[float]]) -> np.ndarray:
    return np.array(curve)[np.unique(np.linspace(0, len(curve) - 1, 100).round().astype(int))]


def ratios(runs: list[dict]) -> list[str]:
    """The ratios of Fib-SHED's exchanges and bytes to SHED.fast's, partition by partition."""
    ends = {(r["problem"], r["mu"], r["seed"], r["method"]): r["curve"][-1] for r in runs if r["status"] == "target"}
    lines = []
    for problem, mu in dict.fromkeys((p, m) for p, m, _, _ in ends):
        pairs = [
            (dict(zip(COLUMNS, slow, strict=True)), dict(zip(COLUMNS, ends[p, m, s, "SHED.fast"], strict=True)))
            for (p, m, s, method), slow in ends.items()
            if (p, m, method) == (problem, mu, "Fib-SHED") and (p, m, s, "SHED.fast") in ends
        ]
        if pairs:
            exchanges = sorted(a["exchanges"] / b["exchanges"] for a, b in pairs)
            up = sorted(a["bytes_up"] / b["bytes_up"] for a, b in pairs)
            both = sorted((a["bytes_up"] + a["bytes_down"]) / (b["bytes_up"] + b["bytes_down"]) for a, b in pairs)
            cells = [f"{fmean(v):.1f}{f' ({v[0]:.1f}–{v[-1]:.1f})' * (len(v) > 1)}" for v in (exchanges, up, both)]
            parts = f"{len(pairs)} partition{'s' * (len(pairs) > 1)}"
            lines.append(
                f"- {problem}, μ = {mu:g}, {parts}: SHED.fast takes {cells[0]} times fewer exchanges than Fib-SHED, "
                f"{cells[1]} times fewer bytes up, {cells[2]} both ways."
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
