"""Five clients with the digits 5 to 9 join in round 15, and the five with 0 to 4 leave in round 30: joining.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

data = md.datasets.digits()
low = data.where(lambda X, y: y < 5, "the digits 0 to 4")
high = data.where(lambda X, y: y >= 5, "the digits 5 to 9")
clients = [(part.X[i::5], part.y[i::5], part.X_test[i::5], part.y_test[i::5]) for part in (low, high) for i in range(5)]
fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    clients=clients,
    classes=10,
    pace=md.scenarios.Pace(lr=0.1),
    membership=md.scenarios.Membership(joins=dict.fromkeys(range(5, 10), 15), leaves=dict.fromkeys(range(5), 30)),
)
curves = []
for k, method in enumerate((md.FedAvg(), md.SCAFFOLD(), md.FedNorton())):
    r = md.run(method, fed, rounds=45, progress=False)
    curves.append(Line(method.name, k, np.array(r["round"]), np.array(r["accuracy"])))
    print(f"{method.name:8} accuracy in rounds 14, 29, 45:", *(f"{r['accuracy'][t]:.2f}" for t in (14, 29, 45)))
with open("joining.svg", "w", encoding="utf-8") as file:
    file.write(lines(curves, title="Clients that join and leave", ylabel="accuracy on all digits", y="percent"))
