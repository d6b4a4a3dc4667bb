"""One body for all, a head for each client: each client's accuracy against FedAvg's, in personal_heads.svg."""

from torch import nn

import medley as md
from medley.report.figures import Dots, strip

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
fed = md.Federation(
    md.problems.Network(net),
    data=md.datasets.digits(),
    partition=md.partitions.Labels(clients=15, per_client=2),
    own_test=True,  # each client has test rows of its own two labels
    participation=md.participation.Fixed([range(13)]),  # clients 13 and 14 never take part
)
methods = (md.FedAvg(), md.LocalOnly(), md.FedAvgFT(), md.FedPer(), md.FedRep(head_epochs=5), md.Ditto(mu=0.1))
rows = []
for k, method in enumerate(methods):
    result = md.run(method, fed, rounds=30, progress=False)
    old = [row["accuracy"] for row in result.clients if row["took_part"]]
    new = [row["accuracy"] for row in result.clients if not row["took_part"]]
    rows.append(Dots(method.name, k, old, new))
    print(f"{method.name}: {sum(old) / len(old):.3f}, new clients {sum(new) / len(new):.3f}")
title = "Clients that took part (filled) and new ones (hollow)"
with open("personal_heads.svg", "w", encoding="utf-8") as file:
    file.write(strip(rows, title=title, xlabel="accuracy on own test rows", x="percent"))
