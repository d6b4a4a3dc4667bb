"""Replies that fixed-point numbers change: noted from 1 % on, refused from one half on, and right with the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import medley as md
from medley.secure.ring import MOST, SHARE, Ring, Rounding
from support.pairs import crossed, quick

DIGITS = md.datasets.digits()


def trained(lr=0.5, rounds=3, method=None, **options):
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=DIGITS,
        partition=md.partitions.IID(10),
        weights="uniform",
        pace=md.scenarios.Pace(lr=lr, epochs=1, batch=64),
    )
    return md.run(method or md.FedAvg(), fed, rounds=rounds, progress=False, **options)


SETTINGS = [
    (0.5, {"bound": 2.0**40}),
    (0.5, {"bits": 16, "bound": 300.0}),
    (1e-8, {}),
    (0.5, {"bound": {"delta": 1e10}}),
    (0.5, {"bound": 1e9}),
    (0.5, {"bits": 16, "bound": 1000.0}),
    (1e-4, {"bits": 16}),
    (1e-3, {"bits": 16, "bound": 16.0}),
    (1e-12, {"bound": 0.1}),
    (1e-14, {"bits": 64, "bound": 1e8}),
    (0.5, {"bound": 1e-3}),
    (0.5, {"bits": 16}),
    (0.5, {"bits": 16, "bound": 1e-6}),
    (0.5, {"bits": 64, "bound": 1e-6}),
    (0.5, {"bound": {"delta": 1e-3}}),
    (0.5, {"bound": {"y": 1.0}}),
    (20.0, {"bound": 0.5}),
    (20.0, {"bits": 16, "bound": 0.5}),
]


def followed(message: str) -> md.SecureSum:
    """The settings that a message tells to give."""
    return eval(re.search(r"give (SecureSum\(.*?\))(?=\.|$)", message)[1], {"SecureSum": md.SecureSum})


@pytest.mark.parametrize(("lr", "secure"), quick(8, SETTINGS))
def test_settings_that_do_not_fit_are_refused_and_their_remedy_learns_what_the_plain_run_learns(lr, secure, caplog):
    with pytest.raises(md.MedleyError, match=r"rounding changes 'delta'|beyond SecureSum|no 'delta'") as e:
        trained(lr, secure=md.SecureSum(**secure))
    plain, masked = trained(lr), trained(lr, secure=followed(str(e.value)))
    assert (masked.x - plain.x).norm() <= 1e-3 * plain.x.norm()
    assert not [r for r in caplog.records if "rounding" in r.getMessage()]


@pytest.mark.parametrize("secure", [{"bound": 1e-3}, {"bound": {"delta": 1.0}}, {"bits": 16}, {"bound": 1e12}])
def test_one_remedy_is_enough_for_clients_of_other_sizes_and_a_method_of_several_fields(secure):
    rng = np.random.default_rng(0)
    clients = [(size * rng.normal(size=(30, 3)), rng.normal(size=30)) for size in (0.1, 1.0, 0.3, 2.0)]
    fed = md.Federation(
        md.problems.LeastSquares(mu=1.0), clients=clients, pace=md.scenarios.Pace(lr=0.05, epochs=2, batch=None)
    )
    run = lambda secure: md.run(md.SCAFFOLD(), fed, 5, secure=secure, progress=False)
    with pytest.raises(md.MedleyError) as e:
        run(md.SecureSum(**secure))
    masked, plain = run(followed(str(e.value))), run(None)
    assert (masked.x - plain.x).norm() <= 1e-3 * plain.x.norm()


@pytest.mark.parametrize("secure", [{"bits": 16}, {"bits": 64}])
def test_under_a_clip_the_remedy_keeps_the_digits(secure):
    trial = lambda clip, secure: trained(1e-9, 1, md.Private(md.FedAvg(), clip=clip, noise=0.0), secure=secure)
    with pytest.raises(md.MedleyError, match="so most of it would not arrive; give") as e:
        trial(1e12 if secure["bits"] == 64 else 1.0, md.SecureSum(**secure))
    if secure["bits"] == 64:
        assert str(e.value).endswith("give a smaller clip=")
        masked = trial(1.0, md.SecureSum(**secure))
    else:
        masked = trial(1.0, followed(str(e.value)))
    plain = trained(1e-9, 1)
    assert (masked.x - plain.x).norm() <= 0.01 * plain.x.norm()


@pytest.mark.parametrize(("lr", "bits"), crossed([0.5, 1e-3, 1e-6], [32, 64]))
def test_a_scale_that_suits_is_silent(lr, bits, caplog):
    plain, masked = trained(lr), trained(lr, secure=md.SecureSum(bits=bits, bound=16.0 * lr))
    assert (masked.x - plain.x).norm() <= 1e-4 * plain.x.norm()
    assert not [r for r in caplog.records if "rounding" in r.getMessage()]


def test_a_coarse_one_is_noted_once_a_run_with_its_share(caplog):
    plain, masked = trained(1e-3, 5), trained(1e-3, 5, secure=md.SecureSum(bits=16))
    (line,) = [r.getMessage() for r in caplog.records if "rounding" in r.getMessage()]
    share = float(re.search(r"by ([\d.]+) % of its norm", line)[1]) / 100
    assert SHARE < share < MOST
    assert "'delta'" in line
    caplog.clear()
    trained(1e-3, 5, secure=followed(line))
    assert not [r for r in caplog.records if "rounding" in r.getMessage()]
    # The errors of ten clients and five rounds are independent: they add up as their squares do.
    assert 0.2 * share < (masked.x - plain.x).norm() / plain.x.norm() < share


def test_a_run_that_converges_goes_on(caplog):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    rows = X, X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=20)
    fed = md.Federation(
        md.problems.LeastSquares(mu=0.1), clients=[rows] * 3, pace=md.scenarios.Pace(lr=0.6, batch=None)
    )
    plain, masked = (md.run(md.FedAvg(), fed, 60, secure=s, progress=False) for s in (None, md.SecureSum()))
    assert masked.status.ok
    assert (masked.x - plain.x).norm() < 1e-6
    assert len([r for r in caplog.records if "as close as it gets" in r.getMessage()]) == 1


@pytest.mark.parametrize("size", [0.4, 0.499, 0.6, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_share_is_that_of_rounding(size, dtype, caplog):
    ring = Ring(32, 2.0, {0: 0.5, 1: 0.5}, rounding=Rounding())
    v = size / (ring.scale(2.0) * 0.5) * torch.linspace(-1, 1, 7, dtype=torch.float64).to(dtype)
    steps = v.double().numpy() * ring.scale(2.0) * 0.5
    share = np.linalg.norm(steps - np.rint(steps)) / np.linalg.norm(steps)
    if share > MOST:
        with pytest.raises(md.MedleyError, match=f"by {100 * share:.3g} % of its norm"):
            ring.encoded(1, {"v": v}, ring.layout({"v": v}))
        return
    ring.encoded(1, {"v": v}, ring.layout({"v": v}))
    assert any(f"by {100 * share:.3g} %" in r.getMessage() for r in caplog.records) == (share > SHARE)


@pytest.mark.parametrize("value", [torch.zeros(4), torch.zeros(0), 0.0, None, torch.tensor([3])])
def test_nothing_is_not_small(value):
    ring = Ring(16, 1000.0, {0: 0.5, 1: 0.5}, rounding=Rounding())
    ring.encoded(0, {"v": value}, ring.layout({"v": value}))


def test_under_noise_rounding_does_not_matter():
    method = md.Private(md.FedAvg(), noise=1.0, clip=100.0, noise_at="clients", epsilon=1e9)
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=DIGITS,
        partition=md.partitions.IID(10),
        weights="uniform",
        pace=md.scenarios.Pace(lr=1e-6, epochs=1, batch=64),
    )
    assert md.run(method, fed, rounds=1, secure=md.SecureSum(), progress=False).status.ok
