"""Four hospitals, each with test patients of its own (FLamby's Heart Disease, in $MEDLEY_DATA): hospitals.svg."""

import torch

import medley as md
from medley.report.figures import Dots, strip

data = md.datasets.heart_disease()  # FLamby's test patients, hospital by hospital
TESTS = (104, 89, 16, 45)
of = torch.as_tensor(data.keys["centre"])
tests = zip(data.X_test.split(TESTS), data.y_test.split(TESTS), strict=True)
clients = [(data.X[of == i], data.y[of == i], X, y) for i, (X, y) in enumerate(tests)]
net = md.models.mlp(13, 2, (16,))
fed = md.Federation(md.problems.Network(net), clients=clients, pace=md.scenarios.Pace(lr=0.02, batch=8))
rows = []
for k, method in enumerate((md.FedAvg(), md.LocalOnly(), md.FedPer(), md.Ditto())):
    result = md.run(method, fed, rounds=30, progress=False)
    rows.append(Dots(method.name, k, [row["accuracy"] for row in result.clients]))
    print(method.name, [(int(row["test_rows"]), round(row["accuracy"], 3)) for row in result.clients])
with open("hospitals.svg", "w", encoding="utf-8") as file:
    file.write(strip(rows, title="Four hospitals", xlabel="accuracy on own patients", x="percent"))
