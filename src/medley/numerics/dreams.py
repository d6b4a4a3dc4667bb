"""Data-free synthesis: rows that a trained network takes for rows of given classes.

Source: Zhang, Chen, Zhuang & Lyu, "TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation", ICCV
2023, with the learning rates of the authors' code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import State, Vec
from .distillation import distillation

SOFT = 20.0
"""Temperature of the student's distillation."""


@dataclass(frozen=True)
class Dreamer:
    """Trains a generator against a teacher, and a student on the generated rows.

    Attributes:
        network: architecture of teacher and student.
        generator: maps noise [b, latent] to rows; it starts from its first weights each time.
        latent: length of the noise.
        rows, batch: rows to make, and rows at a time.
        steps: steps of the generator for each batch, and then of the student.
        oh, bn, adv: weights of the generator's losses: the teacher sees the wanted label; BatchNorm's inputs are as in
            training; the student differs from the teacher if their classes agree.
    """

    network: nn.Module
    generator: nn.Module
    latent: int
    rows: int
    batch: int
    steps: int
    oh: float
    bn: float
    adv: float

    def dream(
        self,
        x: Vec,
        buffers: State | None,
        present: Bool[Tensor, " c"],
        compared: Callable[[Int[Tensor, " b"]], Bool[Tensor, "b c"]],
    ) -> tuple[Tensor, Tensor]:
        """Rows of the classes present, and the teacher's outputs for them [rows, c]. Draws from torch's global stream.

        Args:
            x, buffers: the teacher's parameters and buffers.
            compared: the outputs that a row of each label is compared with.
        """
        student = copy.deepcopy(self.network).to("cpu", x.dtype)  # new weights are drawn there, on any device
        for m in student.modules():
            getattr(m, "reset_parameters", lambda: None)()
        teacher, student, maker = (copy.deepcopy(m).to(x).train() for m in (self.network, student, self.generator))
        load(teacher.eval().requires_grad_(False), x, buffers)
        classes = present.nonzero()[:, 0]
        C = len(present)
        pool = torch.empty(0, device=x.device)
        learning = torch.optim.Adam(student.parameters(), 1e-3)
        while len(pool) < self.rows:
            y = classes[torch.randperm(self.batch).to(x.device) % len(classes)]
            z = torch.randn(self.batch, self.latent).to(x).requires_grad_()
            making = torch.optim.Adam([{"params": maker.parameters(), "lr": 2e-3}, {"params": [z], "lr": 1e-2}])
            for _ in range(self.steps):
                loss = self.loss(maker(z), teacher, student if len(pool) else None, y, compared(y))
                making.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                making.step()
            pool = torch.cat([pool, maker(z).detach()]) if len(pool) else maker(z).detach()
            draws = passes(len(pool), self.batch, torch.default_generator)
            for _ in range(self.steps):
                X = pool[next(draws).to(x.device)]
                learning.zero_grad()
                distillation(student(X), teacher(X), SOFT).backward()  # type: ignore[no-untyped-call]
                learning.step()
        return pool[: self.rows], teacher(pool[: self.rows])[:, :C]

    def loss(
        self,
        X: Tensor,
        teacher: nn.Module,
        student: nn.Module | None,
        y: Int[Tensor, " b"],
        compared: Bool[Tensor, "b c"],
    ) -> Tensor:
        """The generator's loss for rows ``X`` that should have labels ``y``; without a student until there is one."""
        C = compared.shape[1]
        with statistics(teacher) as off:
            t = teacher(X)[:, :C]
        loss = self.oh * F.cross_entropy(t.masked_fill(~compared, -torch.inf), y)
        loss = loss + self.bn * sum(off)
        if student is not None:
            s = student(X)[:, :C]
            divergence = F.kl_div(s.log_softmax(1), t.softmax(1), reduction="none").sum(1)
            loss = loss - self.adv * (divergence * (s.argmax(1) == t.argmax(1))).mean()
        return loss


def passes(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless shuffled passes over n rows, at most ``size`` at a time."""
    while True:
        yield from torch.split(torch.randperm(n, generator=generator), size)


@contextmanager
def drawing(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Inside, the global streams of torch (CPU and device) start from ``generator``; afterwards they are restored."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else []):
        (torch.manual_seed if cuda else torch.default_generator.manual_seed)(generator.initial_seed())
        yield


def load(module: nn.Module, x: Vec, buffers: State | None) -> None:
    """Set a module's parameters, and its floating-point buffers."""
    nn.utils.vector_to_parameters(x, [p for p in module.parameters()])
    if buffers is not None:
        floats = [b for b in module.buffers() if b.is_floating_point()]
        for b, v in zip(floats, torch.split(buffers[0], [b.numel() for b in floats]), strict=True):
            b.copy_(v.view(b.shape))


@contextmanager
def statistics(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the distance of every BatchNorm's input from its running mean and variance, ‖·‖ + ‖·‖."""
    off: list[Tensor] = []

    def compare(bn: Any, args: tuple[Tensor, ...], out: Tensor) -> None:
        X = args[0].transpose(0, 1).flatten(1)
        off.append((X.mean(1) - bn.running_mean).norm() + (X.var(1) - bn.running_var).norm())

    hooks = [
        m.register_forward_hook(compare) for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    try:
        yield off
    finally:
        for hook in hooks:
            hook.remove()
