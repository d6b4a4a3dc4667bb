from __future__ import annotations

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, run

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 0])  # six of class 0, three of 1, none of 2
PACE = md.scenarios.Pace(lr=0.5, batch=None)


def softmax(**options):
    return md.Federation(md.problems.Softmax(**options), clients=[(X, Y)], classes=3, pace=PACE)


def test_scales_by_hand():
    counts = torch.tensor([6, 3, 0])
    assert md.FedRS(0.5).scales(counts).tolist() == [1, 0.75, 0.5]
    assert md.FedRS(0.2, "paper").scales(counts).tolist() == [1, 1, 0.2]
    assert md.FedRS(0.2).scales(torch.tensor([0, 5])).tolist() == [0.2, 1]
    assert md.FedRS(0.0).scales(counts).tolist() == [1, 0.5, 0]


@pytest.mark.parametrize("rule", ["official", "paper"])
def test_at_zero_a_class_weight_moves_by_its_scale(rule):
    # All logits are 0 at x₀ = 0, whatever their scales, so the gradient is FedAvg's times s_c, row by row.
    method = md.FedRS(0.3, rule)
    scales = method.scales(torch.tensor([6, 3, 0]))
    plain = run(md.FedAvg(), softmax(), 1).x.view(3, 4)
    got = run(method, softmax(), 1).x.view(3, 4)
    assert float(plain[2].norm()) > 0.01
    assert torch.allclose(got, scales[:, None] * plain, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rule", ["official", "paper"])
def test_without_restriction_it_is_fedavg(rule):
    method = md.FedRS(1.0, rule)
    for fed in (digits(), softmax(mu=0.1, intercept=True)):
        a, b = (run(m, fed, 3, dtype="float64").x for m in (method, md.FedAvg()))
        assert float((a - b).norm()) < 1e-12 * float(b.norm())


def test_a_dropped_bias_is_not_trained():
    x = torch.arange(15).double() / 10
    at = {bias: run(md.FedRS(bias=bias), softmax(intercept=True), 3, init=x).x.view(3, 5) for bias in ("drop", "scale")}
    assert torch.equal(at["drop"][:, -1], x.view(3, 5)[:, -1])
    assert float((at["scale"] - x.view(3, 5))[:, -1].abs().min()) > 1e-3


def test_a_dropped_bias_does_not_bend_the_others():
    x = torch.arange(15).double() / 10
    bare = x.view(3, 5).clone()
    bare[:, -1] = 0
    method = md.FedRS(bias="drop")
    a, b = (run(method, softmax(intercept=True), 3, init=z).x.view(3, 5)[:, :-1] for z in (x, bare.reshape(-1)))
    assert torch.allclose(a, b, rtol=0, atol=1e-15)


def test_a_margin_is_scaled_as_its_two_logits_are():
    y = (Y == 1).double()
    x = torch.tensor([0.3, -1.0, 2.0, 0.5]).double()
    fed = md.Federation(md.problems.Logistic(), clients=[(X, y)], classes=2, pace=PACE)
    s = torch.tensor([1, 0.6], dtype=torch.float64)  # 6 rows of class 0 and 3 of class 1 under alpha = 0.2
    w = x.clone().requires_grad_()
    margin = X @ w
    nn.functional.cross_entropy(torch.stack([-s[0] * margin / 2, s[1] * margin / 2], 1), y.long()).backward()
    got = run(md.FedRS(0.2), fed, 1, init=x).x
    assert torch.allclose(got, x - 0.5 * w.grad, rtol=0, atol=1e-14)


def test_a_head_may_have_room_for_more_classes():
    net = nn.Linear(4, 5, bias=False).double()
    nn.init.zeros_(net.weight)
    fed = md.Federation(md.problems.Network(net, start="module"), clients=[(X, Y)], classes=3, pace=PACE)
    plain, got = (run(m, fed, 1, dtype="float64").x.view(5, 4) for m in (md.FedAvg(), md.FedRS(0.3)))
    want = torch.tensor([1, 0.65, 0.3, 0.3, 0.3], dtype=torch.float64)[:, None] * plain
    assert torch.allclose(got, want, rtol=0, atol=1e-15)


def test_a_client_of_one_class_can_train():
    fed = md.Federation(md.problems.Softmax(), clients=[(X[:4], Y[:4]), (X[4:7], Y[4:7])], classes=3, pace=PACE)
    result = run(md.FedRS(0.0), fed, 5)
    assert result.history[-1]["loss"] < result.history[0]["loss"]


@pytest.mark.parametrize("setting", [{"alpha": -0.1}, {"alpha": 1.5}, {"rule": "papers"}, {"bias": "keep"}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedRS") as e:
        md.FedRS(**setting)
    assert e.value.key in (*setting, *setting.values())
