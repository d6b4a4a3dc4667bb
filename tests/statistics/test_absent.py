"""A site that does not answer is named, in every analysis: no result is of the other sites' rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Study
from support.hospitals import patients, sites
from support.pairs import quick

NAMES = ("Bern", "Basel", "Chur")

ANALYSES: dict[str, Callable[[Study], Any]] = {
    "glm": lambda s: s.glm("died ~ age + C(sex)", "binomial").summary(),
    "cox": lambda s: s.cox("months ~ age + C(sex)", "event").summary(),
    "cox, one baseline": lambda s: s.cox("months ~ age", "event", cuts=[6, 20]).baseline_hazard.to_string(),
    "describe": lambda s: s.describe(["age", "ward", "C(died)"], by="sex").summary(),
    "kaplan_meier": lambda s: s.kaplan_meier("months", "event", 0.1, 20.0, by="sex").summary(),
    "margins": lambda s: s.margins("died ~ age + C(sex)", "binomial", of="sex").summary(),
    "correlation": lambda s: s.correlation(["age", "bmi"], "spearman").summary(),
    "meta": lambda s: s.meta("pressure ~ age + C(sex)").summary(),
    "prepare": lambda s: s.prepare(["age: median, standardise", "ward: mode, encode"]).summary(),
}


def three(**how: Any) -> Study:
    return Study({name: rows for name, rows in sites(patients()).items() if name in NAMES}, **how)


@pytest.mark.parametrize("fault", quick(1, ["loss", "hang", "truncate", "corrupt", "duplicate"]))
@pytest.mark.parametrize("name", ANALYSES)
def test_a_result_is_that_of_all_sites_or_an_error_that_names_the_site(name: str, fault: str) -> None:
    ask = ANALYSES[name]
    whole, study, outcomes = ask(three()), three(transport=md.transports.Lossy(**{fault: 0.1})), set[str]()
    for _ in range(16):  # each call draws its faults anew
        try:
            assert ask(study) == whole
            outcomes.add("")
        except md.TooFewReplies as e:
            outcomes |= {*str(e).partition(" did not answer")[0].replace(" and ", ", ").split(", ")}
    assert {""} <= outcomes <= {"", *NAMES}
    assert (len(outcomes) == 1) == (fault == "duplicate")


@pytest.mark.parametrize("secure", [None, md.SecureSum(bits=64, bound=2.0**40)])
def test_the_sites_are_named_with_the_exchange(secure: Any) -> None:
    lost = lambda *i: md.transports.Lossy(loss=1.0, clients=i)
    with pytest.raises(md.TooFewReplies, match=r"^Basel did not answer \(agree\), .* study.without"):
        three(transport=lost(1), secure=secure).describe(["age"])
    if secure is None:
        with pytest.raises(md.TooFewReplies, match=r"^Bern, Basel and Chur did not answer"):
            three(transport=lost(0, 1, 2)).glm("died ~ age")
