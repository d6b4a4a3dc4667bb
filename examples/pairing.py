"""The same seeds for both methods, ten times: accuracies that overlap, and differences that do not: pairing.svg."""

import numpy as np
from scipy.stats import t

import medley as md
from medley.report.figures import Dots, Line, lines, strip
from medley.report.figures.svg import figure

SEEDS = 10
fed = md.Federation(
    md.problems.Softmax(mu=1e-3),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=20, alpha=0.1),
    pace=md.scenarios.Pace(lr=0.3, epochs=3),
    participation=0.3,
)


def last_accuracies(method):
    """Accuracy of each seed, over the last five of 15 rounds."""
    return np.array([np.mean(md.run(method, fed, 15, seed=s, progress=False)["accuracy"][-5:]) for s in range(SEEDS)])


def half(values):
    """Half-width of the 95 % t-interval of their mean."""
    return t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5


a = last_accuracies(md.FedAvg())
b = last_accuracies(md.FedProx(mu=0.3))
for name, values in {"FedAvg": a, "FedProx": b, "by seed": b - a}.items():
    print(f"{name:8} {values.mean():.3f} ± {half(values):.3f}")
unpaired = [np.hypot(half(a[:n]), half(b[:n])) for n in range(2, SEEDS + 1)]
paired = [half((b - a)[:n]) for n in range(2, SEEDS + 1)]
print(f"half-width of the difference: paired {paired[-1]:.4f}, unpaired {unpaired[-1]:.4f}")
n = np.arange(2.0, SEEDS + 1)
both = strip([Dots("FedAvg", 0, a), Dots("FedProx", 1, b)], title="Seeds", xlabel="accuracy of each seed", width=380)
by_seed = [Dots("by seed", 2, b - a)]
differences = strip(by_seed, title="Differences", xlabel="FedProx less FedAvg, each seed", width=380)
curves = [Line("paired", 2, n, np.array(paired)), Line("not paired", 3, n, np.array(unpaired))]
widths = lines(curves, title="Widths", xlabel="seeds", ylabel="half-width of the difference", log=True)
placed = zip((both, differences, widths), ((0, 20), (0, 150), (380, 0)), strict=True)
body = "".join(svg.replace("<svg", f'<svg x="{x}" y="{y}"', 1) for svg, (x, y) in placed)
with open("pairing.svg", "w", encoding="utf-8") as file:
    file.write(figure(760, 290, "Paired by seed", "Accuracies of ten seeds, differences by seed, widths.", body))
