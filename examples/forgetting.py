"""Five tasks of two digits each: the accuracy on the first one, as the later ones come, in forgetting.svg.

Each client keeps 40 rows of every task. FineTune does not look at them.
"""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10)),
    data=md.datasets.digits().flatten(),
    partition=md.partitions.Dirichlet(clients=5, alpha=0.5),  # within every task
    pace=md.scenarios.Pace(lr=0.1, epochs=2),
    stream=md.tasks.Split(tasks=5, mode="class"),
    replay=md.replay.Ring(capacity=40, sample=20),
)
curves = []
for k, method in enumerate((md.FineTune(), md.AGEM(), md.ERring(), md.CFLAG.joint())):
    summary = md.run(method, fed, rounds=5, progress=False).summary
    first = np.array([row[0] for row in summary["matrix"]])
    curves.append(Line(method.name, k, np.arange(1.0, 6.0), first))
    print(f"{method.name:11} first task {first[-1]:.2f}, all tasks {summary['acc']:.2f} at the end")
with open("forgetting.svg", "w", encoding="utf-8") as file:
    title = "The first of five tasks"
    file.write(lines(curves, title=title, xlabel="tasks so far", ylabel="accuracy on the first task", y="percent"))
