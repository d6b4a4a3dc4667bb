"""The stacked engine against the reference, and the problems that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley import engines
from medley.contract.algorithm import Algorithm
from medley.contract.errors import RecipeError
from medley.engines import stacked
from support.pairs import crossed, quick

SIZES = (5, 11, 4, 7, 6, 9, 14)
LR, EPOCHS = [0.02, 0.05, 0.1, 0.03, 0.08, 0.02, 0.04], [1, 2, 2, 1, 2, 3, 1]


class Attention(nn.Module):
    """A transformer of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Embedding(9, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(self.into(x)).mean(1))


class Branching(nn.Module):
    """Its layer depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.detach().mean()) > 0 else self.b(x)


class Gated(nn.Module):
    """Rows depend on each other, as soon as the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(4, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.gate * x.mean(0))


def pulled(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss of a batch, with no row losses."""
    return F.cross_entropy(outputs, y) + outputs.mean(0).square().sum() / 10


def normal() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3))


shared = nn.Linear(4, 4)
PROBLEMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "normal": (md.problems.Network(normal()), (4,)),
    "attention": (md.problems.Network(Attention()), (5,)),
    "residual": (md.problems.Network(md.models.resnet((1, 6, 6), 3, (1, 1), 4)), (1, 6, 6)),
    "own loss": (md.problems.Network(normal(), loss=pulled), (4,)),
    "gated": (md.problems.Network(Gated()), (4,)),
    "tied": (md.problems.Network(nn.Sequential(shared, nn.SELU(), shared, nn.Linear(4, 3))), (4,)),
    "mse": (md.problems.Network(nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2)), loss="mse"), (4,)),
    "softmax": (md.problems.Softmax(mu=0.1, intercept=True), (4,)),
    "logistic": (md.problems.Logistic(mu=0.1), (4,)),
    "least squares": (md.problems.LeastSquares(), (4,)),
}
PACES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "full batches": {"batch": None},
    "own batches": {"batch": [4, 8, 3, 10, 2, 5, 7]},
    "own steps, weight decay": {"steps": [1, 2, 3, 4, 5, 6, 7], "weight_decay": 0.1},
    "momentum, clipped": {"momentum": 0.5, "clip": 0.5},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
}


def federation(name: str, **pace: Any) -> md.Federation:
    problem, shape = PROBLEMS[name]
    g = torch.Generator().manual_seed(0)

    def rows(n: int) -> Tensor:
        if name == "attention":
            return torch.randint(9, (n, *shape), generator=g)
        return torch.randn(n, *shape, generator=g, dtype=torch.float64)

    def labels(X: Tensor) -> Tensor:
        y = torch.randint(3, (len(X),), generator=g)
        return {"least squares": X[:, 0] + 1, "mse": X[:, :2], "logistic": (y > 0).long()}.get(name, y)

    return md.Federation(
        problem,
        clients=[(X, labels(X)) for X in map(rows, SIZES)],
        classes=None if name in ("least squares", "mse") else 3 - (name == "logistic"),
        pace=md.scenarios.Pace(**{"lr": LR, "epochs": EPOCHS, "batch": 4} | pace),
    )


def run(method: Algorithm[Any, Any], fed: md.Federation, engine: str, rounds: int = 2, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, dtype="float64", progress=False, engine=engine, **options)


def agree(method: Algorithm[Any, Any], fed: md.Federation, rounds: int = 2) -> None:
    a, b = (run(method, fed, engine, rounds=rounds) for engine in ("seq", "stacked"))
    assert float((a.x - b.x).norm() / (1 + a.x.norm())) < 1e-12
    assert list(a.ledger) == list(b.ledger)
    assert a.history[-1]["seconds"] == pytest.approx(b.history[-1]["seconds"], rel=1e-12)
    # A descent that FedNorton makes again runs by itself.
    again = isinstance(method, md.FedNorton)
    assert (a.settings["engine"], b.settings["engine"]) == ("seq", "seq and stacked" if again else "stacked")


@pytest.mark.parametrize(("name", "pace"), quick(7, crossed(PROBLEMS, PACES)))
def test_the_engine_has_the_references_numbers_bytes_and_work(name: str, pace: str):
    if (name, pace) == ("attention", "adam"):
        pytest.skip("attention does not depend on the bias of its keys, and Adam divides rounding by rounding there")
    # A pull and a shift, which round 2 has, and T of steps that fade under a pull.
    agree(md.FedDyn(alpha=0.5), federation(name, **PACES[pace]))
    agree(md.FedNova(mu=0.2), federation(name, **PACES[pace]), rounds=1)


METHODS = [
    md.FedAvg(),
    md.FedProx(mu=0.3),
    md.FedExP(),
    md.FedAdam(),
    md.SCAFFOLD(),
    md.SCAFFOLD(option="I"),
    md.ECADO(),
    md.FedNorton(),
    md.FedNorton(flows="client"),
]


@pytest.mark.parametrize("method", quick(3, METHODS), ids=repr)
@pytest.mark.shapes
def test_every_term_of_the_update(method: Algorithm[Any, Any]):
    agree(method, federation("normal"))


@pytest.mark.slow
@pytest.mark.parametrize("transport", quick(1, [md.transports.Processes(2), md.transports.Processes(1)]), ids=repr)
def test_workers_have_the_same_bits(transport: Any):
    fed = federation("residual", momentum=0.5)
    assert torch.equal(run(md.FedAvg(), fed, "stacked").x, run(md.FedAvg(), fed, "stacked", transport=transport).x)


def test_as_many_clients_at_a_time_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch):
    fed, calls = federation("own loss"), []
    whole, losses = run(md.FedAvg(), fed, "stacked"), stacked.Stacked.losses
    monkeypatch.setattr(stacked, "CPU_LIMIT", 5000)
    monkeypatch.setattr(stacked.Stacked, "losses", lambda s, X, *rest: calls.append(len(X)) or losses(s, X, *rest))
    assert float((run(md.FedAvg(), fed, "stacked").x - whole.x).norm()) < 1e-14
    assert set(calls) > {1}
    assert max(calls) < 4


@pytest.mark.parametrize("mode", quick(1, ["task", "class"]))
def test_a_stream_masks_the_same_classes(mode: Any):
    fed = md.Federation(
        md.problems.Network(nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 10))),
        data=md.datasets.digits(),
        partition=md.partitions.IID(3),
        pace=md.scenarios.Pace(lr=0.1, steps=2, batch=16),
        stream=md.tasks.Split(tasks=2, mode=mode),
    )
    agree(md.FedAvg(), fed)


def problem_of(module: nn.Module, loss: Any = "cross_entropy") -> Any:
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(6, 4, generator=g), torch.arange(6) % 3
    return md.problems.Network(module, loss).ready(X, y, 3, None, "cpu")


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "buffers"),
        (nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1), nn.Linear(5, 3)), "random numbers"),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Flatten(), Branching()), "vmap cannot map"),
    ],
)
def test_what_vmap_cannot_do_is_left_to_the_reference_or_said(module: nn.Module, why: str):
    problem = problem_of(module)
    assert engines.choose("auto", problem, "cpu").name == "seq"
    with pytest.raises(RecipeError, match=f"{why}.*leave engine= out"):
        engines.choose("stacked", problem, "cpu")


def test_a_trial_leaves_no_trace():
    problem, before = problem_of(normal()), torch.get_rng_state()
    start = problem.flat.clone()
    assert engines.choose("stacked", problem, "cpu").name == "stacked"
    assert torch.equal(problem.flat, start)
    assert torch.equal(torch.get_rng_state(), before)


def test_auto_takes_it_for_small_models_and_for_what_fused_leaves():
    small, large = problem_of(normal()), problem_of(nn.Sequential(nn.Linear(4, 3000), nn.GELU(), nn.Linear(3000, 3)))
    names = [engines.choose("auto", p, "cpu").name for p in (small, large)]
    assert names == ["stacked", "seq"]
    assert engines.choose("stacked", large, "cpu").name == "stacked"
    assert run(md.FedAvg(), federation("softmax", momentum=0.5), "auto").settings["engine"] == "stacked"


@pytest.mark.parametrize(
    ("layers", "shape", "found"),
    [(md.models.cnn((1, 12, 12)), (1, 12, 12), "stacked"), (md.models.mlp(4, 3), (4,), "fused")],
    ids=["cnn", "mlp"],
)
def test_on_a_gpu_convolutions_are_stacked(layers: nn.Module, shape: tuple[int, ...], found: str):
    problem = md.problems.Network(layers).ready(torch.randn(6, *shape), torch.arange(6) % 3, 3, None, "cpu")
    assert engines.choose("auto", problem, "cuda").name == found
    assert engines.choose("auto", problem, "cpu").name == engines.choose("fused", problem, "cuda").name == "fused"


def test_the_record_names_the_reference_where_that_ran():
    alone = md.run(md.FedAvg(), federation("normal"), rounds=1, progress=False, engine="auto")
    assert alone.settings["engine"] == "stacked"
    fed = md.Federation(PROBLEMS["normal"][0], clients=[(torch.randn(8, 4), torch.arange(8) % 3)] * 2, classes=3)
    assert run(md.FedAvg(), fed, "auto").settings["engine"] == "seq"
    assert run(md.FedAvg(), fed, "stacked").settings["engine"] == "stacked"
    assert run(md.FedDecorr(), fed, "stacked").settings["engine"] == "seq"


def test_a_users_module_goes_with_others_unless_it_draws():
    untried = lambda m: md.problems.network.NetworkProblem(md.problems.Network(m), 3, torch.float32, "cpu")
    assert "noise" in untried(Gated()).gives  # it may draw, as nobody has tried it
    assert "noise" not in problem_of(Gated()).gives
    assert "noise" not in untried(md.models.resnet((1, 6, 6), 3, (1,), 4)).gives

    class Noisy(Gated):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x)) if self.training else super().forward(x)

    assert "noise" in problem_of(Noisy()).gives
