"""The table ``rule`` of a method in a recipe."""

from __future__ import annotations

import pytest

import medley as md
from medley.contract.tuned import Tuned
from medley.experiments.tune import variant
from medley.recipe import loads
from medley.recipe.recipe import tuned

R = md.robust

TEXT = """
[problem]
kind = "Softmax"

[data]
name = "digits"

[partition]
kind = "IID"
clients = 10

[federation]
weights = "uniform"

[run]
rounds = 2

[[methods]]
kind = "FedProx"
mu = 0.2
rule = { kind = "Mixed", byzantine = 0.2, rule = { kind = "Krum", byzantine = 0.2 } }

[[methods]]
kind = "FedAvg"
private = { unit = "row", noise = 2.0, clip = 0.5 }

[methods.rule]
kind = "TrimmedMean"
byzantine = 0.1
"""


def test_a_method_is_wrapped() -> None:
    first, second = loads(TEXT).methods()
    assert first == md.Robust(md.FedProx(mu=0.2), rule=R.Mixed(R.Krum(0.2), 0.2))
    assert first.name == "NNM-Krum-FedProx"
    assert second == md.Robust(md.Private(md.FedAvg(), unit="row", noise=2.0, clip=0.5), rule=R.TrimmedMean(0.1))
    r = loads(TEXT)
    result = md.run(first, r.federation(), rounds=r.rounds, progress=False, **r.options())
    assert result.history[2]["accuracy"] > result.history[0]["accuracy"] + 0.3
    assert repr(result.settings["method.robust.rule"]) == "Mixed(rule=Krum(byzantine=0.2), byzantine=0.2)"


def test_a_wrapped_method_goes_by_its_name() -> None:
    r = loads(TEXT)
    assert r.only("trimmedmean-DP-fedavg").methods() == [r.methods()[1]]
    assert r.only("FedAvg").methods() == [r.methods()[1]]
    with pytest.raises(md.RecipeError, match="has no 'Krum-FedAvg'"):
        r.only("Krum-FedAvg").methods()


def test_settings_of_the_command_line() -> None:
    changed = loads(TEXT).with_settings(["methods.fedavg.rule.byzantine=0.4", 'methods.0.rule={kind="Median"}'])
    first, second = changed.methods()
    assert isinstance(first, md.Robust)
    assert isinstance(second, md.Robust)
    assert (first.rule, second.rule) == (R.Median(), R.TrimmedMean(0.4))


def test_a_tuned_method_is_written_and_read_again() -> None:
    r = loads(TEXT)
    methods = [variant(m, {"lr": 0.5}) for m in r.methods() if not isinstance(m, Tuned)]
    methods[0] = variant(methods[0].method, {"mu": 0.7, "robust.rule": R.MultiKrum(0.1, keep=2), "lr": 0.5})
    methods[1] = variant(methods[1].method, {"private.noise": 3.0})
    again = loads(tuned(r, methods).dumps()).methods()
    assert again[0] == methods[0]
    assert again[1] == methods[1].method
    inner = methods[0].method
    assert isinstance(inner, md.Robust)
    assert inner == md.Robust(md.FedProx(mu=0.7), rule=R.MultiKrum(0.1, keep=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("methods.1.rule.byzantine=0.5", r"methods.1.rule.byzantine = 0.5 should be a number in \[0, 0.5\)"),
        ("methods.1.rule.byzantin=0.2", "Did you mean 'byzantine'"),
        ("methods.1.rule.kind=Kurm", "Did you mean 'Krum'"),
        ("methods.1.rule=0.2", "methods.1.rule = 0.2 should be a table"),
        ("methods.0.rule.rule.kind=Median", "has no 'byzantine'"),
        ("methods.0.rule={byzantine=0.2}", "methods.0.rule lacks 'kind': one of CentredClipping, FLTrust"),
        ("methods.1.private.unit=client", "DP-FedAvg cannot be robust: it adds noise to sums of replies"),
    ],
)
def test_wrong_tables(change: str, message: str) -> None:
    with pytest.raises(md.contract.errors.MedleyError, match=message):
        loads(TEXT).with_settings([change]).methods()
