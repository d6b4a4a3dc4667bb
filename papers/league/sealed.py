"""The group ``sealed``: ten federations that are drawn from the commit which froze FedNorton's law.

So nobody could tune the law on them. Four are each of a kind on which an earlier law was behind: all clients in with
long visits and momentum, half of the clients leaving, features that differ by client, one reply a round.

    python papers/league/run.py sealed --methods "FedNorton,SCAFFOLD with step and momentum"
    python papers/league/sealed.py    # the table in README.md

"FedNorton thirteen" is the law before, at the commit before `FROZEN`, run with ``--label``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from data import adults, cifar, fashion, mnist, news, synthetic, tweets, years
from registry import FEDERATIONS, Entry, federation, network
from torch import nn

import medley as md
from medley.datasets import Dataset
from medley.distributions import Integers, LogUniform
from medley.partitions import ByKey, Dirichlet, Labels, Partition, Quantity
from medley.runtime import streams
from medley.scenarios import Membership, Pace

FROZEN = "57dd8328dd47c66a276ee97984c46a24dd80d31b"
"""The commit that froze the law, from which the federations are drawn; "" for none."""

KINDS = ("long visits", "leaving", "features", "one reply", *["plain"] * 6)

Place = tuple[Callable[[], Dataset], Callable[[], Any], float]
"""Data, model, and the learning rate in the middle of the grid."""


def softmax() -> Any:
    return md.problems.Softmax(mu=1e-4)


def logistic() -> Any:
    return md.problems.Logistic(mu=1e-4)


def flat(images: Callable[[int], Dataset]) -> Callable[[], Dataset]:
    return lambda: images(2500).flatten()


def mlp(d: int, classes: int, width: int) -> Callable[[], Any]:
    return lambda: network(md.models.mlp(d, classes, (width,)))


def cnn(*shape: int) -> Callable[[], Any]:
    return lambda: network(md.models.cnn(shape, 10, (6, 12), 3, 24))


def least_squares() -> Any:
    return md.problems.LeastSquares(mu=1e-3, intercept=True)


def regression() -> Any:
    return network(nn.Sequential(nn.Linear(54, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0)), loss="mse")


PLACES: dict[str, Place] = {
    "digits, softmax": (md.datasets.digits, softmax, 1.0),
    "digits, MLP": (md.datasets.digits, mlp(64, 10, 32), 0.1),
    "MNIST, MLP": (flat(mnist), mlp(196, 10, 32), 0.1),
    "MNIST, CNN": (lambda: mnist(2500), cnn(1, 14, 14), 0.1),
    "Fashion-MNIST, softmax": (flat(fashion), softmax, 0.1),
    "Fashion-MNIST, CNN": (lambda: fashion(2500), cnn(1, 14, 14), 0.07),
    "CIFAR-10, CNN": (lambda: cifar(2500), cnn(3, 16, 16), 0.05),
    "a9a, logistic": (lambda: adults(6000), logistic, 0.3),
    "a9a, MLP": (lambda: adults(6000), mlp(123, 2, 16), 0.1),
    "Online News, least squares": (news, least_squares, 0.01),
    "Million Song years, MLP": (years, regression, 0.008),
    "synthetic(1, 1), softmax": (lambda: synthetic(1, 1, 30), softmax, 0.03),
    "tweets, logistic": (lambda: tweets(400), logistic, 2.0),
}
"""Data and model by the name of both; images have half the height and width."""


def drawn_partition(g: np.random.Generator, data: Dataset) -> Partition:
    """Who holds which rows: by a key of the data, by labels, or by sizes alone."""
    clients = int(g.integers(8, 41))
    rules = [Quantity(clients, float(g.uniform(0.5, 2)), minimum=8)]
    if data.classes is not None:
        rules.append(Dirichlet(clients, float(g.uniform(0.1, 1)), minimum=8))
    if data.classes is not None and data.classes > 2:
        rules.append(Labels(clients, int(g.integers(2, 4))))
    rules += [ByKey(key, minimum=8) for key, values in data.keys.items() if len(np.unique(values)) < 100]
    return rules[g.integers(len(rules))]


def drawn_pace(g: np.random.Generator, lr: float, kind: str) -> Pace:
    """The clients' training; with momentum the learning rate is a fifth."""
    momentum = 0.9 if kind == "long visits" or g.random() < 0.25 else 0.0
    lr = lr / 5 if momentum else lr
    spread = float(g.choice([1.0, 3.0, 10.0]))
    rate: Any = lr if spread == 1 else LogUniform(lr * spread**-0.5, lr * spread**0.5)
    epochs: Any = 10 if kind == "long visits" else [1, 2, Integers(1, 5)][g.integers(3)]
    return Pace(lr=rate, epochs=epochs, batch=int(g.choice([10, 16, 32])), momentum=momentum)


def shifted(g: np.random.Generator, data: Dataset, clients: int) -> Dataset:
    """Rows dealt to clients at random, each of which has a factor of its own for every feature; key "client"."""
    factors = torch.from_numpy(np.exp(0.5 * g.standard_normal((clients, *data.X.shape[1:])))).to(data.X)
    owner = g.integers(clients, size=len(data.X))
    assert data.X_test is not None
    of_tests = g.integers(clients, size=len(data.X_test))
    X_test = data.X_test * factors[of_tests]
    return dataclasses.replace(data, X=data.X * factors[owner], X_test=X_test, keys={"client": owner})


def drawn(k: int, kind: str, name: str) -> Callable[[], md.Federation]:
    """Makes federation ``k``."""

    def build() -> md.Federation:
        g = streams.rng(0, "sealed", f"{FROZEN} {k}")
        make, model, lr = PLACES[name]
        data = make()
        partition = drawn_partition(g, data)
        if kind == "features":
            data = shifted(g, data, 20)
            partition = ByKey("client")
        pace = drawn_pace(g, lr, kind)
        share = 1.0 if kind == "long visits" else float(g.choice([0.15, 0.3, 0.5, 1.0]))
        fed = federation(model(), data, partition, pace, participation=share)
        n = len(fed.draw(0).tasks[0].sizes)
        if kind == "one reply":
            return federation(model(), data, partition, pace, participation=1 / n)
        if kind == "leaving":
            gone = g.choice(n, n // 2, replace=False)
            leaves = {int(i): int(g.integers(ROUNDS // 4, 3 * ROUNDS // 4)) for i in gone}
            return federation(model(), data, partition, pace, participation=share, membership=Membership({}, leaves))
        return fed

    return build


ROUNDS = 50


def enter() -> None:
    """Enter the ten federations, each of another place."""
    g = streams.rng(0, "sealed", FROZEN)
    names = g.permutation([*PLACES])[: len(KINDS)]
    for k, (kind, name) in enumerate(zip(KINDS, names, strict=True)):
        regressed = PLACES[name][1] in (least_squares, regression)
        rounds = 6 * ROUNDS if kind == "one reply" else ROUNDS
        metric = "test_loss" if regressed or name.startswith("a9a") else "accuracy"
        entry = Entry("sealed", drawn(k, kind, str(name)), rounds, f"{name}: {kind}", metric)
        FEDERATIONS[f"sealed-{FROZEN[:7]}-{k}"] = entry


if FROZEN:
    enter()


def page(methods: tuple[str, ...] = ("FedNorton thirteen", "SCAFFOLD with step and momentum")) -> None:
    """Print the methods beside FedNorton: mean errors of five seeds, and p of the difference with Holm's correction."""
    from page import merit
    from ranking import holm, paired, score
    from results import HERE, file_of, read

    of = {}
    for name in (n for n, e in FEDERATIONS.items() if e.group == "sealed"):
        for m in ("FedNorton", *methods):
            finals = [line for line in read(file_of(HERE, name, m)) if line["kind"] == "final"]
            of[name, m] = [merit(name, line) for line in sorted(finals, key=lambda line: line["seed"])]
    names = [*dict.fromkeys(name for name, _ in of)]
    p = {m: holm([paired(of[n, "FedNorton"], of[n, m])[1] for n in names]) for m in methods}
    print("| federation | FedNorton |" + "".join(f" {m} | p |" for m in methods))
    print("|---" * (2 + 2 * len(methods)) + "|")
    for k, name in enumerate(names):
        shown = []
        for m in ("FedNorton", *methods):
            lost = sum(not np.isfinite(v) for v in of[name, m])
            mean = score(of[name, m])
            error = 1 - mean if FEDERATIONS[name].metric == "accuracy" else -mean
            shown += [f"{lost} of 5 lost" if lost else f"{error:.4f}"] + ([f"{p[m][k]:.2f}"] if m in p else [])
        print(f"| {FEDERATIONS[name].text} | {' | '.join(shown)} |")


if __name__ == "__main__":
    page()
