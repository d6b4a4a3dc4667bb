"""The settings of a run: declared once, and all that follows from the declaration."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import numpy as np
import pytest
import torch

import medley as md
from medley.contract.settings import describe
from medley.recipe import schema
from medley.server.options import RunOptions

NAMES = [f.name for f in dataclasses.fields(RunOptions) if f.init]


def test_the_arguments_of_run_are_its_settings() -> None:
    found = inspect.signature(md.run).parameters
    assert [*found] == ["method", "fed", *NAMES]
    assert len(NAMES) == 28
    assert {name: found[name].default for name in NAMES} == {s.name: s.default for s in describe(RunOptions)}
    assert [name for name, p in found.items() if p.kind is p.KEYWORD_ONLY] == NAMES[1:]
    assert str(found["rounds"]) == "rounds: 'int' = 100"
    assert typing.get_type_hints(md.run)["eval_rows"] == int | None
    with pytest.raises(md.RecipeError, match=r"^run\(\): give method=, the method, or .*; and fed=, the federation"):
        md.run()  # type: ignore[call-arg]


def test_help_has_the_meaning_of_every_argument() -> None:
    said = inspect.getdoc(md.run) or ""
    assert said.startswith(
        "Train ``method`` on ``fed``.\n\nArgs:\n    method (an object such as FedAvg()): the method, or the method with"
    )
    assert said.endswith("and Unsupported if the method needs more than problem and federation\nprovide.")
    for name in ("method", "fed", *NAMES):
        assert f"\n    {name} (" in said
    assert max(map(len, said.splitlines())) <= 118
    assert all(s.doc for s in describe(RunOptions))


def test_a_recipe_sets_the_options_that_a_file_can_write() -> None:
    here = {"checkpoint", "resume", "recipe", "client_models", "throw", "progress", "readmit"}
    tables = {"transport", "codec", "reply_policy", "secure", "on_round"}
    assert {*schema.RUN} == {*NAMES} - here - tables - {"rounds", "seed"}


def test_numbers_are_pythons_own_and_devices_are_named() -> None:
    o = RunOptions(np.int64(3), seed=np.int64(5), device=torch.device("cpu"), dtype="float64")
    assert (type(o.rounds), o.rounds, type(o.seed), o.seed) == (int, 3, int, 5)
    assert (o.device_name, o.float_type, o.folder) == ("cpu", torch.float64, None)
    assert RunOptions(resume="a", checkpoint="b").folder.name == "b"  # type: ignore[union-attr]
