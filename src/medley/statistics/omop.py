"""Cohorts from a hospital's OMOP database: a row a person, from typed conditions, for the sites of a `Study`.

A cohort is made of numbers: concepts, days, ages. They are checked, and Medley writes the queries, so that no text of
anyone else's reaches the database. The tables are those of the common data model 5.3 and 5.4.

**Reference**: Voss et al., "Feasibility and utility of applications of the common data model to multiple, disparate
observational health databases", JAMIA 22(3), 2015; the Book of OHDSI, chapters 4 and 10.

**Departures** from OHDSI's tools: a person enters once, at the first event of any group; exclusions look at all days
before; age is the year of the event less the year of birth, as in FeatureExtraction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from ..contract import BadData, Checked, RecipeError, at_least
from ..datasets.readers.sql import table
from .extra import needed
from .rules import Rules

Kind = Literal["condition", "drug", "procedure", "measurement", "observation", "visit", "device", "death"]

TABLES: dict[str, tuple[str, str, str]] = {
    "condition": ("condition_occurrence", "condition_concept_id", "condition_start_date"),
    "drug": ("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
    "procedure": ("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "measurement": ("measurement", "measurement_concept_id", "measurement_date"),
    "observation": ("observation", "observation_concept_id", "observation_date"),
    "visit": ("visit_occurrence", "visit_concept_id", "visit_start_date"),
    "device": ("device_exposure", "device_concept_id", "device_exposure_start_date"),
    "death": ("death", "", "death_date"),
}
"""The table of each kind of event, and its columns of concepts and dates."""

SEXES = {8507: "male", 8532: "female"}
"""OMOP's concepts of sexes; other ones are missing values."""

CALL = "omop.Cohort(...)"

DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?")


@dataclass(frozen=True)
class Event(Checked):
    """A kind of event in a person's records.

    Attributes:
        kind: the table: "condition", "drug", "procedure", "measurement", "observation", "visit", "device", or "death"
        concepts: OMOP's numbers of concepts; none for a death
        descendants: whether concepts below these in the vocabulary count, too. Default True
    """

    kind: Kind
    concepts: Sequence[int] = ()
    descendants: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kind == "death") == bool(self.concepts):
            text = (
                "a death has no concepts"
                if self.concepts
                else f"which {self.kind}? Give concepts=[201826], OMOP's numbers"
            )
            raise RecipeError(f"Event({self.kind!r}): {text}", "concepts")
        _are_concepts(f"Event({self.kind!r})", self.concepts)

    def where(self, schema: str) -> str:
        """The condition of a query."""
        if not self.concepts:
            return "1 = 1"
        column = TABLES[self.kind][1]
        numbers = ", ".join(str(int(c)) for c in self.concepts)
        if not self.descendants:
            return f"{column} IN ({numbers})"
        below = f"SELECT descendant_concept_id FROM {schema}concept_ancestor WHERE ancestor_concept_id IN ({numbers})"
        return f"({column} IN ({numbers}) OR {column} IN ({below}))"


@dataclass(frozen=True)
class Value(Checked):
    """The last value of a measurement before the index date.

    Attributes:
        concepts: OMOP's numbers of concepts, without those below them
        unit: OMOP's number of the unit; values in another unit do not count
    """

    concepts: Sequence[int]
    unit: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _are_concepts("Value", [*self.concepts, self.unit])


@dataclass(frozen=True)
class Cohort(Checked):
    """Persons from the first event of a group on: their features before it, and an outcome after it.

    `rows` gives the columns person, group, age, sex, year, one for each covariate, and with an outcome days and event.

    Attributes:
        groups: the event by which a person enters, by the group's name: {"new": Event("drug", [1]), "old": ...}
        history: how many days before it a person has been observed at least
        youngest: the least age in years
        oldest: the largest age; whoever has no year of birth is left out
        without: whoever has one of these events before, or on the day of it, is left out
        covariates: columns: 1 for whoever has such an event in the last days before the index date, or the last `Value`
            there, else missing
        window: these days
        outcome: the event that ends the time; default none
        until: after how many days the time ends at the latest
        schema: the schema of the tables, such as "cdm"; default the connection's
    """

    groups: Mapping[str, Event]
    history: Annotated[int, at_least(0)] = 365
    youngest: Annotated[int, at_least(0)] = 18
    oldest: Annotated[int, at_least(0)] = 120
    without: Sequence[Event] = ()
    covariates: Mapping[str, Event | Value] = field(default_factory=dict)
    window: Annotated[int, at_least(1)] = 365
    outcome: Event | None = None
    until: Annotated[int, at_least(1)] = 365
    schema: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups:
            raise RecipeError(
                f"{CALL}: groups= is empty; give groups={{'treated': Event('drug', [1115008])}}", "groups"
            )
        taken = {"person", "group", "age", "sex", "year", "days", "event", "site"} & {*self.covariates}
        if taken:
            raise RecipeError(
                f"{CALL}: covariates= has {min(taken)!r}, which is a column already; rename it", "covariates"
            )
        if self.schema and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", self.schema):
            raise RecipeError(f"{CALL}: schema={self.schema!r} is no name of a schema, such as 'cdm'", "schema")
        if self.youngest > self.oldest:
            raise RecipeError(f"{CALL}: youngest={self.youngest} is above oldest={self.oldest}", "youngest")

    def rows(self, connection: Any) -> dict[str, np.ndarray]:
        """The cohort's rows, as columns [n] by name, for a site of a `Study`; give it ``Rules(id="person")``.

        Raises RecipeError for a database without these tables, and BadData if nobody is in the cohort.
        """
        frame, _ = self._steps(connection)
        if not len(frame):
            raise BadData(f"{CALL}: nobody is in this cohort; see cohort.counts(connection)")
        index = frame["date"]
        out = {c: frame[c].infer_objects().to_numpy() for c in ("person", "group", "age")}
        out["sex"] = np.array([SEXES.get(concept) for concept in frame["sex"].tolist()], object)
        out["year"] = index.dt.year.to_numpy()
        for name, covariate in self.covariates.items():
            out[name] = self._covariate(connection, frame, covariate)
        if self.outcome is not None:
            ends = (frame["end"] - index).dt.days.clip(upper=self.until)
            found = self._joined(frame, self._events(connection, self.outcome))
            after = found[found["days"] > 0].groupby("person")["days"].min().reindex(frame["person"]).to_numpy()
            happened = after <= ends.to_numpy()
            out |= {"days": np.where(happened, after, ends.to_numpy()), "event": happened.astype(int)}
        return out

    def counts(self, connection: Any, rules: Rules | None = None) -> Any:
        """A frame of the persons left after each step. A count is missing if it, or how many a step leaves out, is of
        fewer persons than the rules allow. Counts of several cohorts that differ little tell of the few between them.
        """
        least = (rules or Rules()).rows
        _, steps = self._steps(connection)
        shown = list[int | None]()
        last: int | None = None
        for _, n in steps:
            hidden = 0 < n < least or (last is not None and 0 < last - n < least)
            shown.append(None if hidden else n)
            last = last if hidden else n
        pandas = needed("pandas")
        return pandas.DataFrame({"persons": pandas.array(shown, "Int64")}, index=[step for step, _ in steps])

    def _steps(self, connection: Any) -> tuple[Any, list[tuple[str, int]]]:
        """The cohort: a row a person, with index date and end of observation; and how many each step left."""
        pandas = needed("pandas")
        events = [self._events(connection, e).assign(group=name) for name, e in self.groups.items()]
        first = pandas.concat(events).sort_values(["date", "group"], kind="stable").drop_duplicates("person")
        steps = [("with an event of a group", len(first))]

        periods = self._dated(
            connection, "observation_period", "observation_period_start_date", "observation_period_end_date"
        )
        both = first.merge(periods, "inner", "person")
        before = (both["date"] - both["start"]).dt.days
        both = both[(before >= self.history) & (both["date"] <= both["end"])]
        both = both.sort_values("end", kind="stable").drop_duplicates("person", keep="last")
        steps.append((f"observed for {self.history} days before it", len(both)))

        persons = self._query(connection, "SELECT person_id, gender_concept_id, year_of_birth FROM {}person")
        persons = persons.set_axis(["person", "sex", "born"], axis=1)
        if persons["person"].duplicated().any():
            raise BadData(f"{CALL}: the table person has several rows of one person_id; leave one of them")
        both = both.merge(persons[persons["born"].notna()], "inner", "person")
        both["age"] = both["date"].dt.year - both["born"].astype(int)
        both = both[both["age"].between(self.youngest, self.oldest)]
        steps.append((f"{self.youngest} to {self.oldest} years old", len(both)))

        for event in self.without:
            had = self._joined(both, self._events(connection, event))
            both = both[~both["person"].isin(had.loc[had["days"] <= 0, "person"])]
            steps.append((f"without {event.kind} {', '.join(map(str, event.concepts))}".strip(), len(both)))
        return both.sort_values("person").reset_index(drop=True), steps

    def _covariate(self, connection: Any, frame: Any, covariate: Event | Value) -> np.ndarray:
        """A covariate's column."""
        if isinstance(covariate, Event):
            found = self._joined(frame, self._events(connection, covariate))
            had = found.loc[found["days"].between(-self.window, -1), "person"]
            return np.array(frame["person"].isin(had), np.int64)
        event = Event("measurement", covariate.concepts, descendants=False)
        where = f"unit_concept_id = {int(covariate.unit)} AND value_as_number IS NOT NULL"
        found = self._joined(frame, self._events(connection, event, ", value_as_number", where))
        found = found[found["days"].between(-self.window, -1)]
        try:
            found = found.assign(value_as_number=found["value_as_number"].astype(float))
        except (ValueError, TypeError) as e:
            raise BadData(f"{CALL}: measurement.value_as_number has a text: {e}; make it a number, or NULL") from None
        found = found.sort_values(["days", "value_as_number"])
        last = found.groupby("person")["value_as_number"].last()
        return np.array(last.reindex(frame["person"]), np.float64)

    def _events(self, connection: Any, event: Event, more: str = "", where: str = "1 = 1") -> Any:
        """All events of a kind: person and date, and further columns."""
        name, _, date = TABLES[event.kind]
        condition = f"{event.where(self._prefix)} AND {where}"
        frame = self._query(connection, f"SELECT person_id, {date}{more} FROM {{}}{name} WHERE {condition}")
        frame = frame.rename(columns={"person_id": "person", date: "date"})
        return frame.assign(date=_days(frame["date"], name, date))

    def _dated(self, connection: Any, name: str, start: str, end: str) -> Any:
        frame = self._query(connection, f"SELECT person_id, {start}, {end} FROM {{}}{name}")
        times = {"start": _days(frame[start], name, start), "end": _days(frame[end], name, end)}
        return frame[["person_id"]].rename(columns={"person_id": "person"}).assign(**times)

    def _joined(self, frame: Any, events: Any) -> Any:
        """The events of these persons, with the days from the index date to each."""
        both = events.merge(frame[["person", "date"]], "inner", "person", suffixes=("", "_index"))
        return both.assign(days=(both["date"] - both["date_index"]).dt.days)

    def _query(self, connection: Any, query: str) -> Any:
        """The rows of a query that name a person; names of columns in small letters, whatever the database has."""
        columns = table(connection, query.format(self._prefix), (), CALL)
        frame = needed("pandas").DataFrame({name.lower(): values for name, values in columns.items()})
        frame = frame[frame["person_id"].notna()].reset_index(drop=True)
        return frame.assign(person_id=frame["person_id"].astype(object))  # an empty table has ids of any kind

    @property
    def _prefix(self) -> str:
        return f"{self.schema}." if self.schema else ""


def _are_concepts(call: str, numbers: Sequence[int]) -> None:
    """Raises RecipeError for a number that the model's integers cannot hold: a query would never find it."""
    wrong = [c for c in numbers if not 0 <= c < 2**31]
    if wrong:
        raise RecipeError(f"{call}: {wrong[0]} is no number of a concept; they are from 0 to {2**31 - 1}", "concepts")


def _days(column: Any, table: str, name: str) -> Any:
    """A column of dates, times or their ISO texts as dates: the time of day and its zone do not count.

    Raises BadData for what is no date.
    """
    pandas = needed("pandas")
    texts = ["NaT" if missing else str(v) for v, missing in zip(column, column.isna(), strict=True)]
    try:
        wrong = next((t for t in texts if t != "NaT" and not DATE.fullmatch(t)), None)
        if wrong is not None:
            raise ValueError(wrong)
        return pandas.Series(np.array([t[:10] for t in texts], "datetime64[D]").astype("datetime64[s]"), column.index)
    except ValueError as e:
        raise BadData(f"{CALL}: {table}.{name} has what is no date, such as 2024-12-31: {e}") from None
