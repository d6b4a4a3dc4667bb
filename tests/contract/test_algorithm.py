"""The base of methods: the card in a class's docstring, several methods of one paper, and classes that it refuses."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
import types
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import Tensor

import medley as md
from medley.cli.cards import card
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client, Nothing
from medley.contract.message import Message
from medley.contract.settings import describe
from medley.recipe.build import Builder

METHODS = [kind for n in md.__all__ if inspect.isclass(kind := getattr(md, n)) and issubclass(kind, Algorithm)]


@dataclass
class Server:
    x: Tensor


@dataclass
class Memory:
    x: Tensor


class Model(Message):
    x: Tensor


def slipped(how: str) -> Algorithm[Any, Any]:
    """FedAvg with one slip of a beginner."""

    @dataclass(frozen=True)
    class Slip(Algorithm[Server]):
        def start(self, x: Tensor) -> Server:
            s = Server(x.mul_(2) if how == "in place" else x)
            return None if how == "start" else s  # type: ignore[return-value]

        def round(self, s: Server, clients: Any) -> None:  # type: ignore[return]
            step = clients.ask(self.train, md.contract.messages.Model(s.x)).mean().delta
            s.x = (s.x + step)[:, None] if how == "shape" else s.x + step
            if how == "state":
                s.v = step  # type: ignore[attr-defined]
            if how == "round":
                return Server(s.x)  # type: ignore[return-value]

        @on_client
        def train(self, me: Client, request: md.contract.messages.Model) -> md.contract.messages.Step:
            step = md.contract.messages.Step(me.descend(request.x).step)
            return None if how == "reply" else step  # type: ignore[return-value]

    return Slip()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("start", r"Slip\.start\(\) returns nothing: end it with return Server\(x\)"),
        ("shape", r"Slip's model after round 1 is \[3, 1\], but must be a tensor \[3\]"),
        ("round", r"Slip\.round\(\) returns a Server"),
        ("in place", r"Slip\.start\(\) changed x in place"),
        ("state", r"Server\.v is not a field, so it would be lost: declare it in class Server"),
        ("reply", r"Slip\.train\(\) returns NoneType, but a client method must return a message"),
    ],
)
def test_slips_of_a_method_are_told_in_its_own_words(how: str, said: str) -> None:
    toy = md.problems.synthetic_quadratics(clients=3, d=3)
    with pytest.raises(md.MedleyError, match=said):
        md.run(slipped(how), md.Federation(toy.problem, clients=toy.clients), 2, progress=False)


def test_a_method_that_is_no_dataclass_is_told_so() -> None:
    class Forgot(Algorithm[Server]):
        def start(self, x: Tensor) -> Server:
            return Server(x)

        def round(self, s: Server, clients: Any) -> None: ...

    toy = md.problems.synthetic_quadratics(clients=3, d=3)
    with pytest.raises(TypeError, match=r"class Forgot: write @dataclass\(frozen=True\) above it"):
        md.run(Forgot(), md.Federation(toy.problem, clients=toy.clients), 2, progress=False)


def test_a_number_without_a_type_is_no_setting() -> None:
    with pytest.raises(TypeError, match=r"class Bare: beta = 0\.9 has no type.*write beta: float = 0\.9"):

        class Bare(md.FedAvg):
            beta = 0.9

    class Named(md.FedAvg):
        server_lr = 0.5  # its base has the type

    assert Named.server_lr == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_help_shows_the_card_and_a_line_a_setting(method: type[Algorithm[Any, Any]]) -> None:
    doc = inspect.getdoc(method) or ""
    for section in ("Reference", "Needs", "One round sends", "Departures", "Missing replies", "Example"):
        assert doc.count(f"**{section}**") == 1, section
    assert doc.count("**Checked") == doc.count("**Checked against**") <= 1
    own = inspect.getdoc(inspect.getmodule(method)) or ""
    assert all(paragraph in doc for paragraph in own.split("\n\n"))
    if len(describe(method)) >= 3:
        assert [s.name for s in describe(method) if not s.doc] == []


def test_the_sentence_of_the_card_comes_first_and_the_settings_next() -> None:
    paragraphs = (inspect.getdoc(md.SCAFFOLD) or "").split("\n\n")
    assert paragraphs[0].startswith("SCAFFOLD: clients correct")
    assert [k for k, p in enumerate(paragraphs) if "    server_lr: " in p] == [2]
    assert paragraphs[3].startswith("**Reference**")


class Paper(Algorithm[Server, Memory]):
    """The base of two methods."""

    def start(self, x: Tensor) -> Server:
        return Server(x)

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: Model) -> Model:
        return request


@dataclass(frozen=True)
class First(Paper):
    """One."""

    def round(self, s: Server, clients: Any) -> None:
        del s, clients


@dataclass(frozen=True)
class Second(First):
    """Its variant, with one client method more."""

    @on_client
    def count(self, me: Client[Memory], request: Model) -> Model:
        return request


def test_methods_of_one_paper_share_their_base() -> None:
    assert First.memory is Second.memory is Memory
    assert First.message_types == {"train": (Model, None, Model, True)}
    assert Second.message_types == {"train": (Model, None, Model, True), "count": (Model, None, Model, False)}
    assert First.__doc__ == "One."


def test_a_method_without_declared_states_is_refused() -> None:
    with pytest.raises(TypeError, match=r"class Bare: write Algorithm\[Server\] or Algorithm\[Server, Memory\]"):

        class Bare(Algorithm):  # type: ignore[type-arg]
            pass

    assert Algorithm.memory is Nothing


def test_a_client_method_of_another_form_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Odd.train: a client method takes \(self, me: Client"):

        class Odd(Algorithm[Server]):
            @on_client
            def train(self, me: Client) -> Model:  # type: ignore[empty-body]
                ...


def test_a_client_needs_no_annotation_and_a_message_without_one_is_named() -> None:
    class Plain(Algorithm[Server]):
        @on_client
        def train(self, me, request: Model) -> Model:  # type: ignore[no-untyped-def]
            return request

    assert Plain.message_types["train"] == (Model, None, Model, False)
    with pytest.raises(TypeError, match=r"'request' is not annotated with one: write `request: Model`"):

        class Odd(Algorithm[Server]):
            @on_client
            def train(self, me: Client, request) -> Model:  # type: ignore[no-untyped-def]
                return request

    with pytest.raises(TypeError, match="its return annotation is not a Message: write `-> Step`"):

        class Mute(Algorithm[Server]):
            @on_client
            def train(self, me: Client, request: Model):  # type: ignore[no-untyped-def]
                return request


def test_a_setting_that_is_gone_raises_its_sentence():
    class Old(md.FedProx):
        gone: ClassVar = {"pull": "FedProx(pull=...) is mu since version 2"}

    assert Old(mu=0.5).mu == 0.5
    assert pickle.loads(pickle.dumps(md.FedProx(mu=0.5))) == dataclasses.replace(md.FedProx(), mu=0.5)
    assert list(inspect.signature(Old).parameters) == ["mu"]
    for made in (lambda: Old(pull=0.5), lambda: dataclasses.replace(Old(), pull=0.5)):
        with pytest.raises(md.RecipeError, match=r"^FedProx\(pull=...\) is mu since version 2$") as e:
            made()
        assert e.value.key == "pull"
    build = Builder("recipe.toml")
    with pytest.raises(md.RecipeError, match=r"^recipe.toml: methods\[0\]: FedProx\(pull=...\) is mu since") as e:
        build.kind("methods[0]", {"kind": "old", "pull": 0.5}, {"Old": Old})
    assert e.value.key == "pull"
    with pytest.raises(TypeError, match=r"^Old\(\) has no 'push'. It knows: mu.$"):
        Old(push=0.5)  # type: ignore[call-arg]


def test_a_card_without_the_floats_of_a_round_is_a_card() -> None:
    """`medley cite` and help read a method's paper, whether or not its messages have been counted."""
    source = (
        '"""Mine: one step.\n\n**Reference**: Doe, \\"A step\\", ICML 2020.\n\n**Status**: published.\n"""\n'
        "from dataclasses import dataclass\nfrom medley import FedAvg\n\n@dataclass(frozen=True)\n"
        'class Mine(FedAvg):\n    """A method of mine."""\n'
    )
    module = types.ModuleType("mine_without_floats")
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, "mine.py", "exec"), module.__dict__)
        assert "**Reference**: Doe" in module.Mine.__doc__
        assert module.Mine.__doc__.startswith("Mine: one step.")
        assert card(module.Mine, "Status") == "published."
    finally:
        del sys.modules[module.__name__]
