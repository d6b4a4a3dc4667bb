"""The way of a model with two parameters through two tasks of four clients, by four methods: joint.svg.

Rings are the minima of the first task, of the second, and of both. Dots are rounds; those of the first task are hollow.
"""

import numpy as np

import medley as md
from medley.report.figures import Axis, mark
from medley.report.figures.axes import frame
from medley.report.figures.palette import colour
from medley.report.figures.svg import Box, figure, path, text

rng = np.random.default_rng(3)
ROUNDS = 12
CENTRES = np.array([[-1.0, 0.6], [1.0, 0.4]])  # of each task
parts = []
for centre in CENTRES:
    for i in range(4):
        rows = rng.normal(size=(40, 2)) * ([1.4, 0.3] if i % 2 else [0.3, 1.4])  # a client sees one of the two well
        parts.append((rows, rows @ (centre + rng.normal(size=2) * 0.7) + 0.05 * rng.normal(size=40)))
X, y = map(np.concatenate, zip(*parts, strict=True))
client = np.tile(np.repeat(np.arange(4), 40), 2)
halves = (slice(0, 160), slice(160, 320), slice(0, 320))
minima = [np.linalg.lstsq(X[rows], y[rows], rcond=None)[0] for rows in halves]
fed = md.Federation(
    md.problems.LeastSquares(),
    data=md.datasets.Dataset(X, y, np.tile(np.eye(2), (2, 1)), np.zeros(4), keys={"client": client}),
    partition=md.partitions.ByKey("client"),
    pace=md.scenarios.Pace(lr=0.2, epochs=10, batch=None),
    stream=md.tasks.TimeOrder(tasks=2),
    replay=md.replay.Reservoir(capacity=40),
)
methods = {
    "FineTune": md.FineTune(),
    "CFLAG": md.CFLAG(),
    "CFLAG.joint, no correction": md.CFLAG.joint(correct=False),
    "CFLAG.joint": md.CFLAG.joint(clip=None),
}
reads = {f"x{j}": lambda out, _, j=j: float(out.flatten()[j]) for j in range(2)}  # rows (1, 0) and (0, 1)
box = Box(52, 24, 544, 330)
A = Axis(-1.6, 1.6, box.left, box.right)
B = Axis(-0.4, 0.9, box.bottom, box.top)
body = frame(A, B, box, "first parameter", "second parameter")
at = 8.0
for k, (name, method) in enumerate(methods.items()):
    r = md.run(method, fed, rounds=ROUNDS, metrics=reads, progress=False)
    x = A(np.array(r["x0"]))
    off = np.hypot(r["x0"][-1] - minima[2][0], r["x1"][-1] - minima[2][1])
    h = B(np.array(r["x1"]))
    body += f'<path d="{path(x, h)}" fill="none" style="stroke:{colour(k)};stroke-width:1.6;stroke-opacity:.7"/>'
    body += "".join(mark(k, *p, 3, hollow=t <= ROUNDS) for t, p in enumerate(zip(x.tolist(), h.tolist(), strict=True)))
    body += mark(k, at, 378) + text(at + 9, 382, name)
    at += 26 + 6.1 * len(name)
    print(f"{name:27} ends {off:.3f} from the minimum of both tasks")
for (a, b), label in zip(minima, ("first", "second", "both"), strict=True):
    body += f'<circle cx="{A(a):.1f}" cy="{B(b):.1f}" r="9" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    body += text(float(A(a)), float(B(b)) + 24, label, "middle", strong=True)
with open("joint.svg", "w", encoding="utf-8") as file:
    file.write(figure(560, 392, "Two tasks", "Ways of four methods through two tasks.", body))
