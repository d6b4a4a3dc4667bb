"""From one label a client to all of them: accuracy over Dirichlet's α, mean and range of two seeds: label_skew.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

ALPHAS = np.array([0.03, 0.1, 0.3, 1.0, 10.0])


def last(method, alpha):
    """Accuracy over the last five rounds, for each of two seeds."""
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(clients=30, alpha=alpha),
        pace=md.scenarios.Pace(lr=0.3, epochs=3),
        participation=0.2,
    )
    return [np.mean(md.run(method, fed, rounds=20, seed=s, progress=False)["accuracy"][-5:]) for s in range(2)]


curves = []
for k, method in enumerate((md.FedAvg(), md.SCAFFOLD(), md.FedNorton())):
    accuracies = np.array([last(method, alpha) for alpha in ALPHAS.tolist()])
    curves.append(Line(method.name, k, ALPHAS, accuracies.mean(1), accuracies.min(1), accuracies.max(1)))
    print(method.name, accuracies.mean(1).round(3))
with open("label_skew.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "Dirichlet's α: left, a client has few labels", "ylabel": "accuracy after 20 rounds"}
    file.write(lines(curves, title="Label skew", x="number", y="percent", log="x", **labels))
