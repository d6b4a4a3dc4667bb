"""The layer that runs last, whatever the order of definition: bodies, heads, and what a head reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley.problems.network.layers import traced_layers


class Made(nn.Module):
    """A module of these parts, with a forward pass of its own."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.does = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def dense(i: int = 4, o: int = 4) -> nn.Linear:
    return nn.Linear(i, o)


def lora(m: Any, x: Tensor) -> Tensor:
    out: Tensor = m.base(x) + x @ m.A @ m.B
    return out


def adapted() -> Made:
    return Made(
        lora, base=dense().requires_grad_(False), A=nn.Parameter(torch.ones(4, 2)), B=nn.Parameter(torch.zeros(2, 4))
    )


def written(m: Any, x: Tensor) -> Tensor:
    out = torch.empty(len(x), 4)
    out[:] = m.head(m.body(x))
    return out


Case = tuple[nn.Module, tuple[str, ...], str | None, bool]


def case(last: str, head: str | None, raw: bool, module: Any, /, **parts: Any) -> Case:
    """A module, or a forward pass of these parts; the last layers, the linear one, and whether it reads raw rows."""
    return module if isinstance(module, nn.Module) else Made(module, **parts), tuple(last.split()), head, raw


CASES: dict[str, Case] = {
    "defined first": case("head", "head", False, lambda m, x: m.head(m.body(x)), head=dense(), body=dense()),
    "written in place": case("head", "head", False, written, head=dense(), body=dense()),
    "residual": case("more", "more", False, lambda m, x: (h := m.b(x)) + m.more(h), more=dense(), b=dense()),
    "side by side": case("a c", None, False, lambda m, x: m.a(h := m.b(x)) + m.c(h), a=dense(), c=dense(), b=dense()),
    "twice": case("a", None, False, lambda m, x: m.a(m.b(x)) - m.a(m.b(-x)), a=dense(), b=dense()),
    "functional": case("a", None, False, lambda m, x: F.linear(m.b(x), m.a.weight * 2), a=dense(), b=dense()),
    "adapters": case("2", None, False, nn.Sequential(adapted(), nn.ReLU(), adapted())),
    "a frozen end": case("0", "2", False, nn.Sequential(dense(), nn.ReLU(), dense().requires_grad_(False))),
    "weight norm": case("1", "1", False, nn.Sequential(dense(), nn.utils.parametrizations.weight_norm(dense()))),
    "log-softmax": case("2", "2", False, nn.Sequential(dense(), nn.Tanh(), dense(), nn.LogSoftmax(1))),
    "attention": case("a", None, False, lambda m, x: m.a(*[x[:, None]] * 3)[0][:, 0], a=nn.MultiheadAttention(4, 2)),
    "raw": case("3", "3", True, nn.Sequential(nn.Flatten(), nn.LayerNorm(4), nn.ReLU(), dense())),
    "raw beside": case("a", "a", True, lambda m, x: m.a(torch.cat([x, m.b(x)], 1)), a=dense(8), b=dense()),
    "frozen body": case("a", "a", False, lambda m, x: m.a(m.b(x).detach()), a=dense(), b=dense().requires_grad_(False)),
}
SCALED = Made(lambda m, x: m.s * m.b(x), s=nn.Parameter(torch.ones(1)), b=dense())


@pytest.mark.parametrize("name", CASES)
def test_the_layer_that_runs_last_is_found(name: str):
    module, last, head, raw = CASES[name]
    x = torch.randn(2, 4)
    found = traced_layers(module.eval(), x, lambda: module(x))
    assert (found.last, found.head, found.raw, found.failed) == (last, head, raw, "")


def test_counts_of_ids_are_raw_and_embedded_ids_are_not():
    ids = torch.randint(9, (2, 5))
    counts = Made(lambda m, x: m.a(F.one_hot(x, 9).float().sum(1)), a=dense(9))
    embedded = Made(lambda m, x: m.a(m.e(x).mean(1)), a=dense(), e=nn.Embedding(9, 4))
    assert [traced_layers(m, ids, lambda m=m: m(ids)).raw for m in (counts, embedded)] == [True, False]  # type: ignore[misc]


def federation(module: nn.Module, **problem: Any) -> md.Federation:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 4)), np.arange(20) % 4) for _ in range(3)]
    pace = md.scenarios.Pace(lr=0.3, batch=8)
    return md.Federation(md.problems.Network(module, **problem), clients=clients, pace=pace)


@pytest.mark.parametrize("method", [md.FedPer(), md.FedRep(head_epochs=1)], ids=lambda m: m.name)
def test_the_head_that_clients_keep_is_the_one_that_runs_last(method: Any):
    r = md.run(method, federation(CASES["defined first"][0]), rounds=1, progress=False)
    a, b = (r.client_model(i).state_dict() for i in (0, 1))
    assert [name for name in a if not torch.equal(a[name], b[name])] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (CASES["side by side"][0], "'a' and 'c' run side by side"),
        (SCALED, "a parameter outside of all layers runs last"),
    ],
    ids=["side by side", "a scale"],
)
def test_a_body_that_cannot_be_told_is_refused_and_can_be_named(module: nn.Module, why: str):
    with pytest.raises(md.RecipeError, match=f"{why}. Give the shared parameters by name, such as shared="):
        md.run(md.FedPer(), federation(module), rounds=1, progress=False)
    r = md.run(md.FedPer(shared="b.*"), federation(module), rounds=1, progress=False)
    assert len(r.x) == 20


@pytest.mark.parametrize(
    ("fed", "method", "need"),
    [
        (federation(nn.Linear(4, 4)), md.FedProto(), "layers below it, which make features"),
        (federation(CASES["raw"][0]), md.FedProto(), "layers below it, which make features"),
        (federation(CASES["raw beside"][0]), md.FedProto(), "layers below it, which make features"),
        (federation(CASES["twice"][0]), md.FedDecorr(), "reads a vector for each row"),
    ],
    ids=["linear", "flattened", "raw beside", "twice"],
)
def test_methods_of_features_are_refused_where_there_are_none(fed: md.Federation, method: Any, need: str):
    with pytest.raises(md.Unsupported, match=need):
        md.run(method, fed, rounds=1, progress=False)


class Tag(nn.Module):
    """A class for each of five tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.e(x)).transpose(1, 2)


@pytest.mark.parametrize("method", [md.FedRS(), md.FedDecorr(), md.FedProto()], ids=lambda m: m.name)
def test_labels_of_sequences_are_refused_before_round_1(method: Any):
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 9, (6, 5)), rng.integers(0, 3, (6, 5))) for _ in range(3)]
    fed = md.Federation(md.problems.Network(Tag()), classes=3, clients=clients)
    with pytest.raises(md.Unsupported, match=r"for each row|layers below"):
        md.run(method, fed, rounds=1, progress=False)


def test_prototypes_of_a_linear_model_are_refused():
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=[(np.eye(4), [0, 1, 0, 1])] * 3)
    with pytest.raises(
        md.Unsupported, match="FedProto needs a network with a linear layer at its end and layers below it"
    ):
        md.run(md.FedProto(), fed, rounds=1, progress=False)


class HeadFirst(nn.Module):
    """Defined in the other order than it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = dense(), dense()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_another_process_knows_the_head():
    p: Any = md.problems.Network(HeadFirst()).ready(torch.randn(4, 4), torch.arange(4), 4, None, "cpu")
    q = pickle.loads(pickle.dumps(p))
    assert (q.head_at, q.last(), q.gives) == ("head", (0, 16), p.gives)
