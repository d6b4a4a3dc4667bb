"""FedNew: the paper's recursion in closed form, Σ p_i λ_i = 0, its fixed point, and lost replies."""

from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import quadratic_parts
from support.rig import Rig

TOY = md.problems.synthetic_logistic(clients=5, d=6, mu=1e-1, rows=(20, 60), spread=0.5)
QUAD = md.problems.synthetic_quadratics(clients=5, d=6, rows=(8, 30))


def test_the_papers_recursion_on_quadratics():
    """(H_i + (α + ρ)I) y_i = ∇f_i − λ_i + ρy, y = Σ p_i y_i, λ_i ← λ_i + ρ(y_i − y), x ← x − y: Algorithm 1."""
    rho, alpha = 1.0, 0.05
    rig = Rig(md.FedNew(rho, alpha), QUAD)
    H, b, p = quadratic_parts(QUAD)
    eye, n = torch.eye(6, dtype=torch.float64), range(len(H))
    x = torch.zeros(6, dtype=torch.float64)
    y, dual = torch.zeros_like(x), [torch.zeros_like(x) for _ in n]
    for _ in range(25):
        y_i = [torch.linalg.solve(H[i] + (alpha + rho) * eye, H[i] @ x - b[i] - dual[i] + rho * y) for i in n]
        y = sum(p[i] * y_i[i] for i in n)
        dual = [dual[i] + rho * (y_i[i] - y) for i in n]
        x = x - y
        torch.testing.assert_close(rig().x, x, rtol=1e-10, atol=1e-11)
    assert float((x - QUAD.x_star).norm()) < 0.01 * float(QUAD.x_star.norm())


@pytest.mark.parametrize("period", [0, 1, 3])
def test_hessians_are_as_old_as_the_period_says(period: int):
    rho, alpha = 0.3, 0.01
    rig = Rig(md.FedNew(rho, alpha, period), TOY)
    x, y = rig.s.x, torch.zeros(6, dtype=torch.float64)
    dual, of, eye = {i: y for i in rig.all}, x, torch.eye(6, dtype=torch.float64)
    for t in range(1, 8):
        of = x if t == 1 or (period and (t - 1) % period == 0) else of
        y_i = {}
        for i in rig.all:
            f = rig.client(i, 1).problem
            y_i[i] = torch.linalg.solve(f.hessian(of) + (alpha + rho) * eye, f.grad(x) - dual[i] + rho * y)
        y = sum(p * y_i[i] for i, p in rig.sim.p.items())
        dual = {i: dual[i] + rho * (y_i[i] - y) for i in rig.all}
        x = x - y
        torch.testing.assert_close(rig().x, x, rtol=1e-10, atol=1e-11)
    assert all((m.H is None) == (period == 1) for m in rig.memories().values())


def test_the_duals_sum_to_0_and_end_at_the_clients_gradients():
    """At x* y = 0, so λ_i = ∇f_i(x*)."""
    rig = Rig(md.FedNew(), TOY)
    for _ in range(60):
        rig()
        total = sum(p * rig.memories()[i].dual for i, p in rig.sim.p.items())
        assert float(total.norm()) < 1e-13
    assert float((rig.s.x - TOY.x_star).norm()) < 1e-8
    for i, m in rig.memories().items():
        torch.testing.assert_close(m.dual, rig.grad(i, TOY.x_star), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_a_lost_reply_costs_the_balance_for_two_rounds_only():
    rig = Rig(md.FedNew(), TOY, lost={(4, 0, 1): "reply"})
    sums = []
    for _ in range(60):
        rig()
        sums.append(float(sum(p * rig.memories()[i].dual for i, p in rig.sim.p.items()).norm()))
    assert max(sums[:3]) < 1e-13
    assert max(sums[3:5]) > 1e-4
    assert max(sums[6:]) < 1e-13
    assert float((rig.s.x - TOY.x_star).norm()) < 1e-8


def test_equal_clients_without_damping_are_newtons_method_in_the_limit_of_no_agreement():
    """ρ → 0, α = 0 and clients alike: y_i = H⁻¹g."""
    toy = md.problems.synthetic_logistic(clients=1, d=5, mu=1e-1, rows=(60, 60))
    fed = md.Federation(toy.problem, clients=toy.clients * 3)
    a, b = (md.run(m, fed, 3, progress=False).x for m in (md.FedNew(1e-9, 0.0), md.Newton()))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_wrong_settings_are_named():
    for wrong in ({"rho": 0.0}, {"alpha": -1.0}, {"period": -1}):
        with pytest.raises(RecipeError, match=r"FedNew\(\w+=.*must be") as e:
            md.FedNew(**wrong)  # type: ignore[arg-type]
        assert e.value.key == next(iter(wrong))
