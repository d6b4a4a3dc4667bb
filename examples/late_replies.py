"""Phones two orders of magnitude apart, and methods that go on with the first five replies: late_replies.svg.

Time is virtual: each client computes and sends at its device's own pace.
"""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=20, alpha=0.3),
    pace=md.scenarios.Pace(lr=0.2),
    devices=md.devices.phones(),
)
five = md.ReplyPolicy(replies=5)
curves = []
methods = (md.FedAvg(), md.FedAsync(), md.FedBuff(), md.CA2FL(), md.FedNorton())
for k, method in enumerate(methods):
    rounds, policy, name = (4, None, "FedAvg, waits for all") if k == 0 else (60, five, method.name)
    r = md.run(method, fed, rounds=rounds, reply_policy=policy, progress=False)
    curves.append(Line(name, k, np.array(r["seconds"]), np.array(r["accuracy"])))
    print(f"{name:22} {r.summary['accuracy']:.3f} after {r.summary['seconds']:.1f} s")
with open("late_replies.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "virtual time", "ylabel": "accuracy"}
    file.write(lines(curves, title="First five replies", x="seconds", y="percent", **labels))
