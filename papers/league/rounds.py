"""Federations of the groups ``development``, ``networks`` and ``test``.

A run has a fixed number of rounds, a few seconds long.
"""

from __future__ import annotations

import dataclasses

from data import adults, cifar, cifar100, fashion, mnist, news, scaled, synthetic, tokens, tweets, years
from registry import entry, federation, network
from torch import nn

import medley as md
from medley.distributions import Integers, LogUniform
from medley.partitions import ByKey, Dirichlet, Labels, Quantity, Shards
from medley.scenarios import Pace

# Development.


@entry("development", 40, "digits, softmax, 20 clients, Dirichlet 0.3, all take part")
def digits_softmax_dirichlet() -> md.Federation:
    data = md.datasets.digits()
    return federation(md.problems.Softmax(mu=1e-4), data, Dirichlet(20, 0.3, minimum=5), Pace(lr=1.0, batch=16))


@entry("development", 60, "MNIST 14×14, MLP, 50 clients with 2 labels each, a fifth takes part")
def mnist_mlp_two_labels() -> md.Federation:
    data, model = mnist(4000).flatten(), network(md.models.mlp(196, 10, (32,)))
    return federation(model, data, Labels(50, 2), Pace(lr=0.2, epochs=2, batch=16), participation=0.2)


@entry("development", 40, "Fashion-MNIST 14×14, CNN, 20 clients, Dirichlet 0.3, a quarter takes part, 1 to 4 epochs")
def fashion_cnn_unequal() -> md.Federation:
    data, model = fashion(2500), network(md.models.cnn((1, 14, 14), 10, (6, 12), 3, 24))
    pace = Pace(lr=LogUniform(0.03, 0.12), epochs=Integers(1, 4), batch=16)
    return federation(model, data, Dirichlet(20, 0.3, minimum=10), pace, participation=0.25)


@entry(
    "development",
    60,
    "a9a, logistic, 100 clients of unequal size, a tenth takes part, 2 to 30 steps",
    metric="test_loss",
)
def a9a_logistic_sizes() -> md.Federation:
    pace = Pace(lr=0.3, steps=Integers(2, 30), batch=16, redraw=True)
    partition = Quantity(100, 0.5, minimum=8)
    return federation(md.problems.Logistic(mu=1e-4), adults(8000), partition, pace, participation=0.1)


@entry("development", 60, "Sentiment140 tf-idf, logistic, days as clients, a third takes part")
def tweets_logistic_days() -> md.Federation:
    pace = Pace(lr=2.0, steps=10, batch=8)
    partition = ByKey("day", minimum=30)
    return federation(md.problems.Logistic(mu=1e-4), tweets(400), partition, pace, participation=1 / 3)


@entry(
    "development",
    40,
    "Online News, least squares, 7 channels, all take part, T differs up to 50 times",
    metric="test_loss",
)
def news_regression_channels() -> md.Federation:
    pace = Pace(lr=LogUniform(0.002, 0.014), steps=Integers(5, 35), batch=32)
    return federation(md.problems.LeastSquares(mu=1e-3, intercept=True), news(), ByKey("channel"), pace)


@entry("development", 60, "synthetic(1, 1), softmax, 30 clients, a third takes part")
def synthetic_softmax() -> md.Federation:
    pace = Pace(lr=0.03, epochs=5, batch=10)
    data = synthetic(1, 1, 30)
    return federation(md.problems.Softmax(mu=1e-4), data, ByKey("client"), pace, participation=1 / 3)


@entry(
    "development",
    40,
    "breast cancer, logistic, 10 clients, Dirichlet 0.5, all take part, T differs up to 50 times",
    metric="test_loss",
)
def breast_logistic_unequal() -> md.Federation:
    data = md.datasets.breast_cancer().standardise()
    pace = Pace(lr=LogUniform(0.03, 0.21), steps=Integers(5, 35), batch=8)
    return federation(md.problems.Logistic(mu=1e-3), data, Dirichlet(10, 0.5, minimum=8), pace)


@entry("development", 30, "MNIST 14×14, ResNet-8 with group norm, 8 clients, Dirichlet 0.5, half takes part")
def mnist_resnet_dirichlet() -> md.Federation:
    model = network(md.models.resnet((1, 14, 14), 10, (1, 1, 1), 16))
    return federation(model, mnist(500), Dirichlet(8, 0.5, minimum=20), Pace(lr=0.1, batch=20), participation=0.5)


@entry("development", 40, "Sentiment140 tokens, text CNN, 60 clients, Dirichlet 0.5, a sixth takes part")
def tweets_cnn_dirichlet() -> md.Federation:
    model = network(md.models.text_cnn(1000, 2, 16, (2, 3), 12, 0.0))
    pace = Pace(lr=0.3, epochs=2, batch=16)
    return federation(model, tokens(1000, 20).take(6000), Dirichlet(60, 0.5, minimum=8), pace, participation=1 / 6)


@entry(
    "development",
    50,
    "Million Song years, MLP regression, natural years, a third takes part",
    metric="test_loss",
)
def years_mlp_natural() -> md.Federation:
    model = network(nn.Sequential(nn.Linear(54, 24), nn.ReLU(), nn.Linear(24, 1), nn.Flatten(0)), loss="mse")
    pace = Pace(lr=0.008, epochs=2, batch=16)
    return federation(model, years(), ByKey("year"), pace, participation=1 / 3)


# Networks on clients that all take part, which the development group lacks.


@entry("networks", 40, "Fashion-MNIST 14×14, CNN, 10 clients, Dirichlet 0.5, all take part")
def fashion_cnn_everyone() -> md.Federation:
    model = network(md.models.cnn((1, 14, 14), 10, (6, 12), 3, 24))
    return federation(model, fashion(2500), Dirichlet(10, 0.5, minimum=20), Pace(lr=0.05, epochs=2, batch=25))


@entry("networks", 40, "MNIST 14×14, MLP, 20 clients with 2 labels each, all take part")
def mnist_mlp_everyone() -> md.Federation:
    data, model = mnist(3000).flatten(), network(md.models.mlp(196, 10, (32,)))
    return federation(model, data, Labels(20, 2), Pace(lr=0.1, epochs=2, batch=16))


@entry("networks", 40, "Sentiment140 tokens, text CNN, 10 clients, Dirichlet 0.3, all take part")
def tweets_cnn_everyone() -> md.Federation:
    model = network(md.models.text_cnn(1000, 2, 16, (2, 3), 12, 0.0))
    pace = Pace(lr=0.3, epochs=2, batch=20)
    return federation(model, tokens(1000, 20).take(4000), Dirichlet(10, 0.3, minimum=20), pace)


@entry("networks", 40, "CIFAR-100 16×16, CNN, 10 clients, Dirichlet 0.5, all take part")
def cifar100_cnn_everyone() -> md.Federation:
    model = network(md.models.cnn((3, 16, 16), 100, (8, 16), 3, 64))
    return federation(model, cifar100(3000), Dirichlet(10, 0.5, minimum=20), Pace(lr=0.05, epochs=2, batch=25))


# Test.


@entry("test", 60, "MNIST 14×14, softmax, 100 clients of 2 shards, a tenth takes part")
def mnist_softmax_shards() -> md.Federation:
    data = mnist(6000).flatten()
    pace = Pace(lr=0.3, epochs=2, batch=10)
    return federation(md.problems.Softmax(mu=1e-4), data, Shards(100, 2), pace, participation=0.1)


@entry("test", 40, "Fashion-MNIST 14×14, MLP, 30 clients, Dirichlet 0.1, all take part, 1 to 5 epochs")
def fashion_mlp_unequal() -> md.Federation:
    data, model = fashion(3000).flatten(), network(md.models.mlp(196, 10, (32,)))
    pace = Pace(lr=LogUniform(0.04, 0.2), epochs=Integers(1, 5), batch=16)
    return federation(model, data, Dirichlet(30, 0.1, minimum=8), pace)


@entry("test", 40, "CIFAR-10 16×16, CNN, 10 clients, Dirichlet 0.5, all take part")
def cifar_cnn_dirichlet() -> md.Federation:
    model = network(md.models.cnn((3, 16, 16), 10, (8, 16), 3, 32))
    return federation(model, cifar(2500), Dirichlet(10, 0.5, minimum=20), Pace(lr=0.05, epochs=2, batch=25))


@entry("test", 40, "CIFAR-10 16×16, ResNet-8 with group norm, 10 clients with 3 labels each, all take part")
def cifar_resnet_labels() -> md.Federation:
    model = network(md.models.resnet((3, 16, 16), 10, (1, 1, 1), 16))
    return federation(model, cifar(1000), Labels(10, 3), Pace(lr=0.1, batch=20))


@entry("test", 60, "w8a, logistic, 500 clients of unequal size, 5 % take part", metric="test_loss")
def w8a_logistic_many() -> md.Federation:
    data = md.datasets.w8a().take(12000, 3000)
    pace = Pace(lr=3.0, epochs=2, batch=8)
    return federation(md.problems.Logistic(mu=1e-4), data, Quantity(500, 1.0, minimum=4), pace, participation=0.05)


@entry("test", 50, "a9a, MLP, 5 age brackets as clients, all take part, 5 to 40 steps", metric="test_loss")
def a9a_mlp_ages() -> md.Federation:
    model = network(md.models.mlp(123, 2, (16,)))
    return federation(model, adults(6000), ByKey("age"), Pace(lr=0.1, steps=Integers(5, 40), batch=16))


@entry("test", 50, "Sentiment140 tokens, LSTM, days as clients, a quarter takes part")
def tweets_lstm_days() -> md.Federation:
    model = network(md.models.lstm(600, 2, 12, 16))
    pace = Pace(lr=2.0, steps=20, batch=16)
    return federation(model, tokens(600, 14), ByKey("day", minimum=20), pace, participation=0.25)


@entry(
    "test", 50, "Online News above its median of shares, logistic, 7 weekdays, 3 take part, T differs up to 20 times"
)
def news_logistic_weekdays() -> md.Federation:
    data = news()
    assert data.y_test is not None
    middle = data.y.median()
    y, y_test = ((v > middle).long() for v in (data.y, data.y_test))
    data = dataclasses.replace(data, y=y, y_test=y_test, classes=2)
    pace = Pace(lr=LogUniform(0.005, 0.02), steps=Integers(4, 20), batch=32)
    problem = md.problems.Logistic(mu=1e-3)
    return federation(problem, data, ByKey("weekday"), pace, participation=3 / 7)


@entry("test", 60, "Million Song years, least squares, natural years, 30 % take part", metric="test_loss")
def years_regression_natural() -> md.Federation:
    problem = md.problems.LeastSquares(mu=1e-3, intercept=True)
    return federation(problem, years(), ByKey("year"), Pace(lr=0.002, epochs=2, batch=16), participation=0.3)


@entry("test", 30, "FLamby's Heart Disease, logistic, 4 hospitals, all take part", metric="test_loss")
def heart_logistic_hospitals() -> md.Federation:
    problem = md.problems.Logistic(mu=1e-3, intercept=True)
    return federation(problem, md.datasets.heart_disease(), ByKey("centre"), Pace(lr=0.06, steps=30, batch=4))


@entry("test", 20, "FLamby's TCGA-BRCA, linear Cox model, 6 regions, all take part", metric="test_loss")
def brca_cox_regions() -> md.Federation:
    model = network(nn.Linear(39, 1), loss=md.problems.cox)
    return federation(model, md.datasets.tcga_brca(), ByKey("centre"), Pace(lr=0.03, steps=25, batch=16))


@entry("test", 60, "synthetic(0.5, 0.5), MLP, 60 clients, a sixth takes part, 1 to 8 epochs")
def synthetic_mlp_unequal() -> md.Federation:
    pace = Pace(lr=0.05, epochs=Integers(1, 8), batch=10, redraw=True)
    model = network(md.models.mlp(60, 10, (24,)))
    return federation(model, synthetic(0.5, 0.5, 60), ByKey("client"), pace, participation=1 / 6)


@entry("test", 40, "diabetes, least squares, 5 clients of unequal size, all take part", metric="test_loss")
def diabetes_regression_sizes() -> md.Federation:
    data = scaled(md.datasets.diabetes().standardise())
    problem = md.problems.LeastSquares(mu=1e-3)
    return federation(problem, data, Quantity(5, 0.5, minimum=15), Pace(lr=0.01, epochs=3, batch=8))
