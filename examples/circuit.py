"""The circuit at work on twelve unequal regressions: two panels in circuit.svg, for docs/circuit.md."""

import re

import numpy as np

import medley as md
from medley.report.figures import Line, lines

rng = np.random.default_rng(0)
sites = []
for _ in range(12):
    n = int(rng.integers(20, 120))
    X = rng.normal(size=(n, 10)) * np.logspace(0, -1.2, 10)  # columns from strong to weak
    sites.append((X, X @ (rng.normal(size=10) + rng.normal(size=10)) + 0.1 * rng.normal(size=n)))
loss = md.problems.LeastSquares(mu=1e-4)
f_star = md.run(md.Newton(), md.Federation(loss, clients=sites), 20, progress=False).history[-1]["loss"]


def gaps(share: float, rounds: int) -> list[Line]:
    """Curves of f(x) − f* where clients take 1 to 20 steps a round, and this share of them takes part."""
    pace = md.scenarios.Pace(lr=0.05, epochs=md.distributions.Integers(1, 20), batch=None)
    fed = md.Federation(loss, clients=sites, f_star=f_star, participation=share, pace=pace)
    out = []
    for k, (name, method) in enumerate(methods.items()):
        r = md.run(method, fed, rounds, progress=False)
        print(f"{name}, {share:.0%} a round: gap {r['gap'][-1]:.1e} after {rounds} rounds")
        out.append(Line(name, k, np.array(r["round"]), np.array(r["gap"])))
    return out


methods = {"FedAvg": md.FedAvg(), "SCAFFOLD": md.SCAFFOLD(), "FedECADO": md.FedECADO(), "FedNorton": md.FedNorton()}
panels = {"All take part": gaps(1.0, 100), "A quarter takes part": gaps(0.25, 300)}
pictures = [lines(curves, title=name, ylabel=f"{name}: f(x) − f*", log=True) for name, curves in panels.items()]
sizes = [[float(v) for v in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()] for svg in pictures]
w = max(s[0] for s in sizes)
h = max(s[1] for s in sizes)
placed = [svg.replace("<svg", f'<svg x="{k * w}" y="0"', 1) for k, svg in enumerate(pictures)]
with open("circuit.svg", "w", encoding="utf-8") as file:
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * w} {h}" width="{2 * w}" height="{h}">'
    file.write(f"{root}<title>The circuit at work</title>{''.join(placed)}</svg>\n")
