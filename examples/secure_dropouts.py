"""The server reads sums only, and clients leave in the middle of them: accuracy by round, in secure_dropouts.svg.

A secure sum needs 60 % of its cohort here. Above that it is exact, of those who stayed; below it the run ends, and the
curve with a cross.
"""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Softmax(mu=1e-3),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=15, alpha=0.5, minimum=5),
    pace=md.scenarios.Pace(lr=0.5),
)
hidden = md.SecureSum(bound=10.0, threshold=0.6)
lossy = md.transports.Lossy
cases = {
    "replies in the clear": {},
    "secure sums": {"secure": hidden},
    "secure, 15 % leave": {"secure": hidden, "transport": lossy(loss=0.15)},
    "secure, 30 % leave": {"secure": hidden, "transport": lossy(loss=0.3)},
}
curves = []
for k, (name, options) in enumerate(cases.items()):
    try:
        r = md.run(md.FedAvg(), fed, rounds=20, progress=False, **options)
    except md.TooFewReplies as error:
        print(error)
        r = error.result  # of the whole rounds before
    curves.append(Line(name, k, np.array(r["round"]), np.array(r["accuracy"]), broken=r["round"][-1] < 20))
    print(
        f"{name:22} {r.ledger.up / 1e6:.2f} MB up, accuracy {r['accuracy'][-1]:.3f} after {r['round'][-1]:.0f} rounds"
    )
with open("secure_dropouts.svg", "w", encoding="utf-8") as file:
    file.write(lines(curves, title="Secure sums, and clients that leave", ylabel="accuracy", y="percent"))
