from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import medley as md
from medley.contract.errors import BadData, RecipeError
from medley.problems import Network, Softmax
from medley.problems.network import NetworkObjective
from medley.problems.network.model import FRESH
from medley.problems.network.problem import depends
from medley.runtime import streams
from medley.storage.identity import Digester
from support.pairs import quick

F64 = torch.float64
n, C = 10, 3


class Residual(nn.Module):
    """Not a stack: a skip, a tied weight, a buffer that is no statistic, and one frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(4, C)
        self.scale = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, X: Tensor) -> Tensor:
        return self.head(X + self.scale * torch.tanh(self.b(torch.tanh(self.a(X)))) + self.shift)


class Wrapped(nn.Module):
    """A module that runs what it is given."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.run: Callable[[Tensor], Tensor] = net.__call__

    def forward(self, X: Tensor) -> Tensor:
        return self.run(X)


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_complex_numbers_are_refused_by_name(kind: str) -> None:
    module, z = nn.Sequential(nn.Linear(4, C)), torch.polar(torch.ones(2), torch.ones(2))
    if kind == "buffer":
        module[0].register_buffer("freq", z)
    else:
        module[0].register_parameter("freq", nn.Parameter(z))
    clients = [(torch.randn(6, 4), torch.arange(6) % C)] * 2
    with pytest.raises(RecipeError, match=rf"the {kind} 0\.freq is complex"):
        md.run(md.FedAvg(), md.Federation(Network(module), clients=clients), 1)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, C)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(F.dropout(X, 0.5, self.training))


class Sampling(Functional):
    """Draws in evaluation mode too, as Monte Carlo dropout and a VAE do."""

    def forward(self, X: Tensor) -> Tensor:
        return self.head(F.dropout(X, 0.5))


@pytest.mark.parametrize("transport", quick(1, [None, md.transports.Processes(2)]))
def test_draws_in_evaluation_are_the_same_in_every_run_and_leave_the_global_stream_alone(transport: Any) -> None:
    clients = [(torch.randn(12, 4), torch.arange(12) % C)] * 3
    fed = md.Federation(Network(Sampling()), clients=clients, test=clients[0])
    torch.manual_seed(7)
    before = torch.get_rng_state()
    digests = {md.run(md.FedAvg(), fed, 2, transport=t).digest for t in (None, transport)}
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(8)
    assert digests == {md.run(md.FedAvg(), fed, 2).digest}


def mlp() -> nn.Module:
    return md.models.mlp(4, C, (5,))


def cnn() -> nn.Module:
    return md.models.cnn((1, 8, 8), C, channels=(2,), hidden=4)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, C))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, C))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, C))


def rows(shape: tuple[int, ...] = (4,), seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=g, dtype=F64), torch.randint(C, (n,), generator=g)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return make()


def objective(make: Callable[[], nn.Module], **options: Any) -> NetworkObjective:
    X, y = rows((1, 8, 8) if make is cnn else (4,))
    problem = Network(seeded(make), start="module", **options).ready(X, y, C, F64, "cpu")
    return problem.bind(problem.inputs(X), y)


def plain(make: Callable[[], nn.Module]) -> nn.Module:
    return seeded(make).to(F64)


def start(f: NetworkObjective) -> Tensor:
    return f.problem.initial(streams.generator(0, "init"))


@pytest.mark.parametrize("make", [mlp, cnn, normed, Residual])
def test_x_is_the_parameters_in_their_order_and_the_gradient_autograds(make: Callable[[], nn.Module]):
    f, module = objective(make), plain(make)
    params = [p for _, p in module.named_parameters() if p.requires_grad]
    x = start(f)
    assert torch.equal(x, torch.cat([p.detach().reshape(-1) for p in params]))
    rows = torch.tensor([0, 3, 4, 9])
    loss = F.cross_entropy(module(f.X[rows]), f.y[rows])
    want = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params)])
    assert torch.allclose(f.grad(x, rows), want, rtol=1e-12, atol=1e-14)
    # And at another point, where the module has to be loaded first.
    z = x + 0.1
    for p, v in zip(params, f.problem.split(z), strict=True):
        p.data.copy_(v)
    module.eval()
    assert f.loss(z) == pytest.approx(float(F.cross_entropy(module(f.X), f.y).detach()), rel=1e-13) or make is normed
    assert f.d == sum(p.numel() for p in params)


def test_a_last_batch_of_one_row_that_batch_norm_cannot_take_names_the_client_and_the_ways_out():
    clients = [(torch.randn(n, 4), torch.arange(n) % C) for n in (8, 9)]
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, C))
    pace = md.scenarios.Pace(batch=4)
    assert md.run(md.FedAvg(), md.Federation(Network(normed()), clients=clients, classes=C, pace=pace), 1).status.ok
    fed = md.Federation(Network(module), clients=clients, classes=C, pace=pace)
    with pytest.raises(md.ClientFailed, match=r"client 1 failed in round 1 .*this client's 9 rows .*use GroupNorm"):
        md.run(md.FedAvg(), fed, 1)


@pytest.mark.parametrize("make", [smooth, Residual])
def test_hessian_and_products_are_autograds(make: Callable[[], nn.Module]):
    f, module = objective(make), plain(make)
    x = start(f)
    names = [k for k, p in module.named_parameters() if p.requires_grad]

    def loss(v: Tensor) -> Tensor:
        params = dict(zip(names, f.problem.split(v), strict=True))
        return F.cross_entropy(torch.func.functional_call(module, params, (f.X,)), f.y)

    H = torch.autograd.functional.hessian(loss, x)
    assert torch.allclose(f.hessian(x), H, rtol=1e-10, atol=1e-13)
    v = torch.arange(f.d, dtype=F64) / f.d
    assert torch.allclose(f.hvp(x, v), H @ v, rtol=1e-10, atol=1e-13)
    h = 1e-5
    assert torch.allclose((f.grad(x + h * v) - f.grad(x - h * v)) / (2 * h), H @ v, atol=1e-8)


@pytest.mark.shapes
def test_one_linear_layer_is_the_softmax_problem():
    X, y = rows()
    soft = Softmax().ready(X, y, C, None, "cpu")
    g = soft.bind(soft.inputs(X), y)
    f = objective(lambda: nn.Linear(4, C, bias=False))
    x = torch.linspace(-1, 1, 12, dtype=F64)
    assert f.loss(x) == pytest.approx(g.loss(x), rel=1e-13)
    assert torch.allclose(f.grad(x), g.grad(x), rtol=1e-12)
    assert torch.allclose(f.hessian(x), g.hessian(x), rtol=1e-11, atol=1e-14)
    assert torch.allclose(f.outputs(x), g.outputs(x), rtol=1e-13)


@pytest.mark.shapes
def test_features_bias_and_outputs_belong_together():
    f = objective(mlp)
    x = start(f)
    z = f.features(x)
    W, b = f.problem.split(x)[-2:]
    assert torch.allclose(z @ W.T + b, f.outputs(x), rtol=1e-12)
    seen: list[Any] = []
    own = f.grad(x, slice(0, 5), lambda batch: seen.append(batch) or batch.loss(batch.features @ W.T + batch.bias))
    assert own.shape == (f.d,)
    assert torch.allclose(seen[0].outputs.detach(), f.outputs(x, slice(0, 5)), rtol=1e-12)
    assert torch.allclose(f.grad(x, None, lambda batch: batch.loss()), f.grad(x), rtol=1e-13)


def test_losses_of_other_kinds():
    X, _ = rows()
    Y = torch.randn(n, C, generator=torch.Generator().manual_seed(3), dtype=F64)
    problem = Network(seeded(mlp), loss="mse", start="module").ready(X, Y, None, F64, "cpu")
    f = problem.bind(X, Y)
    x = start(f)
    out = plain(mlp)(X)
    assert f.loss(x) == pytest.approx(float((out - Y).square().mean().detach()), rel=1e-13)
    by_row = problem.losses(f.outputs(x), Y)
    assert by_row is not None
    assert float(by_row.mean()) == pytest.approx(f.loss(x), rel=1e-13)
    assert problem.hits(f.outputs(x), Y) is None
    own = Network(seeded(mlp), loss=lambda z, t: (z - t).abs().mean(), start="module").ready(X, Y, None, F64, "cpu")
    g = own.bind(X, Y)
    assert g.loss(x) == pytest.approx(float((out - Y).abs().mean().detach()), rel=1e-13)
    assert own.losses(g.outputs(x), Y) is None
    assert "own loss" not in str(own.gives)


def test_x0_is_drawn_from_its_stream_and_the_global_one_is_left_alone():
    X, y = rows()
    problem = Network(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, C))).ready(X, y, C, F64, "cpu")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = problem.initial(streams.generator(0, "init"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(problem.initial(streams.generator(0, "init")), a)
    assert not torch.equal(problem.initial(streams.generator(1, "init")), a)
    # torch's own initialisation: U(±1/√4) for a layer of 4 inputs, 1 and 0 for the norm.
    W, b, gain, offset = problem.split(a)[:4]
    assert 0.3 < float(W.abs().max()) <= 0.5
    assert float(b.abs().max()) <= 0.5
    assert gain.tolist() == [1.0] * 5
    assert offset.tolist() == [0.0] * 5


def federation(make: Callable[[], nn.Module], sizes: tuple[int, ...] = (6, 10), **options: Any) -> md.Federation:
    clients = [tuple(t[:k] for t in rows(seed=i)) for i, k in enumerate(sizes)]
    pace = md.scenarios.Pace(**{"lr": 0.1, "batch": None, **options})
    return md.Federation(Network(seeded(make), start="module"), clients=clients, test=rows(seed=9), pace=pace)


def run(fed: md.Federation, rounds: int = 2, **options: Any) -> md.Result:
    return md.run(md.FedAvg(), fed, rounds, **{"dtype": F64, **options})


def test_batchnorm_statistics_are_averaged_by_hand():
    fed = federation(normed)
    r = run(fed, 1)
    means, variances, ends = [], [], []
    for i in (0, 1):
        X, y = (t[: (6, 10)[i]] for t in rows(seed=i))
        module = plain(normed)
        opt = torch.optim.SGD(module.parameters(), lr=0.1)
        F.cross_entropy(module(X), y).backward()
        opt.step()
        means.append(module[1].running_mean)
        variances.append(module[1].running_var)
        ends.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    p = (6 / 16, 10 / 16)
    assert torch.allclose(r.x, p[0] * ends[0] + p[1] * ends[1], rtol=1e-12)
    assert r.model is not None
    norm = r.model[1]
    assert torch.allclose(norm.running_mean, p[0] * means[0] + p[1] * means[1], rtol=1e-12)
    assert torch.allclose(norm.running_var, p[0] * variances[0] + p[1] * variances[1], rtol=1e-12)
    assert int(norm.num_batches_tracked) == 1
    # Evaluation is with those statistics.
    X, y = rows(seed=9)
    assert not r.model.training
    assert r.summary["accuracy"] == float((r.model(X).argmax(1) == y).double().mean())
    assert r.summary["test_loss"] == pytest.approx(float(F.cross_entropy(r.model(X), y).detach()), rel=1e-12)
    # 2 × 5 floats and one integer beside the 43 + … parameters.
    entry = next(iter(r.ledger))
    assert entry.down == entry.up == 8 * (len(r.x) + 10 + 1)
    assert int(run(fed, 3).model[1].num_batches_tracked) == 3  # type: ignore[index,arg-type]


@pytest.mark.shapes
def test_a_model_that_was_interrupted_has_the_statistics_of_its_last_whole_round():
    fed = federation(normed)
    want = run(fed, 2).model

    def stop(row: dict[str, float]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    r = run(fed, 5, on_round=stop)
    assert r.status.outcome == "interrupted"
    assert want is not None
    assert r.model is not None
    for a, b in zip(want.state_dict().values(), r.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    wild = federation(normed, lr=1.7e308, epochs=9)
    r = run(wild, 5, throw=False)
    assert r.status.outcome == "diverged"
    assert r.model is not None
    assert torch.equal(r.model[1].running_mean, torch.zeros(5, dtype=F64))


@pytest.mark.parametrize("make", [dropped, Functional])
def test_dropout_draws_from_named_streams(make: Callable[[], nn.Module]):
    fed = federation(make, batch=4, epochs=2)
    torch.manual_seed(0)
    a = run(fed)
    before = torch.get_rng_state()
    torch.manual_seed(5)
    torch.rand(3)
    kept = torch.get_rng_state()
    b = run(fed)
    assert torch.equal(a.x, b.x)
    assert torch.equal(torch.get_rng_state(), kept)
    assert not torch.equal(before, kept)
    assert not torch.equal(a.x, run(fed, seed=1).x)


def test_dropout_is_on_in_training_and_off_in_evaluation():
    f = objective(dropped)
    x = start(f)
    assert f.loss(x) == f.loss(x)
    torch.manual_seed(0)
    assert not torch.equal(f.grad(x), f.grad(x))
    assert torch.equal(f.outputs(x), f.outputs(x))


def test_the_users_module_is_never_modified():
    module = seeded(normed)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    module.eval()
    clients = [tuple(t[:6] for t in rows(seed=i)) for i in range(2)]
    for start in ("draw", "module"):
        fed = md.Federation(Network(module, start=start), clients=clients)  # type: ignore[arg-type]
        r = md.run(md.FedAvg(), fed, 2)
        assert r.model is not module
    assert not module.training
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_the_result_is_a_module_with_x_in_it():
    r = run(federation(mlp))
    assert r.model is not None
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in r.model.parameters()]), r.x)
    x = r.x.clone()
    next(iter(r.model.parameters())).data.add_(1)
    assert torch.equal(r.x, x)


def test_gradients_are_fresh_unless_asked_otherwise():
    f = objective(mlp)
    x = start(f)
    a = f.grad(x)
    kept = a.clone()
    f.grad(x + 1)
    assert torch.equal(a, kept)
    b = f.grad(x, copy=False)
    assert torch.equal(b, kept)
    f.grad(x + 1)
    assert not torch.equal(b, kept)


def test_dtypes():
    r = md.run(md.FedAvg(), federation(mlp), 1)
    assert r.x.dtype == torch.float32
    assert md.run(md.FedAvg(), federation(mlp), 1, dtype="float64").x.dtype == F64
    for wrong in ("float65", "int64", "nn", torch.int32):
        with pytest.raises(RecipeError, match=r"run\(dtype=.*choose float32 or float64"):
            md.run(md.FedAvg(), federation(mlp), 1, dtype=wrong)  # type: ignore[arg-type]


@pytest.mark.shapes
def test_what_does_not_fit_is_refused_before_round_1():
    X, y = rows()
    with pytest.raises(BadData, match=r"the data has 5 classes, but the network's outputs are \[3\] a row"):
        Network(mlp()).ready(X, y, 5, None, "cpu")
    with pytest.raises(BadData, match=r"the network cannot read rows of shape \[7\]"):
        Network(mlp()).ready(torch.zeros(3, 7), y[:3], 3, None, "cpu")
    with pytest.raises(BadData, match=r"outputs are \[1\] a row and the targets \[\].*nn\.Flatten\(0\).*squeeze\(1\)"):
        Network(nn.Linear(4, 1), loss="mse").ready(X, X[:, 0], None, None, "cpu")
    Network(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), loss="mse").ready(X, X[:, 0], None, None, "cpu")
    with pytest.raises(BadData, match=r"outputs are \[1\] a row and the targets \[2\].*reshape y"):
        Network(nn.Linear(4, 1), loss="mse").ready(X, X[:, :2], None, None, "cpu")
    for hot, classes in ((nn.functional.one_hot(y, 3), None), (nn.functional.one_hot(y, 3).double(), 2)):
        with pytest.raises(
            BadData, match=r"one-hot: each row has shape \[3\]\. Pass class labels instead: y\.argmax\(1\)"
        ):
            Network(mlp()).ready(X, hot, classes, None, "cpu")
    with pytest.raises(RecipeError, match="no trainable parameters"):
        Network(nn.ReLU())
    with pytest.raises(BadData, match=r"row 1: Network needs labels 0\.\.2, but this one is 3"):
        Network(mlp()).targets(torch.tensor([0, 3]), 3)


def test_integer_rows_stay_integers():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.EmbeddingBag(6, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, X: Tensor) -> Tensor:
            return self.head(self.words(X))

    g = torch.Generator().manual_seed(0)
    clients = [(torch.randint(6, (8, 5), generator=g), torch.randint(2, (8,), generator=g)) for _ in range(2)]
    r = md.run(md.FedAvg(), md.Federation(Network(Bag()), clients=clients), 3)
    assert r["loss"][-1] < r["loss"][0]


def test_a_module_used_twice_is_left_as_it_was():
    twice, out = nn.Linear(2, 2), nn.Linear(2, 2)
    out.weight = twice.weight
    X, y = torch.randn(4, 2, dtype=F64), torch.arange(4) % 2
    f = Network(nn.Sequential(twice, nn.Tanh(), twice, out)).ready(X, y, 2, F64, "cpu").bind(X, y)
    x, v = torch.randn(f.d, dtype=F64), torch.randn(f.d, dtype=F64)
    along = (f.grad(x + 1e-6 * v) - f.grad(x - 1e-6 * v)) / 2e-6
    assert float((f.hvp(x, v) - along).norm() / along.norm()) < 1e-8
    assert torch.equal(f.problem.flat, x - 1e-6 * v)
    assert f.grad(x).norm() > 0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 2)), "'the module' is compiled by TorchScript"),
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(3, 2))), "'0' is a DataParallel; give the module inside"),
        (lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2))), "'0' holds the tensor 'weight'"),
        (lambda: prune.random_unstructured(nn.Linear(3, 2), "weight", 0.5), "holds the tensor 'weight'"),
    ],
)
def test_modules_that_cannot_be_copied_or_called_with_x_are_refused(made, words):
    with pytest.raises(RecipeError, match=words):
        md.problems.Network(made())


def test_batch_norm_without_running_statistics_is_named(caplog):
    md.problems.Network(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert not caplog.messages
    md.problems.Network(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    assert "'1' keeps no running statistics" in caplog.text


def test_a_lazy_module_needs_a_batch_first():
    module = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))
    with pytest.raises(RecipeError, match=r"'0\.weight', of a lazy module, has no shape yet; send a batch through"):
        md.problems.Network(module)
    module(torch.zeros(2, 64))
    md.problems.Network(module)


class Shrinks(nn.Module):
    """Changes its inputs in place, in evaluation mode or in training mode only."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.head, self.only = nn.Linear(4, C), training

    def forward(self, X: Tensor) -> Tensor:
        if self.training == self.only:
            X.mul_(0.9)
        return self.head(X)


def halved(X: Tensor, generator: torch.Generator) -> Tensor:
    return X.mul_(0.5)


def first_relu() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, C))


@pytest.mark.parametrize("make", [partial(Shrinks, True), partial(Shrinks, False), first_relu])
def test_a_module_that_works_in_place_leaves_the_rows_as_they_are(make: Callable[[], nn.Module]):
    X, y = (t.float() if t.is_floating_point() else t for t in rows())
    X_test, was = X.clone(), X.clone()
    data = md.datasets.Dataset(X, y, X_test, y, classes=C)
    pace = md.scenarios.Pace(lr=0.5, batch=None)
    fed = md.Federation(Network(seeded(make)), data=data, partition=md.partitions.IID(1), pace=pace)
    often, once = (md.run(md.FedAvg(), fed, 2, eval_every=k, progress=False) for k in (1, 2))
    assert torch.equal(X, was)
    assert torch.equal(X_test, was)
    assert torch.equal(often.x, once.x)
    often.predict(X)
    assert torch.equal(X, was)


@pytest.mark.parametrize("part", ["whole", "layer", "attribute"])
def test_a_function_that_uses_the_first_modules_parameters_is_refused(part: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, C))
    module: nn.Module = net
    if part == "whole":
        vars(module)["forward"] = lambda X, run=net.forward: run(X)
    elif part == "layer":
        vars(net[2])["forward"] = lambda X: F.linear(X, *net[2].parameters())
    else:
        module = Wrapped(net)
        module.run = lambda X: net(X)
    fed = md.Federation(Network(module, start="module"), clients=[(torch.randn(n, 4), torch.arange(n) % C)] * 2)
    with pytest.raises(RecipeError, match="would not be trained"):
        md.run(md.FedAvg(), fed, 1, progress=False)


def test_a_parameter_without_use_is_no_fault() -> None:
    module = Wrapped(nn.Linear(4, C))
    module.add_module("spare", nn.Linear(2, 2))
    fed = md.Federation(Network(module, start="module"), clients=[(torch.randn(n, 4), torch.arange(n) % C)] * 2)
    result = md.run(md.FedAvg(), fed, 1, progress=False)
    assert torch.equal(result.x[-6:-2], torch.cat([p.detach().reshape(-1) for p in module.parameters()])[-6:-2])


def test_a_transform_may_work_in_place():
    X, y = rows()
    pace = md.scenarios.Pace(lr=0.5, batch=None, epochs=3)

    def trained(transform: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        problem = Network(seeded(mlp), transform=transform)
        return md.run(md.FedAvg(), md.Federation(problem, clients=[(X, y)], pace=pace), 2, progress=False).x

    assert torch.equal(trained(halved), trained(lambda X, generator: X * 0.5))


def test_rows_are_copied_for_modules_that_work_in_place_only():
    found = {make: objective(make).problem.changes_inputs for make in (mlp, cnn, normed, dropped, Residual)}
    assert not any(found.values())
    assert objective(lambda: Shrinks(True)).problem.changes_inputs
    assert objective(lambda: Shrinks(False)).problem.changes_inputs


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((20, 8, 8), r"rows of shape \[8, 8\]: images are \[channels, height, width\], so give X\[:, None\]"),
        ((20, 8, 8, 1), r"rows of shape \[8, 8, 1\]: channels come first, so give X.transpose\(0, 3, 1, 2\)"),
    ],
)
def test_images_without_channels_or_with_channels_last(shape: tuple[int, ...], said: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    clients = [(np.zeros(shape, np.float32), np.arange(20) % 2)]
    with pytest.raises(BadData, match=said):
        md.run(md.FedAvg(), md.Federation(Network(net), clients=clients), 1)


def test_labels_that_are_a_column() -> None:
    clients = [(np.zeros((20, 4), np.float32), (np.arange(20) % 3)[:, None])]
    with pytest.raises(BadData, match=r"the labels are a column, \[n, 1\]; give \[n\], y\[:, 0\]"):
        md.run(md.FedAvg(), md.Federation(Network(nn.Linear(4, 3)), clients=clients), 1)


class Centred(nn.Module):
    """Subtracts a mean of the outputs that it keeps, in place or by assigning the buffer anew, and its last row."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.a, self.head, self.assigns = nn.Linear(4, 5), nn.Linear(5, 3), assigns
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("row", torch.zeros(4))

    def forward(self, X: Tensor) -> Tensor:
        h = self.a(X)
        if self.training and self.assigns:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.row = X[-1]  # a view of the rows
        elif self.training:
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            self.row.copy_(X[-1])
        return self.head(torch.tanh(h - self.mean + self.row.mean()))


@pytest.mark.parametrize("shared", [None, "a.*"])
def test_a_buffer_that_a_pass_assigns_anew_travels_as_one_that_it_changes(shared: str | None) -> None:
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 4, generator=g), torch.arange(n) % 3) for n in (5, 9, 4)]
    rows = clients[0][0].clone()
    torch.manual_seed(0)
    module, other = Centred(True), Centred(False)
    other.load_state_dict(module.state_dict())
    pace = md.scenarios.Pace(lr=0.1, batch=None, steps=3)
    runs = [
        md.run(md.FedAvg(), md.Federation(Network(m, start="module", shared=shared), clients=clients, pace=pace), 2)
        for m in (module, other)
    ]
    assert runs[0].model.mean.norm() > 0
    for name, t in runs[1].model.state_dict().items():
        assert torch.allclose(runs[0].model.state_dict()[name], t, atol=1e-6), name
    assert runs[0].summary["loss"] == pytest.approx(runs[1].summary["loss"], rel=1e-6)
    assert torch.equal(clients[0][0], rows)


def test_a_buffer_that_grows_is_refused() -> None:
    class Queue(nn.Linear):
        def forward(self, X: Tensor) -> Tensor:
            if self.training:
                self.seen = torch.cat([self.seen, X])
            return super().forward(X)

    module = Queue(4, 3)
    module.register_buffer("seen", torch.zeros(0, 4))
    fed = md.Federation(Network(module), clients=[(torch.randn(6, 4), torch.arange(6) % 3)] * 2)
    with pytest.raises(RecipeError, match=r"buffer seen was \[0, 4\].*full size"):
        md.run(md.FedAvg(), fed, 1)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_large_model_gives_its_memory_back_and_computes_as_before(fresh: bool) -> None:
    X, y = torch.randn(4, 1000), torch.tensor([0, 1, 2, 1])
    module = nn.Sequential(nn.Linear(1000, 1100), nn.ReLU(), nn.Linear(1100, 3))
    values = torch.cat([t.detach().flatten() for t in module.parameters()])
    identity = Digester().of(Network(module))
    expected_x = Network(module).ready(X, y, 3, torch.float32, "cpu").initial(streams.generator(0, "init"))
    if fresh:  # a function of the user's may keep the module
        FRESH.add(module)
    p = Network(module).ready(X, y, 3, torch.float32, "cpu")
    assert (p.module is module) == fresh
    assert torch.equal(p.flat, values)
    assert p.flat.data_ptr() == next(p.module.parameters()).data_ptr()
    x = p.initial(streams.generator(0, "init"))
    assert torch.equal(x, expected_x)
    assert Digester().of(p.family) == identity
    expected = p.bind(X, y).grad(x)
    p.vacate()
    assert all(t.any() for t in module.parameters()) != fresh
    assert not p.flat.any()
    assert not p.gradient.any()
    for t in (p.flat, p.gradient):
        assert t.data_ptr() % 64 == 0
    assert torch.equal(p.bind(X, y).grad(x), expected)
    assert torch.equal(p.flat, x)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is read from Linux' /proc")
def test_a_module_made_for_one_run_is_the_only_copy_until_its_first_model() -> None:
    X, y = torch.randn(4, 10), torch.tensor([0, 1, 2, 1])
    module = nn.Sequential(nn.Linear(10, 2950), nn.ReLU(), nn.Linear(2950, 2950), nn.Linear(2950, 3))
    FRESH.add(module)
    size = sum(p.nbytes for p in module.parameters())
    problem = Network(module)
    p, made = held(lambda: problem.ready(X, y, 3, torch.float32, "cpu"))
    assert made < 0.5 * size  # beside the module itself
    _, made = held(lambda: (p.initial(streams.generator(0, "init")), Digester().of(problem)))
    assert made < 1.5 * size  # the first model
    _, made = held(lambda: Network(nn.Sequential(*module)).ready(X, y, 3, torch.float32, "cpu"))
    assert made > 0.9 * size  # of a user's module a copy is trained


def held(step: Callable[[], Any]) -> tuple[Any, int]:
    """What a step returns, and the most bytes that the process had during it, above those before it."""
    status = lambda name: next(
        1024 * int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line
    )
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins VmHWM anew
    out = step()
    return out, status("VmHWM") - before


def test_what_outputs_depend_on_is_read_from_the_graph() -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g, None

    x, w, v, u = (torch.randn(3, requires_grad=True) for _ in range(4))
    assert depends(torch.relu(x * w) + v.detach(), [x, w, v, u]) == [True, True, False, False]
    assert depends(v, [x, v]) == [False, True]
    assert depends(torch.ones(3), [x]) == [False]
    assert depends(Cut.apply(x, w) + v, [x, w, v, u]) == [True, False, True, False]


def test_a_module_that_copies_itself_otherwise_is_trained_in_its_copy():
    class Own(nn.Linear):
        def __deepcopy__(self, memo: Any) -> nn.Module:
            out = Own(self.in_features, self.out_features)
            out.load_state_dict(self.state_dict())
            return out

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), Own(4, 2))
    p = Network(module, start="module").ready(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]), 2, None, "cpu")
    assert torch.equal(p.flat, torch.cat([t.detach().flatten() for t in module.parameters()]))
    assert [t.data_ptr() for t in p.module.parameters()] == [v.data_ptr() for v in p.split(p.flat)]
