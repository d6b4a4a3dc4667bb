"""A pandas frame with a column of clients, and clients' accuracy as a frame again: frame.svg."""

import pandas as pd
from sklearn.datasets import load_breast_cancer

import medley as md
from medley.report.figures import Dots, strip

table = load_breast_cancer(as_frame=True).frame
table["clinic"] = pd.qcut(table["mean texture"], 6, labels=list("ABCDEF"))  # clinics that differ
table["target"] = table["target"].map({0: "malignant", 1: "benign"})
inputs = [name for name in table if name not in ("target", "clinic")]
table[inputs] = (table[inputs] - table[inputs].mean()) / table[inputs].std()

data = md.datasets.frame(table, target="target", client="clinic")
clients = []
for clinic in "ABCDEF":  # every third row of a clinic is a test row
    X, y = (part[data.keys["clinic"] == clinic] for part in (data.X, data.y))
    test = pd.RangeIndex(len(y)) % 3 == 0
    clients.append((X[~test], y[~test], X[test], y[test]))
net = md.models.mlp(len(inputs), 2, (16,))
pace = md.scenarios.Pace(lr=0.1, batch=16)
fed = md.Federation(md.problems.Network(net), clients=clients, classes=2, pace=pace)
rows = []
for k, method in enumerate((md.FedAvg(), md.LocalOnly(), md.FedPer())):
    by_client = md.run(method, fed, rounds=15, progress=False).frame("clients")  # a pandas frame
    rows.append(Dots(method.name, k, by_client["accuracy"].tolist()))
    print(method.name, by_client[["client", "test_rows", "accuracy"]].round(3), sep="\n")
with open("frame.svg", "w", encoding="utf-8") as file:
    file.write(strip(rows, title="Six clinics of a frame", xlabel="accuracy on own patients", x="percent"))
