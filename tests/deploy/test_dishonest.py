"""A dishonest server against a node, and a dishonest node against the server: lies are refused, by client and key."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import medley as md
from medley.clients.host import ClientHost
from medley.codecs import Quantise, TopK
from medley.contract import pytree
from medley.contract.errors import MedleyError, WireError
from medley.deploy.node.app import ClientSide, discreet
from medley.deploy.node.study import StudySide
from medley.deploy.protocol import flwr_api
from medley.deploy.protocol.calls import opened_gradient
from medley.deploy.protocol.checked_json import opened, sealed, sealed_error
from medley.deploy.protocol.flwr_api import Reply
from medley.deploy.protocol.reports import Known, namesake
from medley.deploy.protocol.secure_steps import blank
from medley.deploy.server.evaluation import Asked, Figures
from medley.deploy.server.messenger import Messenger
from medley.deploy.server.sums import RemoteParties
from medley.deploy.server.transport import Flower, FlowerConnection
from medley.secure.party import Party
from medley.secure.ring import Ring
from medley.wire.exchange import Exchange

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

RECIPE = """
[rules]
exact = true
[problem]
kind = "Softmax"
[data]
name = "digits"
train = 60
flatten = true
[partition]
kind = "IID"
clients = 3
[run]
rounds = 3
dtype = "float64"
[[methods]]
kind = "FedAvg"
"""

D = 64 * 10
X = torch.zeros(D, dtype=torch.float64)
KNOWN = {"classes": 10, "labels": [list(range(10))]}
MODEL = {"x": X, "buffers": None, "round": 1, "tests": [0], "loss": True, "grad": False, "known": KNOWN, "run": ""}

Ask = Callable[[str, dict[str, Any], dict[str, Any]], bytes]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Sends changes of an honest request to client 0's node, and opens what it answers as the server does."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "recipe.toml").write_text(RECIPE)
    side = ClientSide(folder / "recipe.toml", None, None)
    context = Context(1, 1, {"partition-id": 0, "memory": str(folder / "memory")}, RecordDict(), {"clients": 3})

    def answer(kind: str, common: dict[str, Any], individual: dict[str, Any]) -> bytes:
        if kind == "evaluate":
            letter = {"common": pytree.to_bytes(MODEL | common), "own": json.dumps(individual).encode()}
        else:
            fields = {k: v for k, v in individual.items() if k in Exchange.__dataclass_fields__}
            exchange = replace(Exchange(1, 0, "train", ((0,),), {}, {}, {}, {0: 0.5}, None), **fields)
            rest = {k: v for k, v in individual.items() if k not in fields}
            every = {"common": {"x": X}, "buffers": None} | common
            mine = {"exchange": exchange, "run": "7", "known": KNOWN} | rest
            letter = {"common": pytree.to_bytes(every), "own": pytree.to_bytes(mine)}
        handler = discreet(side.isolated(side.evaluate if kind == "evaluate" else side.serve))
        try:
            raw = sealed(handler(letter, context))
        except Exception as e:
            raw = sealed_error(e)
        return opened(raw, "client 0", 0)

    assert b"loss" in answer("evaluate", {}, {})
    assert len(answer("train", {}, {})) > 8 * D
    return answer


@pytest.mark.parametrize(
    ("common", "individual", "text"),
    [
        ({"x": torch.zeros(D + 1, dtype=torch.float64)}, {}, f"x is a tensor of float64[{D + 1}], but must be a vec"),
        ({"x": X.float()}, {}, f"x is a tensor of float32[{D}]"),
        ({"x": X + math.nan}, {}, "finite numbers of torch.float64"),
        ({"x": [0.0] * D}, {}, "but must be a tensor"),
        ({"buffers": (X, X)}, {}, "its buffers do not have the model's shapes and types"),
        ({"round": "1"}, {}, "round is str '1'"),
        ({"round": 4}, {}, "round is 4, but must be a whole number in [0, 3]"),
        ({"tests": [5]}, {}, "tests is [5], but must be different whole numbers below 1"),
        ({"tests": [0, 0]}, {}, "tests is [0, 0]"),
        ({"tests": [False]}, {}, "tests is [False]"),
        ({"loss": "no"}, {}, "loss is str 'no', but must be True or False"),
        ({"more": 1}, {}, "it has the fields"),
        ({"known": KNOWN | {"classes": 10**9}}, {}, "classes is 1000000000, but must be a whole number in [1, 100000]"),
        ({"known": KNOWN | {"labels": [[0, 0]]}}, {}, "labels is [[0, 0]], but must be lists of different labels"),
        ({"run": "../7"}, {}, "a run's name consists of"),
        ({}, {"sample": [0, 10]}, "sample is [0, 10], but must be an empty list, or a list of 3"),
        ({}, {"acked": ["../x", 0]}, "acked is ['../x', 0]"),
        ({}, {"more": 1}, "it has the fields acked, more, sample"),
    ],
)
def test_a_node_refuses_an_evaluation_by_its_key(
    common: dict[str, Any], individual: dict[str, Any], text: str, ask: Ask
) -> None:
    with pytest.raises(MedleyError, match=re.escape(text)) as caught:
        ask("evaluate", common, individual)
    assert str(caught.value).startswith("client 0: ")
    assert "its node" not in str(caught.value)


@pytest.mark.parametrize(
    ("common", "individual", "text"),
    [
        ({}, {"p": {}}, "p is [], but must be a table with the share of client 0"),
        ({}, {"p": [1]}, "p is [1], but must be a table"),
        ({}, {"round": 0}, "round is 0, but must be a whole number in [1, 3]"),
        ({}, {"round": 4}, "round is 4, but must be"),
        ({}, {"number": -1}, "number is -1"),  # which a client answers with its own model
        ({}, {"method": "__init__"}, "FedAvg.__init__ was asked, round 1, but it has train"),
        ({}, {"each": [1]}, "each is [1], but must be a table"),
        ({}, {"each": {0: 7}}, "each is [(0, 7)]"),
        ({}, {"tolerant": "yes"}, "tolerant is str 'yes'"),
        ({}, {"exchange": 7}, "exchange is 7"),
        ({"common": 7}, {}, "common is 7, but must be a table"),
        ({"common": {"x": X.float()}}, {}, f"Model.x is a tensor of float32[{D}], but the model is of torch.float64"),
        ({"buffers": (X, X)}, {}, "its buffers do not have the model's shapes and types"),
        ({"clip": 0}, {}, "clip is 0"),
        ({"weights": 0}, {}, "weights is 0, but must be a table"),
        ({"more": 1}, {}, "its common part has ['buffers', 'common', 'more']"),
        ({}, {"known": KNOWN | {"classes": 10**9}}, "classes is 1000000000"),
    ],
)
def test_a_node_refuses_a_training_by_its_key(
    common: dict[str, Any], individual: dict[str, Any], text: str, ask: Ask
) -> None:
    with pytest.raises(MedleyError, match=re.escape(text)) as caught:
        ask("train", common, individual)
    assert str(caught.value).startswith("client 0: ")
    assert "its node" not in str(caught.value)


@pytest.mark.parametrize("text", ["client 10: its rows are bad", "client 2 lies, says client 1", "", "round 3: done"])
def test_an_error_is_its_senders_whatever_it_says(text: str) -> None:
    head = {"error": "ClientFailed", "text": text, "attributes": {"client": 2, "round": 1}}
    with pytest.raises(md.ClientFailed) as caught:
        opened(b"!" + json.dumps(head).encode(), "client 1", 1)
    assert str(caught.value).startswith(f"client 1: {text}")
    assert caught.value.client == 1


@pytest.mark.parametrize("more", [{"refused": "x\nclient 0 lies"}, {"absent": True}])
def test_what_the_server_writes_into_accounts_no_client_may(more: dict[str, Any]) -> None:
    """Its text was logged as it came, and an absent client was left out without a word."""
    messenger = Messenger(None)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=rf"client 1: it has the field {next(iter(more))}, which is the server's"):
        messenger._account(100, sealed(json.dumps({"client": 1, **more}).encode()), 3, {})


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({0: "Bern", 1: "Bern"}, "clients 0 and 1 are both called 'Bern'"),
        ({0: "Bern", 1: " bern"}, "clients 0 and 1 are called 'Bern' and ' bern'"),
        ({0: "Bern", 1: "\uff22ern"}, "clients 0 and 1 are called"),
        ({0: "", 1: "0"}, "client 1 is called '0', another client's number"),
        ({0: "", 1: "Client 0"}, "client 1 is called 'Client 0', another client's number"),
        ({0: "", 1: ""}, ""),
        ({0: "client 0", 1: "client 1"}, ""),
        ({0: "Bern", 1: "Chur 0"}, ""),
    ],
)
def test_a_name_that_reads_as_another_clients_is_refused(names: dict[int, str], text: str) -> None:
    sentence = namesake(1, names, 2)
    assert sentence.startswith(text)
    assert bool(sentence) == bool(text)


def test_a_sample_has_as_many_rows_as_were_asked_for() -> None:
    """More than there are made a variance below 0, and the server ended with an error of its square root."""
    answer = lambda rows: json.dumps({"tests": [], "loss": 1.0, "sample": [rows, 0.5]}).encode()
    assert Figures.read(1, answer(20), Asked([], sampled=20)).sample == (20, 0.5)
    for rows in (10**9, 19, True, 20.0):
        with pytest.raises(WireError, match=r"client 1's answer to an evaluation: sample is "):
            Figures.read(1, answer(rows), Asked([], sampled=20))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"figures": "\ud800", "gradient": X}, ""),
        (["figures"], "not a table of fields"),
        ({"figures": 7, "gradient": X}, "figures is 7, but must be text"),
        ({"figures": "{}", "gradient": X.float()}, "its gradient is not a vector"),
        ({"figures": "{}", "gradient": X + math.nan}, "its gradient is not a vector"),
    ],
)
def test_figures_with_a_gradient_are_read_or_refused(content: Any, text: str) -> None:
    """Half of a surrogate pair ended the server with an error of its encoding."""
    if not text:
        assert opened_gradient(1, pytree.to_bytes(content), X)[0] == b"?"
        return
    with pytest.raises(WireError, match=f"client 1's answer to an evaluation: .*{text}"):
        opened_gradient(1, pytree.to_bytes(content), X)


class Mailbox(Messenger):
    """A messenger that has client 1's answer already."""

    answer: Any = b""

    def send(self, kind: str, letters: Any) -> dict[int, tuple[bytes, int]]:
        return dict.fromkeys(letters, (sealed(self.answer), 900))


@pytest.fixture(scope="module")
def host() -> ClientHost:
    problem = md.problems.synthetic_quadratics(clients=2, d=4)
    draw = md.Federation(problem.problem, clients=problem.clients).draw(0, "test", None, "cpu", 1)
    return ClientHost(md.FedAvg(), draw.problem, lambda i, t: None)  # type: ignore[arg-type, return-value]


EXCHANGE = Exchange(1, 0, "train", ((1,),), {"x": torch.zeros(4)}, {}, {}, {1: 1.0}, {1: 1.0})
HOW = {"rows": 1.0, "engines": []}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["abc"], "not a table of fields"),
        ({"reply": {}, "buffers": None}, "it has the fields buffers, reply; Medley expects buffers, engines, reply"),
        ({"reply": [1], "buffers": None, "up": 1, **HOW}, "reply is [1], but must be a table"),
        (
            {"reply": {"delta": torch.zeros(4, dtype=torch.float16)}, "buffers": None, "up": 1, **HOW},
            "Step.delta is a tensor of float16[4], but the model is of torch.float64",
        ),
    ],
)
def test_a_reply_that_is_none_names_its_client(content: Any, text: str, host: ClientHost) -> None:
    """A reply in wide numbers made the model's wide, and the other clients failed in the next round."""
    mailbox = Mailbox(None)  # type: ignore[arg-type]
    mailbox.answer = pytree.to_bytes(content)
    with pytest.raises(WireError, match=re.escape(text)) as caught:
        next(FlowerConnection(host, Flower(mailbox, "a run")).exchange(EXCHANGE))
    assert str(caught.value).startswith("client 1's answer to ")


@pytest.mark.parametrize(
    ("step", "answer", "text"),
    [
        ("keys", bytes(64), "client 1's public keys: a public key of secure aggregation cannot be used"),
        ("keys", Party(1, b"s").keys[:32] + bytes(32), "client 1's public keys: a public key"),
        ("masked", pytree.to_bytes(["abc"]), "client 1's masked answer to train, round 1: it is ['abc'], not a table"),
        ("masked", pytree.to_bytes("x"), "client 1's masked answer to train, round 1: it is str 'x', not a table"),
    ],
    ids=["keys of zeros", "half a key", "a list", "a text"],  # keys are drawn, and workers must collect the same names
)
def test_a_step_of_a_secure_sum_names_its_client(step: str, answer: bytes, text: str, host: ClientHost) -> None:
    """Keys with which nobody can agree on a secret failed all other clients."""
    mailbox = Mailbox(None)  # type: ignore[arg-type]
    mailbox.answer = answer
    parties = RemoteParties(host, mailbox, "run", EXCHANGE, Ring(32, 100.0, {0: 0.5, 1: 0.5}), b"", lambda i: b"")
    with pytest.raises(WireError, match=re.escape(text)):
        parties.keys([1]) if step == "keys" else list(parties.masked({1: {}}))


def test_fields_of_a_secure_reply_have_as_many_entries_as_came() -> None:
    entry = lambda k: [f"f{k}", "float64", [1000]]
    assert len(blank("client 1", {"fields": [entry(0)]}, 1000)["f0"]) == 1000
    for fields in ([entry(0), entry(1)], [["f", "float64", [1] * 65]]):
        with pytest.raises(WireError, match="client 1: fields is "):
            blank("client 1", {"fields": fields}, 1000)


def test_a_small_message_does_not_decode_to_a_large_one() -> None:
    ints = lambda *sizes: torch.tensor(sizes, dtype=torch.int32)
    codes = {"x": torch.ones(9000, 1, dtype=torch.int8), "x#": torch.ones(1, 9000)}
    with pytest.raises(WireError, match="x: its scales are not one for each of its rows"):
        Quantise().decode(codes, {}, torch.float64)
    for shape in (ints(1 << 20, 1 << 10), ints(-4, -5), ints(100)):
        sparse = {"x": torch.ones(2), "x@": ints(0, 1), "x#": shape}
        with pytest.raises(WireError, match=r"x: 2 of -?[0-9]+ entries are not a share of 0.1"):
            TopK().decode(sparse, {}, torch.float64)
    good = TopK().decode({"x": torch.ones(2), "x@": ints(0, 19), "x#": ints(4, 5)}, {}, torch.float64)["x"]
    assert isinstance(good, torch.Tensor)
    assert good.shape == (4, 5)
    assert good.sum() == 2


def test_a_client_method_that_is_not_there_or_lacks_its_message_is_named(host: ClientHost) -> None:
    lacking = replace(host, algorithm=md.SCAFFOLD())
    common = {"x": torch.zeros(4, dtype=torch.float64)}
    exchange = replace(EXCHANGE, common=common, weights=None, method="nothing")
    with pytest.raises(WireError, match=r"SCAFFOLD\.nothing was asked, round 1, but it has "):
        lacking.serve_block(exchange, 0, {})
    lacking = replace(host, algorithm=md.AFedPD())
    exchange = replace(exchange, method="train", common=common | {"weight": 1.0})
    with pytest.raises(
        WireError, match=r"client 1, AFedPD\.train was asked, round 1: its own message, a Dual, is missing"
    ):
        lacking.serve_block(exchange, 0, {})


def test_a_second_answer_to_one_message_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = (sealed(b"first"), sealed(b"second"))
    monkeypatch.setattr(flwr_api, "push", lambda grid, kind, content, ttl: {f"m{n}": n for n in content})
    monkeypatch.setattr(flwr_api, "pull", lambda grid, waiting, *_: [Reply("m101", a, 1, 0, "") for a in answers])
    messenger = Messenger(SimpleNamespace(get_node_ids=lambda: [101]), timeout=5)  # type: ignore[arg-type]
    messenger.nodes = {1: 101}
    with caplog.at_level(logging.WARNING, "medley"):
        assert messenger.send("query.train", {1: {"n": b"1"}})[1][0] == answers[0]
    assert caplog.messages == ["a second answer to one message is left out: m101"]


def test_an_initial_personal_part_of_another_size_is_refused() -> None:
    like = {"x": torch.zeros(2), "floats": torch.zeros(0), "ints": torch.zeros(1, dtype=torch.int64)}
    first = {"x": [0.5, 1], "floats": [], "ints": [3]}
    assert Known(3, [[0]], first).personal(like)["ints"].tolist() == [3]
    for wrong in ({}, {"x": [0.5]}, {"ints": [3, 4]}):
        with pytest.raises(WireError, match=r"the server's description of the tasks: first is .* but must be of"):
            Known(3, [[0]], first | wrong if wrong else {}).personal(like)


@pytest.mark.parametrize("round", [0, 3])
def test_a_site_answers_the_analyses_of_its_recipe_alone(round: int) -> None:
    """Round 0 asked for the last one."""
    recipe: Any = SimpleNamespace(analyses=lambda: ["one", "two"])
    request: Any = SimpleNamespace(exchange=SimpleNamespace(round=round))
    context: Any = SimpleNamespace(node_config={"partition-id": 1})
    text = f"client 1: the server asks for analysis {round}, but the client's recipe has 2"
    with pytest.raises(WireError, match=text):
        StudySide("recipe.toml", None, None)._host(recipe, None, request, context)  # type: ignore[arg-type]
