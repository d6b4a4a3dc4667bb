"""A loss of one's own: three quantiles of diabetes' progression, from six clinics that share no row: quantiles.svg."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import medley as md
from medley.report.figures import Line, lines

LEVELS = torch.tensor([0.1, 0.5, 0.9])


def pinball(outputs, y):
    """The loss whose minimum is a quantile; one row of outputs for each patient, one column for each level."""
    off = y.reshape(-1, 1) - outputs
    return torch.maximum(LEVELS * off, (LEVELS - 1) * off).mean()


X, y = load_diabetes(return_X_y=True, scaled=False)
bmi = ((X[:, 2:3] - 26) / 4).astype("float32")
y = (y / 100).astype("float32")
clinics = [(bmi[rows], y[rows]) for rows in np.array_split(np.argsort(X[:, 0]), 6)]  # by the patients' age
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 3))
pace = md.scenarios.Pace(lr=0.1, epochs=2, batch=16)
fed = md.Federation(md.problems.Network(net, loss=pinball), clients=clinics, pace=pace)
result = md.run(md.FedAvg(), fed, rounds=60, progress=False)
grid = torch.linspace(-1.5, 3, 40)[:, None]
with torch.no_grad():
    curves = result.model(grid) * 100
    at_rows = result.model(torch.from_numpy(bmi)).numpy()
for level, column in zip(LEVELS.tolist(), at_rows.T, strict=True):
    print(f"{np.mean(y <= column):.0%} of patients lie below the {level:.0%} quantile")
axis = grid[:, 0].double().numpy() * 4 + 26
low, middle, high = curves.double().numpy().T
with open("quantiles.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "body mass index", "ylabel": "progression after a year"}
    band = Line("median, and 80 % of patients", 0, axis, middle, low, high)
    file.write(lines([band], title="Three quantiles", x="number", **labels))
