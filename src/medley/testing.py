"""The conformance battery: what every method must hold, whoever wrote it.

>>> import medley as md
>>> from medley.testing import checks, conformance
>>> conformance(md.FedAvg())
>>> [check.name for check in checks(md.FedAvg())][:3]
['frozen', 'card', 'same again']

``checks(method, transport)`` are those that tell whether a transport serves this method as one process does.

Under pytest it is one line: ``@pytest.mark.parametrize("check", checks(MyMethod()), ids=str)``, and call ``check()``.

**The card.** A method's module (or class) docstring has a section ``**One round sends**`` with a line for every client
method: ``- name: 2d + 1 down, d up; a remark``. What is added up may be

- a plain number: scalars of 8 bytes;
- products of numbers, brackets and letters, as in ``2d``, ``k(d + 1)`` or ``d(d + 1)/2``: floats of the run's dtype,
  which a codec narrows. ``d`` is the length of x; any other letter is some whole number, at least 0, the same both
  ways, that makes the line fit a delivery;
- such a product with ``bytes`` behind it, as in ``8(K + 1) bytes`` or ``kd bytes``: what no codec touches.

A condition in brackets may follow the name: ``first time`` (a client is asked this for the first time), ``later`` (not
the first), or ``if ...`` (only with some settings; such a line need not occur). Several lines may have one name: a
delivery has to fit one of them.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .core import streams, tree
from .core.algorithm import Algorithm
from .core.cohort import Books, Cohort
from .core.errors import MedleyError, Unsupported
from .core.problem import Family
from .core.result import Result, Row
from .core.site import Site
from .core.transport import BlockReply, Exchange, Link, Transport
from .core.wire import Cast
from .federation import Federation, run
from .memory import Ring
from .models import mlp
from .problems import Network, Softmax, engines, quadratics
from .scenarios import Fixed, Pace, Participation, Split
from .transports import Local, Processes

LR, EPOCHS, ROUNDS = (0.02, 0.05, 0.1, 0.03, 0.08), (1, 3, 2, 1, 2), 3
TASKS, PER_TASK = 2, 4
"""Tasks of a stream; each has rounds before its end, in which only those who take part are asked."""


@dataclass(frozen=True)
class Check:
    """One thing to hold; call it, and it raises AssertionError (or what the method raised) if it doesn't."""

    name: str
    test: Callable[[], None]

    def __call__(self) -> None:
        """Do it."""
        self.test()

    def __str__(self) -> str:
        return self.name


def checks(method: Algorithm[Any, Any], transport: Transport | None = None) -> list[Check]:
    """The checks that ``method`` has to pass; none of them has run yet.

    With a ``transport`` those for which clients are anywhere but in this process: there.
    """
    b = _Battery(method, transport or Local())
    if transport is not None:
        tests = {
            "same bits": lambda: b.elsewhere(transport, "there"),
            "resume": b.resume,
            "lost reply": b.lost_reply,
            "asked twice": b.asked_twice,
        }
        return [Check(name, test) for name, test in tests.items()]
    tests = {
        "frozen": b.frozen,
        "card": b.card,
        "same again": b.same_again,
        "arrival": b.arrival,
        "one worker": lambda: b.elsewhere(Processes(1), "one worker"),
        "two workers": lambda: b.elsewhere(Processes(2), "two workers"),
        "crews": b.crews,
        "resume": b.resume,
        "server by assignment": b.server_by_assignment,
        "small steps": b.small_steps,
        "relabelled": b.relabelled,
        "partial": b.partial,
        "lost reply": b.lost_reply,
        "asked twice": b.asked_twice,
        "nobody": b.nobody,
        "one client": b.one_client,
        "narrow codec": b.narrow_codec,
    }
    return [Check(name, test) for name, test in tests.items()]


def conformance(method: Algorithm[Any, Any], transport: Transport | None = None) -> None:
    """Run all `checks`. Raises an ExceptionGroup of what failed, each with a note that names its check."""
    failed = []
    for check in checks(method, transport):
        try:
            check()
        except Exception as e:
            e.add_note(f"in the check {check.name!r}")
            failed.append(e)
    if failed:
        raise ExceptionGroup(f"{method.name} breaks the contract", failed)


@dataclass(frozen=True)
class Place:
    """A small problem and its clients' data."""

    name: str
    problem: Family
    clients: Sequence[tuple[Tensor, Tensor]]
    classes: int | None = None
    stream: Split | None = None

    @property
    def rounds(self) -> int:
        """How many a whole run has."""
        return ROUNDS if self.stream is None else TASKS * PER_TASK

    @property
    def gives(self) -> frozenset[str]:
        """What it offers a method."""
        past = frozenset() if self.stream is None else frozenset({"stream", "replay"})
        return self.federation().draw(0).problem.gives | past | {"everyone"}

    def federation(
        self, ids: Iterable[int] = range(5), participation: Participation | None = None, **pace: Any
    ) -> Federation:
        """Clients ``ids`` of this place, renumbered, each with its own lr and epochs.

        In a stream a client keeps some of its past rows, or under ``batch=None`` all of them: draws go by its number.
        """
        ids = list(ids)
        means = {"lr": [LR[i] for i in ids], "epochs": [EPOCHS[i] for i in ids], "batch": 4, **pace}
        data = [self.clients[i] for i in ids]
        past: dict[str, Any] = {}
        if self.stream is not None:
            replay = Ring(4, sample=2) if means["batch"] else Ring(100)
            past = {"stream": self.stream, "replay": replay, "test": self.clients[0]}
        return Federation(
            self.problem, clients=data, classes=self.classes, pace=Pace(**means), participation=participation, **past
        )


def _places() -> list[Place]:
    g = streams.generator(0, "conformance")
    clients = []
    for n in (5, 8, 4, 7, 6):
        y = torch.randint(3, (n,), generator=g)
        clients.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    q = quadratics(clients=5, d=6, rows=(6, 10))
    coming = []  # everybody has rows of all four classes, so of every task
    for n in (9, 12, 8, 11, 10):
        y = torch.arange(n) % 4
        coming.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    return [
        Place("quadratics", q.problem, q.clients),
        Place("softmax", Softmax(mu=0.1), clients, 3),
        Place("network", Network(mlp(4, 3, (5,))), clients, 3),
        Place("softmax stream", Softmax(mu=0.1), coming, 4, Split(TASKS, "class")),
        Place("network stream", Network(mlp(4, 4, (5,))), coming, 4, Split(TASKS, "task")),
    ]


class Term(NamedTuple):
    """An expression in d and other letters, and what one of it weighs: "float", "scalar" or "byte"."""

    text: str
    unit: str

    def of(self, letters: Mapping[str, int]) -> int:
        """For these values of the letters."""
        # `_cost` has let nothing through but letters, numbers, + * / and brackets.
        return int(eval(self.text, {"__builtins__": {}}, dict(letters)))


class Line(NamedTuple):
    """What one client method sends each way, and when."""

    name: str
    condition: str
    down: tuple[Term, ...]
    up: tuple[Term, ...]

    def fits(self, d: int, width: int, down: int, up: int) -> bool:
        """Whether some values of the letters make exactly these bytes, with floats of ``width`` bytes."""
        weight = {"float": width, "scalar": 8, "byte": 1}
        letters = sorted({c for t in self.down + self.up for c in t.text if c.isalpha()} - {"d"})

        def search(free: list[str], fixed: dict[str, int]) -> bool:
            """Costs only grow with their letters, so what is too much already stays so."""
            at = {**dict.fromkeys(free, 0), **fixed}
            least = [sum(weight[t.unit] * t.of(at) for t in terms) for terms in (self.down, self.up)]
            if not free or least[0] > down or least[1] > up:
                return least == [down, up]
            return any(search(free[1:], {**fixed, free[0]: k}) for k in range(max(down, up) + 1))

        return search(letters, {"d": d})


def card(method: Algorithm[Any, Any]) -> list[Line]:
    """The lines of the method's card. Raises AssertionError where there is none, or where it cannot be read."""
    for text in (getattr(inspect.getmodule(type(method)), "__doc__", None), type(method).__doc__):
        _, found, section = inspect.cleandoc(text or "").partition("**One round sends**")
        if found:
            break
    else:
        raise AssertionError(f"{method.name}: the docstring has no section **One round sends**; see medley.testing")
    lines = []
    for text in section.partition("\n**")[0].splitlines():
        if text.startswith("- "):
            m = re.fullmatch(r"- (\w+)(?: \((first time|later|if [^)]*)\))?: (.+?) down, (.+?) up(?:[;.].*)?", text)
            if m is None:
                raise AssertionError(
                    f"{method.name}: cannot read the card's line {text!r}; write '- name: 2d + 1 down, d up; remark'"
                )
            lines.append(Line(m[1], m[2] or "", _cost(m[3]), _cost(m[4])))
    return lines


def _cost(text: str) -> tuple[Term, ...]:
    terms = []
    for term in re.split(r"\+(?![^(]*\))", text):
        body = term.strip().removesuffix(" bytes")
        # What stands side by side is multiplied.
        expression = re.sub(r"(?<=[\w)]) *(?=[A-Za-z(])", "*", body)
        unit = "byte" if term.strip() != body else "scalar" if body.isdigit() else "float"
        try:
            if not re.fullmatch(r"(?:[A-Za-z\d+() ]|/(?= ?[1-9]))+", body):
                raise SyntaxError
            compile(expression, text, "eval")
        except SyntaxError:
            raise AssertionError(
                f"a card counts in d, plain numbers and other letters, as in '2d + 1' or 'k(d + 1)', not {text!r}"
            ) from None
        terms.append(Term(expression, unit))
    return tuple(terms)


Deliver = Callable[[Link, Exchange], Iterable[BlockReply]]


@dataclass(frozen=True)
class Rewired:
    """``inner`` with something between it and the server."""

    inner: Transport
    deliver: Deliver

    def open(self, site: Site) -> RewiredLink:
        """Begin."""
        return RewiredLink(self.inner.open(site), self.deliver)


class RewiredLink:
    """Passes all on but exchanges."""

    def __init__(self, link: Link, deliver: Deliver) -> None:
        self.link, self.deliver = link, deliver
        self.save, self.load, self.close = link.save, link.load, link.close

    def exchange(self, exchange: Exchange) -> Iterator[BlockReply]:
        """As `deliver` has it."""
        yield from self.deliver(self.link, exchange)


def one_by_one(link: Link, exchange: Exchange) -> Iterable[BlockReply]:
    """Every client a block of its own, so that few clients keep several workers busy."""
    return link.exchange(replace(exchange, blocks=tuple((i,) for block in exchange.blocks for i in block)))


def backwards(link: Link, exchange: Exchange) -> Iterator[BlockReply]:
    """Clients are served, and their replies arrive, from the last to the first."""
    ids = [i for block in exchange.blocks for i in block]
    for turn, i in reversed(list(enumerate(ids))):
        for reply in link.exchange(replace(exchange, blocks=((i,),))):
            reply.block = turn
            yield reply


def twice(link: Link, exchange: Exchange) -> Iterator[BlockReply]:
    """Every request is delivered twice, as if the first replies had not come in time."""
    first = {a.block: a for a in one_by_one(link, exchange)}  # blocks come in any order
    for b in one_by_one(link, exchange):
        a = first.pop(b.block)
        same = _equal(a.replies, b.replies) and _equal(a.folded, b.folded) and a.receipts == b.receipts
        _expect(same, f"{exchange.method}: the same request was answered differently the second time")
        yield b


def losing(lost: Collection[tuple[int, int, int]], *, served: bool) -> Deliver:
    """Replies of (round, exchange, client) are lost on their way; or, not ``served``, the requests."""

    def deliver(link: Link, exchange: Exchange) -> Iterator[BlockReply]:
        ids = [i for block in exchange.blocks for i in block]
        answering = [i for i in ids if (*exchange.tag, i) not in lost]
        asked = ids if served else answering
        for reply in link.exchange(replace(exchange, blocks=tuple((i,) for i in asked))):
            i = asked[reply.block]
            if i in answering:
                reply.block = answering.index(i)
                yield reply

    return deliver


class _Battery:
    def __init__(self, method: Algorithm[Any, Any], transport: Transport) -> None:
        self.method, self.transport = method, transport
        self._plain: dict[str, Result] = {}
        self._single: dict[str, Result] = {}

    @cached_property
    def places(self) -> list[Place]:
        """A generalised linear problem in float64 and a network in float32, where the method can run on them."""
        can: list[Place] = []
        for place in _places():
            requires = self.method.suited(place.gives).requires()
            if requires <= place.gives and (place.stream is None or requires & {"stream", "replay"}):
                can.append(place)
        if [p.name for p in can][:2] == ["quadratics", "softmax"]:
            del can[1]
        _expect(can, f"{self.method.name} needs more than the battery's problems give")
        return can

    @property
    def exact(self) -> list[Place]:
        """The one in float64, if there is one."""
        return [p for p in self.places if not isinstance(p.problem, Network)]

    def plain(self, place: Place) -> Result:
        """The run that others are compared with."""
        if place.name not in self._plain:
            self._plain[place.name] = self.run(place.federation())
        return self._plain[place.name]

    def single(self, place: Place) -> Result:
        """The same with every client a block of its own, which sums in another order."""
        if place.name not in self._single:
            self._single[place.name] = self.run(place.federation(), transport=Rewired(Local(), one_by_one))
        return self._single[place.name]

    @property
    def everyone(self) -> bool:
        return "everyone" in self.method.requires()

    def run(self, fed: Federation, rounds: int | None = None, **options: Any) -> Result:
        """``rounds`` in all; in a stream the rest of it does not come to pass."""
        if fed.stream is None:
            return run(self.method, fed, ROUNDS if rounds is None else rounds, progress=False, **options)

        def stop(row: Row) -> None:
            if row["round"] == rounds:
                raise KeyboardInterrupt

        return run(self.method, fed, PER_TASK, progress=False, on_round=stop, **options)

    def frozen(self) -> None:
        """The method is a frozen dataclass, and running it leaves it as it was."""
        kind = type(self.method)
        parameters = getattr(kind, "__dataclass_params__", None)
        _expect(parameters is not None and parameters.frozen, f"{kind.__name__} must be @dataclass(frozen=True)")
        before = copy.deepcopy(vars(self.method))
        for place in self.places:
            self.run(place.federation())
        _expect(
            _equal(before, vars(self.method)),
            f"a run changed {kind.__name__} itself; what changes belongs into Server and Memory",
        )

    def card(self) -> None:
        """Every delivery costs what the card says."""
        for place in self.places:
            self._charged(place, self.plain(place), None)

    def _charged(self, place: Place, r: Result, width: int | None) -> None:
        lines, seen = card(self.method), set()
        used: list[Line] = []
        width = r.x.element_size() if width is None else width
        for e in r.ledger:
            skip = "later" if (e.method, e.client) not in seen else "first time"
            seen.add((e.method, e.client))
            fit = [
                line
                for line in lines
                if line.name == e.method and line.condition != skip and line.fits(r.x.numel(), width, e.down, e.up)
            ]
            _expect(
                fit,
                f"{place.name}: {e.method} sent {e.down} bytes down and {e.up} up (client {e.client}, round {e.round}; "
                f"d = {r.x.numel()} floats of {width} bytes), which no line of the card says",
            )
            used += fit
        unused = [line.name for line in lines if line not in used and not line.condition.startswith("if")]
        _expect(not unused, f"{place.name}: the card has lines that never occur: {unused}")

    def same_again(self) -> None:
        """The same run twice: the same bits."""
        for place in self.places:
            _same(self.plain(place), self.run(place.federation()), f"{place.name}: the same run twice")

    def arrival(self) -> None:
        """Replies that arrive in another order: the same bits."""
        for place in self.places:
            other = self.run(place.federation(), transport=Rewired(Local(), backwards))
            _same(self.single(place), other, f"{place.name}: clients served from the last to the first")

    def elsewhere(self, transport: Transport, where: str) -> None:
        """With clients in other processes: the same bits, the same ledger."""
        for place in self.places:
            other = self.run(place.federation(), transport=Rewired(transport, one_by_one))
            _same(self.single(place), other, f"{place.name}: one process, and {where}")

    def crews(self) -> None:
        """Clients served together by the fastest engine, or one by one by the reference: the same to 1e-10."""
        for place in self.places:
            exact: dict[str, Any] = {"dtype": "float64"}
            alone = self.run(place.federation(), engine="seq", transport=Rewired(Local(), one_by_one), **exact).x
            off = float((self.run(place.federation(), **exact).x - alone).norm() / (1 + alone.norm()))
            _expect(off <= 1e-10, f"{place.name}: served as a crew, or by another engine, x is off by {off:.2g}")

    def resume(self) -> None:
        """Stopped and resumed after each round: the same bits."""
        there: dict[str, Any] = {}
        whole = self.plain
        if not isinstance(self.transport, Local):
            there, whole = {"transport": Rewired(self.transport, one_by_one)}, self.single
        for place in self.places:
            with tempfile.TemporaryDirectory() as folder:
                self.run(place.federation(), 1, checkpoint=folder, **there)
                for rounds in range(2, place.rounds + 1):
                    last = self.run(place.federation(), rounds, resume=folder, **there)
            _same(whole(place), last, f"{place.name}: resumed after every round")

    def server_by_assignment(self) -> None:
        """A round leaves the tensors of the state before it as they were: another run, or a resumed one, needs them."""
        for place in self.places:
            world = place.federation().draw(0, rounds=PER_TASK)
            engine = engines.choose("auto", world.problem, "cpu")
            method = self.method.suited(world.problem.gives)
            site = Site(method, world.problem, lambda i, t, w=world, e=engine: w.client(i, t, e))  # type: ignore[misc]
            s, books = method.start(world.problem.initial(streams.generator(0, "init"))), Books()
            with closing(Local().open(site)) as link:
                for t in range(1, place.rounds):
                    stage = world.stage(t)
                    before = [(name, v, v._version) for name, v in tree.tensors(s)]
                    cohort = Cohort(world.cohort(t), stage.p, t, link, books, task=stage.task)
                    method.round(s, cohort)
                    cohort.settle()
                    if place.stream is not None and t % PER_TASK == 0:
                        method.end_task(s, cohort)
                        cohort.settle()
                    changed = [name for name, v, version in before if v._version != version]
                    _expect(
                        not changed,
                        f"round() changed {', '.join(changed)} in place; the server's state changes by assignment only",
                    )

    def small_steps(self) -> None:
        """As the learning rate goes to 0, so does the way; or the method doesn't use it at all."""
        for place in self.exact or self.places:
            x0 = self.run(place.federation(), 0).x
            far, near = (self.run(place.federation(lr=lr)).x for lr in (0.1, 1e-9))
            ways = float((far - x0).norm()), float((near - x0).norm())
            _expect(
                torch.equal(far, near) or ways[1] <= 1e-3 * ways[0],
                f"{place.name}: with lr = 1e-9 x still moves by {ways[1]:.2g}, with lr = 0.1 by {ways[0]:.2g}",
            )

    def relabelled(self) -> None:
        """Other numbers for the same clients: the same model, to 1e-12."""
        for place in self.exact:
            order = (3, 0, 4, 1, 2)
            cohorts = None if self.everyone else ((0, 1, 2, 3, 4), (0, 2, 3), (1, 3, 4))
            runs = []
            for ids in (tuple(range(5)), order):
                who = None if cohorts is None else Fixed([[ids.index(i) for i in c] for c in cohorts])
                runs.append(self.run(place.federation(ids, who, batch=None)).x)
            off = float((runs[0] - runs[1]).norm() / (1 + runs[0].norm()))
            _expect(off <= 1e-12, f"{place.name}: with the clients renumbered x is off by {off:.2g}")

    def partial(self) -> None:
        """Who doesn't take part is not asked; a method that needs everyone refuses."""
        cohorts = [[0, 2], [3], [0, 1, 4]]
        for place in self.places:
            fed = place.federation(participation=Fixed(cohorts))
            if self.everyone:
                try:
                    self.run(fed)
                except Unsupported:
                    continue
                raise AssertionError(f"{self.method.name} says it needs everyone, and ran without")
            r = self.run(fed, ROUNDS)
            asked = [sorted({e.client for e in r.ledger if e.round == t}) for t in range(1, ROUNDS + 1)]
            _expect(asked == cohorts, f"{place.name}: the cohorts are {cohorts}, but asked were {asked}")
            _expect(not torch.equal(r.x, self.run(fed, 0).x), f"{place.name}: nothing was learned")

    def lost_reply(self) -> None:
        """A client whose reply was lost is one that was never asked."""
        for place in self.places:
            for number in sorted({e.exchange for e in self.single(place).ledger}):
                lost = {(t, number, 2 - t % 2) for t in (1, 2, PER_TASK + 1, PER_TASK + 2)}
                a, b = (self._or_error(place, losing(lost, served=served)) for served in (True, False))
                if isinstance(a, Result) and isinstance(b, Result):
                    _same(a, b, f"{place.name}: replies lost at (round, exchange, client) {sorted(lost)}, or requests")
                else:
                    _expect(type(a) is type(b) and str(a) == str(b), f"{place.name}: {a!r} is not {b!r}")

    def _or_error(self, place: Place, deliver: Deliver) -> Result | MedleyError:
        try:
            return self.run(place.federation(), transport=Rewired(self.transport, deliver))
        except MedleyError as e:
            return e

    def asked_twice(self) -> None:
        """A request that comes twice is answered twice alike, and remembered once."""
        for place in self.places:
            other = self.run(place.federation(), transport=Rewired(self.transport, twice))
            _same(self.single(place), other, f"{place.name}: every request delivered twice")

    def nobody(self) -> None:
        """A round in which nobody takes part changes nothing and costs nothing."""
        if self.everyone:
            return
        for place in self.places:
            fed = place.federation(participation=Fixed([[0, 1, 2, 3, 4], [], [1, 3]]))
            a, b = self.run(fed, 1), self.run(fed, 2)
            _expect(
                torch.equal(a.x, b.x) and list(a.ledger) == list(b.ledger),
                f"{place.name}: x or the ledger changed in a round without clients",
            )
            self.run(fed, 3)

    def one_client(self) -> None:
        """A federation of one is a federation."""
        for place in self.places:
            fed = place.federation([1])
            _expect(not torch.equal(self.run(fed).x, self.run(fed, 0).x), f"{place.name}: one client learns nothing")

    def narrow_codec(self) -> None:
        """Through a codec of half the width: half the bytes, about the same model."""
        for place in self.exact:
            exact, narrow = self.plain(place), self.run(place.federation(), codec=Cast("float32"))
            self._charged(place, narrow, 4)
            off = float((exact.x - narrow.x).norm() / exact.x.norm())
            _expect(off < 1e-3, f"{place.name}: in float32 messages x is off by {off:.2g}")


def _expect(ok: object, otherwise: str) -> None:
    # Not an assert statement: those are gone under python -O.
    if not ok:
        raise AssertionError(otherwise)


def _same(a: Result, b: Result, what: str) -> None:
    """Bits, figures and bytes; the wall clock excepted."""
    off = float((a.x - b.x).abs().max())
    _expect(torch.equal(a.x, b.x), f"{what}: x differs by up to {off:.2g}; it must be the same to the bit")
    for one, other in zip(a.history, b.history, strict=True):
        differ = [k for k in one.keys() | other.keys() if k != "wall" and _figure(one, k) != _figure(other, k)]
        _expect(not differ, f"{what}: the histories differ in {differ}, round {one['round']}")
    _expect(_equal(a.summary.get("matrix"), b.summary.get("matrix")), f"{what}: accuracies on the tasks differ")
    for one_sent, other_sent in zip(a.ledger, b.ledger, strict=True):
        one_sent, other_sent = (e._replace(overhead=0) for e in (one_sent, other_sent))  # a transport's own
        _expect(one_sent == other_sent, f"{what}: the ledgers differ: {one_sent} and {other_sent}")


def _figure(row: Row, name: str) -> str:
    # As text, so that nan is nan.
    return repr(row.get(name))


def _equal(a: Any, b: Any) -> bool:
    """Whether two state trees are the same to the bit."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, nn.Module):
        return type(a) is type(b) and _equal(a.state_dict(), b.state_dict())
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and _equal(vars(a), vars(b))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(_equal(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
