"""Declared settings: which values each kind of annotation takes, and what a refusal says."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.codecs import Quantise, TopK
from medley.contract.algorithm import Algorithm
from medley.contract.calls import checked
from medley.contract.errors import RecipeError, UnknownSetting
from medley.contract.settings import Checked, above, at_least, at_most, below, describe, in_range, positive
from medley.transports import Lossy


@dataclass(frozen=True)
class Ridge(Checked):
    """A made-up class of settings.

    Attributes:
        mu: the ridge, in units of the loss;
            default from nowhere
        lr: the learning rate
    """

    mu: Annotated[float, at_least(0)] = 0.01
    lr: Annotated[float, positive] | Literal["auto"] = "auto"
    beta: Annotated[float, at_least(0), below(1)] = 0.9
    tries: Annotated[int, at_least(1)] = 3
    bits: Annotated[int, in_range(2, 8)] | None = None
    shift: float = 0.0
    option: Literal["I", "II"] = "II"
    way: Literal["left", "right"] | None = None
    weighted: bool = False
    dtype: str = "float32"
    pairs: Annotated[int, at_least(0)] | Sequence[Annotated[int, at_least(0)]] = 1
    window: tuple[float, float] = (0.0, 1.0)
    net: nn.Module | None = None
    schedule: Callable[[int], float] | None = None
    extra: Any = None


COUNT, NUMBER = "a whole number, at least 0", "a finite number"


@pytest.mark.parametrize(
    ("key", "good", "bad", "accepts"),
    [
        ("mu", (0, 0.5, np.float64(2), np.int64(2)), (-1, math.inf, math.nan, True, "1"), f"{NUMBER}, at least 0"),
        ("lr", (1e-9, 3, "auto"), (0, -1, math.inf, "aut", None, False), "a finite number above 0, or 'auto'"),
        ("beta", (0, 0.999), (1, 1.0, -0.1), "a number in [0, 1)"),
        ("tries", (1, np.int64(7)), (0, 1.0, True, None, "1"), "a whole number, at least 1"),
        ("bits", (2, 8, None), (1, 9, 2.0, False), "a whole number in [2, 8], or None"),
        ("shift", (-5, 0.0), (math.inf, -math.inf, math.nan, True), "a finite number"),
        ("weighted", (True, False), (0, 1, None, "yes"), "True or False"),
        ("dtype", ("any",), (1, None), "text"),
        ("pairs", (0, [], [1, 2], (3,)), (-1, [1, -1], [1.0], "12", (True,)), f"{COUNT}, or a list, each {COUNT}"),
        ("window", ((0, 1), [0.5, 2]), ((1.0,), (1, 2, 3), 1.0, ("a", 1)), f"a list of 2: {NUMBER}; {NUMBER}"),
        ("net", (None, nn.Linear(1, 1)), ("mlp", 3), "a torch.nn.Module, or None"),
        ("schedule", (None, math.sqrt), (1.0,), "a function, or None"),
        ("extra", (None, 1, "x", print), (), "any value"),
    ],
)  # fmt: skip
def test_each_kind_takes_its_values_and_refuses_others(key: str, good: Any, bad: Any, accepts: str) -> None:
    assert {s.name: s.accepts for s in describe(Ridge)}[key] == accepts
    for value in good:
        assert getattr(Ridge(**{key: value}), key) is value
    for value in bad:
        with pytest.raises(RecipeError) as e:
            Ridge(**{key: value})
        unquoted = f"; it is a text, write {value} without quotes" if value in ("1", "12") else ""
        assert str(e.value) == f"Ridge({key}={value!r}): must be {accepts}{unquoted}"
        assert e.value.key == key


def test_an_unknown_word_names_the_nearest() -> None:
    with pytest.raises(
        RecipeError, match=r"Ridge\(option=...\) has no 'III'. Did you mean 'II'\? It knows: I, II."
    ) as e:
        Ridge(option="III")  # type: ignore[arg-type]
    assert e.value.key == "III"
    with pytest.raises(RecipeError, match="Did you mean 'right'"):
        Ridge(way="rihgt")  # type: ignore[arg-type]
    assert Ridge(way=None).way is None


def test_an_object_is_refused_by_its_type_and_not_printed() -> None:
    with pytest.raises(RecipeError) as e:
        Ridge(mu=torch.zeros(1000))  # type: ignore[arg-type]
    assert str(e.value) == "Ridge(mu=...): a Tensor; give a finite number, at least 0"


def test_bounds_combine() -> None:
    both = above(0) & at_most(1)
    assert [0 in both, 0.5 in both, 1 in both, 1.1 in both] == [False, True, True, False]
    assert (at_least(0) & above(0)) == above(0) == (above(-1) & positive)
    assert (in_range(0, 1) & below(1)).of("a number") == "a number in [0, 1)"
    assert below(2).of("a number") == "a number below 2"
    assert at_most(2).of("a number") == "a number, at most 2"


def test_a_declaration_is_described() -> None:
    mu, lr, *_, window = describe(Ridge)[:12]
    assert (mu.name, mu.default, mu.kinds[0].bounds) == ("mu", 0.01, at_least(0))
    assert mu.doc == "the ridge, in units of the loss; default from nowhere"
    assert (lr.doc, lr.kinds[1].words) == ("the learning rate", ("auto",))
    assert (window.doc, window.default) == ("", (0.0, 1.0))


@dataclass(frozen=True)
class Ordered(Checked):
    """A rule between settings comes after the settings' own."""

    low: float
    high: float
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise RecipeError(f"{self!r}: low is above high; swap them", "low")


def test_rules_between_settings_come_after_the_declared_ones() -> None:
    with pytest.raises(RecipeError, match="swap them"):
        Ordered(2, 1)
    with pytest.raises(RecipeError, match=r"Ordered\(low='2'\): must be a finite number"):
        Ordered("2", 1)  # type: ignore[arg-type]
    assert describe(Ordered)[2].default == []


def test_a_method_checks_its_settings() -> None:
    @dataclass
    class Server:
        x: torch.Tensor

    @dataclass(frozen=True)
    class Still(Algorithm[Server]):
        mu: Annotated[float, positive] = 1.0

        def start(self, x: torch.Tensor) -> Server:
            return Server(x)

        def round(self, s: Server, clients: Any) -> None:
            del s, clients

    with pytest.raises(RecipeError, match=r"Still\(mu=0\): must be a finite number above 0"):
        Still(mu=0)


def test_an_annotation_that_its_module_does_not_know_is_reported() -> None:
    @dataclass(frozen=True)
    class Local(Checked):
        size: Elsewhere = 1  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="class Local: name 'Elsewhere' is not defined, which an annotation uses"):
        Local()


@checked("room")
def read(path: str, rows: Annotated[int, at_least(1)] = 1, sparse: bool = False, **rest: Any) -> str:
    return f"{path} {rows} {sparse} {rest}"


def test_a_checked_function_is_called_with_arguments_that_fit() -> None:
    assert read("a", 2, sparse=True, other=object) == f"a 2 True {{'other': {object}}}"
    assert read.__name__ == "read"


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        ({"path": 1}, "path", "room.read(path=1): must be text"),
        ({"path": "a", "rows": 0}, "rows", "room.read(rows=0): must be a whole number, at least 1"),
        ({"path": "a", "sparse": "no"}, "sparse", "room.read(sparse='no'): must be True or False"),
    ],
)
def test_a_checked_function_refuses_other_arguments_by_name(arguments: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(**arguments)
    assert caught.value.key == key
    assert str(caught.value) == says


FLAGS: dict[str, Callable[[Any], object]] = {
    "redraw": lambda v: md.scenarios.Pace(redraw=v),
    "drop_last": lambda v: md.scenarios.Pace(drop_last=v),
    "weighted": lambda v: md.participation.Fraction(0.5, weighted=v),
    "own_order": lambda v: md.tasks.Split(own_order=v),
    "reorder": lambda v: Lossy(reorder=v),
    "feedback": lambda v: (Quantise if v else TopK)(feedback=v),
    "normalise": lambda v: md.datasets.mnist(normalise=v),
    "sparse": lambda v: md.datasets.svmlight("a9a", sparse=v),
    "ignore_index": lambda v: md.problems.Network(torch.nn.Linear(2, 2), ignore_index=v),
    "name": lambda v: md.datasets.Dataset(torch.ones(2, 1), torch.ones(2), name=v),
    "progress": lambda v: md.compare([md.FedAvg()], md.problems.synthetic_quadratics(clients=2), progress=v),
    "grid": lambda v: md.tune(md.FedAvg(), md.problems.synthetic_quadratics(clients=2), grid=v),
    "metric": lambda v: md.tune(md.FedAvg(), md.problems.synthetic_quadratics(clients=2), {"lr": [1.0]}, metric=v),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_takes_no_other_value(name: str) -> None:
    for value in (object(), 1.5, int, 1j, 0j):
        with pytest.raises(RecipeError, match=rf"\({name}=") as caught:
            FLAGS[name](value)
        assert caught.value.key == name


ROOMS = (md, md.datasets, md.engines, md.logs, md.models, md.privacy, md.problems, md.replay, md.robust, md.scenarios)
ROOMS += (md.sinks, md.transports, md.codecs, md.devices, md.distributions, md.participation, md.partitions, md.tasks)

RESULTS = (md.Board, md.Result, md.Status, md.scenarios.Description)
"""Classes that no user makes."""

MADE = {
    thing.__qualname__: thing
    for room in ROOMS
    for thing in (getattr(room, name) for name in room.__all__)
    if inspect.isclass(thing)
    if thing is md.Federation or (dataclasses.is_dataclass(thing) and thing not in RESULTS)
}
"""Every class of settings that has a public name."""

CALLS: dict[str, Callable[..., Any]] = {"run": md.run, "mnist": md.datasets.mnist}


@pytest.mark.parametrize("name", [*MADE, *CALLS])
def test_an_unknown_keyword_of_any_public_name_is_answered_with_the_nearest(name: str) -> None:
    made = {**MADE, **CALLS}[name]
    known = [p.name for p in inspect.signature(made).parameters.values() if p.kind != p.VAR_KEYWORD]
    with pytest.raises(UnknownSetting, match=r"\(\) has no 'zq9'\. It knows: ") as caught:
        made(**{"zq9": 1})
    assert caught.value.key == "zq9"
    assert isinstance(caught.value, TypeError | ValueError)
    for key in known:
        wrong = f"{key}q" if f"{key}q" not in known else f"{key}qq"
        with pytest.raises(TypeError, match=rf"\(\) has no '{wrong}'\. Did you mean '\w+'\? It knows: .*\b{key}\b"):
            made(**{wrong: 1})


def test_all_public_settings_are_covered() -> None:
    assert len(MADE) > 100
    assert {"FedProx", "Pace", "Devices", "ReplyPolicy", "Quantise", "Softmax", "Network", "Lossy", "Ring"} <= {*MADE}
    assert {"Tuned", "Private", "Robust", "SecureSum", "Krum", "Dirichlet", "Split", "Uniform", "cosine"} <= {*MADE}


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        (lambda: md.run(round=3), "run() has no 'round'. Did you mean 'rounds'? It knows: best, "),
        (lambda: md.FedProx(nu=1), "FedProx() has no 'nu'. Did you mean 'mu'? It knows: mu."),
        (lambda: md.scenarios.Pace(epoch=3), "Pace() has no 'epoch'. Did you mean 'epochs'? It knows: batch, "),
        (lambda: md.compare([], None, sed=1), "compare() has no 'sed'. Did you mean 'seeds'? It knows: base, "),
        (lambda: md.tune(None, None, {}, eval_evry=1), "tune() has no 'eval_evry'. Did you mean 'eval_every'?"),
    ],
)
def test_slips_of_the_pen(slip: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        slip()
    assert str(caught.value).startswith(said)


def test_an_unknown_name_of_the_package_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"^medley has no 'FedAVG'\. Did you mean 'FedAvg'\? dir"):
        _ = md.FedAVG  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^medley has no '__wrapped__'$"):
        _ = md.__wrapped__  # type: ignore[attr-defined]
    assert not hasattr(md, "fedprox")


def test_settings_are_copied_and_pickled_as_ever() -> None:
    pace = md.scenarios.Pace(lr=0.3)
    assert copy.deepcopy(pace) == pickle.loads(pickle.dumps(pace)) == dataclasses.replace(pace) == pace


def test_a_whole_number_too_large_for_a_float_is_refused_in_words() -> None:
    with pytest.raises(RecipeError, match="must be a finite number"):
        md.FedProx(mu=10**400)


def test_a_call_without_any_argument_says_what_is_missing_and_copies_are_made_without() -> None:
    with pytest.raises(md.RecipeError, match=r'^Trees\(\): loss= is missing; it has no default: "squared", ½.*are'):
        md.problems.Trees()  # type: ignore[call-arg]
    with pytest.raises(md.RecipeError, match=r"^Network\(\): module= is missing; it has no default: the network; a"):
        md.problems.Network()  # type: ignore[call-arg]
    one = md.partitions.Dirichlet(5, 0.5)
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
