"""SHED against dense Hessians, its theorems, the reference counts, and clients that come and go."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

import medley as md
from medley.algorithms.shed import SHED
from medley.algorithms.shed.paper import fibonacci
from medley.contract.errors import BadData, RecipeError, Stalled, Unsupported
from support.pairs import quick
from support.rig import Rig
from support.toys import LossyTransport


def fast(**settings):
    """`SHED.fast` with these of its settings alone; the others are as in `SHED`."""
    off = {"pairs": None, "rho": "auto", "search": "auto", "lbfgs": 0, "difference": False, "bits": None}
    return SHED.fast(**{**off, **settings})


ALONE = {
    "L-BFGS": fast(lbfgs=30),
    "speculative": fast(search="speculative"),
    "difference": fast(difference=True),
    "geo": fast(rho="geo"),
    "8 bits": fast(bits=8),
    "8 bits ahead": fast(bits=8, search="speculative"),
    "8 bits from above": fast(bits=8, above=True),
    "gradient norm": SHED(renewal="gradient_norm"),
    "periodic": SHED(renewal="periodic", period=7),
    "many pairs": SHED(pairs=5),
    "budget": SHED(budget=8),
}


def breast_cancer(mu: float, **means) -> md.Federation:
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    parts = np.array_split(np.argsort(X[:, 0]), 10)
    f_star = {1e-3: 0.05983977454242, 1e-5: 0.03363455155305}[mu]
    return md.Federation(md.problems.Logistic(mu=mu), clients=[(X[r], y[r]) for r in parts], f_star=f_star, **means)


def to_the_end(method, fed, rounds=200, goal=1e-8, **options):
    return md.run(method, fed, rounds, target={"gap": goal}, progress=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "counts"), [(1e-3, (32, 64, 6)), pytest.param(1e-5, (63, 126, 8), marks=pytest.mark.slow)]
)
def test_reference_counts_on_breast_cancer(mu, counts):
    run = to_the_end(SHED(), breast_cancer(mu))
    assert run.status.outcome == "target"
    last = run.history[-1]
    assert (last["round"], last["exchanges"], last["hessians"]) == counts
    exact = md.run(SHED(), breast_cancer(mu), 2 * counts[0], target={"grad_norm": 1e-10}, progress=False)
    assert abs(exact.summary["gap"]) < 1e-9


@pytest.mark.slow
def test_reference_counts_on_digits(monkeypatch):
    monkeypatch.syspath_prepend("papers/shed")
    import settings

    assert settings.optimum("digits", 1e-5, 0) == pytest.approx(0.00744728488607, abs=1e-13)
    last = [to_the_end(SHED(), settings.federation("digits", 1e-5, seed)).history[-1] for seed in range(5)]
    assert (last[0]["round"], last[0]["exchanges"], last[0]["hessians"]) == (58, 116, 8)
    assert sorted(row["round"] for row in last)[2] == pytest.approx(58, rel=0.15)
    assert all(abs(row["hessians"] - 8) <= 1 for row in last)


def test_sh_8_fibonacci_renewals():
    first = lambda d, k: list(islice(fibonacci(d), k))
    assert first(15, 9) == [1, 2, 4, 7, 12, 20, 34, 48, 62]
    assert first(300, 15) == [1, 2, 4, 7, 12, 20, 33, 54, 88, 143, 232, 376, 675, 974, 1273]
    run = md.run(SHED(), breast_cancer(1e-3), 21, progress=False)
    assert [t for t, (a, b) in enumerate(pairwise(run["hessians"][1:]), 2) if b > a] == [2, 4, 7, 12, 20]


def picture(rig: Rig, i: int):
    """Ĥ_i as the server has it."""
    s = rig.s
    c = s.held.weights({i: 1.0}, s.rho)
    return (s.held.V.T * c) @ s.held.V + s.rho[i] * torch.eye(len(s.x)).double()


@pytest.mark.parametrize("rows", [(20, 40), (3, 5)])
def test_sh_1_2_11_pictures_are_above_and_exact_at_the_rank(rows):
    toy = md.problems.synthetic_logistic(4, d=8, mu=0.01, rows=rows)
    rig = Rig(SHED(renewal="once"), toy)
    x = rig.s.x
    H = [rig.client(i, 1).problem.hessian(x) for i in range(4)]
    for q in range(1, 10):
        rig()
        for i, (X, _) in enumerate(toy.clients):
            off = picture(rig, i) - H[i]
            assert float(torch.linalg.eigvalsh(off)[0]) > -1e-13
            assert rig.s.held.count(i) == min(q, 7, len(X))
            if q >= min(7, len(X)):
                assert float(off.norm()) < 1e-12 * float(H[i].norm())
    assert {m.sent for m in rig.memories().values()} == {min(7, len(X)) for X, _ in toy.clients}


def ill_conditioned(rows, d=9):
    g = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -1.5, d).double()
    clients = []
    for n in torch.randint(*rows, (5,), generator=g).tolist():
        X = torch.randn(n, d, generator=g).double() * scale
        clients.append((X, X @ torch.randn(d, generator=g).double()))
    return md.problems.Synthetic(md.problems.LeastSquares(mu=1e-3), clients, torch.zeros(d), 0.0)


@pytest.mark.parametrize("rows", [(30, 60), (4, 6)])
def test_sh_3_least_squares_contract_as_theorem_3_says(rows):
    d = 9
    toy = ill_conditioned(rows, d)
    rig = Rig(SHED(), toy)
    f = [rig.client(i, 1).problem for i in range(5)]
    zero = torch.zeros(d).double()
    p = torch.tensor(list(rig.sim.p.values()), dtype=torch.float64)
    H = sum(p[i] * f[i].hessian(zero) for i in range(5))
    best = torch.linalg.solve(H, -sum(p[i] * f[i].grad(zero) for i in range(5)))
    lam = torch.stack([torch.linalg.eigvalsh(fi.hessian(zero)).flip(0) for fi in f])
    error = float(best.norm())
    for q in range(1, d + 1):
        rig()
        at = torch.tensor([min(q, d - 1, fi.n) for fi in f])
        following = lam[torch.arange(5), at.clamp(max=d - 1)]
        rho = float(p @ (following + lam[:, -1]) / 2)
        c = 1 - float(p @ lam[:, -1]) / rho
        now = float((rig.s.x - best).norm())
        assert now <= c * error * (1 + 1e-9) + 1e-12
        error = now
    assert error < 1e-10
    assert rig.bookkeeping.ledger.exchanges == d  # one a round: no line search


def test_sh_2_eight_bits_are_above_where_that_is_asked_for():
    toy, least = md.problems.synthetic_logistic(4, d=8, mu=0.01, rows=(20, 40)), {True: [], False: []}
    for above in least:
        rig = Rig(fast(renewal="once", pairs=2, bits=8, above=above), toy)
        H = [rig.client(i, 1).problem.hessian(rig.s.x) for i in range(4)]
        for _ in range(5):
            rig()
            for i in range(4):
                raised = picture(rig, i) + rig.s.lift[i] * torch.eye(8).double()
                least[above].append(float(torch.linalg.eigvalsh(raised - H[i])[0]))
                assert rig.s.lift[i] < 0.02 * float(torch.linalg.eigvalsh(H[i])[-1])
    assert min(least[True]) > -1e-13
    assert min(least[False]) < -1e-5  # which is why it takes an option


@pytest.mark.slow
def test_sh_19_periodic_renewals_contract_as_fast_as_the_lyapunov_bound_a_T():
    # Theorem 10 for least squares: c_k = 1 − λ_n/ρ*_k of the k-th round since the renewal, a_T = (c_1…c_T)^(1/T).
    d, bounds = 9, []
    toy = ill_conditioned((30, 60))
    for period in (2, 4, 6, d):
        rig = Rig(SHED(renewal="periodic", period=period), toy)
        f, p = (
            [rig.client(i, 1).problem for i in range(5)],
            torch.tensor(list(rig.sim.p.values()), dtype=torch.float64),
        )
        zero = torch.zeros(d).double()
        best = torch.linalg.solve(
            sum(w * o.hessian(zero) for w, o in zip(p, f, strict=True)),
            -sum(w * o.grad(zero) for w, o in zip(p, f, strict=True)),
        )
        lam = torch.stack([torch.linalg.eigvalsh(o.hessian(zero)).flip(0) for o in f])
        least = p @ lam[:, -1]
        c = 1 - least / ((p @ lam[:, [min(k, d - 1) for k in range(1, period + 1)]] + least) / 2)
        bounds.append(float(c.prod()) ** (1 / period))
        while rig.t < period - 1:  # renewals are in rounds 1, T, 2T, ...: the first cycle is one short
            rig()
        errors = [float((rig.s.x - best).norm())]
        for _ in range(3):
            for _ in range(period):
                rig()
            errors.append(float((rig.s.x - best).norm()))
            assert errors[-1] <= bounds[-1] ** period * errors[-2] * (1 + 1e-9) + 1e-12
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 1e-6  # as many rounds as dimensions: the last one is exact
    assert errors[-1] < 1e-12


@pytest.mark.parametrize("q", [1, 2, 3])
def test_sh_6_theorem_1_and_corollary_2_rho_star_is_the_best_choice(q):
    # One agent with a diagonal Hessian, and the error where the bound is tight: spread over λ_{q+1} and λ_n.
    lam = torch.tensor([8.0, 2.0, 1.0, 0.5]).double()
    X, error = torch.diag((4 * lam).sqrt()), torch.zeros(4).double()
    error[[q, 3]] = 1.0
    toy = md.problems.Synthetic(md.problems.LeastSquares(), [(X, X @ error)], torch.zeros(4), 0.0)
    left = float((Rig(SHED(pairs=q, search="none"), toy)().x - error).norm())
    star = (lam[q] + lam[3]) / 2
    assert left == pytest.approx(float((1 - lam[3] / star) * error.norm()), abs=1e-12)  # Theorem 1's r*
    for rho in torch.linspace(0.5, float(lam[q]), 9).tolist():  # Corollary 2: every ρ with its own best step, eq. (11)
        eta = 2 * rho / float(lam[q] + lam[3])
        after = (1 - eta * lam / torch.where(torch.arange(4) < q, lam, rho)) * error
        assert left <= float(after.norm()) + 1e-12
    if q == 3:
        assert left < 1e-12


@pytest.mark.parametrize(("rho", "alpha", "least"), [("lambda", 0.49, 1.0), ("star", 0.1, 0.5)])
def test_sh_4_5_steps_that_armijo_accepts_on_quadratics(rho, alpha, least):
    toy = md.problems.synthetic_quadratics(6, d=8)
    run = md.run(
        SHED(rho=rho, search="armijo", alpha=alpha), md.Federation(toy.problem, clients=toy.clients), 8, progress=False
    )
    assert min(run["eta"][1:]) >= least


@pytest.mark.parametrize("option", quick(3, ALONE))
def test_sh_7_every_option_alone_goes_down_to_the_optimum(option):
    toy = md.problems.synthetic_logistic(6, d=8, mu=1e-2, rows=(10, 40))
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
    run = md.run(ALONE[option], fed, 60, target={"grad_norm": 1e-9}, progress=False)
    assert run.status.outcome == "target"
    assert all(b <= a + 1e-15 for a, b in pairwise(run["loss"]))
    assert float((run.x - toy.x_star).norm()) < 1e-7


@pytest.mark.slow
def test_speculation_halves_the_exchanges_and_changes_nothing_else():
    a, b = (to_the_end(m, breast_cancer(1e-3)) for m in (SHED(search="armijo"), fast(search="speculative")))
    assert a.history[-1]["round"] == b.history[-1]["round"] == 32
    assert b.history[-1]["exchanges"] == 33
    assert np.allclose(a["gap"], b["gap"], rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_fast_is_fast():
    slow, quicker = (to_the_end(m, breast_cancer(1e-3)).history[-1] for m in (SHED(), SHED.fast()))
    assert quicker["exchanges"] <= slow["exchanges"] / 4
    assert quicker["bytes_up"] + quicker["bytes_down"] <= (slow["bytes_up"] + slow["bytes_down"]) / 5


def test_differences_make_the_new_hessian_of_the_old_one():
    toy = md.problems.synthetic_logistic(3, d=8, mu=0.01, rows=(20, 40))
    rig = Rig(fast(renewal="periodic", period=6, difference=True, pairs=3), toy)
    for _ in range(6):
        before = rig().x
    del before
    x = rig.s.x
    for _ in range(2):
        rig()
    H = [rig.client(i, 1).problem.hessian(m.of) for i, m in rig.memories().items()]
    assert all(not torch.equal(m.of, x * 0) for m in rig.memories().values())
    rig()
    for i in range(3):
        assert float((picture(rig, i) - H[i]).norm()) < 1e-10 * float(H[i].norm())


@pytest.mark.slow
@pytest.mark.parametrize("method", [SHED(), SHED.fast()], ids=["paper", "fast"])
def test_clients_that_miss_a_fifth_of_the_rounds_cost_half_as_many_more_at_most(method):
    there = md.participation.Bernoulli(0.8)
    everyone = to_the_end(method, breast_cancer(1e-3), goal=1e-7).history[-1]["round"]
    rounds = []
    for seed in range(3):
        run = to_the_end(method, breast_cancer(1e-3, participation=there), goal=1e-7, seed=seed)
        assert run.status.outcome == "target"
        rounds.append(run.history[-1]["round"])
    assert sorted(rounds)[1] <= 1.5 * everyone


@pytest.mark.parametrize("method", quick(1, [SHED(pairs=2), SHED.fast()]), ids=["paper", "fast"])
def test_lost_requests_and_replies_leave_both_ends_in_step(method):
    toy = md.problems.synthetic_logistic(6, d=8, mu=1e-2, rows=(10, 40))
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
    lost = {
        (t, e, i): ("request", "reply")[(t + i + e) % 2]
        for t in range(1, 30)
        for e in range(2)
        for i in range(6)
        if (3 * t + i + e) % 5 == 0
    }
    run = md.run(method, fed, 60, target={"grad_norm": 1e-8}, progress=False, transport=LossyTransport(lost))
    assert run.status.outcome == "target"
    assert float((run.x - toy.x_star).norm()) < 1e-6


@pytest.mark.slow
def test_few_pairs_of_many_dimensions_are_found_by_lanczos():
    d, n = 1100, 1000
    g = torch.Generator().manual_seed(2)
    scale = torch.logspace(0, -2, d).double()
    clients = [
        (torch.randn(n, d, generator=g).double() * scale, torch.randint(2, (n,), generator=g).double())
        for _ in range(2)
    ]
    fed = md.Federation(md.problems.Logistic(mu=1e-3), clients=clients)
    rig = Rig(SHED(renewal="once", pairs=3), md.problems.Synthetic(fed.problem, clients, torch.zeros(d), 0.0))
    for _ in range(7):  # 16 pairs are found to begin with, 21 are sent
        rig()
    for i, m in rig.memories().items():
        assert m.spectrum.partial
        H = rig.client(i, 1).problem.hessian(m.of)
        lam, V = torch.linalg.eigvalsh(H).flip(0), rig.s.held.V[rig.s.held.owner == i]
        assert len(V) == m.sent == 21
        assert torch.allclose(rig.s.held.lam[rig.s.held.owner == i], lam[:21], rtol=1e-10)
        assert rig.s.rho[i] == pytest.approx(float(lam[21]), rel=1e-6)
        assert float((H @ V.T - V.T * lam[:21]).norm()) < 1e-9 * float(lam[0])
    run = md.run(SHED(pairs=3), fed, 12, progress=False)
    assert run["loss"] == sorted(run["loss"], reverse=True)


@pytest.mark.parametrize("method", [SHED(), SHED.fast(), md.MontDec(pairs=2)], ids=["paper", "fast", "Mont-Dec"])
def test_separable_rows_without_a_ridge_have_no_minimiser(method):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(30, 4, generator=g).double()
    fed = md.Federation(
        md.problems.Logistic(), clients=[(X[k : k + 10], (X[k : k + 10, 0] > 0).double()) for k in (0, 10, 20)]
    )
    with pytest.raises(Stalled, match="separable"):
        md.run(method, fed, 200, progress=False)


def test_sh_9_pairs_are_sent_once_and_bytes_are_what_travels():
    d, M = 8, 6
    toy = md.problems.synthetic_logistic(M, d=d, mu=1e-2, rows=(10, 40))
    pairs = (0, 1, 2, 3, 5, 9)
    pace = md.scenarios.Pace(pairs=pairs)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=pace)
    run = md.run(SHED(renewal="once"), fed, 10, progress=False)
    for i, k in enumerate(pairs):
        reports = [e for e in run.ledger if e.method == "report" and e.client == i]
        sent = [(e.up - 8 * (d + 2)) // (8 * (d + 1)) for e in reports]
        assert [e.up for e in reports] == [8 * (q * (d + 1) + d + 2) for q in sent]
        assert sent == [min(k, max(0, d - 1 - k * t)) for t in range(10)]
        assert {e.down for e in reports} == {8 * d + 8}
        assert {(e.down, e.up) for e in run.ledger if e.method == "losses"} == {(8 * d + 8, 8 * 13)}
    eight = md.run(fast(renewal="once", bits=8), fed, 10, progress=False)
    ups = {e.up for e in eight.ledger if e.method == "report" and e.client == 2}
    assert ups == {q * (d + 16) + d + 8 + 16 for q in (0, 1, 2)}


@pytest.mark.slow
def test_sh_12_a_run_sends_what_the_rayleigh_channel_draws():
    d, M, rounds = 14, 100, 20
    g = torch.Generator().manual_seed(1)
    clients = [(torch.randn(15, d, generator=g).double(), torch.randn(15, generator=g).double()) for _ in range(M)]
    pace = md.scenarios.Pace(pairs=md.distributions.Rayleigh(), redraw=True)
    fed = md.Federation(md.problems.LeastSquares(mu=0.1), clients=clients, pace=pace)
    run = md.run(SHED(renewal="periodic", period=1), fed, rounds, progress=False, eval_every=rounds)
    sent = np.array([(e.up - 8 * (d + 2)) / (8 * (d + 1)) for e in run.ledger])
    assert len(sent) == M * rounds
    assert set(sent) <= set(range(d))
    assert sent.mean() == pytest.approx(3.814, abs=4 * sent.std() / len(sent) ** 0.5)
    assert (sent == 0).mean() == pytest.approx(0.079, abs=4 * (0.079 * 0.921 / len(sent)) ** 0.5)


def test_sh_10_all_pairs_of_every_hessian_are_newtons_method():
    toy = md.problems.synthetic_logistic(5, d=7, mu=1e-2, rows=(10, 40))
    fed = md.Federation(toy.problem, clients=toy.clients)
    p = fed.draw(0).p
    f = Rig(SHED(), toy)
    x = torch.zeros(7).double()
    for _ in range(4):
        parts = [(p[i], f.client(i, 1).problem) for i in p]
        x = x - torch.linalg.solve(sum(w * o.hessian(x) for w, o in parts), sum(w * o.grad(x) for w, o in parts))
    for method in (SHED(renewal="periodic", period=1, pairs=6), md.MontDec(pairs=6)):
        run = md.run(method, fed, 4, progress=False)
        assert run["eta"][1:] == [1.0] * 4
        assert torch.allclose(run.x, x, rtol=0, atol=1e-11)


def test_montdec_forgets():
    toy = md.problems.synthetic_logistic(4, d=8, mu=1e-2, rows=(10, 40))
    rig = Rig(md.MontDec(pairs=2), toy)
    for _ in range(4):
        rig()
        assert [rig.s.held.count(i) for i in range(4)] == [2] * 4
    H = rig.client(1, 1).problem.hessian(rig.memories()[1].x)
    assert torch.allclose(picture(rig, 1) - H, (picture(rig, 1) - H).T)
    assert float(torch.linalg.eigvalsh(picture(rig, 1) - H)[0]) > -1e-13


def test_least_squares_renew_once_and_search_for_nothing():
    resolved = SHED().suited(frozenset({"quadratic"}))
    assert (resolved.renewal, resolved.rho, resolved.search) == ("once", "star", "none")
    resolved = SHED().suited(frozenset({"convex"}))
    assert (resolved.renewal, resolved.rho, resolved.search) == ("fibonacci", "lambda", "armijo")
    resolved = SHED.fast().suited(frozenset({"quadratic"}))
    assert (resolved.rho, resolved.search, resolved.renewal) == ("geo", "speculative", "once")


@pytest.mark.parametrize("method", [SHED(), SHED.fast()], ids=["paper", "fast"])
def test_singular_problems_without_a_ridge_still_go_to_a_minimum(method):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(30, 4, generator=g).double()
    X = torch.cat([X, X[:, :1], 1e6 * X[:, 1:2]], 1)  # one column twice, one in other units
    y = (X[:, 0] + torch.randn(30, generator=g).double() > 0).double()
    fed = md.Federation(md.problems.Logistic(), clients=[(X[:10], y[:10]), (X[10:], y[10:])])
    run = md.run(method, fed, 80, progress=False, throw=False, target={"grad_norm": 1e-6})
    assert run.status.outcome == "target"


@pytest.mark.slow
def test_columns_in_other_units_cost_fast_shed_no_rounds_and_hardly_a_byte():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    X[:, [0, 7, 12]] *= 1e6
    parts = [(X[r], y[r]) for r in np.array_split(np.argsort(X[:, 0]), 10)]
    fed = md.Federation(md.problems.Logistic(mu=1e-3), clients=parts)
    fed.f_star = md.run(md.Newton(), fed, 30, target={"grad_norm": 1e-6}, progress=False).history[-1]["loss"]
    whole, coarse = (to_the_end(replace(SHED.fast(), bits=bits), fed, 40).history[-1] for bits in (None, 8))
    assert coarse["exchanges"] <= whole["exchanges"] + 3
    assert coarse["bytes_up"] < whole["bytes_up"] / 3


def test_data_that_are_no_numbers_are_named():
    X = np.ones((4, 3))
    X[2, 1] = np.nan
    with pytest.raises(BadData, match="row 2, column 1") as e:
        md.Federation(md.problems.Logistic(), clients=[(np.ones((4, 3)), [0, 1, 0, 1]), (X, [0, 1, 0, 1])])
    assert (e.value.client, e.value.row, e.value.column) == (1, 2, 1)


def test_networks_have_no_factor():
    data = md.datasets.gaussian_classes(60)
    fed = md.Federation(
        md.problems.Network(md.models.mlp(data.X.shape[1], data.classes)),
        data=data,
        partition=md.partitions.IID(clients=3),
    )
    with pytest.raises(Unsupported, match="SHED needs"):
        md.run(SHED(), fed, 1, progress=False)


@pytest.mark.parametrize(
    "setting",
    [
        {"renewal": "fibonaci"},
        {"rho": "gee"},
        {"search": "line"},
        {"period": 0},
        {"b": 0.0},
        {"pairs": -1},
        {"pairs": (1, -2)},
        {"alpha": 0.5},
    ],
)
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="SHED"):
        SHED(**setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"lbfgs": -1},
        {"bits": 9},
        {"above": True, "bits": None, "rho": "lambda", "difference": False},
        {"above": True, "difference": False},
        {"above": True, "rho": "lambda"},
        {"alpha": 0.5},
    ],
)
def test_refuses_settings_of_the_fast_form_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match=r"SHED\.fast"):
        SHED.fast(**setting)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("lbfgs", 30), ("difference", True), ("bits", 8), ("above", True), ("rho", "geo")),
        ("search", "speculative"),
    ],
)
def test_a_setting_beyond_the_paper_names_the_form_that_has_it(setting, value):
    with pytest.raises(RecipeError, match=rf"^SHED\({setting}=.*\) is gone: .*SHED\.fast") as e:
        SHED(**{setting: value})
    assert e.value.key == setting
    assert getattr(SHED.fast(**{"rho": "lambda", "difference": False, setting: value}), setting) == value
    nine = ("renewal", "period", "b", "pairs", "rho", "search", "alpha", "beta", "tries")
    assert tuple(f.name for f in fields(SHED)) == (*nine, "budget")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("MEDLEY_DATA" not in os.environ, reason="MEDLEY_DATA is not set")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "rounds", "hessians"), [("fm", 197, 10), ("w8a", 217, 10)])
def test_reference_counts_on_large_data(name, rounds, hessians, monkeypatch):
    monkeypatch.syspath_prepend("papers/shed")
    import settings

    last = to_the_end(SHED(), settings.federation(name, 1e-5, 0), 400).history[-1]
    assert last["round"] == pytest.approx(rounds, rel=0.15)
    assert abs(last["hessians"] - hessians) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("mu", [1e-6, *(pytest.param(mu, marks=pytest.mark.slow) for mu in (0, 1e-4))])
def test_rounding_where_no_pair_is_left_to_send(mu):
    """Clients of fewer rows than columns: ρ would be μ, and what 8 bits took off the pairs is more."""
    r = torch.Generator().manual_seed(0)
    rows = [(torch.randn(n, 12, generator=r).double(), torch.randn(n, generator=r).double()) for n in (3, 4, 2)]
    fed = md.Federation(md.problems.LeastSquares(mu=mu), clients=rows)
    end = md.run(md.SHED.fast(), fed, 100, target={"grad_norm": 1e-7}, progress=False)
    assert end.status.outcome == "target"
    end = md.run(fast(bits=8), fed, 40, progress=False)
    assert end.history[-1]["loss"] < 0.1 * end.history[0]["loss"]


def test_pairs_are_one_number_or_one_a_client():
    rows = [(torch.eye(3).double(), torch.tensor([1.0, -1.0, 1.0]))] * 2
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=rows)
    for pairs in ([1], [1, 2, 3]):
        with pytest.raises(md.RecipeError, match=f"{len(pairs)} numbers for 2 clients"):
            md.run(md.SHED(pairs=pairs), fed, 1, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("off", [300, *(pytest.param(off, marks=pytest.mark.slow) for off in (30, 3000))])
def test_codes_have_more_bits_where_one_direction_drowns_the_others(off):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] - X[:, 1] + rng.normal(size=200) > 0).astype(int)
    clients = [(X[q] + off, y[q]) for q in np.array_split(np.argsort(X[:, 0]), 4)]
    fed = md.Federation(md.problems.Logistic(mu=1e-3, intercept=True), clients=clients)
    best = md.run(md.Newton(), fed, 40, progress=False).summary["loss"]
    r = md.run(md.SHED.fast(), fed, 60, progress=False)
    assert r.summary["loss"] - best < 1e-10
    centred = md.Federation(
        md.problems.Logistic(mu=1e-3, intercept=True), clients=[(x - off, labels) for x, labels in clients]
    )
    assert md.run(md.SHED.fast(), centred, 60, progress=False).ledger.up < r.ledger.up  # 8 bits do


@pytest.mark.slow
@pytest.mark.parametrize("off", [30, 300])
def test_a_far_mean_costs_bits_of_a_few_vectors_alone(off):
    """Columns of means of a client's own, up to ``off`` spreads from 0, and clients with sorted rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 20))
    y = (X[:, 0] - X[:, 1] + rng.normal(size=600) > 0).astype(int)
    X = X + off * rng.normal(size=20)
    fed = md.Federation(
        md.problems.Logistic(mu=1e-3, intercept=True),
        clients=[(X[q], y[q]) for q in np.array_split(np.argsort(X[:, 0]), 6)],
    )
    fed.f_star = md.run(md.Newton(), fed, 40, progress=False).summary["loss"]
    plain, coded = (to_the_end(replace(SHED.fast(), bits=bits), fed, 60).history[-1] for bits in (None, 8))
    assert coded["exchanges"] <= plain["exchanges"] + 4
    assert coded["bytes_up"] < plain["bytes_up"] / 2
