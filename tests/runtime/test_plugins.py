"""Methods, data sets and sinks that other packages declare."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from medley import RecipeError, recipe, sinks
from medley.cli.arguments import complete
from medley.runtime import plugins
from support.toys import Toy


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """A list whose entry points other packages seem to declare."""
    points: list[EntryPoint] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group])
    plugins._loaded.cache_clear()
    yield points
    plugins._loaded.cache_clear()


def test_a_strangers_method_is_listed_completed_and_made(declared: list[EntryPoint]) -> None:
    assert "Theirs" not in recipe.methods()
    plugins._loaded.cache_clear()
    declared.append(EntryPoint("Theirs", "support.toys:Toy", "medley.methods"))
    assert recipe.methods()["Theirs"] is Toy
    assert complete("fedavg,the") == ["fedavg,theirs"]
    assert complete("fedavg,The") == ["fedavg,Theirs"]
    (method,) = recipe.loads("[[methods]]\nkind = 'theirs'").methods()
    assert type(method) is Toy


def test_a_package_is_imported_where_a_recipe_names_it_and_nowhere_else(
    declared: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, loaded = EntryPoint.load, list[str]()
    monkeypatch.setattr(EntryPoint, "load", lambda point: loaded.append(point.name) or load(point))
    for group, thing in (("methods", "support.toys:Toy"), ("datasets", "medley.datasets:digits"), ("sinks", "x:X")):
        declared += [EntryPoint(f"{name}_{group}", thing, f"medley.{group}") for name in ("named", "other")]
    text = "[data]\nname = '{}'\n[problem]\nkind = 'Softmax'\n[partition]\nkind = 'IID'\nclients = 2\n"
    text += "[[methods]]\nkind = '{}'"
    r = recipe.loads(text.format("digits", "fedavg"))
    r.federation()
    r.grid(r.methods()[0])
    assert loaded == []
    r = recipe.loads(text.format("Named_datasets", "named_methods"))
    r.federation()
    assert loaded == ["named_datasets"]
    assert type(r.methods()[0]) is Toy
    assert loaded == ["named_datasets", "named_methods"]
    broken = recipe.loads("[sink]\nkind = 'named_sinks'")
    with pytest.raises(RecipeError, match=r"named_sinks of another package .* x:X cannot be imported"), broken.filing():
        pass


def test_a_strangers_data_set_is_listed(declared: list[EntryPoint]) -> None:
    declared.append(EntryPoint("their_digits", "medley.datasets:digits", "medley.datasets"))
    assert recipe.readers()["their_digits"] is recipe.readers()["digits"]


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (EntryPoint("Gone", "no_such_module:X", "medley.methods"), "cannot be imported: ModuleNotFoundError"),
        (EntryPoint("NoMethod", "support.toys:federation", "medley.methods"), "does not belong to methods"),
        (EntryPoint("FedAvg", "support.toys:Toy", "medley.methods"), "FedAvg is left out: the name is taken"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_what_cannot_be_used_is_left_out_and_said(
    declared: list[EntryPoint], caplog: pytest.LogCaptureFixture, point: EntryPoint, why: str
) -> None:
    declared += [point, EntryPoint("Theirs", "support.toys:Toy", "medley.methods")]
    with caplog.at_level(logging.WARNING, "medley"):
        found = recipe.methods()
    assert why in caplog.text
    assert found["Theirs"] is Toy
    assert found["FedAvg"].__module__ == "medley.algorithms.fedavg"


def test_only_sinks_are_sinks(declared: list[EntryPoint]) -> None:
    declared.append(EntryPoint("Theirs", "medley.sinks:TensorBoard", "medley.sinks"))
    fits = lambda thing: isinstance(thing, type) and issubclass(thing, sinks.Sink)
    assert plugins.plugins("sinks", fits) == {"Theirs": sinks.TensorBoard}
