"""A mean hides the worst: clients in the order of their accuracy on test rows of their own, in worst_clients.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=40, alpha=0.1, minimum=8),
    own_test=True,  # test rows are dealt like training rows
    pace=md.scenarios.Pace(lr=0.1, epochs=2),
    participation=0.25,
)
curves = []
for k, method in enumerate((md.FedAvg(), md.FedDyn(), md.SCAFFOLD(), md.FedNorton())):
    result = md.run(method, fed, rounds=30, progress=False)
    accuracies = np.sort([row["accuracy"] for row in result.clients if row["test_rows"]])
    curves.append(Line(method.name, k, np.linspace(0, 1, len(accuracies)), accuracies))
    print(f"{method.name:8} mean {accuracies.mean():.3f}, worst tenth {accuracies[: len(accuracies) // 10].mean():.3f}")
with open("worst_clients.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "clients, the worst first", "ylabel": "accuracy on own test rows"}
    file.write(lines(curves, title="The worst clients", x="percent", y="percent", **labels))
