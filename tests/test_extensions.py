"""Whoever adds a metric, codec, partition, reader or family is told what it lacks: an export, a test, a page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from medley.cli.information import listed
from medley.report.table import FAIRNESS, NAMES
from medley.report.targets import COLUMNS
from medley.statistics.families import FAMILIES
from medley.storage.directions import higher_is_better
from support.extensions import PACKAGES, lacks, not_exported

LISTED = listed()
KINDS = sorted({*LISTED} - {"attacks"})


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_list_shows_has_a_test_and_a_page(kind: str) -> None:
    assert LISTED[kind]
    names = [name.partition(".")[0] for name in LISTED[kind]]
    assert [sentence for name in names for sentence in lacks(kind, name)] == []


@pytest.mark.parametrize("kind", PACKAGES)
def test_what_is_written_is_in_a_list(kind: str) -> None:
    assert not_exported(kind, LISTED[kind]) == []


def test_a_family_has_a_test_and_a_page() -> None:
    assert [sentence for name in FAMILIES for sentence in lacks("families", name)] == []


def test_a_column_of_a_report_has_a_name_a_direction_a_test_and_a_page() -> None:
    assert [m for m in (*FAIRNESS, *COLUMNS) if m not in NAMES] == []
    for metric in NAMES:
        assert higher_is_better(metric) in (True, False)  # or an error that names the column
    assert [sentence for name in NAMES for sentence in lacks("columns", name)] == []


NEW = "".join(("Un", "heard"))  # a name that no test and no page has, nor this file
WRITTEN = {
    "problems": f"from medley.problems import Softmax\nclass {NEW}(Softmax): ...",
    "datasets": "from medley.contract import checked\nfrom medley.datasets import Dataset\n"
    f"@checked('datasets')\ndef {NEW}(path: str) -> Dataset: ...",
    "partitions": f"from medley.partitions import IID\nclass {NEW}(IID): ...",
    "participations": f"from medley.participation import Everyone\nclass {NEW}(Everyone): ...",
    "streams": f"from medley.tasks import Split\nclass {NEW}(Split): ...",
    "memories": f"from medley.replay import Ring\nclass {NEW}(Ring): ...",
    "codecs": f"from medley.codecs import Cast\nclass {NEW}(Cast): ...",
    "metrics": f"from medley.metrics import AUROC\nclass {NEW}(AUROC): ...",
    "rules": f"from medley.robust import Median\nclass {NEW}(Median): ...",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_whoever_writes_a_new_one_is_told_what_it_lacks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, finds = PACKAGES[kind]
    place = f"{package.__name__}.{NEW.lower()}"
    (tmp_path / f"{NEW.lower()}.py").write_text(WRITTEN[kind], encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*getattr(package, "__path__", ()), str(tmp_path)], raising=False)
    monkeypatch.delitem(sys.modules, place, raising=False)
    (sentence,) = not_exported(kind, LISTED[kind])
    assert sentence.startswith(f"{kind}: {NEW} of {place} is in no list: import it in {package.__name__}")
    new = getattr(sys.modules[place], NEW)
    assert [*finds(sys.modules[place])] == [NEW]
    monkeypatch.delattr(package, NEW.lower(), raising=False)
    assert not_exported(kind, {**LISTED[kind], NEW: new}) == []
    test, page = lacks(kind, NEW)
    assert test.startswith(f"{kind}: no test names {NEW}")
    assert page.startswith(f"{kind}: no page names {NEW}")
    sys.modules.pop(place)


@pytest.mark.parametrize("kind", ["problems", "partitions", "participations", "streams", "memories", "codecs"])
def test_what_its_package_exports_has_a_name_in_recipes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, finds = PACKAGES[kind]
    scope = {"__name__": package.__name__}
    exec(WRITTEN[kind], scope)
    monkeypatch.setattr(package, NEW, scope[NEW], raising=False)
    assert finds(package)[NEW] is scope[NEW]  # `medley.recipe.schema.KINDS` is made so
