"""What a stranger tries on mixed models: each works without rules, and is withheld with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

import pandas as pd

from medley.statistics import Rules, Study, Withheld

EXACT = Rules(exact=True)
OPEN = Rules(rows=1, events=1, parameters=1.0)


def frame(seed: int = 0, patients: int = 40, visits: int = 5) -> Any:
    """Patients with equally many visits; number 0 is the one that is asked for."""
    g = np.random.default_rng(seed)
    p, t = np.repeat(np.arange(patients), visits), np.tile(np.arange(1.0 * visits), patients)
    pay = 500 + g.normal(0, 30, patients)[p] + (5 + g.normal(0, 2, patients)[p]) * t + g.normal(0, 9, len(p))
    one, days = 1.0 * (p == 0), t + g.uniform(0, 0.4, len(p))
    twin = np.where((p == 0) & (t > 2), patients, p)  # patient 0 is two patients
    out = pd.DataFrame({"p": p, "copy": p, "twin": twin, "t": t, "days": days, "pay": pay, "one": one})
    out["two"] = np.where(p < 2, "a", "b")
    out["old"] = 1.0 * (p < 20)
    return out


def odd() -> Any:
    """Patient 0 has one visit less than the others."""
    return frame().iloc[1:]


def many(columns: int) -> Any:
    """As many columns as tell each patient from the others."""
    out, g = frame(), np.random.default_rng(1)
    for k in range(columns):
        out[f"x{k}"] = g.normal(size=40)[out["p"]]
    return out


def rare() -> Any:
    """Visits in intensive care of two patients, an illness of three; among those with 5 visits one has a dose."""
    out, g = frame(), np.random.default_rng(2)
    care = (out.p < 2) & (out.t < 3)
    out["ward"], out["care"] = np.where(care, "intensive", "normal"), np.where(care, 2.0, out.t % 2)
    out["ill"] = 1.0 * ((out.p < 3) & (out.t > 1))
    out = out[(out.p < 20) | (out.t < 4)]
    return out.assign(dose=np.where((out.p == 0) | (out.p >= 20), g.uniform(1, 3, len(out)), 0.0))


HALVES = ("p < 0", "p < 10", "p >= 10 and p < 20", "p < 21")
"""Patients who give other visits: those of the second and the third together are all of the fourth except one."""


def asked(*formulas: str, **how: Any) -> Callable[[Study], Any]:
    return lambda study: [study.mixed(f, **how) for f in formulas]


ATTACKS: dict[str, tuple[Any, Callable[[Study], Any]]] = {
    "sums of the only patient with so many visits": (odd(), asked("pay ~ t + (1 | p)")),
    "slopes in days that no other patient has": (frame(), asked("pay ~ days + (days | p)")),
    "a fit with and without a patient": (
        frame(),
        lambda s: [s.mixed("pay ~ t + (1 | p)", where=c) for c in ("", "p != 0")],
    ),
    "a fit without a visit of a patient": (
        frame(),
        lambda s: [s.mixed("pay ~ t + (1 | p)", where=c) for c in ("", "p != 0 or t < 4")],
    ),
    "a column in which a patient is two": (frame(), asked("pay ~ t + (1 | p)", "pay ~ t + (1 | twin)")),
    "a copy of the column, without a patient": (
        frame(),
        lambda s: [s.mixed("pay ~ t + (1 | p)"), s.mixed("pay ~ t + (1 | copy)", where="p != 0")],
    ),
    "a coefficient of one patient": (frame(), asked("pay ~ t + one + (1 | p)")),
    "a category of two patients": (frame(), asked("pay ~ t + C(two) + (1 | p)")),
    "as many columns as patients": (
        many(18),
        asked("pay ~ t + " + " + ".join(f"x{k}" for k in range(18)) + " + (1 | p)"),
    ),
    "a category of two patients' visits that has no column": (rare(), asked("pay ~ t + C(ward) + (1 | p)")),
    "a value of two patients' visits beside its square": (rare(), asked("pay ~ t + care + I(care**2) + (1 | p)")),
    "a column of one patient among those with as many visits": (rare(), asked("pay ~ t + dose + (1 | p)")),
    "an outcome of three patients": (rare(), asked("ill ~ t + (1 | p)")),
    "four fits that differ in many patients, and together in one": (
        frame(visits=12),
        lambda s: [s.mixed("pay ~ t + (1 | p)", where=f"(({c}) and t < 6) or (not ({c}) and t >= 6)") for c in HALVES],
    ),
    "patients as strata of a category": (frame(), asked("pay ~ t + old + (1 | p)", "pay ~ t + one + (1 | copy)")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_groups_is_withheld_and_works_without_rules(attack: str) -> None:
    rows, tries = ATTACKS[attack]
    others = {name: frame(seed, visits=int(rows.t.max()) + 1) for name, seed in (("Bern", 7), ("Chur", 8))}
    for of in others.values() if "ward" in rows else ():
        of["ward"], of["care"] = np.where(of.t < 3, "intensive", "normal"), of.t % 3
        of["ill"], of["dose"] = of.t % 2, of.t + of.p
    if "x0" in rows:
        others = {
            name: f.assign(**{c: np.random.default_rng(3).normal(size=len(f)) for c in rows if c[0] == "x"})
            for name, f in others.items()
        }
    tries(Study({"Zug": rows} | others, OPEN))
    with pytest.raises(Withheld, match=r"Zug|withholds"):
        tries(Study({"Zug": rows} | others, EXACT))


def test_what_is_no_attack_is_answered() -> None:
    study = Study({"Zug": frame(), "Bern": frame(7), "Chur": frame(8)}, EXACT)
    first = study.mixed("pay ~ t + (1 | p)")
    assert study.mixed("pay ~ t + (1 | p)").params.equals(first.params)
    study.mixed("pay ~ t + old + (t | p) + (1 | site)")
    study.mixed("pay ~ t + (1 | p)", where="t < 4")
    study.mixed("pay ~ t + (1 | p)", where="p >= 15")


def test_an_outcome_that_is_equal_in_all_of_a_patients_rows_has_one_bit_for_each() -> None:
    def patients(seed: int, equal: bool) -> Any:
        out, g = frame(visits=12), np.random.default_rng(seed)
        ill = 1.0 * (g.random(40) < 0.4)[out.p]
        return out.assign(ill=ill if equal else np.where(g.random(len(ill)) < 0.3, 1 - ill, ill), x=g.normal(size=480))

    others = {name: patients(k, equal=False) for k, name in enumerate(("Bern", "Chur"))}
    for equal in (False, True):
        study = Study({"Zug": patients(2, equal)} | others, Rules(exact=False))
        if equal:
            with pytest.raises(Withheld, match="Zug withholds: sums of ill would tell more bits"):
                study.mixed("ill ~ t + x + (1 | p)")
        else:
            study.mixed("ill ~ t + x + (1 | p)")
