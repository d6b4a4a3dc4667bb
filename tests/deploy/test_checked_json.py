"""Words of clients: each wrong one names client and field, and a run that drops faulty clients goes on without."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
import torch

import medley as md
from medley import recipe
from medley.clients.host import ClientHost
from medley.contract import message, pytree
from medley.contract.annotation import in_range
from medley.contract.errors import BadData, MemoryLost, RecipeError, WireError
from medley.datasets import Dataset
from medley.deploy.protocol.agreement import Terms, refuse_kind, refuse_settings, refuse_unserved
from medley.deploy.protocol.checked_json import (
    Count,
    Line,
    declared,
    opened,
    outliers,
    sealed,
    sealed_error,
    table,
    work_and_engines,
)
from medley.deploy.protocol.reports import Census, ClientReport, Known, Names, RowKind, TaskReport
from medley.deploy.server.evaluation import Asked, Figures
from medley.deploy.server.population import recorded_names
from medley.deploy.server.transport import Flower, FlowerConnection
from medley.recipe.limits import ClientLimits
from medley.server.ending import judged_by
from medley.storage.result import Status
from medley.wire.codec import Plain
from medley.wire.exchange import Exchange
from medley.wire.fold import merged
from support.pairs import quick
from support.scripts import BENCHMARKS, loaded

LIMITS = ClientLimits(rows=1000, weight=2000.0, classes=10, row=64)


def account(client: int, **changes: Any) -> dict[str, Any]:
    kinds = RowKind([8], "float32"), RowKind([], "int64")
    tasks = [TaskReport(20, 20.0, 5, [0, 1])]
    plain = ClientReport(client, 3, tasks, *kinds, None).plain()
    task = {k: changes.pop(k) for k in list(changes) if k in ("rows", "weight", "test", "labels")}
    return {**plain, **changes, "tasks": changes.get("tasks", [{**asdict(tasks[0]), **task}])}


WRONG = [
    ({"weight": -1000.0}, r"task 0: weight is -1000.0"),
    ({"weight": float("nan")}, r"task 0: weight is nan"),
    ({"weight": 1e30}, r"task 0: weight is 1e\+30"),
    ({"weight": 21.0}, r"weight is 21.0, but must be 20, the number of rows"),
    ({"rows": 10**15, "weight": 1e15}, r"rows is 1000000000000000, but must be a whole number in \[0, 1000\]"),
    ({"rows": -1}, r"rows is -1"),
    ({"rows": True}, r"rows is True"),
    ({"test": 10**15}, r"test is 10+"),
    ({"labels": [0, 3]}, r"labels is \[0, 3\], but must be different whole numbers below 3"),
    ({"labels": [1, 1]}, r"labels is \[1, 1\]"),
    ({"classes": 2_000_000}, r"classes is 2000000, but must be a whole number in \[1, 10\]"),
    ({"classes": "ten"}, r"classes is str 'ten'"),
    ({"X": [[10**6], "float32"]}, r"X is .* a shape of at most 64 numbers"),
    ({"X": [[8], "complex64"]}, r"X is "),
    ({"X": "float32"}, r"X is "),
    ({"X": [[0, 2**62], "float32"]}, r"X is "),
    ({"X": [[1], "float32", [["a", [40], "float32"], ["b", [40], "float32"]]]}, r"X is .* of at most 64 numbers"),
    ({"tasks": []}, r"tasks is \[\]"),
    ({"tasks": [None]}, r"task 0: it is None"),
    ({"weights": [[], "float64"], "weight": 0.0}, r"weight is 0.0, but must be above 0 if there are rows"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[text for _, text in WRONG])
def test_a_wrong_account_names_client_and_field_or_is_left_out(changes: dict[str, Any], text: str) -> None:
    every = {0: account(0), 1: account(1, **changes), 2: account(2)}
    with pytest.raises(WireError, match=rf"client 1's account of its data.*{text}"):
        Census.of(every, LIMITS)
    census = Census.of(every, LIMITS, tolerant=True)
    assert list(census.refused) == [1]
    assert census.rows.tolist() == [[20], [0], [20]]
    assert census.weights.tolist() == [[20.0], [0.0], [20.0]]
    assert census.known.classes == 3


@pytest.mark.parametrize("key", ["classes", "tasks", "X", "y", "weights"])
def test_an_account_without_a_field_or_with_one_more_is_refused(key: str) -> None:
    with pytest.raises(WireError, match=rf"client 0's account .* Medley expects .*{key}"):
        Census.of({0: {k: v for k, v in account(0).items() if k != key}})
    with pytest.raises(WireError, match=r"client 0's account .* fields .*more"):
        Census.of({0: {**account(0), "more": 1}})


def test_the_kind_that_most_clients_have_is_the_one_that_counts() -> None:
    every = {0: account(0, X=[[9], "float32"]), 1: account(1), 2: account(2)}
    with pytest.raises(BadData, match=r"client 1 has rows of shape and type \[\[8\], 'float32'\], client 0"):
        Census.of(every, LIMITS)
    census = Census.of(every, LIMITS, tolerant=True)
    assert census.rows.tolist() == [[0], [20], [20]]
    assert "client 0 has rows" in census.refused[0]
    with pytest.raises(WireError, match="no client can take part"):
        Census.of({0: account(0, rows=-1)}, LIMITS, tolerant=True)


def named(features: list[str], labels: list[str], scaling: str = "") -> dict[str, Any]:
    return {"features": features, "labels": labels, "scaling": scaling}


AGREED = named(["age", "sex"], ["'dead'", "'home'"])


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            named(["sex", "age"], AGREED["labels"]),
            "client 1 has as column 0 sex, client 0 age: give all clients the same",
        ),
        (named(["age"], AGREED["labels"]), "client 1 has as column 1 nothing, client 0 sex"),
        (named([], AGREED["labels"]), "client 1 has columns without names, client 0 age, sex"),
        (named(AGREED["features"], ["'dead'", "'went home'"]), "client 1 has as label 1 'went home', client 0 'home'"),
        (named(AGREED["features"], ["'home'"]), "client 1 has as label 0 'home', client 0 'dead'"),
        (named(AGREED["features"], ["0", "1"]), "client 1 has as label 0 0, client 0 'dead'"),
        (named(AGREED["features"], []), "client 1 has labels without names, client 0 'dead', 'home'"),
        (AGREED | {"scaling": "ab"}, "client 1 has rows scaled by the numbers ab, client 0 that are not scaled"),
    ],
)
def test_clients_whose_columns_or_labels_mean_something_else_are_refused(names: dict[str, Any], text: str) -> None:
    every = {i: account(i, names=names if i == 1 else AGREED) for i in range(3)}
    with pytest.raises(BadData, match=re.escape(text)):
        Census.of(every, LIMITS)
    census = Census.of(every, LIMITS, tolerant=True)
    assert list(census.refused) == [1]
    assert census.rows.tolist() == [[20], [0], [20]]
    stated = replace(LIMITS, features=("age", "sex"), labels=("dead", "home"))
    alone = {0: account(0, names=names)}
    if not names["scaling"]:
        with pytest.raises(BadData, match=r"the recipe's \[clients\]"):
            Census.of(alone, stated)
    assert Census.of({0: account(0, names=AGREED)}, stated).rows.tolist() == [[20]]


def test_a_result_has_the_names_that_clients_agree_on() -> None:
    """So `predict` gives labels as the data had them, also after a run on nodes."""
    names = Census.of({0: account(0, names=AGREED)}, LIMITS).reports[0].names
    assert recorded_names(names, 3) == {"features": ["age", "sex"], "classes": 3, "labels": ["dead", "home"]}
    names = Names.of(Dataset(torch.zeros(3, 1), torch.arange(3), labels=(True, 2, "it's")))
    assert recorded_names(names, None) == {"classes": 3, "labels": [True, 2, "it's"]}
    of_numpy = Dataset(torch.zeros(2, 1), torch.arange(2), labels=tuple(np.unique(["no", "yes"])))
    assert recorded_names(Names.of(of_numpy), None)["labels"] == ["no", "yes"]
    assert recorded_names(Names([], ["np.int64(3)"]), None)["labels"] == ["np.int64(3)"]
    assert recorded_names(Names(), None) == {}


@pytest.mark.parametrize(
    "names",
    [{}, AGREED | {"more": 1}, named(["a", "a"], []), named([1], []), named(["x" * 201], []), named([], ["a"] * 11)],
)
def test_names_that_are_none_are_refused(names: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=r"client 0's account of its data, its names"):
        Census.of({0: account(0, names=names)}, LIMITS)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('{"tests": [{"test_loss": 0.3, "accuracy": 0.5}]}', "fields tests; Medley expects loss, tests"),
        ('{"tests": [{"test_loss": 0.3, "accuracy": 0.5}], "loss": NaN}', "NaN is not a JSON number"),
        ('{"tests": [{"test_loss": 0.3, "accuracy": 0.5}], "loss": 1e999}', "loss is inf"),
        (
            '{"tests": [{"test_loss": 0.3, "accuracy": 1.5}], "loss": 1}',
            r"accuracy is 1.5, but must be a number in \[0, 1\]",
        ),
        ('{"tests": [{"test_loss": "0.3"}], "loss": 1}', "test_loss is str '0.3'"),
        ('{"tests": [{"pwned": 1}], "loss": 1}', "tests is"),
        ('{"tests": [[0.3, 1]], "loss": 1}', "tests is"),
        ('{"tests": [null], "loss": 1}', "tests is"),
        ('{"tests": [], "loss": 1}', "a list of 1 entries"),
        ("[]", "not a table of fields"),
        ("garbage", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_wrong_evaluation_names_client_and_field(said: str, text: str) -> None:
    with pytest.raises(WireError, match=rf"client 4's answer to an evaluation.*{text}"):
        Figures.read(4, said.encode(), Asked([True]))


@pytest.mark.parametrize("own", ["[]", "null", "3", '"x"', "true", "{}"])
def test_figures_of_an_own_model_that_are_none_are_refused(own: str) -> None:
    said = f'{{"tests": [{{"test_loss": 0.3}}], "loss": 1, "own": {own}}}'
    with pytest.raises(WireError, match="client 4's answer to an evaluation, its own model"):
        Figures.read(4, said.encode(), Asked([True], own=True))


def test_errors_of_clients_name_the_client_and_are_errors_of_medley() -> None:
    assert opened(sealed(b"x"), "client 2") == b"x"
    with pytest.raises(WireError, match="client 2: no room"):
        opened(sealed_error(WireError("no room")), "client 2")
    with pytest.raises(MemoryLost, match=r"client 2: gone; restore a copy, or resume with readmit=.2., --readmit 2 at"):
        opened(sealed_error(MemoryLost("client 2: gone", 2)), "client 2", 2)
    for raw in (b"", b"x", b"!", b"!{}", b'!{"error": "difflib", "text": "client 2", "attributes": {}}'):
        with pytest.raises(WireError, match="client 2 sent"):
            opened(raw, "client 2")
    for attributes in ({"__class__": 1}, {"args": 2}, {"result": []}):
        head = {"error": "WireError", "text": "client 2", "attributes": attributes}
        with pytest.raises(WireError, match="client 2 sent an error that is not one of Medley's"):
            opened(b"!" + json.dumps(head).encode(), "client 2")


FORGED = "client 2: x\n17:00:00 round 3: accuracy 0.99\r\x1b]0;pwned\x07\u202e" + "A" * 4000


def test_an_error_of_a_client_is_one_line_that_moves_no_cursor() -> None:
    """Of its text, of its attributes, and of fields and values that are quoted."""
    head = {"error": "ClientFailed", "text": FORGED, "attributes": {"client": 2, "traceback": FORGED}}
    with pytest.raises(md.ClientFailed) as caught:
        opened(b"!" + json.dumps(head).encode(), "client 2")
    text = str(caught.value)
    assert text.startswith("client 2: x 17:00:00 round 3: accuracy 0.99 \ufffd]0;pwned\ufffd\ufffdAAA")
    assert len(text) == 2000
    assert caught.value.traceback == text
    with pytest.raises(WireError) as of_fields:
        table("client 2", {FORGED: 1}, ["loss"])
    assert str(of_fields.value).isprintable()
    assert message._value_text(FORGED).isprintable()


def test_a_client_whose_loss_is_not_finite_says_that_the_run_diverges() -> None:
    with pytest.raises(md.Diverged, match="client 2: the loss is nan") as caught:
        opened(sealed_error(md.Diverged("client 2: the loss is nan", unexplained=True)), "client 2")
    assert caught.value.unexplained


def test_what_an_error_of_data_says_of_its_place_travels_with_it() -> None:
    with pytest.raises(BadData, match="client 2: its data") as caught:
        opened(sealed_error(BadData("client 2: its data", client=2, row=3, column=4)), "client 2", 2)
    assert vars(caught.value) == {"client": 2, "row": 3, "column": 4}


ERRORS = [
    md.MedleyError("a"),
    md.RecipeError("b", "key"),
    BadData("c", client=1, row=2),
    md.Unsupported("d", method="m", need="n"),
    WireError("e"),
    md.ClientFailed(client=1, round=2, method="m", traceback="T"),
    md.Diverged("f", unexplained=True),
    md.Stalled("g"),
    md.TooFewReplies("h"),
]


@pytest.mark.parametrize("e", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_that_came_without_its_attributes_has_them(e: md.MedleyError) -> None:
    """A client's Diverged without them ended the server with an AttributeError; so would others of another type."""
    head = {"error": type(e).__name__, "text": "client 2: no", "attributes": {}}
    with pytest.raises(type(e), match="client 2: no") as caught:
        opened(b"!" + json.dumps(head).encode(), "client 2")
    assert all(hasattr(caught.value, k) for k in vars(e))
    if isinstance(caught.value, md.Diverged):
        outcome = "stalled" if isinstance(e, md.Stalled) else "diverged"
        assert judged_by(caught.value, True) == Status(outcome, "client 2: no")
    for k in vars(e):
        with pytest.raises(WireError, match="client 2 sent an error that is not one of Medley's"):
            opened(b"!" + json.dumps({**head, "attributes": {k: 1.5}}).encode(), "client 2")


def test_no_client_ends_a_run_as_one_whose_budget_is_spent() -> None:
    with pytest.raises(md.MedleyError, match="client 2: the budget is spent") as caught:
        opened(sealed_error(md.BudgetSpent("the budget is spent")), "client 2")
    assert type(caught.value) is md.MedleyError


RECIPE = """
[problem]
kind = "Softmax"
[data]
    name = "digits"
[partition]
kind = "IID"
clients = 3
[pace]
lr = 0.1
[[methods]]
kind = "FedProx"
mu = 0.1
"""


def test_terms_differ_where_clients_would_compute_otherwise() -> None:
    r = recipe.loads(RECIPE)
    mine = Terms.of(r, r.methods()[0])
    mine.compare(mine, "client 1")
    same = recipe.loads(RECIPE.replace('"IID"', '"Dirichlet"').replace("digits", "wine"))
    assert Terms.of(same, same.methods()[0]) == mine
    for change, text in (
        (("lr = 0.1", "lr = 0.2"), "has the recipe of digest .*same recipe.toml"),
        (("mu = 0.1", "mu = 0.2"), "has the settings of digest"),
        (('"FedProx"\nmu = 0.1', '"FedAvg"'), "client 1 has the method FedAvg, and the server FedProx"),
    ):
        other = recipe.loads(RECIPE.replace(*change))
        with pytest.raises(RecipeError, match=text):
            mine.compare(Terms.of(other, other.methods()[0]), "client 1")
    with pytest.raises(RecipeError, match=r"client 1 runs Medley 0\.0\.9, and the server .*: install the same version"):
        mine.compare(Terms("0.0.9", mine.method, mine.settings, mine.recipe), "client 1")


def test_a_nodes_owner_serves_the_methods_and_settings_of_a_list() -> None:
    node, run = {"serve": "fedavg, SCAFFOLD", "allow": "run.* pace.lr"}, {"set": "run.rounds=3 pace.lr=0.5"}
    refuse_settings({}, {"set": "problem.kind=Logistic"}, 2)
    refuse_unserved({}, md.FedProx(), 2)
    refuse_unserved(node, md.FedAvg(), 2)
    refuse_settings(node, run, 2)
    with pytest.raises(RecipeError, match="client 2 does not serve FedProx: its owner serves fedavg, SCAFFOLD"):
        refuse_unserved(node, md.FedProx(), 2)
    with pytest.raises(RecipeError, match=r"client 2 does not let the server set pace.epochs.* set run.\*, pace.lr"):
        refuse_settings(node, {"set": "pace.epochs=1000"}, 2)
    with pytest.raises(RecipeError, match="lets the server set nothing"):
        refuse_settings({"allow": ""}, run, 2)
    kinds = lambda *given: recipe.Recipe({"methods": [{"kind": kind} for kind in given]})
    for kind in ("FedAvg", "SCAFFOLD.fast", "mine.methods:Scaffold"):
        refuse_kind(node, kinds(kind), 2)
    refuse_kind({"serve": "DP-FedAvg"}, kinds("fedavg"), 2)
    joint, tasks = md.CFLAG.joint(), kinds("CFLAG.joint")
    for served in ("CFLAG", "cflag.joint"):
        refuse_kind({"serve": served}, tasks, 2)
        refuse_unserved({"serve": served}, joint, 2)
    with pytest.raises(RecipeError, match=r"does not serve CFLAG: its owner serves CFLAG\.joint"):
        refuse_unserved({"serve": "CFLAG.joint"}, md.CFLAG(), 2)
    for kind in ("FedProx", "mine:FedAvg.Inner", "subprocess:getoutput"):
        with pytest.raises(RecipeError, match=f"client 2 does not serve {kind}: its owner serves fedavg, SCAFFOLD"):
            refuse_kind(node, kinds(kind), 2)


def test_limits_are_a_table_of_the_recipe() -> None:
    assert recipe.loads(RECIPE).limits() == ClientLimits()
    assert recipe.loads(RECIPE + "[clients]\nrows = 7\n").limits().rows == 7
    with pytest.raises(RecipeError, match=r"clients.rows = 0 should be a whole number, at least 1"):
        recipe.loads(RECIPE + "[clients]\nrows = 0\n").limits()


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    return loaded("fuzz.py", BENCHMARKS)


@pytest.mark.parametrize("what", quick(3, ["hello", "evaluation", "error", "reply", "request", "sealed", "step"]))
def test_a_thousand_mutations_are_refused_or_read(what: str, fuzz: ModuleType, caplog: Any) -> None:
    """The short form of `make soak`: a refusal names the client, and values that pass are within bounds."""
    caplog.set_level(logging.ERROR, "medley")
    torch.set_num_threads(1)
    assert "1000 words" in fuzz.fuzz(what, 1000, 7)


@dataclass(frozen=True)
class Mail:
    """A post that has the clients' answers already."""

    replies: dict[int, dict[str, Any]]
    up: int = 0

    def send(self, kind: str, letters: dict[int, Any]) -> dict[int, tuple[bytes, int]]:
        del kind, letters
        words = {"buffers": None, "up": self.up, "rows": 0.0, "engines": []}
        return {i: (sealed(pytree.to_bytes({"reply": r, **words})), 0) for i, r in self.replies.items()}


def connection(method: Any, mail: Mail) -> FlowerConnection:
    host = SimpleNamespace(codec=Plain(), problem=SimpleNamespace(dtype=torch.float64, d=4), algorithm=method)
    host.check = partial(ClientHost.check, host)
    return FlowerConnection(host, Flower(mail, "a run"))


@pytest.mark.parametrize("tolerant", [True, False])
def test_an_absurd_reply_or_loss_is_refused_with_its_clients_number(tolerant: bool) -> None:
    """Beside the others': where all are as large the run diverges, and nobody's word is refused."""
    p = dict.fromkeys(range(3), 1 / 3)
    asked = Exchange(1, 0, "train", ((0, 1), (2,)), {}, {}, {}, p, p, None, tolerant)
    step = lambda size: {"delta": torch.full((4,), size, dtype=torch.float64)}
    exchange = lambda *sizes: merged(
        connection(md.FedAvg(), Mail({i: step(s) for i, s in enumerate(sizes)})).exchange(asked)
    )
    assert exchange(1e30, 1e29, -1e30).ids == (0, 1, 2)
    assert exchange(0.0, -9e5, 1e-30).ids == (0, 1, 2)
    text = r"client 1's largest number in its answer to train, round 1, is 1e\+30, but the median of 3 clients is 0.5"
    if tolerant:
        whole = exchange(0.5, -1e30, 0.1)
        assert whole.ids == (0, 2)
        assert whole.failed.keys() == {1}
        assert re.match(text, whole.failed[1])
    else:
        with pytest.raises(WireError, match=text):
            exchange(0.5, -1e30, 0.1)
    losses = {0: 0.3, 1: 1e300, 2: 0.4}
    ((liar, error),) = outliers(losses, "loss after round 3")
    assert (liar, str(error)[:45]) == (1, "client 1's loss after round 3 is 1e+300, but ")
    assert not [*outliers({i: losses[i] for i in (0, 1)}, "loss")]
    assert Figures([{}, {"test_loss": -1e300, "accuracy": 0.5}], [{}, {}], 0.25).largest == 1e300


def test_a_reply_has_no_more_bytes_than_came() -> None:
    asked = Exchange(1, 0, "train", ((0,),), {}, {}, {}, {0: 1.0}, {0: 1.0}, None, False)
    mail = Mail({0: {"delta": torch.ones(4, dtype=torch.float64)}}, up=4294967296)
    with pytest.raises(WireError, match=r"client 0's answer to train, round 1: up is 4294967296, .* in \[0, 3\d\d\]"):
        merged(connection(md.FedAvg(), mail).exchange(asked))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("k", "g"), [(2, None), (3, torch.zeros(4, dtype=torch.float64)), (3, None)])
def test_a_reply_of_another_form_than_most_is_refused_whole(k: int, g: Any, first: bool) -> None:
    """GIANT's losses are of as many steps as were asked for, and have a gradient or none."""
    reply = lambda f, k, g: {"f": torch.full((k,), f, dtype=torch.float64), "g": g}
    honest = reply(1.0, 2, torch.ones(4, dtype=torch.float64))
    lie = reply(1e6, k, g)
    liar = 0 if first else 2
    p = dict.fromkeys(range(3), 1 / 3)
    asked = Exchange(1, 0, "losses", ((0, 1), (2,)), {}, {}, {}, p, p, None, True)
    whole = merged(connection(md.GIANT(), Mail({i: lie if i == liar else honest for i in range(3)})).exchange(asked))
    assert whole.ids == tuple({0, 1, 2} - {liar})
    assert whole.failed.keys() == {liar}
    said = "'f' is [3], but [2]" if k == 3 else "'g' is absent, but [4]"
    assert f"client {liar}'s answer to losses, round 1: {said} in most" in whole.failed[liar]
    assert whole.total is not None
    assert torch.allclose(whole.total["f"], torch.full((2,), 2 / 3, dtype=torch.float64))


@dataclass(frozen=True)
class Visit:
    """An answer that declares its fields."""

    rows: Count
    share: Annotated[float, in_range(0, 1)]
    name: Line
    pairs: list[tuple[Count, Count]]
    note: Line | None = None


GOOD = {"rows": 3, "share": 1, "name": "Bern", "pairs": [[0, 2]], "note": None}


def test_an_answer_is_read_as_its_class_declares_it() -> None:
    visit = declared(Visit, "client 2", GOOD, rows=3)
    assert (visit.rows, visit.share, visit.pairs) == (3, 1.0, [(0, 2)])  # a tuple for the list of JSON
    assert type(visit.share) is float
    assert declared(Visit, "client 2", GOOD | {"note": "late"}).note == "late"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rows": 4}, "rows is 4, but must be a whole number in [0, 3]"),
        ({"rows": 3.0}, "rows is 3.0"),
        ({"rows": True}, "rows is True"),
        ({"rows": 10**400}, "rows is a number of more than 30 digits"),
        ({"share": float("nan")}, "share is nan, but must be a number in [0, 1]"),
        ({"share": float("inf")}, "share is inf"),
        ({"share": False}, "share is False"),
        ({"name": "x" * 201}, "but must be text of at most 200 characters"),
        ({"name": "a\nb"}, "name is str"),
        ({"name": "\ud800"}, "name is str"),
        ({"name": ["Bern"]}, "name is ['Bern']"),
        ({"pairs": [[0, 2, 1]]}, "pairs is [[0, 2, 1]]"),
        ({"pairs": [[0, -1]]}, "pairs is [[0, -1]]"),
        ({"pairs": "00"}, "pairs is str '00'"),
        ({"pairs": None}, "pairs is None"),
        ({"note": 0}, "note is 0, but must be text of at most 200 characters, or None"),
        ({"more": 1}, "it has the fields more, name, note, pairs, rows, share; Medley expects name, note"),
    ],
)
def test_a_field_that_is_not_as_declared_names_client_and_field(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(WireError, match=re.escape(text)) as caught:
        declared(Visit, "client 2", GOOD | changes, rows=3)
    assert str(caught.value).startswith("client 2: ")


@pytest.mark.parametrize("missing", [*GOOD])
def test_no_field_of_an_answer_may_lack_also_one_with_a_default(missing: str) -> None:
    with pytest.raises(WireError, match=r"client 2: it has the fields"):
        declared(Visit, "client 2", {name: value for name, value in GOOD.items() if name != missing})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"classes": 3.0}, "classes is 3.0"),
        ({"labels": [[3]]}, "labels is [[3]], but must be whole numbers below 3"),
        ({"labels": {}}, "labels is {}"),
        ({"first": {"x": 1.0}}, "first: x is 1.0, but must be a list"),
        ({"first": {"y": [1.0]}}, "first is"),
        ({"first": {"x": [True]}}, "first: x is [True]"),
        ({"base": 7}, "base is 7"),
    ],
)
def test_a_server_that_describes_the_tasks_wrongly_is_refused(changes: dict[str, Any], text: str) -> None:
    good = asdict(Known(3, [[0, 1]], {"x": [0.5, 1], "ints": [1]}, "ab"))
    assert asdict(Known.read(good)) == good
    with pytest.raises(WireError, match="the server.s description of the tasks.*" + re.escape(text)):
        Known.read(good | changes)


@pytest.mark.parametrize("engines", [["seq", "seq"], ["gpu"], "seq", [["seq"]], None])
def test_a_reply_names_engines_that_there_are_each_once(engines: Any) -> None:
    assert work_and_engines("client 2", {"rows": 3, "engines": ["stacked", "seq"]}) == (3.0, {"seq", "stacked"})
    with pytest.raises(WireError, match="client 2: engines is"):
        work_and_engines("client 2", {"rows": 3, "engines": engines})
