"""Sparse rows give what dense ones give, and are never made dense."""

from __future__ import annotations

import copy
import pickle
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

import medley as md
from medley.contract.errors import BadData, Unsupported
from medley.numerics.curvature import decompose
from medley.problems import LeastSquares, Logistic, Network, Softmax
from medley.problems.linear import Linear, LinearObjective
from medley.rows.sparse import Sparse, not_finite
from support.pairs import quick

F64 = torch.float64
FAMILIES = [Logistic(mu=0.1), Logistic(mu=0.1, intercept=True), LeastSquares(mu=0.1), Softmax(mu=0.1)]
FAMILIES += [Softmax(mu=0.1, intercept=True)]


def matrix(n: int, p: int, density: float, seed: int = 0) -> Any:
    rng, many = np.random.default_rng(seed), round(density * n * p)
    where = rng.integers(0, n, many), rng.integers(0, p, many)
    return sparse.csr_array((rng.uniform(size=many), where), shape=(n, p))


def pair(family: Linear, n: int = 20, p: int = 7, weighed: bool = True) -> tuple[LinearObjective, LinearObjective]:
    """The objective of dense rows and of the same sparse ones."""
    X, rng = matrix(n, p, 0.3), np.random.default_rng(1)
    classes = 3 if isinstance(family, Softmax) else 2
    y = torch.from_numpy(rng.normal(size=n) if isinstance(family, LeastSquares) else rng.integers(0, classes, n))
    w = torch.from_numpy(rng.uniform(0.5, 1.5, n)) if weighed else None
    out = []
    for rows in (torch.from_numpy(X.toarray()), Sparse.of(X)):
        problem = family.ready(rows, y, classes, None, "cpu")
        out.append(problem.bind(problem.inputs(rows), family.targets(y, classes), w))
    assert isinstance(out[1].X, Sparse)
    return out[0], out[1]


def near(a: Tensor, b: Tensor, tol: float = 1e-12) -> None:
    assert type(a) is type(b) is Tensor
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("rows", [None, slice(3, 11), torch.tensor([5, 2, 2, 19])], ids=["all", "slice", "index"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_losses_and_derivatives_are_the_dense_ones(family: Linear, rows: Any) -> None:
    f, g = pair(family)
    x, v = torch.randn(2, f.d, dtype=F64, generator=torch.Generator().manual_seed(2))
    assert g.loss(x, rows) == pytest.approx(f.loss(x, rows), rel=1e-12)
    near(g.grad(x, rows), f.grad(x, rows))
    near(g.grad(x, rows, lambda batch: batch.loss()), f.grad(x, rows))
    near(g.hvp(x, v, rows), f.hvp(x, v, rows))
    near(g.hessian(x, rows), f.hessian(x, rows))
    near(g.outputs(x, rows), f.outputs(x, rows))
    near(g.squares(x, rows), f.squares(x, rows))
    etas = torch.tensor([0.0, 0.5, 1.0], dtype=F64)
    near(g.losses_along(x, v, etas), f.losses_along(x, v, etas))
    assert g.smoothness() == pytest.approx(f.smoothness(), rel=1e-10)
    order = torch.arange(f.n).flip(0)
    near(g.take(order).grad(x, slice(4)), f.take(order).grad(x, slice(4)))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.shapes
def test_the_factor_stays_sparse_and_has_the_dense_products(family: Linear) -> None:
    f, g = pair(family)
    x, v = torch.randn(2, f.d, dtype=F64, generator=torch.Generator().manual_seed(3))
    (A, delta), (B, same) = f.factor(x), g.factor(x)
    assert isinstance(B, Sparse)
    assert (same, B.shape) == (delta, A.shape)
    near(B @ v, A @ v)
    near(B.T @ (B @ v) + delta * v, f.hvp(x, v))
    near(B @ B.T, A @ A.T)


@pytest.mark.parametrize("p", [7, 60])
@pytest.mark.shapes
def test_eigenpairs_of_sparse_factors_are_the_dense_ones(p: int) -> None:
    """By the Gram matrix of the rows and by the Hessian itself, with and without what the server holds."""
    f, g = pair(Logistic(mu=0.1), p=p)
    x = torch.zeros(p, dtype=F64)
    A, B = f.factor(x)[0], g.factor(x)[0]
    held = torch.linalg.qr(torch.randn(p, 2, dtype=F64, generator=torch.Generator().manual_seed(4)))[0].T
    for W, c in ((held[:0], x[:0]), (held, torch.tensor([0.2, -0.1], dtype=F64))):
        one, two = decompose(A, W, c), decompose(B, W, c)
        near(two.values, one.values, 1e-10)
        V = two.vectors(0, 3, B, W, c)
        near((V @ B.T) @ B - (V @ W.T * c) @ W, two.values[:3, None] * V, 1e-9)


METHODS = [md.LBFGS(), md.SHED.fast(), md.SHED(), md.Newton(), md.GradientDescent(), md.AGD(), md.GIANT(solver="cg")]
METHODS += [md.FedAvg()]


@pytest.mark.parametrize("method", quick(2, METHODS), ids=lambda m: type(m).__name__)
def test_a_run_on_sparse_rows_is_the_run_on_dense_ones(method: Any) -> None:
    X, rng = matrix(120, 30, 0.2), np.random.default_rng(5)
    y = (X @ rng.normal(size=30) + 0.3 * rng.normal(size=120) > 0).astype(int)
    runs = []
    for rows in (X.toarray(), X):
        clients = [(rows[at : at + 40], y[at : at + 40]) for at in (0, 40)]
        fed = md.Federation(
            Logistic(mu=0.05), clients=clients, test=(rows[80:], y[80:]), pace=md.scenarios.Pace(lr=0.1, batch=16)
        )
        runs.append(md.run(method, fed, rounds=8, throw=False, progress=False))
    dense, thin = runs
    assert (len(thin.history), thin.status.outcome) == (len(dense.history), dense.status.outcome)
    near(thin.x, dense.x, 1e-9)
    for key in ("loss", "test_loss", "accuracy", "exchanges", "bytes_up"):
        assert thin.history[-1][key] == pytest.approx(dense.history[-1][key], rel=1e-9)


def peak() -> int:
    """The most memory that this process has had at once [KiB]."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", [md.LBFGS(), md.SHED(pairs=2), md.SHED.fast()], ids=["LBFGS", "SHED", "fast"])
def test_memory_is_that_of_the_entries(method: Any) -> None:
    """1.6 GB if the rows were dense. NumPy's and SciPy's memory is traced, torch's seen in the process's peak."""
    X = matrix(2_000, 100_000, 1e-4)
    y = np.arange(2_000) % 2
    tracemalloc.start()
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # the peak starts again from here, whatever ran before in this process
    before = peak()
    fed = md.Federation(Logistic(mu=0.01), clients=[(X[i::8], y[i::8]) for i in range(8)])
    run = md.run(method, fed, rounds=3, throw=False, progress=False)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert most < 100e6
    assert peak() - before < 600e3  # KiB; SHED's largest took 417,000


def test_rows_of_a_data_set_are_dealt_by_a_partition() -> None:
    X = matrix(60, 9, 0.3)
    made = [
        md.datasets.Dataset(rows, torch.arange(60) % 3, classes=3).split(0.2, validation=0.1)
        for rows in (Sparse.of(X), torch.from_numpy(X.toarray()))
    ]
    runs = [
        md.run(md.LBFGS(), md.Federation(Softmax(mu=0.1), data=d, partition=md.partitions.IID(clients=4)), rounds=5)
        for d in made
    ]
    near(runs[0].x, runs[1].x, 1e-9)
    assert runs[0].history[-1]["accuracy"] == runs[1].history[-1]["accuracy"]


def test_the_record_tells_data_apart() -> None:
    X, y = matrix(10, 6, 0.5), np.arange(10) % 2
    moved = X.copy()
    moved.indices[0] = next(k for k in range(6) if k not in X.indices[: X.indptr[1]])
    records = [md.Federation(Logistic(), clients=[(rows, y)]).settings()["data"] for rows in (X, X.tocsc(), 2 * X)]
    records += [md.Federation(Logistic(), clients=[(moved, y)]).settings()["data"]]
    assert records[0] == records[1]
    assert len({*records}) == 3


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_array], ids=["csr_matrix", "coo_array"])
def test_what_is_no_number_is_named(kind: Any) -> None:
    X = matrix(8, 5, 0.4).tolil()
    X[6, 3] = np.nan
    good = (matrix(8, 5, 0.4), np.arange(8) % 2)
    with pytest.raises(BadData, match="client 1, row 6, column 3: nan is not finite") as e:
        md.Federation(Logistic(), clients=[good, (kind(X), good[1])])
    assert (e.value.client, e.value.row, e.value.column) == (1, 6, 3)
    with pytest.raises(BadData, match="row 6, column 3"):
        md.datasets.Dataset(Sparse.of(X), torch.arange(8) % 2, classes=2)
    assert not_finite(Sparse.of(good[0])) is None


def test_what_needs_dense_rows_is_refused() -> None:
    X, y = matrix(8, 5, 0.4), np.arange(8) % 2
    fed = md.Federation(Network(torch.nn.Linear(5, 2)), clients=[(X, y)])
    with pytest.raises(BadData, match="a network's rows are dense"):
        md.run(md.FedAvg(), fed, rounds=1)
    with pytest.raises(Unsupported, match=r"sparse rows are for .*Give dense rows.*aten\.exp"):
        Sparse.of(X).exp()
    with pytest.raises(Unsupported, match="stay on the CPU"):
        Sparse.of(X).to("meta")


def test_operations_are_those_of_dense_tensors() -> None:
    X = matrix(9, 5, 0.4)
    S, D = Sparse.of(X), torch.from_numpy(X.toarray())
    near(S[2], D[2])
    near(S[:, 1], D[:, 1])
    near(S.sum(), D.sum())
    near(S.square().sum(1), D.square().sum(1))
    mask = torch.arange(9) % 2 == 0
    eye = torch.eye(5, dtype=F64)
    for a, b in ((S[mask], D[mask]), (S[4:], D[4:]), (S.T, D.T), (S.T[:2], D.T[:2]), (S * D[:, :1], D * D[:, :1])):
        assert isinstance(a, Sparse)
        near(a @ torch.eye(a.shape[1], dtype=F64), b)
    near(torch.cat(list(torch.split(S, 4))) @ eye, D)
    near(torch.cat([S, D]) @ eye, torch.cat([D, D]))
    for twin in (copy.deepcopy(S), pickle.loads(pickle.dumps(S)), S.float().double()):
        near(twin @ eye, D, 1e-6)
    assert S.new_zeros(2).dtype == S.dtype
    assert "entries" in repr(S)
