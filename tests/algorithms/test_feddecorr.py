from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import medley as md
from medley.contract.errors import RecipeError, Unsupported
from support.oracles import digits, run

official, paper = md.FedDecorr().penalty, md.FedDecorr(reduction="paper").penalty


def features(B, d, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, d, generator=g).double() @ torch.randn(d, d, generator=g).double() + 3


@given(st.integers(3, 64), st.integers(2, 12), st.integers(0, 999))
def test_against_the_correlations_of_numpy(B, d, seed):
    Z = features(B, d, seed)
    rho = np.corrcoef(Z.numpy().T)
    off = (rho**2)[~np.eye(d, dtype=bool)].mean()
    assert float(official(Z)) == pytest.approx((B - 1) ** 2 / B * off, rel=1e-5, abs=1e-7)
    assert float(paper(Z)) == pytest.approx((rho**2).mean(), rel=1e-5)


def test_scale_and_place_of_a_feature_do_not_matter():
    Z = features(20, 5, 1)
    moved = Z * torch.tensor([0.5, 2, -3, 10, 1]).double() + torch.arange(5).double()
    for penalty in (official, paper):
        assert float(penalty(moved)) == pytest.approx(float(penalty(Z)), rel=1e-6)


def test_features_without_correlation_cost_nothing():
    walsh = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()
    assert float(official(walsh)) < 1e-30
    assert float(paper(walsh)) == pytest.approx(1 / 3, rel=1e-7)  # the diagonal alone


@pytest.mark.parametrize("penalty", [official, paper])
def test_a_constant_feature_has_a_finite_gradient(penalty):
    Z = features(8, 4, 2)
    Z[:, 1] = 0.7
    Z.requires_grad_()
    penalty(Z).backward()
    assert torch.isfinite(Z.grad).all()


@pytest.mark.parametrize("penalty", [official, paper])
def test_one_row_has_no_correlations(penalty):
    assert float(penalty(features(1, 4, 3))) == 0


def test_one_feature_has_nobody_to_be_correlated_with():
    assert float(official(features(6, 1, 3))) == 0


def test_without_the_penalty_it_is_fedavg_bit_for_bit():
    a, b = (run(m, digits(), 3).x for m in (md.FedDecorr(beta=0), md.FedAvg()))
    assert torch.equal(a, b)


def test_a_step_goes_down_the_penalised_loss():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(12, 5, generator=g).double(), torch.randint(0, 3, (12,), generator=g)
    fed = md.Federation(
        md.problems.Network(net, start="module"),
        clients=[(X, y)],
        classes=3,
        pace=md.scenarios.Pace(lr=0.3, batch=None),
    )
    Z = torch.tanh(net[0](X))
    Z = (Z - Z.mean(0)) / Z.std(0)
    C = Z.T @ Z
    loss = nn.functional.cross_entropy(net(X), y) + 0.1 * (C.square().sum() - C.diagonal().square().sum()) / (12 * 12)
    loss.backward()
    want = torch.cat([(p - 0.3 * p.grad).detach().reshape(-1) for p in net.parameters()])
    got = run(md.FedDecorr(beta=0.1), fed, 1, dtype="float64").x
    assert torch.allclose(got, want, rtol=0, atol=1e-7)  # 1e-8 stands under the root
    assert float((run(md.FedAvg(), fed, 1, dtype="float64").x - want).norm()) > 1e-3


def test_a_network_without_features_is_refused():
    net = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
    fed = md.Federation(md.problems.Network(net), clients=[(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))])
    with pytest.raises(Unsupported, match="last layer is linear"):
        run(md.FedDecorr(), fed, 1)


@pytest.mark.parametrize("setting", [{"beta": -0.1}, {"beta": float("inf")}, {"reduction": "papers"}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedDecorr") as e:
        md.FedDecorr(**setting)
    assert e.value.key in (*setting, *setting.values())
