"""SHED's instalments on ten unequal hospitals, in four panels of eigenpairs.svg, for docs/second-order.md."""

import re

import numpy as np
from sklearn.datasets import load_breast_cancer

import medley as md
from medley.report.figures import Line, lines

MU = 1e-3
X, y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
sites = [(X[rows], y[rows]) for rows in np.array_split(np.argsort(X[:, 0]), 10)]  # sorted by the tumours' size
loss = md.problems.Logistic(mu=MU)
best = md.run(md.Newton(), md.Federation(loss, clients=sites), rounds=20, progress=False)
fed = md.Federation(loss, clients=sites, f_star=best.summary["loss"])

p = [len(labels) / len(y) for _, labels in sites]  # Hessians at the start, x = 0:
d = X.shape[1]
spectra = [np.linalg.eigh(rows.T @ rows / (4 * len(rows)) + MU * np.eye(d)) for rows, _ in sites]
H = sum(share * (V * lam) @ V.T for share, (lam, V) in zip(p, spectra, strict=True))


def first_pairs(q):
    """Ĥ from q pairs of each hospital: its q largest eigenvalues, and the next one in place of all others."""
    bounded = [(np.where(np.arange(len(lam))[::-1] < q, lam, lam[max(len(lam) - 1 - q, 0)]), V) for lam, V in spectra]
    return sum(share * (V * lam) @ V.T for share, (lam, V) in zip(p, bounded, strict=True))


count = np.arange(1.0, d + 1)
falling = [spectra[0][0][::-1]]
falling += [np.where(np.arange(d) < q, falling[0], falling[0][q]) for q in (2, 10)]
names = ("all 30", "after 2 pairs", "after 10 pairs")
one = [Line(name, k, count, lam) for k, (name, lam) in enumerate(zip(names, falling, strict=True))]
trust = np.array([np.linalg.eigvals(np.linalg.solve(first_pairs(q), H)).real.min() for q in range(d)])
above = [Line("least part of a Newton step", 3, count - 1, trust)]
runs = {f"{k} a round": md.run(md.SHED(pairs=k), fed, rounds=45, progress=False) for k in (1, 3, 10)}
runs["Newton"] = md.run(md.Newton(), fed, rounds=10, progress=False)
counts = []
gaps = []
for k, (name, r) in enumerate(runs.items()):
    t = np.array(r["round"])
    gap = np.array(r["gap"])
    gaps.append(Line(name, k, t, np.maximum(gap, 1e-15)))
    if name != "Newton":
        counts.append(Line(name, k, t[1:], np.array(r["pairs"])[1:] / len(sites)))
    print(f"{name:10} gap {gap[-1]:.0e} after {t[-1]:.0f} rounds, {r['bytes_up'][-1] / 10 / 1024:.1f} KiB a hospital")
svgs = [
    lines(one, title="Bound", xlabel="number", ylabel="1. Eigenvalues of one hospital", log=True),
    lines(above, title="Trust", xlabel="pairs of each hospital", ylabel="2. Least part of Newton's step", y="percent"),
    lines(counts, title="Held", ylabel="3. Pairs that the server holds of a hospital"),
    lines(gaps, title="Gap", ylabel="4. f(x) − f*", log=True),
]
sizes = [[float(v) for v in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()] for svg in svgs]
w, h = map(max, zip(*sizes, strict=True))
placed = [svg.replace("<svg", f'<svg x="{k % 2 * w}" y="{k // 2 * h}"', 1) for k, svg in enumerate(svgs)]
with open("eigenpairs.svg", "w", encoding="utf-8") as file:
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * w} {2 * h}" width="{2 * w}" height="{2 * h}">'
    file.write(f"{root}<title>SHED's instalments</title>{''.join(placed)}</svg>\n")
