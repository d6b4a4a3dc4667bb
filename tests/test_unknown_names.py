"""Every mapping by name refuses a name that nothing has, and a value of a wrong type, with a sentence that names it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md
from medley import recipe

G = np.random.default_rng(0)
FRAME = pd.DataFrame({"age": G.normal(60, 9, 60).round(), "sex": G.choice(["F", "M"], 60), "y": G.integers(0, 2, 60)})
STRICT = md.statistics.Rules(rows=25)


def study(**how: Any) -> md.statistics.Study:
    return md.statistics.Study({"Bern": FRAME, "Chur": FRAME}, **how)


def fed(**how: Any) -> md.Federation:
    data = how.pop("data", None) or md.datasets.gaussian_classes(60, 3, 2)
    partition = how.pop("partition", md.partitions.IID(3))
    return md.Federation(md.problems.Softmax(mu=0.1), data=data, partition=partition, **how)


def run(method: Any = None, rounds: int = 1, **how: Any) -> Any:
    return fed().run(md.FedAvg() if method is None else method, rounds, **how)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "rules: a site misspelt": (lambda: study(rules={"Chr": STRICT}), "Chr"),
    "rules: a site in lower case": (lambda: study(rules={"chur": STRICT}), "chur"),
    "rules: a site with a space": (lambda: study(rules={"Chur ": STRICT}), "Chur "),
    "rules: a number": (lambda: study(rules={1: STRICT}), "1"),
    "rules: a dict for Rules": (lambda: study(rules={"Chur": {"rows": 25}}), "Chur"),
    "rules: text": (lambda: study(rules="strict"), "strict"),
    "rules: none": (lambda: study(rules=None), "None"),
    "rules: a list": (lambda: study(rules=[STRICT, STRICT]), "Rules"),
    "sites: a number": (lambda: md.statistics.Study({1: FRAME}), "1"),
    "sites: empty": (lambda: md.statistics.Study({"": FRAME}), "''"),
    "sites: a list": (lambda: md.statistics.Study([FRAME]), "Study"),
    "complete: a column": (lambda: study(complete=["agee"]), "agee"),
    "complete: text": (lambda: study(complete="age"), "complete"),
    "without: a site": (lambda: study().without("Chr"), "Chr"),
    "describe: a column": (lambda: study().describe(["agee"]), "agee"),
    "describe: by": (lambda: study().describe(["age"], by="sexx"), "sexx"),
    "glm: a column": (lambda: study().glm("y ~ agee"), "agee"),
    "glm: a setting": (lambda: study().glm("y ~ age", familly="gaussian"), "familly"),
    "glm: a family": (lambda: study().glm("y ~ age", "gausian"), "gausian"),
    "meta: a setting": (lambda: study().meta("y ~ age", famly=1), "famly"),
    "cox: a setting": (lambda: study().cox("age ~ sex", "y", cutts=[1]), "cutts"),
    "kaplan_meier: a setting": (lambda: study().kaplan_meier("age", "y", 1.0, 9.0, bye="sex"), "bye"),
    "prepare: a column": (lambda: study().prepare(["agee: mean"]), "agee"),
    "prepare: a step": (lambda: study().prepare(["age: meen"]), "meen"),
    "Federation: an argument": (lambda: fed(weigths="size"), "weigths"),
    "weights: a word": (lambda: fed(weights="sizze"), "sizze"),
    "weights: by client": (lambda: fed(weights={0: 1.0}), "weights"),
    "keys: a column": (lambda: fed(partition=md.partitions.ByKey("hospitl")).run(md.FedAvg(), 1), "hospitl"),
    "membership: a client": (lambda: fed(membership=md.scenarios.Membership(joins={7: 2})).run(md.FedAvg(), 1), "7"),
    "membership: text": (lambda: md.scenarios.Membership(joins={"1": 2}), "'1'"),
    "membership: leaves": (lambda: fed(membership=md.scenarios.Membership(leaves={7: 2})).run(md.FedAvg(), 1), "7"),
    "pace: by client": (lambda: md.scenarios.Pace(lr={0: 0.1}), "lr"),
    "pace: an argument": (lambda: md.scenarios.Pace(lrr=0.1), "lrr"),
    "devices: by client": (lambda: md.devices.Devices(speed={0: 1.0}), "speed"),
    "target: a figure": (lambda: run(target={"acuracy": 0.9}), "acuracy"),
    "target: text": (lambda: run(target={"accuracy": "high"}), "high"),
    "metrics: no function": (lambda: run(metrics={"mine": 3}), "mine"),
    "metrics: a name that is taken": (lambda: run(metrics={"accuracy": lambda z, y: 0.0}), "accuracy"),
    "metrics: a number for a name": (lambda: run(metrics={1: lambda z, y: 0.0}), "1"),
    "metrics: a direction": (lambda: run(metrics={"mine": (lambda z, y: 0.0, "mx")}), "mx"),
    "run: an option": (lambda: run(eval_evry=2), "eval_evry"),
    "best: a figure": (lambda: run(best="acuracy"), "acuracy"),
    "clip: a message's field": (
        lambda: fed(weights="uniform").run(md.Private(md.FedAvg(), noise=1.0, clip={"delt": 1.0}), 1),
        "delt",
    ),
    "clip: text": (lambda: md.Private(md.FedAvg(), noise=1.0, clip={"delta": "1"}), "delta"),
    "bound: a message's field": (lambda: run(secure=md.SecureSum(bound={"delt": 1.0})), "delt"),
    "bound: text": (lambda: md.SecureSum(bound={"delta": "1"}), "delta"),
    "compare: an option": (lambda: md.compare([md.FedAvg()], fed(), 1, seeds=1, eval_evry=2), "eval_evry"),
    "compare: no method": (lambda: md.compare({"a": 3}, fed(), 1, seeds=1), "3"),
    "compare: a name that is a number": (lambda: md.compare({1: md.FedAvg()}, fed(), 1, seeds=1), "1"),
    "compare: base": (lambda: md.compare([md.FedAvg()], fed(), 1, seeds=1, base="FedProx"), "FedProx"),
    "tune: a setting": (lambda: md.tune(md.FedProx(), fed(), {"muu": [0.1]}, 1), "muu"),
    "tune: a metric": (
        lambda: md.tune(md.FedProx(), fed(validation=0.2), {"mu": [0.1]}, 1, metric="acuracy"),
        "acuracy",
    ),
    "frame: a label": (lambda: md.datasets.frame(FRAME, "yy"), "yy"),
    "compare: a target of a method": (
        lambda: md.compare([md.FedAvg()], fed(), 1, seeds=1, reply_policy={"FedProx": None}),
        "FedProx",
    ),
}
"""Calls with a name or a value that is wrong, and what the sentence must name."""


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_name_or_value_is_refused_by_its_name(case: str) -> None:
    call, name = CALLS[case]
    with pytest.raises(md.MedleyError) as e:
        call()
    assert name in str(e.value), str(e.value)


TRAINING = """
[data]
kind = "gaussian_classes"
n = 60
features = 3
classes = 2
[problem]
kind = "Softmax"
[partition]
kind = "IID"
clients = 3
[[methods]]
kind = "FedAvg"
"""

TABLES = {
    "rules": ("[rules]\nrow = 25\n", "row"),
    "rules: a site": ("[rules.Chur]\nrows = 25\n", "Chur"),
    "rules: text": ('[rules]\nrows = "many"\n', "rows"),
    "clients": ("[clients]\nrowz = 3\n", "rowz"),
    "clients: labels": ("[clients]\nlabels = 3\n", "labels"),
    "run": ("[run]\nround = 3\n", "round"),
    "run.metrics": ("[run]\nmetrics = { mine = 3 }\n", "mine"),
    "run.target": ("[run]\ntarget = { acuracy = 0.9 }\n", "acuracy"),
    "pace": ("[pace]\nlrr = 3\n", "lrr"),
    "devices": ("[devices]\nsped = 3\n", "sped"),
    "membership": ("[membership]\njoin = { 1 = 2 }\n", "join"),
    "membership: a client": ("[membership]\njoins = { Bern = 2 }\n", "Bern"),
    "secure": ("[secure]\nbond = 3.0\n", "bond"),
    "secure.bound": ("[secure]\nbound = { delt = 3.0 }\n", "delt"),
    "reply_policy": ("[reply_policy]\nquorumm = 3\n", "quorumm"),
    "faults": ("[faults]\nlos = 0.1\n", "los"),
    "federation": ('[federation]\nweigths = "size"\n', "weigths"),
    "federation.weights": ('[federation]\nweights = "sizze"\n', "sizze"),
    "tune": ("[tune]\nround = 3\n", "round"),
    "tune.grid": ("[tune.grid]\nmuu = [1.0]\n", "muu"),
    "codec": ('[codec]\nkind = "TopKK"\n', "TopKK"),
    "participation": ("[participation]\nfractoin = 0.5\n", "fractoin"),
    "stream": ('[stream]\nkind = "Split"\ntask = 2\n', "task"),
    "attack": ("[attack]\nclient = 1\n", "client"),
    "a table": ("[pase]\nlr = 3\n", "pase"),
    "methods": ('[[methods]]\nkind = "FedAvgg"\n', "FedAvgg"),
    "methods.private": ('[[methods]]\nkind = "FedAvg"\nprivate = { nois = 1.0 }\n', "nois"),
    "methods.private.clip": (
        '[[methods]]\nkind = "FedAvg"\nprivate = { noise = 1.0, clip = { delt = 1.0 } }\n'
        '[federation]\nweights = "uniform"\n',
        "delt",
    ),
    "study": ('[[study]]\nkind = "glm"\nformla = "y ~ x"\n', "formla"),
}
"""Tables of a recipe with a key that is wrong, and what the sentence must name."""


@pytest.mark.parametrize("case", TABLES)
def test_a_wrong_key_of_a_recipe_is_refused_by_its_name(case: str) -> None:
    text, name = TABLES[case]
    whole = (
        TRAINING.replace('[[methods]]\nkind = "FedAvg"\n', "") + text
        if text.startswith("[[methods")
        else TRAINING + text
    )
    tomllib.loads(whole)
    with pytest.raises(md.MedleyError) as e:
        read_and_run(whole)
    assert name in str(e.value), str(e.value)


def read_and_run(text: str) -> None:
    r = recipe.loads(text)
    r.rules()
    r.limits()
    if "study" in r.tables:
        r.analyses()
    options, methods = r.options(), r.methods()
    r.tuning()
    for method in methods:
        r.grid(method)
    r.federation().run(methods[0], 1, **options)
