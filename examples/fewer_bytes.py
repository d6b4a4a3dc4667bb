"""One method under five codecs: accuracy over the bytes that clients sent, in fewer_bytes.svg."""

import numpy as np

import medley as md
from medley.codecs import Cast, Quantise, TopK
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=20, alpha=0.5),
    pace=md.scenarios.Pace(lr=0.2, epochs=2),
)
codecs = {
    "numbers as they are": None,
    "16 bits": Cast("float16"),
    "8 bits": Quantise(bits=8),
    "the largest 5 %": TopK(0.05),
    "the largest 1 %": TopK(0.01),
}
curves = []
for k, (name, codec) in enumerate(codecs.items()):
    r = md.run(md.FedAvg(), fed, rounds=30, codec=codec, progress=False)
    curves.append(Line(name, k, np.array(r["bytes_up"])[1:], np.array(r["accuracy"])[1:]))
    print(f"{name:24} {r.summary['bytes_up'] / 1e6:5.2f} MB up, accuracy {r.summary['accuracy']:.3f}")
with open("fewer_bytes.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "bytes that clients sent", "ylabel": "accuracy"}
    file.write(lines(curves, title="Fewer bytes", x="bytes", y="percent", log="x", **labels))
