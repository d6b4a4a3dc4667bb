"""The wrapper: means and sums that become folds, its state, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.errors import MedleyError, RecipeError, TooFewReplies, Unsupported
from medley.contract.message import Message
from medley.contract.messages import Model, Step
from medley.contract.types import Vec
from medley.transports import Lossy, Processes
from support.pairs import crossed, quick

R = md.robust


def federation(n: int = 10, **arguments: Any) -> md.Federation:
    """Digits dealt to n clients, with one weight for all."""
    settings = {"weights": "uniform", "partition": md.partitions.IID(n), **arguments}
    return md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits().standardise(), **settings)


def run(method: Algorithm[Any, Any], fed: md.Federation | None = None, rounds: int = 3, **options: Any) -> md.Result:
    return md.run(method, fed or federation(), rounds, progress=False, **options)


class Said(Message):
    """A vector, a matrix, a float, an int, and an optional vector."""

    v: Vec
    m: Vec
    t: float
    n: int
    o: Vec | None = None


class State:
    """A place for what the server read."""


def reading(read: Callable[[Any], Any], rule: R.Rule, rows: list[float], **fields: Any) -> Any:
    """The message that a method reads by ``read`` off clients that send their row's value in every field."""
    out: list[Any] = []

    @dataclass
    class Server:
        x: Vec

    @dataclass(frozen=True)
    class Reader(Algorithm[Server]):
        """Reads one exchange."""

        def start(self, x: Vec) -> Server:
            """x₀."""
            return Server(x)

        def round(self, s: Server, clients: Cohort) -> None:
            """One exchange."""
            replies = clients.ask(self.say, Model(s.x))
            out.append((read(replies), replies))

        @on_client
        def say(self, me: Client, request: Model) -> Said:
            """Its own value."""
            v = rows[me.id]
            o = None if fields.get("silent", False) and (me.id or fields["silent"] == "all") else request.x + v
            return Said(request.x + v, 2 * (request.x + v), v, int(10 * v), o)

    Reader.say.__annotations__.update(me=Client, request=Model)
    fed = md.Federation(
        md.problems.LeastSquares(),
        clients=[(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, dtype=torch.float64))] * len(rows),
        weights="uniform",
    )
    run(md.Robust(Reader(), rule=rule), fed, 1)
    return out[0]


def test_every_field_is_folded_by_itself_and_sums_keep_their_weights() -> None:
    rows = [1.0, 2.0, 3.0, 4.0, 1000.0]
    mean, replies = reading(lambda r: r.mean(), R.Median(), rows)
    assert mean.v.tolist() == [3.0] * len(mean.v)
    assert mean.m.tolist() == [6.0] * len(mean.v)
    assert (mean.t, mean.n) == (3.0, 30.0)
    assert mean.o.tolist() == mean.v.tolist()
    assert (replies.count, replies.ids) == (5, (0, 1, 2, 3, 4))
    assert replies.share == pytest.approx(1.0)
    total, _ = reading(lambda r: r.sum(), R.Median(), rows)
    assert torch.allclose(total.v, mean.v)  # Σ p_i = 1
    five, _ = reading(lambda r: r.sum(dict.fromkeys(range(5), 1.0)), R.Median(), rows)
    assert torch.allclose(five.v, 5 * mean.v)
    assert five.t == pytest.approx(15.0)


def test_an_optional_field_that_nobody_sends_stays_away() -> None:
    reply, _ = reading(lambda r: r.mean(), R.Median(), [1.0, 2.0, 3.0], silent="all")
    assert reply.o is None
    with pytest.raises(MedleyError, match="'o' of say came from only some of the clients"):
        reading(lambda r: r.mean(), R.Median(), [1.0, 2.0, 3.0], silent="some")


def test_weights_that_differ_are_refused() -> None:
    with pytest.raises(Unsupported, match="Reader cannot be robust: it gives replies different weights"):
        reading(lambda r: r.sum({0: 1.0, 1: 2.0, 2: 1.0}), R.Median(), [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("method", "rule"),
    quick(
        3,
        crossed(
            [md.FedAvg(), md.SCAFFOLD(), md.FedDyn(), md.FedNorton(flows="client")],
            [R.TrimmedMean(0.0), R.MultiKrum(0.0), R.Mixed(R.TrimmedMean(0.0), 0.0)],
        ),
    ),
    ids=str,
)
def test_folds_that_leave_nobody_out_are_the_plain_method(method: Algorithm[Any, Any], rule: R.Rule) -> None:
    plain = run(method)
    robust = run(md.Robust(method, rule=rule))
    assert torch.allclose(plain.x, robust.x, atol=1e-10)
    assert plain.ledger.up == robust.ledger.up
    assert plain.ledger.down == robust.ledger.down


@pytest.mark.parametrize("rule", quick(1, [R.CentredClipping(), R.Mixed(R.CentredClipping(radius=0.5), 0.2)]), ids=str)
def test_a_fold_that_remembers_goes_on_where_it_was(rule: R.Rule, tmp_path: Path) -> None:
    method = md.Robust(md.FedAvgM(), rule=rule)
    uninterrupted = run(method, rounds=6)
    run(method, rounds=3, checkpoint=tmp_path / "run")
    rest = run(method, rounds=6, resume=tmp_path / "run")
    assert torch.equal(uninterrupted.x, rest.x)
    assert torch.equal(uninterrupted.x, run(method, rounds=6, transport=Processes(2)).x)
    fresh = run(md.Robust(md.FedAvgM(), rule=R.CentredClipping(steps=1)), rounds=6)
    assert not torch.equal(uninterrupted.x, fresh.x)


def test_another_fold_is_another_run(tmp_path: Path) -> None:
    run(md.Robust(md.FedAvg(), rule=R.TrimmedMean(0.1)), rounds=1, checkpoint=tmp_path / "run")
    with pytest.raises(MedleyError, match=r"robust\.rule"):
        run(md.Robust(md.FedAvg(), rule=R.TrimmedMean(0.2)), rounds=2, resume=tmp_path / "run")


def test_the_root_is_asked_in_every_round() -> None:
    fed = federation(participation=md.participation.Fixed([[1, 2, 3], [4, 5, 6]]))
    r = run(md.Robust(md.SCAFFOLD(), rule=R.FLTrust(0)), fed, 2)
    clients_asked = [sorted({e.client for e in r.ledger if e.round == k}) for k in (1, 2)]
    assert clients_asked == [[0, 1, 2, 3], [0, 4, 5, 6]]
    with pytest.raises(RecipeError, match="there is no client 12; there are 0 to 9") as caught:
        run(md.Robust(md.FedAvg(), rule=R.FLTrust(12)))
    assert caught.value.key == "root"
    with pytest.raises(RecipeError, match=r"FLTrust.* needs 1 replies.*of the 0 in"):
        run(md.Robust(md.FedAvg(), rule=R.FLTrust(0)), federation(1))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (md.SHED(), "SHED cannot be robust: it reads replies one by one, so there is no sum"),
        (
            md.FedNorton(),
            r"FedNorton cannot be robust: .*; use FedNorton\(flows='client'\), whose server reads only sums",
        ),
        (md.FedBuff(), "FedBuff cannot be robust: it reads replies one by one"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
@pytest.mark.filterwarnings("ignore")
def test_methods_that_read_replies_one_by_one_are_refused(method: Algorithm[Any, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        run(md.Robust(method, rule=R.Median()))


def test_wrappers_that_read_replies_otherwise_are_refused() -> None:
    robust = md.Robust(md.FedAvg(), rule=R.Median())
    private = md.Private(md.FedAvg(), noise=1.0)
    with pytest.raises(Unsupported, match="DP-FedAvg cannot be robust: it adds noise to sums of replies"):
        md.Robust(private, rule=R.Median())
    with pytest.raises(Unsupported, match=r"Median-FedAvg cannot be private: .*unit='row', which adds the noise at"):
        md.Private(robust, noise=1.0)
    with pytest.raises(Unsupported, match="Median-FedAvg cannot be robust"):
        md.Robust(robust, rule=R.Median())
    with pytest.raises(Unsupported, match="EWC cannot be robust: it asks every client at the end of a task"):
        md.Robust(md.EWC(), rule=R.Median())


@pytest.mark.slow
def test_noise_at_the_clients_goes_with_a_fold_whichever_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.setattr(md.Private, "identity", "the same noise for both")
    inside = md.Robust(md.Private(md.FedAvg(), unit="row", noise=1.0), rule=R.Median())
    outside = md.Private(md.Robust(md.FedAvg(), rule=R.Median()), unit="row", noise=1.0)
    a = run(inside)
    b = run(outside)
    assert torch.equal(a.x, b.x)
    assert 0 < a.history[-1]["epsilon"] == b.history[-1]["epsilon"]


def test_weights_by_rows_and_models_with_buffers_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"the same weight for every client: give Federation\(weights='uniform'\)"):
        run(md.Robust(md.FedAvg(), rule=R.Median()), federation(weights="size"))
    net = torch.nn.Sequential(torch.nn.Linear(64, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 10))
    data = md.datasets.digits().standardise().flatten()
    fed = md.Federation(md.problems.Network(net), data=data, partition=md.partitions.IID(5), weights="uniform")
    with pytest.raises(
        Unsupported, match="a model with buffers, such as BatchNorm's, whose mean one Byzantine client can set"
    ):
        run(md.Robust(md.FedAvg(), rule=R.Median()), fed)


def test_more_liars_than_krum_bears_are_refused_before_anybody_is_asked() -> None:
    with pytest.raises(
        RecipeError, match=r"Krum\(byzantine=0.45\) needs 13 replies to tolerate 5 Byzantine clients of the 10"
    ) as caught:
        run(md.Robust(md.FedAvg(), rule=R.Krum(0.45)))
    assert len(caught.value.result.ledger) == 0


def test_lost_replies_that_make_the_cohort_too_small_end_the_run_with_the_rounds_before() -> None:
    method = md.Robust(md.FedAvg(), rule=R.Krum(0.2))
    with pytest.raises(TooFewReplies, match=r"round \d+, train: Krum\(byzantine=0.2\) needs \d+ replies") as caught:
        run(method, rounds=50, transport=Lossy(loss=0.2), seed=1)
    assert caught.value.result.status.outcome == "failed"
    assert len(caught.value.result.history) > 1
    assert run(method, transport=Lossy(loss=0.05)).status.ok


@pytest.mark.parametrize("rule", [R.TrimmedMean(0.2), R.Mixed(R.TrimmedMean(0.2), 0.2)], ids=lambda f: f.name)
def test_the_promised_share_is_tolerated_if_replies_are_lost(rule: R.Rule) -> None:
    fed = federation(attack=md.scenarios.Attack("gaussian", share=0.2, strength=1e4))
    assert run(md.Robust(md.FedAvg(), rule=rule), fed, transport=Lossy(loss=0.1)).history[-1]["accuracy"] > 0.8


@pytest.mark.parametrize(("share", "messages"), [(0.4, ["tolerates 1 Byzantine clients of the 4", "0.13:"]), (1.0, [])])
def test_a_draw_that_may_have_more_liars_than_the_share_is_warned_of(
    share: float, messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    # P(2 of the 2 among 4 of 10) = C(8, 2) / C(10, 4) = 28 / 210.
    run(md.Robust(md.FedAvg(), rule=R.TrimmedMean(0.2)), federation(participation=share))
    warned = [r.getMessage() for r in caplog.records if "raise participation=" in r.getMessage()]
    assert len(warned) == len(messages[:1])
    assert all(word in warned[0] for word in messages)


def test_a_reply_of_nan_ends_the_run_or_is_left_out() -> None:
    fed = federation(pace=md.scenarios.Pace(lr=[0.1] * 9 + [1e200]))
    method = md.Robust(md.FedAvg(), rule=R.Median())
    with pytest.raises(md.contract.errors.Diverged, match="client 9 sent numbers that are not finite"):
        run(method, fed)
    result = run(method, fed, reply_policy=md.ReplyPolicy(faulty="drop"))
    assert result.status.ok
    assert result.history[-1]["accuracy"] > 0.8


@dataclass(frozen=True)
class Own(R.Rule):
    """A user's own rule."""

    function: Callable[[torch.Tensor], Any]

    def __call__(self, rows: torch.Tensor, context: Any = None) -> Any:
        return self.function(rows)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            lambda rows: rows.mean(),
            r"Own\(.* made a tensor \[\] of the replies \[10, 640\] to train.delta; return one vec",
        ),
        (lambda rows: rows[:1], r"made a tensor \[1, 640\] .*a tensor \[640\], as rows.mean\(0\) is"),
        (lambda rows: None, "made a NoneType of"),
    ],
)
def test_a_rule_of_ones_own_makes_one_vector(rule: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        run(md.Robust(md.FedAvg(), rule=Own(rule)), rounds=1)


def test_a_rule_of_ones_own_may_compute_by_numpy_in_double_precision() -> None:
    net = md.problems.Network(torch.nn.Linear(64, 10))
    fed = md.Federation(net, data=md.datasets.digits(), partition=md.partitions.IID(4), weights="uniform")
    rule = Own(lambda rows: rows.double().mean(0).numpy())
    assert run(md.Robust(md.FedAvg(), rule=rule), fed).x.dtype == torch.float32


@dataclass
class Asked:
    x: torch.Tensor


@dataclass(frozen=True)
class AsksAgain(Algorithm[Asked]):
    """Asks everyone, and then ten of those who replied, with all liars among them."""

    liars: tuple[int, ...] = ()

    def start(self, x: torch.Tensor) -> Asked:
        return Asked(x)

    def round(self, s: Asked, clients: Cohort) -> None:
        first = clients.ask(self.train, Model(s.x))
        s.x = s.x + first.mean().delta
        ids = first.ids
        again = (*self.liars, *[i for i in ids if i not in self.liars])[:10]
        s.x = s.x + clients.ask(self.train, Model(s.x), ids=sorted(again)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        return Step(me.descend(request.x).step)


def test_those_who_are_asked_again_may_be_all_liars_of_the_round() -> None:
    """Of 20 clients 2 may lie, so of 10 of them as well, and not a tenth of 10."""
    attack = md.scenarios.Attack("gaussian", share=0.1, strength=1e6)
    fed = md.Federation(
        md.problems.Softmax(mu=1e-2),
        data=md.datasets.digits(),
        partition=md.partitions.IID(20),
        weights="uniform",
        attack=attack,
    )
    method = md.Robust(AsksAgain(attack.attackers(0, 20)), rule=R.TrimmedMean(0.1))
    assert len(attack.attackers(0, 20)) == 2
    assert float(md.run(method, fed, rounds=2, progress=False).x.norm()) < 100
