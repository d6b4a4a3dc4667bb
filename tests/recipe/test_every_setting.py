"""Each setting of everything that a recipe can name is checked as it is made: a wrong type names the setting."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

import medley as md
from medley.contract import MedleyError, RecipeError, describe, kinds
from medley.contract.errors import UnknownSetting
from medley.recipe import schema
from medley.statistics import Study, Weights

CLASSES: dict[str, type] = {}
for table in (schema.CALLS, schema.DISTRIBUTIONS, schema.RULES, schema.ANALYSES, *schema.KINDS.values()):
    CLASSES |= {cls.__name__: cls for cls in table.values() if inspect.isclass(cls)}
CLASSES |= {name: getattr(md.transports, name) for name in md.transports.__all__}
CLASSES |= {cls.__name__: cls for cls in (md.Private, md.Robust, md.Tuned, Weights)}

NEEDED: dict[str, Any] = {
    "alpha": 1.0, "byzantine": 0.2, "bytes": 1e3, "capacity": 5, "clients": 3, "cohorts": [[0, 1]], "columns": ("a",),
    "d": 4, "d0": 1.0, "degrees": 90.0, "event": "e", "every": 3, "experiment": "e", "factor": 0.5, "folder": "f",
    "formula": "y ~ x", "fraction": 0.5, "groups": 2, "high": 3, "key": "a", "kind": "gaussian", "low": 1, "mean": 0.0,
    "method": md.FedAvg(), "module": torch.nn.Linear(2, 2), "noise": 1.0, "on": 2, "p": 0.5, "path": "none",
    "per_client": 2, "period": 4, "project": "p", "root": 0, "rounds": 5, "rule": md.robust.Median(), "share": 0.2,
    "snr": 1.0, "std": 1.0, "tasks": 3, "time": "t", "unit": 1.0, "until": 9.0, "v": 1.0, "values": [1, 2],
}  # fmt: skip
"""A valid value of each setting that has no default, by its name."""

ALSO: dict[str, dict[str, Any]] = {
    "Private": {"noise": 1.0}, "Prepare": {"columns": ("a: mean",)}, "Balance": {"weights": Weights("t ~ x")},
}  # fmt: skip
"""What a class needs besides."""

OPTIONAL = ("mlflow", "tensorboard", "wandb", "ray")
"""Packages that an environment may lack; their classes say so after the check of their settings."""

WRONG = [
    "no",
    True,
    2.5,
    -1,
    -0.5,
    math.nan,
    math.inf,
    10**400,
    None,
    [],
    ["a"],
    [math.nan],
    {},
    {"a": 1},
    object(),
    b"x",
]


def is_fitting(value: object, hint: Any) -> bool:
    """Whether the annotation accepts a value. It says more of some settings than they accept, and never less."""
    return any(kind.fits(value, {}) for kind in kinds(hint))


def wrongly_answered(call: Any, name: str) -> list[str]:
    """What ``call`` answers to a wrong value of each of its settings, if it is no error that names the setting."""
    parameters = inspect.signature(call).parameters
    hints = schema.hints(call)
    needed = {p.name: NEEDED[p.name] for p in parameters.values() if p.default is p.empty and p.name in NEEDED}
    needed |= ALSO.get(name, {})
    wrong = []
    for setting in (p.name for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)):
        for value in WRONG:
            try:
                call(**{**needed, setting: value})
            except RecipeError as e:
                if setting not in str(e) and not is_fitting(value, hints[setting]):
                    wrong.append(f"{setting}={value!r:.30}: {e}")
            except MedleyError as e:
                if not any(package in str(e) for package in OPTIONAL):
                    wrong.append(f"{setting}={value!r:.30}: {e}")
            except Exception as e:
                wrong.append(f"{setting}={value!r:.30}: {type(e).__name__}: {e}")
            else:
                huge = isinstance(value, int) and value == 10**400  # a float of any size, or a count
                if not is_fitting(value, hints[setting]) and not huge and value is not parameters[setting].default:
                    wrong.append(f"{setting}={value!r:.30} is accepted")
    return wrong


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_setting_of_a_wrong_type_is_named(name: str) -> None:
    wrong = wrongly_answered(CLASSES[name], name)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", schema.ANALYSES)
def test_a_setting_of_a_study_s_call_of_a_wrong_type_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of a study take the settings of the classes that recipes name, and show each with its values."""
    monkeypatch.setattr(Study, "run", lambda self, analysis: analysis)
    call = getattr(Study({"Bern": {"a": [1.0]}}), name)
    kind = schema.ANALYSES[name]
    wrong = wrongly_answered(call, kind.__name__)
    assert not wrong, "\n".join(wrong)
    more = ["leave_out"] if name == "prepare" else []  # of the choice of columns, which no recipe makes
    assert [*inspect.signature(call).parameters] == [*(s.name for s in describe(kind)), *more]
    shown = " ".join((call.__doc__ or "").split())
    for setting in describe(kind):
        assert setting.doc
        assert name in ("describe", "prepare") or f" {setting.name} ({setting.accepts}): {setting.doc}" in shown
    with pytest.raises(UnknownSetting, match=rf"^{name}\(\) has no 'wher'. Did you mean 'where'"):
        kind(wher="age > 3")
