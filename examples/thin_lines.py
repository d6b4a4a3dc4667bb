"""Bytes to the exact model of ten unequal hospitals, second-order methods and FedAvg: thin_lines.svg."""

import numpy as np
from sklearn.datasets import load_breast_cancer

import medley as md
from medley.report.figures import Line, lines

X, y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
hospitals = [(X[rows], y[rows]) for rows in np.array_split(np.argsort(X[:, 0]), 10)]  # sorted by the tumours' size
loss = md.problems.Logistic(mu=1e-3)
pace = md.scenarios.Pace(lr=1.0, epochs=5)
f_star = md.run(md.Newton(), md.Federation(loss, clients=hospitals), rounds=20, progress=False).summary["loss"]
fed = md.Federation(loss, clients=hospitals, pace=pace, f_star=f_star)
methods = {"FedAvg": md.FedAvg(), "GIANT": md.GIANT(), "LBFGS": md.LBFGS(), "Newton": md.Newton()}
methods |= {"SHED": md.SHED(), "SHED.fast": md.SHED.fast()}
curves = []
for k, (name, method) in enumerate(methods.items()):
    r = md.run(method, fed, rounds=120, target={"gap": 1e-9}, progress=False)
    sent = np.array(r["bytes_up"]) / len(hospitals)
    curves.append(Line(name, k, sent[1:], np.array(r["gap"])[1:]))
    print(f"{name:10} gap {r['gap'][-1]:.0e} after {sent[-1] / 1024:.1f} KiB a hospital")
with open("thin_lines.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "bytes that a hospital sent", "ylabel": "f(x) − f*"}
    file.write(lines(curves, title="Bytes to the exact model", x="bytes", log="xy", **labels))
