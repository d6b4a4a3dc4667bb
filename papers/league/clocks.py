"""Federations of the groups ``clock-development`` and ``clock``: devices, and virtual seconds to a target accuracy."""

from __future__ import annotations

from data import adults, fashion, mnist, synthetic, tweets
from registry import entry, federation, network

import medley as md
from medley.devices import Devices
from medley.distributions import LogUniform
from medley.partitions import IID, ByKey, Dirichlet, Labels, Quantity
from medley.scenarios import Pace


@entry(
    "clock-development",
    200,
    "digits, softmax, 18 clients, Dirichlet 0.3, a third with a tenth of the uplink",
    target=0.9,
    replies=5,
)
def clock_digits() -> md.Federation:
    devices = Devices(speed=5000.0, down=1e6, up=[1e5 if i % 3 == 0 else 1e6 for i in range(18)], latency=0.02)
    data = md.datasets.digits()
    pace = Pace(lr=0.3, batch=16)
    problem = md.problems.Softmax(mu=1e-4)
    return federation(problem, data, Dirichlet(18, 0.3, minimum=5), pace, devices=devices)


@entry("clock-development", 200, "MNIST 14×14, MLP, 30 clients with 3 labels each, phones", target=0.85, replies=10)
def clock_mnist_phones() -> md.Federation:
    data, model = mnist(3000).flatten(), network(md.models.mlp(196, 10, (32,)))
    pace = Pace(lr=0.1, epochs=2, batch=16)
    return federation(model, data, Labels(30, 3), pace, devices=md.scenarios.phones())


@entry(
    "clock-development",
    200,
    "Fashion-MNIST 14×14, softmax, 12 clients, Dirichlet 0.5, hospitals",
    target=0.78,
    replies=4,
)
def clock_fashion_hospitals() -> md.Federation:
    data = fashion(2400).flatten()
    pace = Pace(lr=0.1, batch=16)
    devices = md.scenarios.hospitals()
    return federation(md.problems.Softmax(mu=1e-4), data, Dirichlet(12, 0.5, minimum=20), pace, devices=devices)


@entry(
    "clock",
    200,
    "digits, MLP, 24 clients with 2 labels each, a third with a tenth of the uplink",
    target=0.88,
    replies=7,
)
def clock_digits_mlp() -> md.Federation:
    devices = Devices(speed=3000.0, down=1e6, up=[5e4 if i % 3 == 0 else 5e5 for i in range(24)], latency=0.02)
    model = network(md.models.mlp(64, 10, (32,)))
    return federation(model, md.datasets.digits(), Labels(24, 2), Pace(lr=0.1, epochs=2, batch=16), devices=devices)


@entry("clock", 200, "Fashion-MNIST 14×14, MLP, 20 clients, Dirichlet 0.2, phones", target=0.78, replies=6)
def clock_fashion_phones() -> md.Federation:
    data, model = fashion(2500).flatten(), network(md.models.mlp(196, 10, (24,)))
    devices = md.scenarios.phones()
    return federation(model, data, Dirichlet(20, 0.2, minimum=10), Pace(lr=0.1, epochs=2, batch=16), devices=devices)


@entry("clock", 200, "a9a, logistic, 40 clients of unequal size, factory", target=0.84, replies=10)
def clock_a9a_factory() -> md.Federation:
    devices = md.scenarios.factory()
    pace = Pace(lr=0.1, batch=16)
    return federation(md.problems.Logistic(mu=1e-4), adults(4000), Quantity(40, 0.5, minimum=8), pace, devices=devices)


@entry("clock", 200, "synthetic(1, 1), softmax, 30 clients, speeds 50 times apart", target=0.75, replies=8)
def clock_synthetic_speeds() -> md.Federation:
    devices = Devices(speed=LogUniform(100, 5000), down=2.5e6, up=1e6, latency=0.02)
    pace = Pace(lr=0.03, epochs=3, batch=10)
    data = synthetic(1, 1, 30)
    return federation(md.problems.Softmax(mu=1e-4), data, ByKey("client"), pace, devices=devices)


@entry("clock", 120, "MNIST 14×14, CNN, 12 clients, Dirichlet 0.3, hospitals", target=0.9, replies=4)
def clock_mnist_cnn_hospitals() -> md.Federation:
    model = network(md.models.cnn((1, 14, 14), 10, (6, 12), 3, 24))
    devices = md.scenarios.hospitals()
    return federation(model, mnist(1500), Dirichlet(12, 0.3, minimum=20), Pace(lr=0.03, batch=16), devices=devices)


@entry(
    "clock",
    200,
    "Sentiment140 tf-idf, logistic, 24 clients at random, a quarter 20 times slower",
    target=0.7,
    replies=8,
)
def clock_tweets_slow() -> md.Federation:
    devices = Devices(speed=[100.0 if i % 4 == 0 else 2000.0 for i in range(24)], down=1e6, up=5e5, latency=0.05)
    pace = Pace(lr=1.0, epochs=2, batch=8)
    return federation(md.problems.Logistic(mu=1e-4), tweets(400).take(5000), IID(24), pace, devices=devices)
