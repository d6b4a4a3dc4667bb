from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import RecipeError, Unsupported
from support.oracles import digits, run

SHAPES = ((4, 5), (4,), (3, 4), (3,))


def clients(sizes=(9, 5, 12)):
    g = torch.Generator().manual_seed(3)
    return [(torch.randn(n, 5, generator=g).double(), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def parts(x):
    """W₁, b₁, W₂ and b₂ of a flat vector."""
    return [t.view(shape) for t, shape in zip(x.split([math.prod(s) for s in SHAPES]), SHAPES, strict=True)]


def forward(x, X):
    W1, b1, W2, b2 = parts(x)
    z = torch.tanh(X @ W1.T + b1)
    return z, z @ W2.T + b2


def objective(y, x, last, X, labels, mu, tau):
    """(2), written as the paper has it: a cross-entropy of two similarities, of which the first is right."""
    z, logits = forward(y, X)
    supervised = -(logits - logits.logsumexp(1, keepdim=True))[torch.arange(len(X)), labels].mean()
    if last is None:
        return supervised

    def likeness(other):
        other = forward(other, X)[0].detach()
        return (z * other).sum(1) / z.norm(dim=1) / other.norm(dim=1)

    positive, negative = torch.exp(likeness(x) / tau), torch.exp(likeness(last) / tau)
    return supervised - mu * torch.log(positive / (positive + negative)).mean()


def by_hand(x, rounds, cohorts, mu, tau, lr, steps):
    data = clients()
    last = [None] * len(data)
    for t in range(1, rounds + 1):
        ids, moved = cohorts(t), []
        for i in ids:
            y = x
            for _ in range(steps[i]):
                y = y.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(objective(y, x, last[i], *data[i], mu, tau), y)
                y = (y - lr * gradient).detach()
            last[i] = y
            moved.append(len(data[i][0]) * (y - x))
        x = x + sum(moved) / sum(len(data[i][0]) for i in ids)
    return x


@pytest.mark.parametrize("participation", [None, 2 / 3])
def test_rounds_by_hand(participation):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    fed = md.Federation(
        md.problems.Network(net, start="module"),
        clients=clients(),
        classes=3,
        pace=md.scenarios.Pace(lr=0.3, steps=[3, 1, 4], batch=None),
        participation=participation,
    )
    x = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    expected = by_hand(x, 5, fed.draw(0).cohort, mu=2.0, tau=0.4, lr=0.3, steps=[3, 1, 4])
    result = run(md.MOON(mu=2.0, temperature=0.4), fed, 5, dtype="float64").x
    assert float((result - expected).norm()) < 1e-12 * float(expected.norm())
    other = by_hand(x, 5, fed.draw(0).cohort, mu=0.0, tau=0.4, lr=0.3, steps=[3, 1, 4])
    assert float((result - other).norm()) > 1e-3 * float(expected.norm())


def test_mini_batches_are_compared_with_their_own_rows():
    # Of rows that are compared with others, the loss of a model that has not moved would not be log 2.
    scores = []

    class Spy(md.MOON):
        def contrast(self, z, z_glob, z_prev):
            scores.append(float((z.detach() - z_glob).abs().max()))
            return super().contrast(z, z_glob, z_prev)

    run(Spy(), digits(2, lr=1e-9), 2)
    assert len(scores) >= 20
    assert max(scores) < 1e-5


def test_the_loss_in_numbers():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
    near, off = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double(), torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double()
    # Cosines 1 and 1 to the server's, 0 and −1 to the last model's, by τ = ½.
    expected = np.mean([np.log1p(np.exp(-2.0)), np.log1p(np.exp(-4.0))])
    assert float(md.MOON().contrast(z, near, off)) == pytest.approx(expected, rel=1e-12)
    assert float(md.MOON().contrast(z, near, near)) == pytest.approx(math.log(2), rel=1e-12)


def test_without_the_loss_it_is_fedavg_bit_for_bit_and_in_a_first_round_to_rounding():
    fed = digits()
    assert torch.equal(run(md.MOON(mu=0), fed, 3).x, run(md.FedAvg(), fed, 3).x)
    first, second = ([run(m, fed, rounds, dtype="float64").x for m in (md.MOON(), md.FedAvg())] for rounds in (1, 2))
    assert float((first[0] - first[1]).norm()) < 1e-12 * float(first[1].norm())
    assert float((second[0] - second[1]).norm()) > 1e-4 * float(second[1].norm())


def test_models_without_learnt_features_are_refused():
    linear = md.Federation(md.problems.Softmax(mu=1e-3), clients=clients(), classes=3)
    with pytest.raises(Unsupported, match="MOON needs a network with a linear layer at its end"):
        run(md.MOON(), linear, 1)
    net = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
    fed = md.Federation(md.problems.Network(net), clients=[(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))])
    with pytest.raises(Unsupported, match="MOON needs a network with a linear layer at its end"):
        run(md.MOON(), fed, 1)


@pytest.mark.parametrize("setting", [{"mu": -0.1}, {"temperature": 0.0}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="MOON") as e:
        md.MOON(**setting)
    assert e.value.key in setting
