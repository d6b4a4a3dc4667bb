"""The table ``private`` of a method in a recipe."""

from __future__ import annotations

import pytest

import medley as md
from medley.contract.tuned import Tuned
from medley.experiments.tune import variant
from medley.privacy import Quantile
from medley.recipe import loads
from medley.recipe.recipe import tuned

pytest.importorskip("dp_accounting")

TEXT = """
[problem]
kind = "Softmax"

[data]
name = "digits"

[partition]
kind = "IID"
clients = 30

[participation]
kind = "Bernoulli"
p = 0.3

[federation]
weights = "uniform"

[run]
rounds = 2

[[methods]]
kind = "FedProx"
mu = 0.2
private = { noise = 1.5, clip = { kind = "Quantile", start = 0.4, count_noise = 0.3 }, delta = 1e-3 }

[[methods]]
kind = "FedAvg"

[methods.private]
unit = "row"
noise = 2.0
clip = 0.5
"""


def test_a_method_is_wrapped() -> None:
    first, second = loads(TEXT).methods()
    clip = Quantile(start=0.4, count_noise=0.3)
    assert first == md.Private(md.FedProx(mu=0.2), noise=1.5, clip=clip, delta=1e-3)
    assert second == md.Private(md.FedAvg(), unit="row", noise=2.0, clip=0.5)
    r = loads(TEXT)
    result = md.run(first, r.federation(), rounds=r.rounds, progress=False, **r.options())
    assert 0 < result.history[1]["epsilon"] < result.history[2]["epsilon"]


def test_settings_of_the_command_line() -> None:
    changed = loads(TEXT).with_settings(["methods.fedavg.private.noise=3", "methods.0.private.delta=1e-4"])
    first, second = changed.methods()
    assert isinstance(first, md.Private)
    assert isinstance(second, md.Private)
    assert (first.delta, second.noise) == (1e-4, 3)


def test_a_tuned_method_is_written_and_read_again() -> None:
    r = loads(TEXT)
    methods = [variant(m, {"lr": 0.5}) for m in r.methods() if not isinstance(m, Tuned)]
    methods[0] = variant(methods[0].method, {"mu": 0.7, "private.noise": 2.5, "lr": 0.5})
    again = loads(tuned(r, methods).dumps()).methods()
    assert again == methods
    inner = methods[0].method
    assert isinstance(inner, md.Private)
    assert inner.noise == 2.5
    assert inner.method == md.FedProx(mu=0.7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("methods.1.private.clip=0", r"methods.1.private.clip = 0 should be a finite number above 0, a table"),
        ("methods.1.private.nose=1", "Did you mean 'noise'"),
        ("methods.1.private=3", "methods.1.private = 3 should be a table"),
        ("methods.1.private.unit=visit", "methods.1.private.unit = .*'client', 'row', or 'person'"),
        ("methods.1.private.unit=person", "methods.1.private: Private.unit='person', by=''.: say by= which column"),
    ],
)
def test_wrong_tables(change: str, message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        loads(TEXT).with_settings([change]).methods()
