"""Checks of conduct: the method obeys the rules of the contract, on the server and towards its clients."""

from __future__ import annotations

import copy
from contextlib import closing

import torch

from .. import engines
from ..clients.host import ClientHost
from ..contract import Need, Unsupported, pytree
from ..participation import Fixed
from ..problems import Network
from ..runtime import streams
from ..scenarios import Membership
from ..secure import SecureSum
from ..server.bookkeeping import Bookkeeping
from ..server.cohort import LiveCohort
from ..storage.result import Result
from ..transports import InProcess
from .compare import equal, expect
from .method_runs import Subject
from .toys import PER_TASK, ROUNDS


def frozen(t: Subject) -> None:
    """The method is a frozen dataclass, and a run leaves it unchanged."""
    kind = type(t.method)
    parameters = getattr(kind, "__dataclass_params__", None)
    expect(parameters is not None and parameters.frozen, f"{kind.__name__} must be @dataclass(frozen=True)")
    before = copy.deepcopy(vars(t.method))
    for place in t.places:
        t.fresh(place)
    expect(
        equal(before, vars(t.method)),
        f"a run changed {kind.__name__} itself; put what changes into Server and Memory",
    )


def one_round(t: Subject) -> None:
    """One round succeeds."""
    for place in t.places:
        t.run(place.federation(), rounds=1)


def server_by_assignment(t: Subject) -> None:
    """A round leaves the tensors of the previous state unchanged; a resumed run needs them."""
    for place in t.places:
        sim = place.federation().draw(0, rounds=PER_TASK)
        engine = engines.choose("auto", sim.problem, "cpu")
        method = t.method.suited(sim.problem.gives)
        host = ClientHost(method, sim.problem, lambda i, r, sim=sim, e=engine: sim.client(i, r, e))  # type: ignore[misc]
        s = method.start(sim.problem.initial(streams.generator(0, "init")))
        b = Bookkeeping()
        with closing(InProcess().open(host)) as connection:
            for r in range(1, place.rounds):
                view = sim.view(r)
                before = [(name, v, v._version) for name, v in pytree.tensors(s)]
                cohort = LiveCohort(sim.cohort(r), view.p, r, connection, b, task=view.task, sampling=view.sampling)
                cohort.readout = sim.problem.readout
                method.round(s, cohort)
                cohort.settle()
                if place.stream is not None and r % PER_TASK == 0:
                    method.end_task(s, cohort)
                    cohort.settle()
                changed = [name for name, v, version in before if v._version != version]
                expect(
                    not changed,
                    f"round() changed {', '.join(changed)} in place; the server's state changes by assignment only",
                )


def secure_sums(t: Subject) -> None:
    """If a method's server reads only sums, it learns the same under secure aggregation; others declare `Need.REPLIES`.

    Sums are taken in 64 bits, so that they differ from plain ones only by rounding.
    """
    place = t.places[0]
    fed = place.federation()
    settings = SecureSum(bits=64, bound=1e6)
    if Need.REPLIES in t.method.suited(place.gives).requires():
        try:
            t.run(fed, 1, secure=settings)
        except Unsupported:
            return
        raise AssertionError(f"{t.method.name} says it needs replies one by one, but ran without")
    x = t.run(fed, secure=settings).x.double()
    y = t.plain(place).x.double()
    gap = float((x - y).norm() / y.norm().clamp(min=1e-12))
    tolerance = 1e-3 if isinstance(place.problem, Network) else 1e-6
    expect(gap <= tolerance, f"{place.name}: under secure aggregation the model differs by {gap:.2g} of its norm")


def partial(t: Subject) -> None:
    """Clients that do not take part are not asked; a method that needs everyone raises an error for such a run."""
    cohorts = [[0, 2], [3], [0, 1, 4]]
    for place in t.places:
        fed = place.federation(participation=Fixed(cohorts))
        if t.everyone:
            try:
                t.run(fed)
            except Unsupported:
                continue
            raise AssertionError(f"{t.method.name} says it needs everyone, but ran without")
        r = t.run(fed, ROUNDS)
        clients_asked = [_clients_asked(r, k) for k in range(1, ROUNDS + 1)]
        due = [[0, 2], [3], [1, 4]] if t.method.asks_once else cohorts
        expect(clients_asked == due, f"{place.name}: the cohorts are {cohorts}, but the method asked {clients_asked}")
        expect(learned(r, t.run(fed, 0)), f"{place.name}: nothing was learned")


def _clients_asked(r: Result, round: int) -> list[int]:
    return sorted({e.client for e in r.ledger if e.round == round})


def members(t: Subject) -> None:
    """Clients join and leave: only members are asked, and a client that never joined leaves no trace in any bit.

    A method whose state cannot follow declares `Need.FIXED`, and then must raise an error.
    """
    changes = Membership(joins={4: 2}, leaves={1: 3})
    never = Membership(joins={4: 999})
    for place in t.places:
        fed = place.federation(membership=changes)
        if Need.FIXED in t.method.suited(place.gives).requires():
            try:
                t.run(fed, 1)
            except Unsupported:
                return
            raise AssertionError(f"{t.method.name} says it needs the same clients throughout, but ran without")
        r = t.run(fed)
        for k in range(1, place.rounds + 1):
            clients_asked = {*_clients_asked(r, k)}
            present = set(changes.at(k, 5))
            expect(
                clients_asked <= present,
                f"{place.name}: round {k} has the members {present}, but the method asked {clients_asked}",
            )
        expect(learned(r, t.run(fed, 0)), f"{place.name}: nothing was learned")
        four = t.run(place.federation(range(4)), 2)
        of_five = t.run(place.federation(membership=never), 2)
        expect(torch.equal(four.x, of_five.x), f"{place.name}: a client that is not a member changes the model")


def nobody(t: Subject) -> None:
    """A round without clients changes nothing and costs nothing."""
    if t.everyone:
        return
    for place in t.places:
        fed = place.federation(participation=Fixed([[0, 1, 2, 3, 4], [], [1, 3]]))
        a = t.run(fed, 1)
        b = t.run(fed, 2)
        expect(
            torch.equal(a.x, b.x) and list(a.ledger) == list(b.ledger),
            f"{place.name}: x or the ledger changed in a round without clients",
        )
        t.run(fed, 3)


def one_client(t: Subject) -> None:
    """A federation of one client learns."""
    for place in t.places:
        fed = place.federation([1])
        expect(learned(t.run(fed), t.run(fed, 0)), f"{place.name}: one client learns nothing")


def learned(after: Result, before: Result) -> bool:
    """True if the server's model changed, or the loss of any client's own model."""
    new = [row.get("loss") for row in after.clients]
    old = [row.get("loss") for row in before.clients]
    return not torch.equal(after.x, before.x) or new != old


def small_steps(t: Subject) -> None:
    """As the clients' learning rate goes to 0, so does the distance from x₀; or the method does not use it at all."""
    for place in t.exact or t.places:
        x0 = t.run(place.federation(), 0).x
        far, near = (t.run(place.federation(lr=lr)).x for lr in (0.1, 1e-9))
        far_length = float((far - x0).norm())
        near_length = float((near - x0).norm())
        expect(
            torch.equal(far, near) or near_length <= 1e-3 * far_length,
            f"{place.name}: with lr = 1e-9 x still moves by {near_length:.2g}, with lr = 0.1 by {far_length:.2g}",
        )


def relabelled(t: Subject) -> None:
    """Renumbering the clients gives the same model to 1e-12 (1 + ‖x‖)."""
    for place in t.exact:
        order = (3, 0, 4, 1, 2)
        cohorts = None if t.everyone else ((0, 1, 2, 3, 4), (0, 2, 3), (1, 3, 4))
        runs = []
        for ids in (tuple(range(5)), order):
            participation = None if cohorts is None else Fixed([[*map(ids.index, cohort)] for cohort in cohorts])
            runs.append(t.run(place.federation(ids, participation, batch=None)).x)
        distance = float((runs[0] - runs[1]).norm() / (1 + runs[0].norm()))
        expect(distance <= 1e-12, f"{place.name}: with the clients renumbered x is off by {distance:.2g}")
