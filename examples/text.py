"""A GRU that guesses the next character; each client is one text, a module of Python's library: text.svg."""

import importlib
import inspect
import string

import numpy as np
import torch

import medley as md
from medley.report.figures import Line, lines

MODULES = ["argparse", "calendar", "configparser", "csv", "decimal", "difflib", "doctest", "gettext"]
SIGNS = "\0 \n" + string.ascii_lowercase + string.digits + string.punctuation
LENGTH = 16


def rows(name):
    """Strings of 16 characters and the character behind each, the last quarter for tests."""
    text = inspect.getsource(importlib.import_module(name)).lower()[:4000]
    ids = torch.tensor([SIGNS.find(sign) % len(SIGNS) for sign in text])
    windows = ids.unfold(0, LENGTH + 1, 4)
    X = windows[:, :-1]
    y = windows[:, -1]
    cut = len(windows) * 3 // 4
    return X[:cut], y[:cut], X[cut + LENGTH :], y[cut + LENGTH :]


fed = md.Federation(
    md.problems.Network(md.models.gru(len(SIGNS), len(SIGNS), embedding=16, hidden=32)),
    clients=[rows(name) for name in MODULES],
    classes=len(SIGNS),
    pace=md.scenarios.Pace(lr=0.5, epochs=1, batch=16),
)
curves = []
for k, method in enumerate((md.FedAvg(), md.LocalOnly())):
    result = md.run(method, fed, rounds=15, clients_every=2, progress=False)
    figure = "accuracy" if method == md.FedAvg() else "personal_accuracy"  # FedAvg's clients use the server's model
    measured = [row for row in result.history if figure in row]
    curves.append(Line(method.name, k, *(np.array([row[c] for row in measured]) for c in ("round", figure))))
    print(method.name, round(measured[-1][figure], 3))
with open("text.svg", "w", encoding="utf-8") as file:
    file.write(lines(curves, title="The next character", ylabel="accuracy of clients' models", y="percent"))
