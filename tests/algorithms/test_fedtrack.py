from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from medley.runtime import streams
from medley.testing.faults import Rewired, losing
from support.oracles import digits, error, federation, mean, quadratic_parts, run

TOY = md.problems.synthetic_quadratics(clients=4, d=5, rows=(6, 12), seed=3)


def test_cf5_one_full_batch_step_is_gradient_descent() -> None:
    H, b, p = quadratic_parts(TOY)
    x = md.run(md.FedTrack(), federation(TOY, lr=0.1), 0, progress=False).x
    for _ in range(5):
        x = x - 0.1 * mean([H[i] @ x - b[i] for i in range(4)], p)
    got = run(md.FedTrack(), federation(TOY, lr=0.1), 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param({"epochs": 5}, marks=pytest.mark.slow),
        pytest.param({"epochs": 2, "batch": 3}, marks=pytest.mark.slow),
        pytest.param({"epochs": [1, 2, 3, 4], "batch": 4}, marks=pytest.mark.slow),
    ],
)
def test_cf5_the_fixed_point_is_the_optimum_of_all(pace: dict[str, object]) -> None:
    """Where FedAvg, with the same clients, comes to rest elsewhere."""
    fed = federation(TOY, lr=0.03, **pace)
    assert error(run(md.FedTrack(), fed, 600, eval_every=600), TOY.x_star) < 1e-10
    assert error(run(md.FedAvg(), fed, 600, eval_every=600), TOY.x_star) > 1e-3


def test_cf20_with_one_component_it_is_fedlin() -> None:
    """z ← z − lr·(∇g_i(z) − ∇g_i(x) + ∇g(x)), by hand; and mini-batches of all rows are the full batch."""
    H, b, p = quadratic_parts(TOY)
    x = md.run(md.FedTrack(), federation(TOY, lr=0.05), 0, progress=False).x
    for _ in range(3):
        g = mean([H[i] @ x - b[i] for i in range(4)], p)
        ends = []
        for i in range(4):
            z = x
            for _ in range(3):
                z = z - 0.05 * (H[i] @ (z - x) + g)
            ends.append(z)
        x = mean(ends, p)
    whole = run(md.FedTrack(), federation(TOY, lr=0.05, steps=3), 3)
    assert torch.allclose(whole.x, x, rtol=0, atol=1e-13)
    assert torch.equal(whole.x, run(md.FedTrack(), federation(TOY, lr=0.05, steps=3, batch=12), 3).x)


def test_cf3_drift_cancels_and_cf2_the_first_step_is_everybodys() -> None:
    """Σ p_i (z_i − x) = −lr Σ_k Σ p_i g'_i(z_k): after one mini-batch step that is −lr·∇g(x), whatever the batches."""
    one = run(md.FedTrack(), federation(TOY, lr=0.05, steps=1, batch=3), 1)
    full = run(md.FedTrack(), federation(TOY, lr=0.05, steps=1), 1)
    assert torch.allclose(one.x, full.x, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_a_network_learns() -> None:
    history = run(md.FedTrack(), digits(epochs=3), 10).history
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]


def test_a_client_whose_gradient_was_lost_is_left_out() -> None:
    """Its gradient of an earlier round would be taken for one at x."""
    lost = {(2, 0, 1)}
    fed = federation(TOY, lr=0.05, steps=3)
    r = run(md.FedTrack(), fed, 3, transport=Rewired(md.transports.InProcess(), losing(lost, requests_arrive=True)))
    asked = [(e.method, e.client) for e in r.ledger if e.round == 2]
    assert ("gradient", 1) in asked
    assert ("train", 1) not in asked
    assert ("train", 0) in asked


def test_the_table_weighs_each_mini_batch_by_its_rows_and_keeps_what_it_met() -> None:
    """Two rounds by hand: Σ_B (n_B/n) ∇g_B at the point of its last visit, batches cut once a round and met in turn."""
    fed = federation(TOY, lr=0.05, epochs=2, batch=5)
    x = md.run(md.FedTrack(), fed, 0, progress=False).x
    H, b, p = quadratic_parts(TOY)
    for t in (1, 2):
        g = mean([H[i] @ x - b[i] for i in range(4)], p)
        ends = []
        for i, (X, y) in enumerate(TOY.clients):
            order = torch.randperm(len(y), generator=streams.generator(0, i, t, "batches"))
            cut = [order[k : k + 5] for k in range(0, len(y), 5)]
            met = [x] * len(cut)
            z = x
            for step in range(2 * len(cut)):
                met[step % len(cut)] = z
                own = sum((X[r].T @ (X[r] @ at - y[r]) / len(y) for r, at in zip(cut, met, strict=True)), 0 * x)
                z = z - 0.05 * (own + g - (H[i] @ x - b[i]))
            ends.append(z)
        x = mean(ends, p)
    got = run(md.FedTrack(form="iag"), fed, 2).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_the_fixed_point_of_the_table_is_the_optimum_of_all() -> None:
    fed = federation(TOY, lr=0.03, epochs=2, batch=3)
    assert error(run(md.FedTrack(form="iag"), fed, 400, eval_every=400), TOY.x_star) < 1e-10


def test_the_table_and_the_default_are_two_methods_and_one_with_whole_batches() -> None:
    fed = federation(TOY, lr=0.05, epochs=1, batch=3)
    a, b = (run(md.FedTrack(form=form), fed, 1).x for form in ("svrg", "iag"))
    assert float((a - b).norm()) > 1e-3 * float(b.norm())
    whole = federation(TOY, lr=0.05, steps=3)
    a, b = (run(md.FedTrack(form=form), whole, 3).x for form in ("svrg", "iag"))
    assert torch.allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("pace", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"clip": 1.0}, {"optimizer": "adam"}])
def test_the_table_takes_plain_sgd(pace: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=r'FedTrack\(form="iag"\).*plain SGD') as e:
        run(md.FedTrack(form="iag"), federation(TOY, lr=0.05, batch=3, **pace), 1)
    assert e.value.key == "form"
