"""A server rebuilds rows of clients from what it reads (Geiping et al., 2020; Boenisch et al., 2023): leakage.svg.

A unit's weights move by Σ δ_j·x_j and its offset by Σ δ_j: their ratio is a row where one row alone wakes the unit.
"""

import os
import struct
from base64 import b64encode

import torch

import medley as md
from medley.contract.messages import Model
from medley.report.figures.svg import figure, text

SEEN = []
step = md.scenarios.Pace(lr=0.1, steps=1, batch=None)
batches = md.scenarios.Pace(lr=0.1, epochs=5, batch=8)
spend = {"epsilon": 8, "delta": 1e-4, "rounds": 1}
CASES = [  # title, clients, rows of each, pace, privacy
    ("1 row", 1, 1, step, {}),
    ("64 rows", 1, 64, step, {}),
    ("512 rows", 1, 512, step, {}),
    ("64 rows, 5 epochs of batches", 1, 64, batches, {}),
    ("sum of 10 clients, 1 row each", 10, 1, step, {}),
    ("sum of 100 clients, 8 rows each", 100, 8, step, {}),
    ("the same, ε = 8 for each client", 100, 8, step, spend),
    ("64 rows, ε = 8 for each row", 1, 64, step, {**spend, "unit": "row"}),
]


class Curious(md.FedAvg):  # its server keeps what it reads, the mean of the replies
    def round(self, s, clients):
        SEEN.append(clients.ask(self.train, Model(s.x)).mean().delta)


def attack(clients, rows, pace, privacy):
    n = clients * rows
    parts = list(zip(X[:n].split(rows), y[:n].split(rows), strict=True))
    fed = md.Federation(md.problems.Network(net), clients=parts, classes=10, pace=pace, weights="uniform")
    md.run(md.Private(Curious(), **privacy) if privacy else Curious(), fed, rounds=1, progress=False)
    W, b = SEEN[-1][: 256 * (D + 1)].split([256 * D, 256])
    candidates = W.view(256, D)[b != 0] / b[b != 0, None]
    like = torch.corrcoef(torch.cat([candidates, X[: 2 * n]]))[: len(candidates), len(candidates) :].nan_to_num()
    f, j = divmod(int(like[:, :n].argmax()), n)
    rebuilt = like[:, :n].amax(0) > max(0.95, float(like[:, n:].max()))  # more than any stranger's
    return candidates[f], X[j], f"{int(rebuilt.sum())} of {n} rebuilt; likeness {like[f, j]:.2f}"


def image(v, x, y):  # a bitmap inside the SVG
    grey = ((v - v.min()) / (v.max() - v.min()) * 255).byte().reshape(-1, round(D**0.5), 1).expand(-1, -1, 3)
    head = b"BM" + struct.pack("<3I3I2H6I", 0, 0, 54, 40, len(grey), len(grey), 1, 24, *[0] * 6)
    href = b64encode(head + bytes(grey.flip(0).flatten().tolist())).decode()  # rows from below
    return f'<image href="data:image/bmp;base64,{href}" x="{x}" y="{y}" width="84" height="84"/>'


data = (md.datasets.mnist() if os.environ.get("MEDLEY_DATA") else md.datasets.digits()).flatten()
X, y = data.X, data.y
D = X.shape[1]
net = torch.nn.Sequential(torch.nn.Linear(D, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
body = ""
for k, (title, *case) in enumerate(CASES):
    rebuilt, row, caption = attack(*case)
    x, y0 = 10 + k % 4 * 210, 40 + k // 4 * 140
    body += text(x, y0 - 24, title, strong=True) + text(x, y0 - 8, caption)
    body += image(rebuilt, x, y0) + image(row, x + 90, y0)
with open("leakage.svg", "w", encoding="utf-8") as file:
    file.write(figure(840, 280, "Pictures that a server rebuilds", "In pairs: rebuilt, and the row", body))
