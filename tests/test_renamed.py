"""An earlier name raises one sentence with the name of today, wherever it is met; `dir` shows public names alone."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import medley as md
from medley.contract import RecipeError
from medley.contract.errors import UnknownSetting, WireError
from medley.experiments.plan import PlannedRun, settings_of
from medley.recipe import loads
from medley.runtime import renamed
from medley.storage.changed_settings import difference, earlier
from medley.storage.checkpoint import same_settings
from medley.storage.identity import fingerprint

PACKAGES = [getattr(md, name) for name in md.__all__ if isinstance(getattr(md, name), ModuleType)]
PACKAGES += [
    importlib.import_module(f"medley.{name}")
    for name in ("contract", "federation", "flower", "recipe", "report", "testing", "wire")
]

SHOWN = {package.__name__ for package in [md, *PACKAGES]}


def at(name: str) -> Any:
    """The module, or the attribute of one, with this dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ImportError:
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("old", "new"), renamed.NAMES.items())
def test_an_import_of_an_earlier_name_says_the_name_of_today(old: str, new: str) -> None:
    assert at(new) is not None
    module, _, attribute = old.rpartition(".")
    shown, moved_to = (module, renamed.NAMES[module]) if module in renamed.NAMES else (old, new)  # the outer one first
    with pytest.raises(ImportError, match=f"^{shown} is now {moved_to}$".replace(".", r"\.")):
        exec(f"from {module} import {attribute}")
    with pytest.raises(ImportError, match="is now"):
        exec(f"import {old}.inner")


@pytest.mark.parametrize("old", [name for name in renamed.NAMES if name.rpartition(".")[0] in SHOWN])
def test_an_attribute_of_an_earlier_name_says_the_name_of_today(old: str) -> None:
    module, _, attribute = old.rpartition(".")
    with pytest.raises(AttributeError, match=f"^{old} is now medley".replace(".", r"\.")):
        getattr(importlib.import_module(module), attribute)
    assert not hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda m: m.__name__)
def test_dir_shows_public_names_alone(package: Any) -> None:
    assert dir(package) == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert not [name for name in dir(package) if name.startswith("_") or name in ("sys", "json", "annotations")]


def test_an_unknown_attribute_has_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match=r"^medley.robust has no 'Kurm'. Did you mean 'Krum'\?$"):
        md.robust.Kurm  # noqa: B018


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: md.Robust(md.FedAvg(), fold=md.robust.Median()), "Robust() has no 'fold': it is 'rule' now."),  # type: ignore[call-arg]
        (lambda: md.robust.Krum(liars=0.1), "Krum() has no 'liars': it is 'byzantine' now."),  # type: ignore[call-arg]
        (lambda: md.robust.Mixed(fold=md.robust.Median(), byzantine=0.1), "Mixed() has no 'fold': it is 'rule' now."),  # type: ignore[call-arg]
    ],
)
def test_an_earlier_setting_says_the_setting_of_today(call: Any, sentence: str) -> None:
    with pytest.raises(UnknownSetting) as caught:
        call()
    assert str(caught.value) == sentence


def test_an_earlier_value_says_the_value_of_today() -> None:
    with pytest.raises(RecipeError, match=r"^Attack\(knows=...\) has no 'liars': it is 'attackers' now.$"):
        md.scenarios.Attack("alie", 0.2, knows="liars")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('kind = "Local"', "recipe: methods.0.kind: this version has no 'Local': it is 'LocalOnly' now."),
        ('kind = "FedAvg"\nfold = {}', "recipe: methods.0 has no 'fold': it is 'rule' now."),
        (
            'kind = "FedAvg"\nrule = {kind = "Krum", liars = 0.1}',
            "recipe: methods.0.rule has no 'liars': it is 'byzantine' now.",
        ),
        (
            'kind = "medley.algorithms.local:Local"',
            "recipe: methods.0.kind = 'medley.algorithms.local:Local' is now 'medley.algorithms.localonly:LocalOnly'",
        ),
    ],
)
def test_a_recipe_of_earlier_names_says_the_names_of_today(table: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loads(f"[[methods]]\n{table}\n").methods()
    assert str(caught.value) == sentence


def test_a_class_that_moved_has_the_fingerprint_of_before() -> None:
    """These digests are from the version with the earlier names: its run folders can be resumed."""
    assert fingerprint(md.partitions.Dirichlet(10, 0.5)) == "74f670b3fb926a602266d8395a0b5e13"
    assert fingerprint(md.distributions.Uniform(0.1, 0.5)) == "339f6454351caf6426f59aabf8bd2e79"
    assert fingerprint(md.codecs.Quantise()) == "2c0b05af1779e1d64a7d730af7f61068"


@pytest.mark.parametrize("setting", ["bits = 8", "above = false", 'rho = "geo"', 'search = "speculative"'])
def test_a_recipe_of_shed_with_a_setting_of_the_fast_form_names_that_form(setting: str) -> None:
    key = setting.partition(" ")[0]
    with pytest.raises(RecipeError, match=rf"^recipe: methods\.0: SHED\({key}=.*SHED\.fast") as caught:
        loads(f'[[methods]]\nkind = "SHED"\n{setting}\n').methods()
    assert caught.value.key == key


@pytest.mark.parametrize(("name", "new"), renamed.ATTRIBUTES["MetaFit"].items())
def test_an_earlier_attribute_of_a_fit_says_the_one_of_today(name: str, new: str) -> None:
    fit = object.__new__(md.statistics.MetaFit)
    with pytest.raises(AttributeError, match=rf"^MetaFit\.{name} is now {new}$"):
        getattr(fit, name)
    with pytest.raises(AttributeError, match="MetaFit has no 'forest_of'"):
        fit.forest_of  # type: ignore[attr-defined]  # noqa: B018


def test_dir_of_the_package_shows_public_names_alone() -> None:
    assert dir(md) == sorted(md.__all__)
    assert "renamed" not in dir(md)


def test_a_record_of_an_earlier_name_is_read_or_refused_by_its_key() -> None:
    """The share of attackers is read under its earlier name; a setting of a method is refused with the one of today."""
    assert difference({"liars": 0.2, "attack": "a"}, {"attackers": 0.2, "attack": "a"}) == ""
    assert difference({"liars": 0.2}, {"attackers": 0.4}) == "attackers was 0.2 there and is 0.4 here"
    rule = "method.robust.fold is method.robust.rule now, and a run of before the new name cannot go on: start it again"
    assert earlier({"method.robust.fold": "Median()"}, {"method.robust.rule": "Median()"}) == rule
    assert earlier({"liars": 0.2}, {"attackers": 0.2}) == ""


@pytest.mark.parametrize("name", ["SHED", "SHED.fast", "DP-SHED"])
def test_a_run_of_shed_with_settings_that_are_of_the_fast_form_today_names_them(name: str, tmp_path: Path) -> None:
    """SHED.fast was recorded as SHED, and every SHED had four settings that are of SHED.fast alone."""
    before = {"method": name.replace(".fast", ""), "method.rho": "auto", "method.lbfgs": 0, "method.bits": 8}
    with pytest.raises(
        WireError, match=r"method\.lbfgs, method\.bits are settings of SHED\.fast now.*in another folder$"
    ):
        same_settings(tmp_path, before, {"method": name, "method.rho": "auto"})
    assert earlier({"method": name, "method.rho": "auto"}, {"method": name, "method.rho": "auto"}) == ""


def test_a_comparison_of_before_names_the_settings_that_moved(tmp_path: Path) -> None:
    """The folder holds what a version would have written in which every SHED had ``bits``."""
    toy = md.problems.synthetic_logistic(3, d=3, mu=0.1)
    fed = md.Federation(toy.problem, clients=toy.clients)
    result = md.run(md.SHED(), fed, 2, progress=False)
    result.settings["method.bits"] = None
    result.save(tmp_path)
    run = PlannedRun("SHED", md.SHED(), 0, settings_of(md.SHED()), tmp_path)
    with pytest.raises(WireError, match=r"method\.bits are settings of SHED\.fast now, .*or delete that one"):
        run.saved_result()
