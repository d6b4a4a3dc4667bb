"""Cohorts of a synthetic OMOP database, against loops over its persons."""

import datetime
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md
from medley.statistics import Rules, Study, Withheld
from medley.statistics.omop import Cohort, Event, Value

DAY = datetime.timedelta(1)
START = datetime.date(2015, 1, 1)

SCHEMA = """
CREATE TABLE person (person_id INTEGER, gender_concept_id INTEGER, year_of_birth INTEGER);
CREATE TABLE observation_period
  (person_id INTEGER, observation_period_start_date TEXT, observation_period_end_date TEXT);
CREATE TABLE drug_exposure (person_id INTEGER, drug_concept_id INTEGER, drug_exposure_start_date TEXT);
CREATE TABLE condition_occurrence (person_id INTEGER, condition_concept_id INTEGER, condition_start_date TEXT);
CREATE TABLE measurement
  (person_id INTEGER, measurement_concept_id INTEGER, measurement_date TEXT, value_as_number REAL,
   unit_concept_id INTEGER);
CREATE TABLE death (person_id INTEGER, death_date TEXT);
CREATE TABLE concept_ancestor (ancestor_concept_id INTEGER, descendant_concept_id INTEGER);
INSERT INTO concept_ancestor VALUES (10, 10), (10, 11), (20, 20);
"""


def cdm(connection: sqlite3.Connection, n: int = 400, seed: int = 0) -> None:
    """Persons with drugs 1 to 3, conditions 10, 11 (below 10), 20 and 21, a measurement 30 in two units, and deaths."""
    rng = np.random.default_rng(seed)
    connection.executescript(SCHEMA)
    day = lambda: (START + int(rng.integers(0, 2000)) * DAY).isoformat()
    for i in range(n):
        connection.execute(
            "INSERT INTO person VALUES (?, ?, ?)",
            (i, int(rng.choice([8507, 8532, 0])), int(rng.integers(1920, 2005))),
        )
        for _ in range(rng.integers(0, 3)):
            first, last = sorted((day(), day()))
            connection.execute("INSERT INTO observation_period VALUES (?, ?, ?)", (i, first, last))
        for drug in rng.choice([1, 2, 3], rng.integers(0, 3)).tolist():
            connection.execute("INSERT INTO drug_exposure VALUES (?, ?, ?)", (i, drug, day()))
        for condition in rng.choice([10, 11, 20, 21], rng.integers(0, 4)).tolist():
            connection.execute("INSERT INTO condition_occurrence VALUES (?, ?, ?)", (i, condition, day()))
        for unit in rng.choice([8, 9], rng.integers(0, 5)).tolist():
            value = None if rng.random() < 0.1 else round(float(rng.normal(7, 1)), 1)
            connection.execute("INSERT INTO measurement VALUES (?, 30, ?, ?, ?)", (i, day(), value, unit))
        if rng.random() < 0.3:
            connection.execute("INSERT INTO death VALUES (?, ?)", (i, day()))


@pytest.fixture(scope="module")
def hospital() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        cdm(connection)
        yield connection


COHORT = Cohort(
    {"new": Event("drug", [1]), "old": Event("drug", [2])},
    history=100,
    without=[Event("condition", [20])],
    covariates={"ill": Event("condition", [10]), "hba1c": Value([30], unit=8)},
    window=700,
    outcome=Event("death"),
    until=500,
)


def by_loops(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """The rows of `COHORT`, person by person."""
    ask = lambda query, i: connection.execute(query, (i,)).fetchall()
    date = datetime.date.fromisoformat
    rows = []
    for i, sex, born in connection.execute("SELECT * FROM person ORDER BY person_id").fetchall():
        drugs = "SELECT drug_exposure_start_date, drug_concept_id FROM drug_exposure WHERE person_id = ?"
        entries = sorted((date(d), {1: "new", 2: "old"}[k]) for d, k in ask(drugs, i) if k in (1, 2))
        if not entries:
            continue
        index, group = entries[0]
        periods = "SELECT * FROM observation_period WHERE person_id = ?"
        fits = [date(b) for _, a, b in ask(periods, i) if date(a) + 100 * DAY <= index <= date(b)]
        events = ask(
            "SELECT condition_start_date, condition_concept_id FROM condition_occurrence WHERE person_id = ?", i
        )
        if not fits or not 18 <= index.year - born <= 120 or any(k == 20 and date(d) <= index for d, k in events):
            continue
        ill = any(k in (10, 11) and index - 700 * DAY <= date(d) < index for d, k in events)
        measured = (
            "SELECT measurement_date, value_as_number FROM measurement WHERE person_id = ? AND unit_concept_id = 8"
        )
        values = sorted(
            (date(d), v) for d, v in ask(measured, i) if v is not None and index - 700 * DAY <= date(d) < index
        )
        days = min((max(fits) - index).days, 500)
        deaths = [(date(d) - index).days for (d,) in ask("SELECT death_date FROM death WHERE person_id = ?", i)]
        died = [d for d in deaths if 0 < d <= days]
        sexes = {8507: "male", 8532: "female"}.get(sex)
        value = values[-1][1] if values else None
        rows.append(
            (i, group, index.year - born, sexes, index.year, int(ill), value, min(died or [days]), len(died[:1]))
        )
    return rows


def test_a_cohort_is_what_loops_find(hospital: sqlite3.Connection):
    found = COHORT.rows(hospital)
    assert [*found] == ["person", "group", "age", "sex", "year", "ill", "hba1c", "days", "event"]
    plain = lambda v: None if v is None or v != v else v
    rows = [tuple(map(plain, row)) for row in zip(*(c.tolist() for c in found.values()), strict=True)]
    want = by_loops(hospital)
    assert len(want) > 30
    assert rows == want
    assert {row[-1] for row in want} == {0, 1}


def test_counts_fall_step_by_step_and_small_ones_are_withheld(hospital: sqlite3.Connection):
    all_of_them = COHORT.counts(hospital, Rules(rows=1))["persons"]
    assert all_of_them.iloc[-1] == len(by_loops(hospital))
    assert (all_of_them.diff().dropna() <= 0).all()
    assert [*all_of_them.index][-1] == "without condition 20"
    for least in (5, 20, 60, 1000):
        said = COHORT.counts(hospital, Rules(rows=least))["persons"].dropna().to_numpy(int)
        assert (said >= least).all()
        assert all(a == b or a - b >= least for a, b in itertools.pairwise(said))
    assert COHORT.counts(hospital, Rules(rows=1000))["persons"].isna().all()


def test_a_study_of_cohorts():
    sites = {}
    for seed, name in enumerate(("Bern", "Basel")):
        with closing(sqlite3.connect(":memory:")) as connection:
            cdm(connection, 600, seed)
            sites[name] = COHORT.rows(connection)
    study = Study(sites, rules=Rules(rows=1, events=1, id="person"), complete=["sex"])
    fit = study.glm("ill ~ age + C(group)", "binomial")
    assert fit.nobs == sum(sum(v is not None for v in site["sex"]) for site in sites.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Event("condition"), r"which condition\? Give concepts="),
        (lambda: Event("death", [1]), "a death has no concepts"),
        (lambda: Event("condition", ["1); DROP TABLE person"]), "concepts"),
        (lambda: Event("condition", [2**31]), "2147483648 is no number of a concept"),
        (lambda: Value([40], unit=-1), "-1 is no number of a concept"),
        (lambda: Event("pills", [1]), "kind"),
        (lambda: Value([30], unit="8 OR 1 = 1"), "unit"),
        (lambda: Cohort({}), "groups= is empty"),
        (lambda: Cohort({"a": Event("drug", [1])}, schema="cdm; DROP TABLE person"), "is no name of a schema"),
        (
            lambda: Cohort({"a": Event("drug", [1])}, covariates={"age": Event("drug", [1])}),
            "has 'age', which is a column",
        ),
        (lambda: Cohort({"a": Event("drug", [1])}, youngest=80, oldest=70), "youngest=80 is above"),
        (lambda: Cohort({"a": Event("drug", [1])}, history=-1), "history"),
    ],
)
def test_what_is_no_condition_is_refused_before_a_query(make: Any, message: str):
    with pytest.raises(md.RecipeError, match=message):
        make()


def test_an_empty_cohort_and_another_database_are_said(hospital: sqlite3.Connection):
    with pytest.raises(md.BadData, match=r"nobody is in this cohort; see cohort\.counts"):
        Cohort({"none": Event("drug", [99])}).rows(hospital)
    with pytest.raises(md.RecipeError, match=r"omop.Cohort\(\.\.\.\): the database refuses the query: .*no such table"):
        Cohort({"a": Event("device", [1])}).rows(hospital)
    with pytest.raises(md.RecipeError, match=r"unknown database cdm|no such table"):
        Cohort({"a": Event("drug", [1])}, schema="cdm").rows(hospital)


def of_three(day: str, end: str, ids: tuple[object, ...] = (1, 2, 3), schema: str = SCHEMA) -> sqlite3.Connection:
    """Persons 1 to 3, who take drug 1 this day, are observed until this end, and have a measurement before."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema)
    for i in ids:
        connection.execute("INSERT INTO person VALUES (?, 8507, 1950)", (i,))
        connection.execute("INSERT INTO observation_period VALUES (?, '2015-01-01', ?)", (i, end))
        connection.execute("INSERT INTO drug_exposure VALUES (?, 1, ?)", (i, day))
        connection.execute("INSERT INTO measurement VALUES (?, 30, '2019-05-01', 7, 8)", (i,))
    return connection


ONE = Cohort({"a": Event("drug", [1])}, covariates={"v": Value([30], unit=8)}, outcome=Event("condition", [20]))


def test_a_time_of_day_does_not_count():
    with closing(of_three("2019-06-01", "2019-06-01")) as connection:
        plain = ONE.rows(connection)
    with closing(of_three("2019-06-01 10:30:00+02:00", "2019-06-01")) as connection:
        connection.execute("UPDATE drug_exposure SET drug_exposure_start_date = '2019-06-01' WHERE person_id = 2")
        timed = ONE.rows(connection)
    assert plain["person"].tolist() == [1, 2, 3]
    assert {k: v.tolist() for k, v in plain.items()} == {k: v.tolist() for k, v in timed.items()}


def test_names_in_capitals_texts_as_ids_and_far_days_are_read():
    schema = SCHEMA.partition("INSERT")[0].replace("person_id INTEGER", "person_id TEXT").upper()
    with closing(of_three("2019-06-01", "9999-12-31", ("a", "b", "c"), schema)) as connection:
        rows = ONE.rows(connection)
    assert rows["person"].tolist() == ["a", "b", "c"]
    assert rows["days"].tolist() == [365] * 3
    assert rows["v"].tolist() == [7] * 3


def test_of_periods_that_overlap_the_last_end_holds_in_any_order():
    for way in ("ASC", "DESC"):
        with closing(of_three("2019-06-01", "2019-07-01")) as connection:
            connection.execute("INSERT INTO observation_period VALUES (1, '2016-01-01', '2019-12-01')")
            connection.execute("CREATE TABLE p AS SELECT * FROM observation_period ORDER BY 3 " + way)
            connection.executescript("DROP TABLE observation_period; ALTER TABLE p RENAME TO observation_period")
            assert ONE.rows(connection)["days"].tolist() == [183, 30, 30]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE drug_exposure SET drug_exposure_start_date = 'soon'", "exposure_start_date has .* no date.*soon"),
        ("UPDATE observation_period SET observation_period_end_date = '20200101'", "period_end_date has .*20200101"),
        ("UPDATE measurement SET value_as_number = '<7'", "value_as_number has a text"),
        ("INSERT INTO person VALUES (2, 8507, 1950)", "several rows of one person_id"),
    ],
)
def test_odd_cells_are_named(change: str, message: str):
    with closing(of_three("2019-06-01", "2020-01-01")) as connection:
        connection.execute(change)
        with pytest.raises(md.BadData, match=message):
            ONE.rows(connection)


def test_whoever_has_no_id_or_no_year_of_birth_is_left_out():
    with closing(of_three("2019-06-01", "2020-01-01", (1, 2, None))) as connection:
        connection.execute("UPDATE person SET year_of_birth = NULL WHERE person_id = 1")
        assert ONE.rows(connection)["person"].tolist() == [2]


ATTACKS: dict[str, tuple[str, tuple[Cohort, ...]]] = {
    "a cohort with and without a few of its persons": ("days ~ age", (COHORT, replace(COHORT, oldest=87))),
    "a cohort with a condition that few of its persons have": ("days ~ ill", (replace(COHORT, window=60),)),
    "a cohort in which few persons die": ("event ~ age", (replace(COHORT, until=35),)),
}
"""What is asked of cohorts, one after the other: each works without rules, and is withheld with them."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_by_cohorts_is_withheld(attack: str, hospital: sqlite3.Connection, tmp_path: Path):
    formula, cohorts = ATTACKS[attack]

    def tries(rules: Rules) -> list[Any]:
        family = "binomial" if formula.startswith("event") else "gaussian"
        of = [Study({"Bern": c.rows(hospital)}, rules, registers=tmp_path / str(rules.rows)) for c in cohorts]
        return [study.glm(formula, family) for study in of]

    fits = tries(Rules(rows=1, events=1, parameters=1.0, id="person"))
    if len(fits) > 1:
        assert 0 < abs(fits[0].nobs - fits[1].nobs) < 5
    with pytest.raises((Withheld, md.BadData), match=r"Bern withholds|fewer than 5 rows are gone"):
        tries(Rules(exact=True, id="person"))
