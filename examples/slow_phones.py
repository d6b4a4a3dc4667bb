"""A third of the clients are slow phones: accuracy over virtual time, in slow_phones.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

speed = [10.0 if i % 3 == 0 else 1000.0 for i in range(30)]  # row gradients a second
fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=30, alpha=0.5),
    pace=md.scenarios.Pace(lr=0.1),
    devices=md.devices.Devices(speed=speed, up=1e5, down=1e6),
)
all_of_them = None
fast_ones = md.ReplyPolicy(replies=20)
runs = {
    "FedAvg, waits for all": md.run(md.FedAvg(), fed, rounds=15, reply_policy=all_of_them, progress=False),
    "FedAvg, first 20": md.run(md.FedAvg(), fed, rounds=60, reply_policy=fast_ones, progress=False),
    "FedBuff, first 20": md.run(md.FedBuff(), fed, rounds=60, reply_policy=fast_ones, progress=False),
}
curves = [Line(name, k, np.array(r["seconds"]), np.array(r["accuracy"])) for k, (name, r) in enumerate(runs.items())]
with open("slow_phones.svg", "w", encoding="utf-8") as file:
    file.write(lines(curves, title="Slow phones", xlabel="virtual time", x="seconds", ylabel="accuracy", y="percent"))
for name, r in runs.items():
    print(f"{name}: accuracy {r.summary['accuracy']:.3f} after {r.summary['seconds']:.0f} s")
