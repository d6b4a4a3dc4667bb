"""The wrapper: noise, sensitivity, budget, refusals, and an audit from outside."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import medley as md
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.message import Message
from medley.contract.messages import Model, Step
from medley.contract.sampling import Sampling
from medley.contract.types import Vec
from medley.federation.checks import warn_of_seed
from medley.privacy import Banded, Quantile, epsilon
from medley.privacy.accountant import release
from medley.runtime import streams
from support.pairs import quick

pytest.importorskip("dp_accounting")

Numbers = dict[str, Any]


@dataclass
class Server:
    x: Vec


@dataclass(frozen=True)
class Says(Algorithm[Server]):
    """Every client sends its own mean target times ``size`` in its own coordinate; the server adds the mean."""

    size: float = 1.0
    read: str = "sum"

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        replies = clients.ask(self.say, Model(torch.zeros_like(s.x)))
        s.x = s.x + (replies.sum().delta if self.read == "sum" else replies.mean().delta)

    @on_client
    def say(self, me: Client, request: Model) -> Step:
        delta = torch.zeros_like(request.x)
        # The gradient of ½(x·1 − y)² at 0 is −y·1.
        delta[me.id] = -self.size * me.problem.grad(request.x)[0]
        return Step(delta)


class Both(Message):
    """Up: two vectors."""

    delta: Vec
    dc: Vec


@dataclass(frozen=True)
class Watched(Says):
    """Sends two vectors, and shows both in x: the first four coordinates of each."""

    def round(self, s: Server, clients: Cohort) -> None:
        up = clients.ask(self.both, Model(torch.zeros_like(s.x))).sum()
        s.x = torch.cat([up.delta[:4], up.dc[:4]])

    @on_client
    def both(self, me: Client, request: Model) -> Both:
        g = me.problem.grad(request.x)
        return Both(delta=g, dc=3 * g)


def federation(targets: list[float], participation: Any = None, **kw: Any) -> md.Federation:
    """A client for each number, with one row that has this target."""
    n = len(targets)
    rows = [(torch.ones(1, n, dtype=torch.float64), torch.tensor([y], dtype=torch.float64)) for y in targets]
    problem = md.problems.LeastSquares(mu=0.0, intercept=False)
    return md.Federation(problem, clients=rows, participation=participation, weights="uniform", **kw)


def moved(
    method: Algorithm[Any, Any], targets: list[float], rounds: int = 1, seed: int = 0, transport: Any = None, **kw: Any
) -> Vec:
    fed = federation(targets, **kw)
    return md.run(method, fed, rounds=rounds, seed=seed, transport=transport, progress=False, throw=False).x


@pytest.mark.slow
def test_noise_belongs_to_the_sum() -> None:
    """Its standard deviation is z·C/n whether 4 or 400 clients take part, and if none does."""
    for targets, rule in (([0.0] * 400, None), ([0.0] * 400, 0.01), ([0.0] * 400, md.participation.Bernoulli(1e-9))):
        x = torch.cat(
            [moved(md.Private(Says(), noise=3.0, clip=0.5), targets, participation=rule, seed=s) for s in range(5)]
        )
        assert float(x.std()) == pytest.approx(3.0 * 0.5 / 400, rel=0.07)
        assert abs(float(x.mean())) < 4 * 3.0 * 0.5 / 400 / math.sqrt(len(x))


def test_denominator_is_the_expected_cohort() -> None:
    """A mean divides by q·n, not by those who came: 20 of 40 expected, each with 1 in its coordinate."""
    x = moved(
        md.Private(Says(read="mean"), noise=0.0, clip=2.0), [1.0] * 40, participation=md.participation.Bernoulli(0.5)
    )
    came = int((x > 0).sum())
    assert came != 20
    assert float(x.sum()) == pytest.approx(came / 20)


@pytest.mark.slow
def test_lost_reply_changes_neither_noise_nor_denominator() -> None:
    lossy = md.transports.Lossy(loss=0.5)
    method = md.Private(Says(read="mean"), noise=1.0, clip=1.0)
    lost = torch.cat([moved(method, [0.0] * 400, seed=s, transport=lossy) for s in range(5)])
    assert float(lost.std()) == pytest.approx(1.0 / 400, rel=0.07)
    assert float(moved(md.Private(Says(read="mean"), noise=0.0), [1.0] * 30, transport=lossy).max()) == 1 / 30


@pytest.mark.slow
def test_other_contents_have_other_noise() -> None:
    """A difference of two releases under one seed has the noise of both: z·√2 for another method, or a lost reply."""
    says, n = md.Private(Says(), noise=1.0, clip=1.0), 400
    x = moved(says, [0.0] * n)
    others = [
        moved(md.Private(Says(size=2.0), noise=1.0, clip=1.0), [0.0] * n),
        moved(md.Private(Says(), noise=1.0, clip=2.0), [0.0] * n) / 2,
        moved(says, [0.0] * n, transport=md.transports.Lossy(loss=0.01)),
    ]
    for other in others:
        assert float((x - other).std()) == pytest.approx(math.sqrt(2) / n, rel=0.1)


def test_noise_takes_the_whole_seed() -> None:
    """All bits of a secret seed are in the noise's key, of which 256 are drawn from; torch's generator has 32."""
    method, seed = md.Private(Says(), noise=1.0, clip=1.0), 2**255 + 1
    name = f"privacy, {method.identity}, sum 0 of {list(range(10))}, delta"
    x = moved(method, [0.0] * 10, seed=seed)
    torch.testing.assert_close(10 * x, streams.Secret(seed, "server", 1, name).normal((10,)))


BITS = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 200, 255)


def test_every_bit_of_the_seed_moves_the_noise() -> None:
    """Seeds that differ in one bit have other noise; a stream under some of the bits would equal itself."""
    private, seed = md.Private(Says(), noise=1.0, clip=1.0), 2**255 + 12345
    noises = [moved(private, [0.0] * 4, seed=s) for s in (seed, *(seed ^ (1 << k) for k in BITS))]
    assert len({tuple(x.tolist()) for x in noises}) == len(BITS) + 1


def test_noise_is_normal_and_fresh_in_every_round() -> None:
    """Four rounds have twice the deviation of one, beyond which lie 31.7 %; 4.55 % lie beyond 2, 0.27 % beyond 3."""
    rows = [(torch.ones(1, 4000, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))] * 2
    fed = md.Federation(md.problems.LeastSquares(mu=0.0, intercept=False), clients=rows, weights="uniform")
    private = md.Private(Says(), noise=1.0, clip=1.0)
    # Noise is all that moves it, so the loss, which begins at 0, diverges.
    one, four = (md.run(private, fed, rounds=rounds, progress=False, throw=False).x * 2 for rounds in (1, 4))
    assert float(one.std()) == pytest.approx(1.0, rel=0.05)
    assert float(four.std()) == pytest.approx(2.0, rel=0.05)
    for far, share in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        spread = math.sqrt(share * (1 - share) / len(one))
        assert float((one.abs() > far).double().mean()) == pytest.approx(share, abs=3 * spread)


def test_sensitivity() -> None:
    """Whatever one client holds, the sum moves by at most its bound: 10⁶ moves it by exactly C, 0.1 by 0.1."""
    for y, change in ((1e6, 0.5), (-1e6, 0.5), (0.1, 0.1)):
        quiet, loud = [0.2] * 9 + [0.0], [0.2] * 9 + [y]
        private = md.Private(Says(), noise=1.0, clip=0.5)
        assert float((moved(private, loud) - moved(private, quiet)).norm() * 10) == pytest.approx(change, rel=1e-9)


def test_fields_are_bounded_together() -> None:
    """SCAFFOLD's two vectors: at most C_f each, and √(Σ ‖m_f‖²/C_f²) = 1 together where a client's data are wild."""
    quiet, loud = [0.0] * 8, [1e6] + [0.0] * 7
    clip = {"delta": 0.3, "dc": 4.0}
    a, b = (
        md.run(md.Private(Watched(), noise=0.0, clip=clip), federation(y), rounds=1, progress=False).x * 8
        for y in (quiet, loud)
    )
    delta, dc = (b - a)[:4].norm(), (b - a)[4:].norm()
    # Half of the coordinates of each vector are shown.
    assert math.hypot(float(delta) / 0.3, float(dc) / 4.0) == pytest.approx(math.sqrt(0.5), rel=1e-9)
    with pytest.raises(md.MedleyError, match="'dc'"):
        md.run(md.Private(Watched(), noise=0.0, clip={"delta": 1.0}), federation(loud), rounds=1, progress=False)


def test_same_seed_same_noise_and_another_seed_another() -> None:
    private = md.Private(Says(), noise=1.0, clip=1.0)
    first, again, other = (moved(private, [0.0] * 10, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    rounds = [moved(private, [0.0] * 10, rounds=n) for n in (1, 2)]
    assert not torch.equal(rounds[1] - rounds[0], rounds[0])


@pytest.mark.slow
def test_resume_goes_on_counting(tmp_path: Path) -> None:
    """A run of 8 rounds, and one that stops after 3 and goes on: the same bits and the same ε."""
    method = md.Private(md.SCAFFOLD(), noise=0.3, clip=Quantile(start=1.0))
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(40),
        participation=md.participation.Bernoulli(0.3),
        weights="uniform",
    )
    whole = md.run(method, fed, rounds=8, progress=False)

    def stop(row: Any) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    md.run(method, fed, rounds=8, progress=False, checkpoint=tmp_path / "run", on_round=stop)
    resumed = md.run(method, fed, rounds=8, progress=False, resume=tmp_path / "run")
    assert resumed.digest == whole.digest
    assert resumed.history[-1]["epsilon"] == whole.history[-1]["epsilon"] > whole.history[-2]["epsilon"]


def test_history_has_the_account_of_what_was_drawn() -> None:
    """q = 0.3 and two exchanges a round at z = 2 are z/√2 under one draw."""
    rule = md.participation.Bernoulli(0.3)
    method = md.Private(Twice(), noise=2.0, clip=1.0)
    result = md.run(method, federation([0.0] * 20, rule), rounds=4, progress=False)
    law = Sampling("poisson", 20, 0.3)
    expected = [epsilon([release(law, 2.0 / math.sqrt(2), t)], 1e-5) for t in range(1, 5)]
    assert result["epsilon"][1:] == pytest.approx(expected, rel=1e-9)


def test_budget_ends_a_run() -> None:
    method = md.Private(Says(), epsilon=3.0, delta=1e-5, rounds=5, clip=1.0)
    fed = federation([0.0] * 20, md.participation.Bernoulli(0.3))
    five = md.run(method, fed, rounds=5, progress=False)
    assert five.status.outcome == "finished"
    assert five.history[-1]["epsilon"] == pytest.approx(3.0, rel=1e-3)
    assert five.history[-1]["epsilon"] <= 3.0
    with pytest.raises(md.BudgetSpent, match=r"has spent ε = 3 of 3 \(δ = 1e-05\); the next sum, in round 6") as e:
        md.run(method, fed, rounds=9, progress=False)
    assert torch.equal(e.value.result.x, five.x)
    kept = md.run(method, fed, rounds=9, progress=False, throw=False)
    assert kept.status.outcome == "spent"
    assert len(kept.history) == 6


@pytest.mark.parametrize("short", [1.0001, 1.03])
@pytest.mark.parametrize("planned", [None, 3, 8])
def test_a_budget_that_is_a_little_short_of_three_rounds_has_two(short: float, planned: int | None) -> None:
    """Whichever of the two ways of counting is asked: the quick bound of a longer run, or the account itself."""
    law = Sampling("poisson", 20, 0.3)
    two, three = (epsilon([release(law, 2.0, t)], 1e-5) for t in (2, 3))
    assert two < three / short
    method = md.Private(Says(), noise=2.0, clip=1.0, epsilon=three / short, rounds=planned)
    fed = federation([0.0] * 20, md.participation.Bernoulli(0.3))
    found = md.run(method, fed, rounds=4, progress=False, throw=False)
    assert (found.status.outcome, found.history[-1]["round"]) == ("spent", 2)
    assert found.history[-1]["epsilon"] == pytest.approx(two)
    enough = dataclasses.replace(method, epsilon=three * (1 + 1e-12))
    assert md.run(enough, fed, rounds=4, progress=False, throw=False).history[-1]["round"] == 3


@pytest.mark.slow
def test_quantile_follows_the_norms() -> None:
    """Replies of norm 2 and a bound that starts at 0.1: S ends near 2, where half of them are within."""
    clip = Quantile(0.5, start=0.1, lr=0.5, count_noise=0.05)
    method = md.Private(Spread(), noise=0.01, clip=clip)
    fed = federation([1.0 + k / 30 for k in range(60)])
    result = md.run(method, fed, rounds=25, progress=False, throw=False)
    # The noise of a sum is z·S·(1/n); S itself shows in the state's bounds, and in the size of the largest part.
    assert float(result.x.max()) == pytest.approx(2.0, rel=0.1)


def test_quantile_accounts_for_its_count() -> None:
    clip = Quantile(count_noise=0.1)
    z = clip.beside_count(1.0, 50.0)
    assert z**-2 + (2 * 0.1 * 50) ** -2 == pytest.approx(1.0)
    with pytest.raises(md.RecipeError, match=r"use at least 0\.25"):
        clip.beside_count(5.0, 10.0)
    with pytest.raises(md.RecipeError, match=r"use at least 0\.25"):
        md.run(md.Private(Says(), noise=5.0, clip=clip), federation([0.0] * 10), rounds=1, progress=False)


def test_quantile_counts_both_sides() -> None:
    """A client within the bound raises Σ (b − ½) by ½, another lowers it by ½: S moves by e^(∓η/2m) at most.

    The noise of the count is σ·m. Its multiplier 2σm is that of a sensitivity of ½; a count of b alone has 1.
    """
    clip = Quantile(0.5, start=1.0, lr=0.5, count_noise=0.2)
    rule, n, seed = md.participation.Bernoulli(0.5), 12, 0
    came = rule.draw(1, np.ones(n), seed)
    i = int(came[0])

    method = md.Private(Says(read="mean"), noise=0.1, clip=clip)

    def bound(y: float) -> float:
        targets = [0.3] * n
        targets[i] = y
        seen: list[float] = []
        kept = Quantile.after

        def watched(self: Quantile, bound: float, share: float) -> float:
            seen.append(kept(self, bound, share))
            return seen[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Quantile, "after", watched)
            moved(method, targets, seed=seed, participation=rule)
        return seen[0]

    within, beyond = bound(0.3), bound(9.0)
    assert math.log(beyond / within) == pytest.approx(0.5 / (0.5 * n))
    name = f"privacy, {method.identity}, sum 0 of {came.tolist()}, count"
    noise = float(streams.Secret(seed, "server", 1, name).normal(()))
    share = 0.5 + len(came) / 2 / (0.5 * n) + clip.count_noise * noise
    assert math.log(within) == pytest.approx(-0.5 * (share - 0.5))


@pytest.mark.parametrize("policy", [md.ReplyPolicy(replies=3), md.ReplyPolicy(quorum=0.5)], ids=["replies", "quorum"])
def test_replies_that_displace_others(policy: md.ReplyPolicy) -> None:
    """A quick client that makes another late would move the sum by twice its bound."""
    method = md.Private(Says(), noise=1.0)
    with pytest.raises(md.Unsupported, match=r"leave replies= and quorum= of ReplyPolicy out"):
        md.run(method, federation([0.0] * 6), rounds=1, progress=False, reply_policy=policy)


COUNTING = [
    md.FedADMM(),
    md.FedADMM(server_lr="share"),
    md.FedDC(),
    md.FedDyn(),
    md.FedExP(),
    md.FedExP(rule="paper"),
    md.FedSMOO(),
    md.FedSpeed(),
]


@pytest.mark.parametrize("method", quick(4, [*COUNTING, md.FedNorton(flows="client"), md.SCAFFOLD()]), ids=repr)
def test_without_noise_and_bound_it_is_the_method_itself(method: Algorithm[Any, Any]) -> None:
    """With everyone there, no noise and a wide bound, x is that of the plain run up to rounding."""
    toy = md.problems.synthetic_logistic(clients=6)
    fed = md.Federation(toy.problem, clients=toy.clients, weights="uniform")
    plain = md.run(method, fed, rounds=5, progress=False)
    private = md.run(md.Private(method, noise=0.0, clip=1e6), fed, rounds=5, progress=False)
    torch.testing.assert_close(private.x, plain.x, rtol=1e-9, atol=1e-12)
    assert private.history[-1]["epsilon"] == math.inf


def test_count_is_the_expected_one() -> None:
    """FedDyn divides by q·n: x = total/(q·n) + h, whoever comes."""
    rule = md.participation.Bernoulli(0.5)
    seen = []
    for seed in range(6):
        method = md.Private(Counts(), noise=0.0, clip=1.0)
        seen.append(float(moved(method, [0.0] * 20, seed=seed, participation=rule)[0]))
    assert seen == [10.0] * 6
    assert {len(rule.draw(1, np.ones(20), s)) for s in range(6)} != {10}


@pytest.mark.slow
def test_noise_on_the_times_of_a_circuit() -> None:
    """FedNorton under noise that outweighs T_i: the run goes on with a finite model, and S moves."""
    toy = md.problems.synthetic_logistic(clients=6)
    fed = md.Federation(toy.problem, clients=toy.clients, weights="uniform")
    bounds = {"flow": 0.1, "u": 0.1, "T": 9.0, "rate": 9.0, "changed": 1.0, "size": 1.0}
    shares = []

    class Seen(md.FedNorton):
        def round(self, s, clients):
            super().round(s, clients)
            shares.append(float(s.rho))

    method = md.Private(Seen(flows="client"), noise=3.0, clip=bounds)
    result = md.run(method, fed, rounds=40, progress=False, throw=False)
    assert bool(torch.isfinite(result.x).all())
    assert len(set(shares)) > 2
    assert all(0 <= share <= 1 for share in shares)
    kept = [after["loss"] == before["loss"] for before, after in pairwise(result.history)]
    assert 0 < sum(kept) < 40


def test_banded_noise_cancels() -> None:
    """C·n = z: the noises of eight rounds, weighed with C's diagonals, are independent again and of variance 1."""
    banded, past, z = Banded(4), list[Vec](), list[Vec]()
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        z.append(torch.randn(20_000, generator=generator, dtype=torch.float64))
        past.insert(0, banded.next(z[-1], past))
    c = banded.diagonals
    assert sum(v * v for v in c) == pytest.approx(1.0)
    for t in range(8):
        again = sum(c[j] * past[7 - t + j] for j in range(min(4, t + 1)))
        assert torch.allclose(torch.as_tensor(again), z[t], atol=1e-12)
    # Independent noise of eight rounds has a sum of variance 8; this has less, at the same ε.
    assert float(torch.stack(past).sum(0).var()) < 0.6 * 8


def test_banded_needs_turns_that_lie_apart() -> None:
    method = md.Private(Says(), noise=1.0, clip=1.0, mechanism=Banded(4))
    with pytest.raises(md.RecipeError, match=r"a client's turns are 1 rounds apart; use .*Cyclic\(4\)"):
        moved(method, [0.0] * 8)
    moved(method, [0.0] * 8, participation=md.participation.Cyclic(4), rounds=5)


REFUSED = [
    (md.FedNorton(), r"reads which clients take part; use FedNorton\(flows='client'\), whose server"),
    (md.FedNL(), "replies one by one|tells each|which clients"),
    (md.FedBuff(), "takes late replies"),
    (md.MontDec(), "replies one by one|tells each"),
    (md.FedTrack(), "chooses whom it asks"),
]


@pytest.mark.parametrize(("method", "reason"), REFUSED, ids=lambda v: getattr(v, "name", ""))
def test_methods_that_see_more_than_sums(method: Algorithm[Any, Any], reason: str) -> None:
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(4), weights="uniform"
    )
    with pytest.raises(md.Unsupported, match=f"{method.name} cannot be private: it .*({reason})"):
        md.run(md.Private(method, noise=1.0), fed, rounds=1, progress=False)


def test_what_a_run_must_offer() -> None:
    data = {"data": md.datasets.digits(), "partition": md.partitions.IID(4)}
    softmax = md.problems.Softmax(mu=1e-3)
    private = md.Private(md.FedAvg(), noise=1.0)
    with pytest.raises(md.Unsupported, match=r"give Federation\(weights='uniform'\)"):
        md.run(private, md.Federation(softmax, **data), rounds=1, progress=False)
    rule = md.participation.Availability(0.5)
    with pytest.raises(md.Unsupported, match="a participation that privacy accounting knows"):
        md.run(private, md.Federation(softmax, participation=rule, weights="uniform", **data), rounds=1, progress=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise": 1.0, "clip": 0.0}, r"Private\(clip=0.0\)"),
        ({"noise": 1.0, "clip": {"delta": 0.0}}, "finite numbers above 0"),
        ({"noise": -1.0}, r"Private\(noise=-1.0\)"),
        ({}, "give noise=; or give epsilon= and rounds="),
        ({"epsilon": 3.0}, "give noise=; or give epsilon= and rounds="),
        ({"noise": 1.0, "delta": 1.0}, r"Private\(delta=1.0\)"),
        ({"noise": 1.0, "clip": Quantile(), "mechanism": Banded(2)}, "cancels only if all fields have the same bound"),
    ],
)
def test_bad_settings(given: Numbers, message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        md.Private(md.FedAvg(), **given)


def test_private_twice_and_tasks() -> None:
    with pytest.raises(md.RecipeError, match="private already"):
        md.Private(md.Private(md.FedAvg(), noise=1.0), noise=1.0)
    with pytest.raises(md.Unsupported, match="asks every client at the end of a task"):
        md.Private(md.EWC(), noise=1.0)


def audit(noise: float, canaries: int = 1_000, guesses: int = 100) -> float:
    """A lower bound on ε, with 95 % confidence, from one run: Steinke, Nasr & Jagielski, NeurIPS 2023, Theorem 2.1.

    Half of the clients, at random, have data that fill their whole bound in a coordinate of their own. The most extreme
    coordinates of the released model are guessed to belong to those, or to the others. At ε, a guess is right with
    probability at most e^ε/(1 + e^ε).
    """
    within = torch.rand(canaries, generator=torch.Generator().manual_seed(7)) < 0.5
    x = moved(md.Private(Says(), noise=noise, clip=1.0), [100.0 * float(b) for b in within])
    order = x.argsort()
    right = int((~within)[order[: guesses // 2]].sum() + within[order[-guesses // 2 :]].sum())
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        p = 1 / (1 + math.exp(-middle))
        low, high = (middle, high) if binom.sf(right - 1, guesses, p) < 0.05 else (low, middle)
    return low


@pytest.mark.slow
def test_audit_stays_below_and_comes_near() -> None:
    """ε = 4.4 at z = 1: the audit finds at least a quarter of it, and never more."""
    true = epsilon([release(md.participation.Everyone().sampling(1_000), 1.0)], 1e-5)
    found = audit(1.0)
    assert true / 4 < found < true


def test_audit_catches_noise_that_is_too_small() -> None:
    """The noise of a mean (over the clients, as a bug would have it) in place of the sum's: the audit sees it."""
    claimed = epsilon([release(md.participation.Everyone().sampling(1_000), 1.0)], 1e-5)
    assert audit(1.0 / math.sqrt(1_000), guesses=600) > claimed


@dataclass(frozen=True)
class Twice(Says):
    """Two exchanges a round."""

    def round(self, s: Server, clients: Cohort) -> None:
        super().round(s, clients)
        super().round(s, clients)


@dataclass(frozen=True)
class Counts(Says):
    """x is the number of replies."""

    def round(self, s: Server, clients: Cohort) -> None:
        replies = clients.ask(self.say, Model(torch.zeros_like(s.x)))
        replies.sum()
        s.x = torch.full_like(s.x, replies.count)


@dataclass(frozen=True)
class Spread(Says):
    """x is n times the last round's mean, so that it shows the bound."""

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = clients.population * clients.ask(self.say, Model(torch.zeros_like(s.x))).mean().delta


@pytest.mark.slow
def test_workers_count_within_the_bound() -> None:
    """Adaptive bounds have the same bits with two worker processes."""
    method = md.Private(Says(), noise=1.0, clip=Quantile(start=1.0, count_noise=0.2))
    fed = federation([0.5, 2.0, 3.0, 0.1, 5.0, 0.2])
    here = md.run(method, fed, rounds=4, progress=False)
    there = md.run(method, fed, rounds=4, progress=False, transport=md.transports.Processes(2))
    assert torch.equal(here.x, there.x)


def test_a_seed_that_can_be_guessed_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def said(method: Algorithm[Any, Any], seed: int) -> int:
        moved(method, [0.0] * 4, seed=seed)
        return caplog.text.count("pass seed=secrets.randbits(128)")

    warn_of_seed.cache_clear()
    assert said(Says(), 0) == said(md.Private(Says(), noise=0.0), 0) == 0
    assert said(md.Private(Says(), noise=1.0), 2**127) == 0
    assert said(md.Private(Says(), noise=1.0), 2**64 - 1) == 1
    assert said(md.Private(Says(), noise=1.0), 0) == 1


def test_cohorts_of_nobody() -> None:
    with pytest.raises(md.RecipeError, match="no round has any client"):
        moved(md.Private(Says(read="mean"), noise=1.0), [0.0] * 4, participation=md.participation.Fixed([[]]))


@dataclass(frozen=True)
class Seldom(Says):
    """Asks in odd rounds only."""

    def round(self, s: Server, clients: Cohort) -> None:
        if clients.round % 2:
            super().round(s, clients)


@pytest.mark.slow
def test_turns_follow_rounds(tmp_path: Path) -> None:
    """Of two groups in turns that are asked in odd rounds, one has a part in all sums; of three, each in a third."""
    method = md.Private(Seldom(), noise=2.0, clip=1.0)
    law = md.participation.Everyone().sampling(6)
    for groups, turns in ((2, 5), (3, 2)):
        fed = federation([0.0] * 6, md.participation.Cyclic(groups))
        result = md.run(method, fed, rounds=9, progress=False)
        assert result.history[-1]["epsilon"] == pytest.approx(epsilon([release(law, 2.0, turns)], 1e-5), rel=1e-9)

    def stop(row: Any) -> None:
        if row["round"] == 4:
            raise KeyboardInterrupt

    md.run(method, fed, rounds=9, progress=False, checkpoint=tmp_path / "run", on_round=stop)
    resumed = md.run(method, fed, rounds=9, progress=False, resume=tmp_path / "run")
    assert resumed.history[-1]["epsilon"] == result.history[-1]["epsilon"]


@pytest.mark.slow
def test_bands_are_rounds() -> None:
    """A sum that every other round leaves out has the noise of rounds 1 and 3 of a run that takes each."""
    rule, c = md.participation.Cyclic(2), Banded(2).diagonals
    x = [
        moved(md.Private(Seldom(), noise=1.0, mechanism=Banded(2)), [0.0] * 800, rounds=t, participation=rule)
        for t in (1, 3)
    ]
    first, third = 800 * x[0], 800 * (x[1] - x[0])
    # n_3 = (z_3 - c_1 (z_2 - c_1 n_1)/c_0)/c_0: of n_1 a share of (c_1/c_0)^2, and z_3, z_2 besides.
    share = (c[1] / c[0]) ** 2
    assert float((third * first).mean() / (first**2).mean()) == pytest.approx(share, abs=0.15)
    assert float((third - share * first).var()) == pytest.approx((1 + share) / c[0] ** 2, rel=0.15)


def test_a_sum_twice_in_a_round_has_no_correlated_noise() -> None:
    method = md.Private(Twice(), noise=1.0, clip=1.0, mechanism=Banded(2))
    with pytest.raises(md.RecipeError, match=r"Twice sums 'say\.delta' twice in round 1.*leave mechanism= out"):
        moved(method, [0.0] * 8, participation=md.participation.Cyclic(2))
