"""One guess of a user of PyTorch, scikit-learn or Flower is enough: the sentence has what works here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import medley as md
from medley import recipe
from medley.runtime import field_words
from medley.runtime.field_words import MEANINGS, Meaning, meant, nearest

DATA = md.datasets.gaussian_classes(60, 3, 2)
X = torch.randn(8, 3)
Y = torch.arange(8) % 2
MODEL = torch.nn.Linear(3, 2)


def federation(*problem: Any, **given: Any) -> md.Federation:
    """A small federation with these arguments, and those that they leave out."""
    if given.keys() & {"data", "clients", "test"}:
        given = {"data": None if "clients" in given else (X, Y), "test": (X, Y), **given}
    else:
        given["data"] = DATA
    if "hospital" in str(given.get("partition")):
        given["data"] = md.datasets.Dataset(X, Y, X, Y, name="rows", keys={"hospital": np.arange(8) % 3})
    if "clients" not in given:
        given.setdefault("partition", md.partitions.IID(3))
    return md.Federation(*(problem or (md.problems.Softmax(mu=0.1),)), **given)


def run(method: Any = None, **given: Any) -> md.Result:
    """A run of one round; of a device that this machine lacks, on the CPU."""
    device = "cpu" if given.get("device") == "cuda" else given.pop("device", "cpu")
    path = given.pop("checkpoint", None)
    rounds = min(given.pop("rounds", 1), 1)
    assert path is None or isinstance(path, str)
    problem = md.problems.Network(MODEL) if given.get("init") is MODEL else md.problems.Softmax(mu=0.1)
    fed = federation(
        problem,
        weights="uniform" if "secure" in given else "size",
        validation=0.2 if "evaluate_on" in given else 0.0,
    )
    return md.run(method or md.FedAvg(), fed, **{**given, "rounds": rounds, "device": device})


RESULT = run()

SITES = {name: pd.DataFrame({"x": np.arange(400.0), "y": np.arange(400) % 7.0}) for name in ("Bern", "Ulm")}

SCOPE: dict[str, Any] = {
    "md": SimpleNamespace(**{**{name: getattr(md, name) for name in dir(md)}, "run": lambda m, _, rounds: run(m)}),
    "Federation": federation, "run": run, "federation": None, "result": RESULT, "model": MODEL, "X": X, "y": Y.numpy(),
    "data": md.datasets.Dataset(X, Y), "Study": md.statistics.Study, "sites": SITES,
    "f1": lambda outputs, labels: float((outputs.argmax(-1) == labels).float().mean()),
}  # fmt: skip

CODES = sorted({code for meaning in MEANINGS for code in meaning.code})

TOMLS = sorted({meaning.toml for meaning in MEANINGS if meaning.toml})


@pytest.mark.parametrize("code", CODES)
def test_each_suggested_call_can_be_written_so(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dots are the other arguments, as any first example has them."""
    if "Ray()" in code:
        pytest.importorskip("ray", reason="Ray is an extra")
    if ".plot(" in code:
        pytest.importorskip("matplotlib", reason="Matplotlib is an extra")
    monkeypatch.chdir(tmp_path)
    scope = dict(SCOPE)
    if "board" in code:
        scope["board"] = md.compare([md.FedAvg()], federation(), rounds=1, seeds=1, jobs=1, progress=False)
    assert eval(code.replace("..., ", ""), scope) is not None


@pytest.mark.parametrize("toml", TOMLS)
def test_each_suggested_table_can_be_in_a_recipe(toml: str) -> None:
    tables = {
        "data": '[data]\nkind = "gaussian_classes"\nn = 60\nfeatures = 3\nclasses = 2',
        "problem": '[problem]\nkind = "Softmax"',
        "partition": '[partition]\nkind = "IID"\nclients = 3',
        "methods": '[[methods]]\nkind = "FedAvg"',
    }
    head = toml.splitlines()[0].strip("[]")
    text = "\n".join(text for name, text in tables.items() if name != head) + "\n" + toml
    r = recipe.loads(text.replace('"cuda"', '"cpu"'))
    r.options()
    assert r.methods()
    if head not in ("partition", "data", "federation") and "module" not in toml and "cross_entropy" not in toml:
        assert r.federation().problem is not None


MD: Any = md
ANY_RESULT: Any = RESULT
ANY_FEDERATION: Any = federation()

NAMES = sorted({name for meaning in MEANINGS for group in meaning.names for name in group.split()})


def every_name() -> set[str]:
    """Names of public things, their settings, their attributes, commands, and kinds of a recipe."""
    import inspect

    from medley.cli import app

    places = [
        md,
        md.scenarios,
        md.problems,
        md.datasets,
        md.models,
        md.robust,
        md.partitions,
        md.codecs,
        md.transports,
        md.sinks,
    ]
    names: set[str] = {"methods", "partitions", "private"}  # of `medley list`, and a key of [[methods]]
    for place in places:
        for name, value in ((name, getattr(place, name)) for name in dir(place) if not name.startswith("_")):
            names.add(name)
            ours = getattr(value, "__module__", "").startswith("medley")
            if ours and callable(value) and not (inspect.isclass(value) and issubclass(value, Exception)):
                names |= {*inspect.signature(value).parameters}
    names |= {*inspect.signature(md.Federation).parameters, *dir(RESULT), *inspect.signature(md.tune).parameters}
    names |= {str(c.name or getattr(c.callback, "__name__", "")) for c in app.registered_commands}
    names |= {*dir(md.statistics.Study), *dir(md.datasets.Dataset), "binomial", "gaussian"}  # families of a study's glm
    return names | RESULT.history[0].keys() | {"auroc", "AUROC"}


def test_each_suggested_name_is_a_name_of_something() -> None:
    assert {*NAMES} <= every_name() | {"list"}, {*NAMES} - every_name()


def test_no_word_is_explained_twice_in_the_same_place() -> None:
    for meanings in field_words._table().values():
        first = [name for meaning in meanings for name in meaning.names]
        assert len(first) == len({*first}), meanings
        assert sum(bool(m.code) for m in meanings[1:]) <= 1, meanings


GUESSES: dict[str, tuple[Callable[[], Any], str]] = {
    # Flower
    "FedAvg(fraction_fit=)": (lambda: MD.FedAvg(fraction_fit=0.5), "participation=0.1"),
    "FedAvg(min_fit_clients=)": (lambda: MD.FedAvg(min_fit_clients=2), "participation=0.1"),
    "FedProx(proximal_mu=)": (lambda: MD.FedProx(proximal_mu=0.1), "FedProx(mu=0.01)"),
    "FedAdam(eta=)": (lambda: MD.FedAdam(eta=0.1), "'server_lr'"),
    "FedAdam(eta_l=)": (lambda: MD.FedAdam(eta_l=0.1), "Pace(lr=0.1)"),
    "md.FedOpt": (lambda: MD.FedOpt, "'FedAdam', 'FedYogi' or 'FedAdagrad'"),
    "md.FedMedian": (lambda: MD.FedMedian, "md.Robust(md.FedAvg(), rule=md.robust.Median())"),
    "md.Krum": (lambda: MD.Krum, "rule=md.robust.Krum(byzantine=0.2)"),
    "md.FedTrimmedAvg": (lambda: MD.FedTrimmedAvg, "rule=md.robust.TrimmedMean"),
    "md.DPFedAvg": (lambda: MD.DPFedAvg, "md.Private(md.FedAvg(), noise=1.0, clip=1.0)"),
    "md.NumPyClient": (lambda: MD.NumPyClient, "md.run(md.FedAvg(), federation, rounds=10)"),
    "md.start_simulation": (lambda: MD.start_simulation, "md.run(md.FedAvg(), federation, rounds=10)"),
    "run(num_rounds=)": (lambda: federation().run(md.FedAvg(), num_rounds=3), "rounds=10"),
    "run(strategy=)": (lambda: federation().run(strategy=md.FedAvg(), rounds=2), "'method'"),
    "run(codec='topk')": (lambda: run(codec="topk"), "TopK(fraction=0.1)"),
    "Federation(num_clients=)": (lambda: federation(num_clients=3), "partition=md.partitions.IID(clients=10)"),
    "Dirichlet(num_partitions=)": (lambda: MD.partitions.Dirichlet(num_partitions=3, alpha=0.1), "'clients'"),
    "partition='non_iid'": (lambda: federation(partition="non_iid"), "Dirichlet(clients=10, alpha=0.5)"),
    "result.losses_distributed": (lambda: ANY_RESULT.losses_distributed, "'history'"),
    # PyTorch
    "FedAvg(lr=)": (lambda: MD.FedAvg(lr=0.1), "Pace(lr=0.1)"),
    "FedAvg(learning_rate=)": (lambda: MD.FedAvg(learning_rate=0.1), "Pace(lr=0.1)"),
    "Federation(batch_size=)": (lambda: federation(batch_size=8), "Pace(batch=32)"),
    "Federation(epochs=)": (lambda: federation(epochs=8), "Pace(epochs=5)"),
    "Federation(criterion=)": (lambda: federation(criterion=1), 'loss="cross_entropy"'),
    "Federation(optimizer=)": (lambda: federation(optimizer="adam"), "Pace(optimizer='adam')"),
    "Federation(momentum=)": (lambda: federation(momentum=0.9), "Pace(momentum=0.9)"),
    "Federation(model=)": (lambda: MD.Federation(model=MODEL, data=DATA), "'problem'"),
    "Federation(dataset=)": (lambda: federation(dataset=DATA), "'data'"),
    "run(device='gpu')": (lambda: run(device="gpu"), "'cuda'"),
    "md.DataLoader": (lambda: MD.DataLoader, "data=(X, y)"),
    "Private(noise_multiplier=)": (lambda: MD.Private(md.FedAvg(), noise_multiplier=1), "noise=1.0"),
    # scikit-learn
    "run(random_state=)": (lambda: federation().run(md.FedAvg(), random_state=3), "run(..., seed=1)"),
    "run(n_jobs=)": (lambda: federation().run(md.FedAvg(), n_jobs=3), "Processes(workers=2)"),
    "run(verbose=)": (lambda: federation().run(md.FedAvg(), verbose=3), "run(..., progress=True)"),
    "run(callbacks=)": (lambda: federation().run(md.FedAvg(), callbacks=[]), "on_round=print"),
    "run(metrics=['roc_auc'])": (lambda: run(metrics=["roc_auc"]), "'auroc'"),
    "Softmax(C=)": (lambda: MD.problems.Softmax(C=1.0), "'mu'"),
    "md.LogisticRegression": (lambda: MD.LogisticRegression, "md.problems.Logistic(mu=0.1)"),
    "federation.fit()": (lambda: ANY_FEDERATION.fit(), "'run'"),
    "FedAvg().fit()": (lambda: MD.FedAvg().fit(), "md.run(md.FedAvg(), federation"),
    "result.score()": (lambda: ANY_RESULT.score(), "'evaluation'"),
    "result.coef_": (lambda: ANY_RESULT.coef_, "'x'"),
    # papers
    "md.Scaffold": (lambda: MD.Scaffold, "'SCAFFOLD'"),
    "md.FedSGD": (lambda: MD.FedSGD, "Pace(steps=1, batch=None)"),
    "md.PerFedAvg": (lambda: MD.PerFedAvg, "'FedAvgFT', 'pFedMe'"),
    "md.DPSGD": (lambda: MD.DPSGD, "md.Private("),
    "md.Dirichlet": (lambda: MD.Dirichlet, "md.partitions.Dirichlet(clients=10, alpha=0.5)"),
    "Federation(client_fraction=)": (lambda: federation(client_fraction=0.5), "participation=0.1"),
    "MultiKrum(f=)": (lambda: MD.robust.MultiKrum(f=2), "'byzantine'"),
}
"""What users of other libraries type first, and what the sentence must have."""


@pytest.mark.parametrize("guess", GUESSES)
def test_one_guess_is_enough(guess: str) -> None:
    call, answer = GUESSES[guess]
    with pytest.raises((md.RecipeError, AttributeError)) as caught:
        call()
    assert answer in str(caught.value), str(caught.value)


def read(text: str) -> None:
    """A recipe's options, methods and federation."""
    r = recipe.loads(text)
    r.options()
    r.methods()
    r.federation()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('[[methods]]\nkind = "FedOpt"', "'FedAdam', 'FedYogi' or 'FedAdagrad'"),
        ('[[methods]]\nkind = "Krum"', 'kind = "FedAvg" rule = {kind = "Krum", byzantine = 0.2}'),
        ('[[methods]]\nkind = "FedAvg"\nlearning_rate = 0.1', "[pace] lr = 0.1"),
        ('[[methods]]\nkind = "FedAvg"\nnum_rounds = 3', "[run] rounds = 10"),
        ('[codec]\nkind = "QSGD"\n[[methods]]\nkind = "FedAvg"', "'Quantise'"),
        ('[pace]\nbatch_size = 3\n[[methods]]\nkind = "FedAvg"', "'batch'"),
        ('[strategy]\nkind = "FedAvg"', '[[methods]] kind = "FedAvg"'),
    ],
)
def test_in_a_recipe_the_answer_is_a_table_of_a_recipe(text: str, answer: str) -> None:
    start = '[data]\nkind = "digits"\n[problem]\nkind = "Softmax"\n[partition]\nkind = "IID"\nclients = 3\n'
    with pytest.raises(md.RecipeError) as caught:
        read(start + text)
    assert answer in str(caught.value), str(caught.value)
    assert "..." not in str(caught.value)


@pytest.mark.parametrize(
    "word", ["qqq", "Bananas", "no", "xyzzy", "eval_everything_twice", "loss_of_generality", "0", ""]
)
def test_a_word_like_no_name_gets_no_suggestion(word: str) -> None:
    names = [name for name in dir(md) if name[:1] != "_"]
    assert meant(word, names) == nearest(word, names) == ""


def test_a_name_of_a_user_gets_no_advice_about_settings() -> None:
    with pytest.raises(md.RecipeError) as caught:
        RESULT["batch_size"]
    assert "Pace" not in str(caught.value)
    assert nearest("label", ["age", "target"]) == " Did you mean 'target'?"


def test_an_error_within_a_property_is_not_hidden() -> None:
    class Broken(md.Federation):
        @property
        def fit(self) -> int:
            return self.nothing  # type: ignore[attr-defined,no-any-return]

    broken = object.__new__(Broken)
    with pytest.raises(AttributeError, match="Broken has no 'nothing'"):
        broken.fit  # noqa: B018


def test_words_have_any_case_and_signs() -> None:
    for word in ("Batch-Size", "BATCH_SIZE", "batchSize", "batch size"):
        assert meant(word, ["batch", "lr"]) == " Did you mean 'batch', as in " + MEANINGS_BY["batch"].code[0] + "?"


MEANINGS_BY: dict[str, Meaning] = {meaning.names[0]: meaning for meaning in MEANINGS if meaning.names}


def test_a_table_of_a_recipe_is_on_one_line_in_the_sentence() -> None:
    sentences = [meant(meaning.words.split()[0], [], in_recipe=True) for meaning in MEANINGS]
    assert not [text for text in sentences if "\n" in text]
    assert all(re.fullmatch(r" In (Medley|a recipe) .+\.", text) for text in sentences if text)
