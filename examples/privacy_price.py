"""The price of differential privacy falls with the number of clients: accuracy over ε, in privacy_price.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

EPSILONS = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
ROUNDS = 20
curves = []
for k, clients in enumerate((30, 100, 300)):
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(clients),
        pace=md.scenarios.Pace(lr=0.5, epochs=2),
        participation=md.participation.Bernoulli(0.3),  # the accountant counts on chance
        weights="uniform",  # no client counts for more than another
    )
    accuracies = []
    for epsilon in EPSILONS.tolist():
        method = md.Private(md.FedAvg(), epsilon=epsilon, delta=1e-5, rounds=ROUNDS, clip=0.5)
        accuracies.append(md.run(method, fed, rounds=ROUNDS, progress=False).summary["accuracy"])
    plain = md.run(md.FedAvg(), fed, rounds=ROUNDS, progress=False).summary["accuracy"]
    curves.append(Line(f"{clients} clients", k, EPSILONS, np.array(accuracies)))
    print(f"{clients} clients: {np.round(accuracies, 2)}, without noise {plain:.2f}")
with open("privacy_price.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "ε of a client: left, it is hidden better", "ylabel": "accuracy after 20 rounds"}
    file.write(lines(curves, title="The price of privacy", x="number", y="percent", log="x", **labels))
