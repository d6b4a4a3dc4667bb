"""Newton and its rivals: reference counts, fixed points, what the theory says of each, and bad data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

import medley as md
from medley.codecs import Delta, Quantise
from medley.contract.errors import RecipeError
from support.oracles import error
from support.pairs import quick
from support.rig import Rig

F_STAR = {1e-3: 0.05983977454242, 1e-5: 0.03363455155305}


def breast_cancer(mu):
    """Ten agents of the standardised data, sorted by the first feature."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    agents = np.array_split(np.argsort(X[:, 0]), 10)
    return md.Federation(md.problems.Logistic(mu=mu), clients=[(X[a], y[a]) for a in agents], f_star=F_STAR[mu])


def to_the_end(method, fed, rounds, **options):
    return md.run(method, fed, rounds, target={"gap": 1e-8}, progress=False, throw=False, **options)


@pytest.mark.parametrize(
    ("method", "mu", "iterations", "exchanges"),
    quick(
        1,
        [
            (md.Newton(), 1e-3, 8, 16),
            (md.Newton(), 1e-5, 10, 20),
            (md.FedNL(), 1e-3, 31, 62),
            (md.FedNL(speculative=True), 1e-3, 31, 32),
            pytest.param(md.FedNL(), 1e-5, 91, 182, marks=pytest.mark.slow),
            pytest.param(md.GIANT(), 1e-3, 73, 219, marks=pytest.mark.slow),
            (md.LBFGS(), 1e-3, 28, 29),
        ],
    ),
    ids=str,
)
def test_reference_counts_on_breast_cancer(method, mu, iterations, exchanges):
    """Iterations and exchanges to f − f* < 1e-8, exact on this partition; L-BFGS's are our own."""
    last = to_the_end(method, breast_cancer(mu), 200).history[-1]
    assert abs(last["round"] - iterations) <= (2 if method.name == "LBFGS" else 0)
    assert abs(last["exchanges"] - exchanges) <= (3 if method.name == "LBFGS" else 0)


@pytest.mark.slow
def test_giant_fails_where_clients_differ_and_mu_is_small():
    """The harmonic mean of the clients' Hessians is a poor one; after 60 rounds the gap is far from 1e-8."""
    assert to_the_end(md.GIANT(), breast_cancer(1e-5), 60).summary["gap"] > 1e-4


SECOND = [
    md.Newton(),
    md.LBFGS(),
    md.FedNL(),
    md.FedNL(init="zero"),
    md.FedNL(compress="topk", k=10),
    md.FedNL(mode="plain"),
    md.FedNL(speculative=True),
    md.GIANT(),
    md.GIANT(solver="cg", speculative=True),
    md.DONE(),
    md.AGD(momentum=0.8),
    md.GradientDescent(),
]


@pytest.mark.parametrize("method", quick(3, SECOND), ids=str)
def test_all_find_the_optimum_and_stay(method):
    toy = md.problems.synthetic_logistic(clients=6, d=6, mu=1e-1, spread=0.5)
    fed = md.Federation(toy.problem, clients=toy.clients)
    result = md.run(method, fed, 400, target={"grad_norm": 1e-10}, eval_every=5, progress=False)
    stay = md.run(method, fed, 3, init=toy.x_star, progress=False)
    assert error(result, toy.x_star) < 1e-8
    assert error(stay, toy.x_star) < 1e-8


def test_fednl_pp_learns_with_whoever_is_there():
    toy = md.problems.synthetic_logistic(clients=6, d=5, mu=1e-1, spread=0.5)
    fed = md.Federation(toy.problem, clients=toy.clients, participation=0.5)
    result = md.run(md.FedNL(mode="pp"), fed, 150, target={"grad_norm": 1e-10}, eval_every=5, progress=False)
    assert error(result, toy.x_star) < 1e-8


def test_fednl_pp_that_begins_with_everyone_by_hand():
    """H_i, l_i and g_i of all clients at x₀, then steps with them, and a rank-one lesson of those that take part."""
    toy = md.problems.synthetic_logistic(clients=6, d=5, mu=1e-1, spread=0.5, rows=(20, 20))
    fed = md.Federation(toy.problem, clients=toy.clients, participation=0.5)
    world, eye = fed.draw(0), torch.eye(5).double()
    f = [world.problem.bind(*world.clients.rows.of(0, i)) for i in range(6)]
    x = md.run(md.FedNL(mode="pp"), fed, 0, progress=False).x
    H, l = [f_i.hessian(x) for f_i in f], [0.0] * 6
    g = [H_i @ x - f_i.grad(x) for H_i, f_i in zip(H, f, strict=True)]
    for t in range(1, 5):
        x = torch.linalg.solve(sum(H, 0 * eye) / 6 + sum(l) / 6 * eye, sum(g, 0 * x) / 6)
        for i in world.cohort(t):
            values, V = torch.linalg.eigh(f[i].hessian(x) - H[i])
            k = int(values.abs().argmax())
            H[i] = H[i] + values[k] * torch.outer(V[:, k], V[:, k])
            l[i] = float((f[i].hessian(x) - H[i]).norm())
            g[i] = H[i] @ x + l[i] * x - f[i].grad(x)
    result = md.run(md.FedNL(mode="pp", all_first=True), fed, 4, progress=False)
    assert torch.allclose(result.x, x, rtol=0, atol=1e-12)
    assert error(result, toy.x_star) < 0.1 * error(md.run(md.FedNL(mode="pp"), fed, 4, progress=False), toy.x_star)
    asked = [sum(e.round == t for e in result.ledger) for t in (1, 2)]
    assert asked == [9, 3]
    with pytest.raises(RecipeError, match=r"FedNL\(all_first=True, mode='ls'\)"):
        md.FedNL(all_first=True)


def test_sh13_one_client_is_exact_newton():
    """SH-13: M = 1 makes GIANT Newton; so do clients whose Hessians are the same."""
    toy = md.problems.synthetic_logistic(clients=1, d=5, mu=1e-2, rows=(60, 60))
    for clients in (toy.clients, toy.clients * 4):
        fed = md.Federation(toy.problem, clients=clients)
        a, b = (md.run(m, fed, 4, progress=False).x for m in (md.GIANT(), md.Newton()))
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("method", [md.Newton(), md.FedNL(), md.FedNL(mode="plain"), md.FedNL(mode="pp")], ids=str)
def test_a_quadratic_takes_one_step(method):
    """SH-15: with whole Hessians sent once, least squares are done in one step (under "pp" in the round after)."""
    toy = md.problems.synthetic_quadratics(clients=5, d=6)
    fed = md.Federation(toy.problem, clients=toy.clients)
    assert (
        error(md.run(method, fed, 2 if method.settings().get("mode") == "pp" else 1, progress=False), toy.x_star)
        < 1e-12
    )


def test_sh15_fednl_learns_the_hessian_and_its_mean_is_the_servers():
    """SH-15: ‖H_i − ∇²f_i‖² shrinks by 1 − 1/n at least, ends at the Hessian of x*, and H = Σ p_i H_i under 8 bits."""
    toy = md.problems.synthetic_logistic(clients=4, d=5, mu=1e-1, spread=0.5)
    rig = Rig(md.FedNL(init="zero"), toy)
    rig.host.codec = Quantise(8)
    for _ in range(40):
        rig()
        mean = sum(p * rig.memories()[i].H for i, p in rig.sim.p.items())
        torch.testing.assert_close(rig.s.H, mean, rtol=1e-12, atol=1e-12)
    for i in rig.all:
        torch.testing.assert_close(
            rig.memories()[i].H, rig.client(i, 1).problem.hessian(toy.x_star), rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_sh17_heavy_ball_is_stable_just_below_its_bound():
    """SH-17: on a quadratic iff lr·λ_max < 2(1 + m)."""
    toy = md.problems.synthetic_quadratics(clients=3, d=4)
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
    rig = Rig(md.AGD(), toy)
    H = sum(p * rig.client(i, 1).problem.hessian(toy.x_star) for i, p in rig.sim.p.items())
    edge = 2 * 1.5 / float(torch.linalg.eigvalsh(H)[-1])
    below, above = (
        md.run(md.AGD(server_lr=c * edge, momentum=0.5), fed, 300, progress=False, throw=False) for c in (0.98, 1.02)
    )
    assert below.summary["gap"] < 1e-4
    assert below.status.outcome == "finished"
    assert above.summary["gap"] > 1
    assert above.status.outcome == "diverged"


def test_sh18_newton_is_quadratic_at_the_end():
    """SH-18: e_{t+1}/e_t² stays bounded."""
    toy = md.problems.synthetic_logistic(clients=5, d=5, mu=1e-2)
    errors = []
    fed = md.Federation(toy.problem, clients=toy.clients)
    for rounds in range(3, 7):
        errors.append(float((md.run(md.Newton(), fed, rounds, progress=False).x - toy.x_star).norm()))
    ratios = [b / a**2 for a, b in pairwise(errors) if b > 1e-12]
    assert ratios
    assert max(ratios) < 1


@pytest.mark.parametrize("method", [md.LBFGS(), md.GIANT(), md.FedNL()], ids=str)
def test_eight_bits_find_the_same_optimum_for_an_eighth_of_the_bytes(method):
    toy = md.problems.synthetic_logistic(clients=5, d=30, rows=(60, 80), mu=1e-1, spread=0.5)
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
    runs = [md.run(method, fed, 150, codec=c, target={"gap": 1e-9}, progress=False) for c in (None, Delta())]
    assert [r.status.outcome for r in runs] == ["target", "target"]
    exact, coarse = (r.history[-1]["bytes_up"] / r.history[-1]["exchanges"] for r in runs)
    assert coarse < 0.75 * exact


# Bad data. Each converges, or says clearly why not.


def clients(change=lambda X, y: (X, y)):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(60, 4, generator=g, dtype=torch.float64)
    y = (X.sum(1) + 1.5 * torch.randn(60, generator=g, dtype=torch.float64) > 0).double()
    X, y = change(X, y)
    sizes = (20, 1, 19, 20)
    return list(zip(X.split(sizes), y.split(sizes), strict=True))


BAD = {
    "one row at an agent": (0.1, lambda X, y: (X, y)),
    "one class at an agent": (0.1, lambda X, y: (X, torch.cat([torch.ones(20).double(), y[20:]]))),
    "duplicate columns": (0.1, lambda X, y: (torch.cat([X, X], 1), y)),
    "mu = 0": (0.0, lambda X, y: (X, y)),
    "mu = 0 and singular": (0.0, lambda X, y: (torch.cat([X, X[:, :1]], 1), y)),
    "another unit": (1e-3, lambda X, y: (X * torch.tensor([1e6, 1, 1, 1]).double(), y)),
    "labels of -1 and 1": (0.1, lambda X, y: (X, 2 * y - 1)),
}
ROBUST = [md.Newton(), md.LBFGS(), md.FedNL(init="zero"), md.GIANT(), md.SHED(), md.SHED.fast()]


@pytest.mark.parametrize("method", quick(1, [md.SHED(), md.Newton(), md.SHED.fast()]), ids=str)
@pytest.mark.parametrize("case", quick(3, BAD))
def test_newton_and_shed_on_bad_data(method, case):
    mu, change = BAD[case]
    fed = md.Federation(md.problems.Logistic(mu=mu), clients=clients(change))
    scale = 1e6 if case == "another unit" else 1.0
    result = md.run(method, fed, 100, target={"grad_norm": 1e-8 * scale}, progress=False)
    assert result.status.outcome == "target"


@pytest.mark.parametrize("method", quick(3, ROBUST), ids=str)
@pytest.mark.parametrize("case", quick(2, [c for c in BAD if "mu = 0" not in c and c != "another unit"]))
def test_rivals_on_bad_data(method, case):
    mu, change = BAD[case]
    fed = md.Federation(md.problems.Logistic(mu=mu), clients=clients(change))
    result = md.run(method, fed, 300, target={"grad_norm": 1e-8}, eval_every=5, progress=False)
    assert result.status.outcome == "target"


@pytest.mark.parametrize("method", ROBUST, ids=str)
def test_nan_is_named(method):
    data = clients()
    data[2][0][5, 1] = torch.nan
    with pytest.raises(md.BadData, match="client 2, row 5, column 1: nan is not finite"):
        md.run(method, md.Federation(md.problems.Logistic(mu=0.1), clients=data), 1, progress=False)


@pytest.mark.parametrize("method", ROBUST, ids=str)
def test_separable_data_have_no_minimiser_and_are_named(method):
    fed = md.Federation(
        md.problems.Logistic(), clients=clients(lambda X, y: (X, (X @ torch.ones(4).double() > 0).double()))
    )
    with pytest.raises(md.Stalled, match=r"separable.*mu") as e:
        md.run(method, fed, 500, progress=False)
    assert e.value.result.history


def test_one_class_and_a_free_intercept_have_no_minimiser():
    fed = md.Federation(
        md.problems.Logistic(mu=0.1, intercept=True), clients=[(torch.eye(3).double(), torch.ones(3))], classes=2
    )
    with pytest.raises(md.Stalled, match="one class"):
        md.run(md.Newton(), fed, 30, progress=False)
