"""The papers' tables at a size that two cores can run: data, networks, methods, and the papers' figures.

Sizes are the same for all methods of a table. They were fixed before its first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import medley as md
from medley.contract.algorithm import Algorithm
from medley.datasets import Dataset
from medley.distributions import Integers, Uniform
from medley.partitions import IID, Dirichlet
from medley.scenarios import Pace
from medley.tasks import Split

Method = Algorithm[Any, Any]
Figures = tuple[float, ...]

LRS = (0.3, 1.0, 3.0)
"""The factors of the clients' learning rates in tuning. Beyond an edge it goes on with BEYOND."""

BEYOND = (0.03, 0.1, 10.0, 30.0)
"""Further factors, each tried where the best so far lies next to it."""

SEEDS = (0, 1, 2)
TUNING_SEED = 100


@dataclass(frozen=True)
class Experiment:
    """One block of a table: a federation, and what each method reached in the paper.

    Attributes:
        title: Network, data and clients, as they are here.
        paper: What the paper has in their place.
        build: Makes the federation.
        rounds: Of a run; with tasks, of each task.
        methods: By the name that the table gives them.
        published: The paper's mean in percent, and its deviation; with tasks accuracy and forgetting.
        ours: This library's own, from which differences are taken.
        tasks: Whether the data come in tasks.
        device: Where its runs compute. Runs on a GPU are saved every five rounds and go on from there.
    """

    title: str
    paper: str
    build: Callable[[], md.Federation]
    rounds: int
    methods: Mapping[str, Method]
    published: Mapping[str, Figures] = field(default_factory=dict)
    ours: str = "FedNorton"
    tasks: bool = False
    device: str = "cpu"


EXPERIMENTS: dict[str, Experiment] = {}


@cache
def images(name: str, train: int, test: int, pool: int) -> Dataset:
    """Standardised photographs, mean-pooled ``pool`` times; as many rows for training, 1,000 for validation."""
    data: Dataset = getattr(md.datasets, name)()
    data = data.take(min(train + 1000, len(data.X)), test)
    return (data if pool == 1 else data.pool(pool)).standardise()


def federation(model: Any, data: Dataset, partition: Any, pace: Pace, **more: Any) -> md.Federation:
    """A network on clients. A tenth of the training rows is for validation."""
    return md.Federation(md.problems.Network(model), data=data, partition=partition, pace=pace, validation=0.1, **more)


# FedECADO.

RATES = Uniform(1e-4, 1e-3)
"""Equation (37)."""

EPOCHS = Integers(1, 10)
"""Equation (38)."""

FIRST_ORDER: dict[str, Method] = {
    "FedECADO": md.FedECADO(),
    "FedNova": md.FedNova(),
    "FedProx": md.FedProx(),
    "FedExP": md.FedExP(),
    "FedDecorr": md.FedDecorr(),
    "FedRS": md.FedRS(),
    "FedAvg": md.FedAvg(),
    "SCAFFOLD": md.SCAFFOLD(),
    "FedNorton": md.FedNorton(),
}
"""The paper's six, two that it leaves out, and this library's own."""

KNOBS: dict[str, dict[str, tuple[float, ...]]] = {
    "FedECADO": {"L": (0.01, 0.1, 1.0, 10.0), "delta": (0.01, 0.1, 1.0)},
}
"""Settings that are tuned after the rate, one after the other. The others have defaults that their papers recommend."""


def six(*figures: Figures) -> dict[str, Figures]:
    """Figures of the paper's six methods, in their order."""
    return dict(zip(list(FIRST_ORDER)[:6], figures, strict=True))


def scaled(lr: Uniform, by: float) -> Uniform:
    """The paper's law, for plain SGD. Its rates are so small that they suit Adam."""
    return Uniform(lr.low * by, lr.high * by)


def resnet8(classes: int) -> Any:
    """ResNet-8 of half the width with group norm, for images of 16×16."""
    return md.models.resnet((3, 16, 16), classes, (1, 1, 1), 8)


def vgg() -> Any:
    """VGG-11 with an eighth of the width and group norm. Without a norm it does not leave chance within 40 rounds."""
    return md.models.vgg11((3, 32, 32), 10, norm="group", width=8)


EXPERIMENTS["fedecado-1"] = Experiment(
    "VGG-11 of an eighth of the width, group norm; CIFAR-10, 9,000 images; 100 clients, Dirichlet(0.1), 10 a round; "
    "5 epochs, 50 rounds",
    "VGG-11, CIFAR-10, 100 clients, Dirichlet(0.1), 10 a round, 100 epochs, 20 repeats",
    lambda: federation(
        vgg(),
        images("cifar10", 9000, 2000, 1),
        Dirichlet(100, 0.1),
        Pace(lr=0.1, epochs=5, batch=32),
        participation=0.1,
    ),
    50,
    FIRST_ORDER,
    six((57.8, 3.6), (48.9, 2.9), (44.3, 3.2), (45.3, 4.7), (45.3, 4.7), (46.1, 4.2)),
)

EXPERIMENTS["gpu-fedecado-1"] = replace(
    EXPERIMENTS["fedecado-1"],
    title="VGG-11, group norm; CIFAR-10, 49,000 images; 100 clients, Dirichlet(0.1), 10 a round; 5 epochs, 100 rounds",
    build=lambda: federation(
        md.models.vgg11((3, 32, 32), 10, norm="group"),
        images("cifar10", 49_000, 10_000, 1),
        Dirichlet(100, 0.1),
        Pace(lr=0.1, epochs=5, batch=32),
        participation=0.1,
    ),
    rounds=100,
    device="cuda",
)

EXPERIMENTS["fedecado-2"] = Experiment(
    "VGG-11 of an eighth of the width, group norm; CIFAR-10, 9,000 images; 100 clients, IID, 10 a round; rates by "
    "(37), 1 to 10 epochs, 20 rounds",
    "VGG-11, CIFAR-10, 100 clients, IID, rates by (37), epochs by (38)",
    lambda: federation(
        vgg(),
        images("cifar10", 9000, 2000, 1),
        IID(100),
        Pace(lr=scaled(RATES, 200), epochs=EPOCHS, batch=32),
        participation=0.1,
    ),
    20,
    FIRST_ORDER,
    six((72.2, 3.8), (67.6, 5.2), (61.4, 4.8), (64.6, 3.8), (60.3, 5.1), (69.3, 2.8)),
)

EXPERIMENTS["fedecado-3"] = Experiment(
    "ResNet-18 of an eighth of the width, group norm; CIFAR-100 at 16×16, 9,000 images; 100 clients, Dirichlet(0.1), "
    "10 a round; rates by (37), 1 to 10 epochs, 20 rounds",
    "ResNet-34, CIFAR-100, 100 clients, Dirichlet, rates by (37), epochs by (38), 200 epochs",
    lambda: federation(
        md.models.resnet((3, 16, 16), 100, (2, 2, 2, 2), 8),
        images("cifar100", 9000, 2000, 2),
        Dirichlet(100, 0.1),
        Pace(lr=scaled(RATES, 200), epochs=EPOCHS, batch=32),
        participation=0.1,
    ),
    20,
    FIRST_ORDER,
    six((81.3, 4.8), (69.5, 5.1), (70.6, 4.1), (68.6, 10.2), (61.3, 5.5), (72.3, 5.8)),
)

EXPERIMENTS["fedecado-4"] = Experiment(
    "ResNet-18 of an eighth of the width, group norm; 50 classes of Tiny ImageNet at 16×16, 9,000 images; 100 clients, "
    "Dirichlet(0.1), 10 a round; rates by (37), 5 epochs, 20 rounds",
    "ResNet-18, Tiny ImageNet, 100 clients, Dirichlet, rates by (37), 60 epochs, one run",
    lambda: federation(
        md.models.resnet((3, 16, 16), 50, (2, 2, 2, 2), 8),
        images("tiny_imagenet50", 9000, 2000, 4),
        Dirichlet(100, 0.1),
        Pace(lr=scaled(RATES, 200), epochs=5, batch=32),
        participation=0.1,
    ),
    20,
    FIRST_ORDER,
    six((58.9,), (45.4,), (40.7,), (47.6,), (41.9,), (44.3,)),
)

EXPERIMENTS["fedecado-5"] = Experiment(
    "LSTM of 32 units, 4,000 words; 20,000 tweets of Sentiment140; 10 clients, Dirichlet(0.1), one a round; rates "
    "by (37), 5 epochs, 60 rounds",
    "LSTM, Sentiment140, 10 clients, Dirichlet, rates by (37), 10 epochs, one run; the table says errors, its text "
    "takes larger for better",
    lambda: federation(
        md.models.lstm(4000, 2, 32, 32), tweets(), Dirichlet(10, 0.1), Pace(lr=scaled(RATES, 1000), epochs=5, batch=32),
        participation=0.1,
    ),
    60,
    FIRST_ORDER,
    six((79.9,), (77.1,), (78.6,), (78.4,), (79.2,), (77.4,)),
)  # fmt: skip

EXPERIMENTS["fedecado-5-all"] = replace(
    EXPERIMENTS["fedecado-5"],
    title="LSTM of 32 units, 4,000 words; 20,000 tweets of Sentiment140; 10 clients, Dirichlet(0.1), all in every "
    "round; rates by (37), 5 epochs, 10 rounds",
    build=lambda: federation(
        md.models.lstm(4000, 2, 32, 32), tweets(), Dirichlet(10, 0.1), Pace(lr=scaled(RATES, 1000), epochs=5, batch=32)
    ),
    rounds=10,
)

EXPERIMENTS["fedecado-7"] = Experiment(
    "ResNet-8 of half the width, group norm; CIFAR-100 at 16×16, 9,000 images; 20 clients, Dirichlet(0.1), "
    "all in every round; rates by (37), 1 to 10 epochs, 15 rounds",
    "ResNet-34, CIFAR-100, 100 clients, Dirichlet, rates by (37), epochs by (38), 200 epochs",
    lambda: federation(
        resnet8(100),
        images("cifar100", 9000, 2000, 2),
        Dirichlet(20, 0.1),
        Pace(lr=scaled(RATES, 200), epochs=EPOCHS, batch=32),
    ),
    15,
    {"FedECADO": md.FedECADO(), "ECADO": md.ECADO(), "FedAvg": md.FedAvg(), "FedNorton": md.FedNorton()},
    {"FedECADO": (81.3, 4.8), "ECADO": (76.5, 2.1)},
)


@cache
def tweets() -> Dataset:
    """Token ids of 4,000 words; the hand-labelled test rows are few, so 2,000 of the others are the test."""
    data = md.datasets.sentiment140_tokens(4000)
    dataset = Dataset(data.X, data.y, classes=2, name=data.name)
    return dataset.take(22_000).split(2000 / 22_000)


# C-FLAG.

CIFAR10 = ("cifar10", 2, 5)
CIFAR100 = ("cifar100", 2, 5)
TINY = ("tiny_imagenet50", 4, 10)
"""Reader, pooling to 16×16, number of tasks."""

TASK: dict[str, Method] = {
    "C-FLAG, joint": md.CFLAG.joint(),
    "joint, without correction": md.CFLAG.joint(correct=False),
    "C-FLAG": md.CFLAG(),
    "Fine-FL": md.FineTune(),
    "EWC-FL": md.EWC(),
    "NCCL-FL": md.NCCL(),
    "FedTrack": md.FedTrack(),
    "Erg-FL": md.ERring(),
}


def incremental(classes: int) -> dict[str, Method]:
    """The methods of Table 7. TARGET's rows are standardised pixels, as the images are."""
    target = md.TARGET(resnet8(classes), md.models.generator((3, 16, 16), low=-2.0, high=2.0))
    return {**TASK, "LwF-FL": md.LwF(), "iCARL-FL": md.ICaRL(), "TARGET": target}


def tasks(set_: tuple[str, int, int], mode: Any, partition: Any) -> Callable[[], md.Federation]:
    """ResNet-8 of half the width on 9,000 images in tasks, 5 clients, Adam, batches of 64, a ring of 80 rows."""
    name, pool, count = set_

    def build() -> md.Federation:
        data = images(name, 9000, 2000, pool)
        return federation(
            resnet8(data.classes or 0),
            data,
            partition,
            Pace(lr=2e-3, optimizer="adam", epochs=2, batch=64),
            stream=Split(tasks=count, mode=mode),
            replay=md.replay.Ring(capacity=80, sample=40),
        )

    return build


def continual(
    number: int, block: str, set_: tuple[str, int, int], mode: str, skew: str, published: Mapping[str, Figures]
) -> None:
    """Enter one block of C-FLAG's Table 2, 3 or 7."""
    partition = Dirichlet(5, 0.1) if skew == "Dirichlet(0.1)" else IID(5)
    EXPERIMENTS[f"cflag-{number}-{block}"] = Experiment(
        f"ResNet-8 of half the width, group norm; {set_[0]} at 16×16, 9,000 images, {set_[2]} tasks, "
        f"{mode}-incremental; 5 clients, {skew}; Adam, 2 epochs, 3 rounds a task, 80 rows held a task and client",
        f"ResNet-18 or -50, all images, 5 clients, {skew}, Adam, 2 epochs, 20 rounds a task, 400 rows held",
        tasks(set_, mode, partition),
        3,
        TASK if mode == "task" else incremental(10 if set_ == CIFAR10 else 100),
        published,
        ours="C-FLAG, joint",
        tasks=True,
    )


continual(2, "cifar10", CIFAR10, "task", "Dirichlet(0.1)", {
    "Fine-FL": (54.1, 6.1), "EWC-FL": (53.6, 5.2), "NCCL-FL": (63.4, 12.4), "Erg-FL": (79.1, 8.3),
    "C-FLAG": (65.0, 5.8),
})  # fmt: skip
continual(2, "cifar100", CIFAR100, "task", "Dirichlet(0.1)", {
    "Fine-FL": (38.7, 20.9), "EWC-FL": (38.8, 19.2), "NCCL-FL": (32.3, 29.5), "Erg-FL": (31.3, 32.4),
    "C-FLAG": (43.5, 16.8),
})  # fmt: skip
continual(2, "tiny", TINY, "task", "Dirichlet(0.1)", {
    "Fine-FL": (23.7, 23.9), "EWC-FL": (26.9, 20.3), "NCCL-FL": (28.5, 8.7), "Erg-FL": (21.9, 19.7),
    "C-FLAG": (28.6, 9.5),
})  # fmt: skip
continual(3, "cifar10", CIFAR10, "task", "IID", {
    "Fine-FL": (72.6, 26.5), "EWC-FL": (76.0, 22.3), "NCCL-FL": (83.4, 17.1), "FedTrack": (79.9, 17.6),
    "Erg-FL": (84.0, 16.5), "C-FLAG": (89.3, 7.2),
})  # fmt: skip
continual(3, "cifar100", CIFAR100, "task", "IID", {
    "Fine-FL": (49.8, 30.0), "EWC-FL": (50.5, 30.2), "NCCL-FL": (41.7, 39.2), "FedTrack": (29.9, 18.1),
    "Erg-FL": (38.7, 43.7), "C-FLAG": (66.9, 7.3),
})  # fmt: skip
continual(3, "tiny", TINY, "task", "IID", {
    "Fine-FL": (30.2, 31.9), "EWC-FL": (33.2, 28.4), "NCCL-FL": (28.9, 9.5), "FedTrack": (33.3, 28.6),
    "Erg-FL": (31.3, 32.4), "C-FLAG": (44.3, 7.7),
})  # fmt: skip
continual(7, "cifar10-dir", CIFAR10, "class", "Dirichlet(0.1)", {
    "Fine-FL": (14.2, 2.3), "EWC-FL": (12.9, 6.1), "LwF-FL": (12.5, 5.6), "iCARL-FL": (15.8, 50.8),
    "NCCL-FL": (14.4, 76.9), "TARGET": (13.7, 9.7), "FedTrack": (12.2, 61.9), "C-FLAG": (17.1, 43.0),
})  # fmt: skip
continual(7, "cifar10-iid", CIFAR10, "class", "IID", {
    "Fine-FL": (24.3, 55.5), "EWC-FL": (25.3, 57.0), "LwF-FL": (43.0, 32.1), "iCARL-FL": (48.0, 49.9),
    "NCCL-FL": (16.9, 93.2), "TARGET": (20.1, 21.6), "FedTrack": (14.5, 81.5), "C-FLAG": (26.4, 7.7),
})  # fmt: skip
continual(7, "cifar100-dir", CIFAR100, "class", "Dirichlet(0.1)", {
    "Fine-FL": (16.2, 45.5), "EWC-FL": (17.3, 40.3), "LwF-FL": (22.4, 31.1), "iCARL-FL": (21.4, 32.5),
    "NCCL-FL": (10.0, 47.8), "TARGET": (23.2, 27.7), "FedTrack": (3.5, 17.8), "C-FLAG": (13.9, 51.5),
})  # fmt: skip
continual(7, "cifar100-iid", CIFAR100, "class", "IID", {
    "Fine-FL": (20.0, 65.7), "EWC-FL": (22.2, 62.7), "LwF-FL": (35.9, 35.7), "iCARL-FL": (24.1, 48.9),
    "NCCL-FL": (12.4, 60.6), "TARGET": (31.0, 26.8), "FedTrack": (5.5, 22.0), "C-FLAG": (31.7, 48.0),
})  # fmt: skip
