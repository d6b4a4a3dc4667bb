"""The table of all finished runs: `python papers/adapters/page.py > papers/adapters/results.md`.

A cell has the mean accuracy of five seeds in percent, and the difference to FedAvg of the same seeds with its 95 %
t-interval. An asterisk says that the interval leaves out 0.
"""

from __future__ import annotations

from statistics import fmean, stdev

from run import EXPERIMENTS, HERE, OPTIMIZERS, tables
from scipy.stats import t


def scores(name: str, method: str) -> dict[int, float]:
    """Accuracy in percent by seed at the point that tuning chose; a run that diverged counts as 0."""
    lines = tables.read(tables.file_of(HERE / "results", name, method))
    tuning = [x for x in lines if x["kind"] == "tuning"]
    if not tuning:
        return {}
    best = tables.point(max(tuning, key=tables.merit))
    return {
        x["seed"]: 100 * max(0.0, tables.merit(x)) for x in lines if x["kind"] == "final" and tables.point(x) == best
    }


def cell(method_scores: dict[int, float], base: dict[int, float]) -> str:
    """A method's mean, and its difference to FedAvg."""
    if method_scores.keys() < {*tables.SEEDS} or base.keys() < {*tables.SEEDS}:
        return "–"
    if method_scores == base:
        return f"{fmean(method_scores.values()):.1f}"
    differences = [method_scores[s] - base[s] for s in method_scores]
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    star = "*" if abs(fmean(differences)) > half else ""
    return f"{fmean(method_scores.values()):.1f} ({fmean(differences):+.1f} ± {half:.1f}{star})"


def traffic(name: str, method: str) -> str:
    """MB of a run, up and down."""
    lines = [x for x in tables.read(tables.file_of(HERE / "results", name, method)) if "bytes_up" in x]
    return f"{lines[0]['bytes_up'] / 1e6:.2f} / {lines[0]['bytes_down'] / 1e6:.2f}" if lines else "–"


def main() -> None:
    print("# Adapters, AdamW and Muon: results\n")
    print((__doc__ or "").split("\n\n", 1)[1])
    for optimizer in OPTIMIZERS:
        names = [n for n in EXPERIMENTS if n.endswith(f"-{optimizer}")]
        methods = list(dict.fromkeys(m for n in names for m in EXPERIMENTS[n].methods))
        print(f"## Clients run {optimizer}\n")
        print("| method |", " | ".join(n.removesuffix(f"-{optimizer}") for n in names), "|")
        print("|---|" + "---|" * len(names))
        for m in methods:
            print(f"| {m} |", " | ".join(cell(scores(n, m), scores(n, "FedAvg")) for n in names), "|")
        lora = [n for n in names if "lora" in n]
        print("\nMB of a run, up / down:", end=" ")
        print(
            "; ".join(f"{n} FedAvg {traffic(n, 'FedAvg')}, FedExLoRA {traffic(n, 'FedExLoRA')}" for n in lora) + ".\n"
        )


if __name__ == "__main__":
    main()
