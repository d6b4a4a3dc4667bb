"""Privacy of rows: row gradients, bound, noise, the account of each client, refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.messages import Model, Step
from medley.contract.pace import Pace
from medley.contract.sampling import LocalSampling, Sampling
from medley.contract.types import Vec
from medley.engines.seq import Seq
from medley.privacy import epsilon, rows
from medley.privacy.accountant import release
from medley.runtime.streams import Secret
from medley.testing import conformance
from support.objectives import PROBLEMS, objective
from support.pairs import quick

pytest.importorskip("dp_accounting")


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("bound", [0.05, 0.7, 1e9])
@pytest.mark.shapes
def test_row_gradients_are_bounded_one_by_one(name: str, bound: float) -> None:
    """The sum is that of each row's gradient by itself, scaled down to the bound; no rows are 0."""
    of = objective(name)
    x = torch.randn(of.d, generator=torch.Generator().manual_seed(4), dtype=torch.float64) / 2
    some = torch.tensor([0, 2, 3, 6])
    total, decay = of.clipped(x, some, bound)
    expected = torch.zeros_like(x)
    for j in some.tolist():
        g = of.grad(x, torch.tensor([j])) - decay * x
        expected += g * min(1.0, bound / float(g.norm()))
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-12)
    none, _ = of.clipped(x, torch.zeros(0, dtype=torch.int64), bound)
    assert float(none.norm()) == 0
    if bound == 1e9:
        torch.testing.assert_close(total / len(some) + decay * x, of.grad(x, some))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("size", [1e30, 1e155, 1e200, 1e308])
def test_no_model_makes_success_depend_on_a_row(name: str, size: float) -> None:
    """The server picks x so that the outputs overflow where column 0 of a row is not 0; both answers are finite."""
    of = objective(name)
    x = torch.ones(of.d, dtype=torch.float64)
    x[:3] = torch.tensor([size, 1.0, -size])
    for value in (0.0, 3.0, -1e10):
        X, some = of.X.clone(), torch.tensor([0, 1, 2])
        X[0, :3] = torch.tensor([value, 0.0, value / 3])
        total, _ = of.like(X, of.y).clipped(x, some, 0.7)
        assert total.isfinite().all()
        assert float(total.norm()) <= 3 * 0.7 * (1 + 1e-12)


class Touchy(nn.Module):
    """A network that fails where a logit is large, as a user's own check does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, X: Tensor) -> Tensor:
        z: Tensor = self.linear(X)
        if FAILS[0] and self.training:
            raise ValueError(f"row {X.tolist()} is too large")
        return z


FAILS = [False]


def test_an_error_at_private_rows_is_no_answer_and_has_no_text(caplog: pytest.LogCaptureFixture) -> None:
    g = torch.Generator().manual_seed(0)
    rows_of = [(torch.randn(6, 3, generator=g), torch.arange(6) % 2) for _ in range(2)]
    fed = md.Federation(md.problems.Network(Touchy()), clients=rows_of, pace=md.scenarios.Pace(steps=2, batch=None))
    start = lambda row: FAILS.__setitem__(0, row["round"] == 0)
    try:
        failed, still = (md.run(by_row(noise=z), fed, rounds=1, progress=False, on_round=start) for z in (1.0, 0.0))
    finally:
        FAILS[0] = False
    assert failed.status.outcome == "finished"
    # The noise of two steps at each of two clients is there, and nothing else.
    assert float((failed.x - still.x).norm()) == pytest.approx(0.1 / 6 * math.sqrt(len(still.x)), rel=0.6)
    assert "the row adds nothing to the step" in caplog.text


def clients(sizes: list[int], width: int = 3, spoilt: float | None = None) -> list[tuple[Tensor, Tensor]]:
    g, out = torch.Generator().manual_seed(1), []
    for n in sizes:
        X = torch.randn(n, width, generator=g, dtype=torch.float64)
        out.append((X, X.sum(1) + torch.randn(n, generator=g, dtype=torch.float64) / 5))
    if spoilt is not None:
        out[0][1][0] = spoilt
    return out


def federation(sizes: list[int], rule: Any = None, spoilt: float | None = None, **pace: Any) -> md.Federation:
    how = md.scenarios.Pace(**{"lr": 0.1, "steps": 3, "batch": None, **pace})
    problem = md.problems.LeastSquares(mu=0.01, intercept=False)
    return md.Federation(problem, clients=clients(sizes, spoilt=spoilt), pace=how, participation=rule)


def by_row(method: Algorithm[Any, Any] | None = None, **kw: Any) -> md.Private:
    return md.Private(method or md.FedAvg(), **{"unit": "row", "noise": 1.0, "clip": 1.0, **kw})


METHODS = [md.FedAvg(), md.FedProx(mu=0.1), md.SCAFFOLD(), md.FedDyn(), md.FedNorton(), md.FedNova(), md.FedAdam()]


@pytest.mark.parametrize("method", quick(2, METHODS), ids=lambda m: m.name)
@pytest.mark.shapes
def test_without_noise_and_bound_it_is_the_method_itself(method: Algorithm[Any, Any]) -> None:
    fed = federation([5, 8, 6])
    plain = md.run(method, fed, rounds=4, progress=False)
    private = md.run(by_row(method, noise=0.0, clip=1e9), fed, rounds=4, progress=False)
    torch.testing.assert_close(private.x, plain.x, rtol=1e-9, atol=1e-12)
    assert private.history[-1]["epsilon"] == math.inf


@pytest.mark.shapes
def test_one_row_moves_a_step_by_at_most_its_bound() -> None:
    """Without noise one step of n = 5 rows moves by lr·(C + what the row said before)/n, whatever the row holds."""
    before, after = (
        md.run(by_row(noise=0.0, clip=0.3), federation([5], spoilt=y, steps=1), rounds=1, progress=False).x
        for y in (1e6, -1e6)
    )
    assert float((after - before).norm()) == pytest.approx(0.1 * 2 * 0.3 / 5)


def test_noise_of_a_step() -> None:
    """Its standard deviation is lr·z·C/(q·n) in every coordinate, and 0 rows in a batch change nothing of it."""
    width, x = 400, []
    problem = md.problems.LeastSquares(mu=0.0, intercept=False)
    data = [(torch.zeros(10, width, dtype=torch.float64), torch.zeros(10, dtype=torch.float64))]
    for batch in (None, 2, 1):
        pace = md.scenarios.Pace(lr=0.1, steps=1, batch=batch)
        fed = md.Federation(problem, clients=data, pace=pace)
        x = torch.cat([md.run(by_row(noise=2.0, clip=0.5), fed, rounds=1, seed=s, progress=False).x for s in range(5)])
        assert float(x.std()) == pytest.approx(0.1 * 2.0 * 0.5 / (batch or 10), rel=0.06)


def test_noise_is_fresh_in_every_step_in_every_round_and_at_every_client() -> None:
    """x is the mean of two clients' sums over 2 rounds of 4 steps: its deviation is lr·z·C/n·√(8/2).

    One noise for all steps makes it twice as large, one in the first step half, one for both rounds or clients √2.
    """
    data = [(torch.zeros(10, 400, dtype=torch.float64), torch.zeros(10, dtype=torch.float64))] * 2
    problem, pace = md.problems.LeastSquares(mu=0.0, intercept=False), md.scenarios.Pace(lr=0.1, steps=4, batch=None)
    fed = md.Federation(problem, clients=data, pace=pace)
    x = torch.cat([md.run(by_row(noise=2.0, clip=0.5), fed, rounds=2, seed=s, progress=False).x for s in range(8)])
    assert float(x.std()) == pytest.approx(0.1 * 2.0 * 0.5 / 10 * 2, rel=0.06)


def test_every_bit_of_the_seed_moves_the_noise_of_rows() -> None:
    seed, bits = 2**255 + 12345, (0, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255)
    seeds = (seed, *(seed ^ (1 << k) for k in bits))
    noises = [md.run(by_row(), federation([5], steps=1), rounds=1, seed=s, progress=False).x for s in seeds]
    assert len({tuple(x.tolist()) for x in noises}) == len(seeds)


def test_batches_are_poisson() -> None:
    """Batch sizes of 2,000 steps with n = 40, q = 0.25: mean 10, variance 7.5, as of independent rows."""
    sizes: list[int] = []
    kept = rows.NoisyGradient.grad

    def watched(self: Any, x: Vec, took: Any = None, *args: Any, **kw: Any) -> Vec:
        sizes.append(len(took))
        return kept(self, x, took, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.NoisyGradient, "grad", watched)
        md.run(by_row(), federation([40], steps=2000, batch=10), rounds=1, progress=False)
    found = torch.tensor(sizes).double()
    assert len(found) == 2000
    assert float(found.mean()) == pytest.approx(10, abs=4 * math.sqrt(7.5 / 2000))
    assert float(found.var()) == pytest.approx(7.5, rel=0.15)


@pytest.mark.slow
def test_work_tells_no_batch() -> None:
    """A round takes the time of the expected rows, those of a plain run, and not of those that were drawn."""
    how = {"pace": md.scenarios.Pace(lr=0.1, steps=3, batch=4), "devices": md.devices.Devices(speed=2.0)}
    fed = md.Federation(md.problems.LeastSquares(intercept=False), clients=clients([8, 20]), **how)
    private, plain = (md.run(method, fed, rounds=3, progress=False)["seconds"] for method in (by_row(), md.FedAvg()))
    assert private == pytest.approx(plain)


@pytest.mark.slow
def test_every_client_has_its_account() -> None:
    """Rates batch/n_i, the steps that it ran, and the rounds in which it was asked; history has the largest."""
    rule = md.participation.Fixed([[0, 1], [1]])
    result = md.run(
        by_row(noise=1.5), federation([8, 20], rule, steps=None, epochs=2, batch=4), rounds=3, progress=False
    )
    spent = {
        i: epsilon([release(Sampling("poisson", n, 4 / n), 1.5, steps * turns)], 1e-5)
        for i, n, steps, turns in ((0, 8, 4, 2), (1, 20, 10, 3))
    }
    assert result.history[-1]["epsilon"] == pytest.approx(max(spent.values()))
    assert LocalSampling.of(Pace(epochs=2, batch=4), 21) == LocalSampling(21, 4 / 21, 12)
    tables = md.run(
        by_row(noise=1.5),
        federation([8, 20], rule, steps=None, epochs=2, batch=4),
        rounds=3,
        progress=False,
        clients_every=3,
    )
    assert {row["client"]: row["epsilon"] for row in tables.clients} == pytest.approx(spent)


def test_steps_are_those_of_a_client() -> None:
    for pace in (
        Pace(epochs=3, batch=4),
        Pace(steps=7, batch=4),
        Pace(epochs=2, batch=None),
        Pace(epochs=2, batch=4, drop_last=True),
    ):
        for n in (4, 5, 11):
            fed = md.Federation(
                md.problems.LeastSquares(),
                clients=clients([n]),
                pace=md.scenarios.Pace(
                    epochs=pace.epochs, steps=pace.steps, batch=pace.batch, drop_last=pace.drop_last
                ),
            )
            me = fed.draw(0).client(0, 1, Seq())
            assert LocalSampling.of(pace, n) == LocalSampling(n, min(pace.batch or n, n) / n, me.steps)


@pytest.mark.slow
def test_budget_of_a_client_ends_the_run() -> None:
    method = by_row(noise=None, epsilon=2.0, rounds=4)
    fed = federation([12, 30], batch=4)
    four = md.run(method, fed, rounds=4, progress=False)
    assert 1.9 < four.history[-1]["epsilon"] <= 2.0
    with pytest.raises(md.BudgetSpent, match=r"client \d has spent ε = 1\.\d+ of 2 for its rows .* round 5") as e:
        md.run(method, fed, rounds=9, progress=False)
    assert torch.equal(e.value.result.x, four.x)


@pytest.mark.parametrize("short", [1.0001, 1.03])
def test_a_budget_of_rows_that_is_a_little_short_of_three_rounds_has_two(short: float) -> None:
    three = epsilon([release(Sampling("poisson", 12, 4 / 12), 2.0, 9)], 1e-5)
    fed, method = federation([12], batch=4), by_row(noise=2.0, epsilon=three / short)
    found = md.run(method, fed, rounds=4, progress=False, throw=False)
    assert (found.status.outcome, found.history[-1]["round"]) == ("spent", 2)
    enough = by_row(noise=2.0, epsilon=three * (1 + 1e-12))
    assert md.run(enough, fed, rounds=4, progress=False, throw=False).history[-1]["round"] == 3


@pytest.mark.slow
def test_resume_and_workers_have_the_same_bits(tmp_path: Path) -> None:
    method = by_row(md.SCAFFOLD(), noise=1.1)
    fed = federation([10, 12, 9, 14], 0.5, batch=4)
    whole = md.run(method, fed, rounds=6, progress=False)

    def stop(row: Any) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    md.run(method, fed, rounds=6, progress=False, checkpoint=tmp_path / "run", on_round=stop)
    resumed = md.run(method, fed, rounds=6, progress=False, resume=tmp_path / "run")
    there = md.run(method, fed, rounds=6, progress=False, transport=md.transports.Processes(2))
    assert resumed.digest == whole.digest
    assert [r["epsilon"] for r in resumed.history] == [r["epsilon"] for r in whole.history]
    assert torch.equal(there.x, whole.x)


def test_noise_does_not_come_from_the_stream_of_the_batches() -> None:
    """Of 40 rows, those with u < 1/4 are drawn. Were the noise of 40 coordinates made of the same u, it would be below
    Φ⁻¹(1/4) exactly where a row is drawn, so that the noise tells who is in the batch."""
    numbers: dict[str, list[tuple[bytes, int]]] = {"batches": [], "noise": []}
    uniform, normal = Secret.uniform, Secret.normal

    def of_batches(self: Secret, count: int) -> Tensor:
        out = uniform(self, count)
        numbers["batches"].append((self._key, self._calls))
        return out

    def of_noise(self: Secret, shape: Any) -> Tensor:
        before = len(numbers["batches"])
        out = normal(self, shape)
        numbers["noise"] += numbers["batches"][before:]
        del numbers["batches"][before:]
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Secret, "uniform", of_batches)
        patch.setattr(Secret, "normal", of_noise)
        md.run(by_row(), federation([40, 30], steps=3, batch=10), rounds=2, progress=False)
    assert len({*numbers["batches"]}) == len({*numbers["noise"]}) == 2 * 2 * 3
    assert not {*numbers["batches"]} & {*numbers["noise"]}
    assert not {key for key, _ in numbers["batches"]} & {key for key, _ in numbers["noise"]}


def test_a_batch_of_nobody_has_the_noise_of_any_other() -> None:
    """With q = 1/50, a third of the steps draw none of 50 rows. Without noise in those, x would move a fifth less."""
    data = [(torch.zeros(50, 400, dtype=torch.float64), torch.zeros(50, dtype=torch.float64))]
    pace = md.scenarios.Pace(lr=0.1, steps=12, batch=1)
    fed = md.Federation(md.problems.LeastSquares(mu=0.0, intercept=False), clients=data, pace=pace)
    x = torch.cat([md.run(by_row(noise=2.0, clip=0.5), fed, rounds=1, seed=s, progress=False).x for s in range(4)])
    assert float(x.std()) == pytest.approx(0.1 * 2.0 * 0.5 * math.sqrt(12), rel=0.08)


def test_noise_has_a_name() -> None:
    """It follows from the seed, whatever torch's global stream does; rounds and clients have noise of their own."""
    method = by_row(clip=1e-9, noise=1e9)
    runs = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        runs.append([md.run(method, federation([5, 5]), rounds=n, progress=False).x for n in (1, 2)])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.allclose(runs[0][1] - runs[0][0], runs[0][0], rtol=0.1)


@dataclass
class Server:
    x: Vec


@dataclass(frozen=True)
class Leaky(Algorithm[Server]):
    """A method whose clients use their rows in a way of their own."""

    way: str = "loss"

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta
        if self.way == "ask":
            s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        if self.way == "longer":
            return Step(me.at(epochs=9).descend(request.x).step)
        if self.way == "correct":
            return Step(me.descend(request.x, correct=lambda x, g, rows: g).step)
        if self.way == "local loss":
            return Step(me.descend(request.x, loss=lambda batch: batch.loss()).step)
        step = me.descend(request.x).step
        if self.way == "loss":
            step = step + me.problem.loss(request.x)
        if self.way == "labels":
            step = step + float(me.problem.y[0])
        if self.way == "gradient":
            step = step + me.gradient(request.x)
        if self.way == "curvature":
            step = step * me.problem.smoothness()
        if self.way == "twice":
            step = step + me.descend(request.x).step
        return Step(step)


WAYS = {
    "loss": "use 'loss' of their rows",
    "labels": "use 'y' of their rows",
    "gradient": "use 'grad' of their rows",
    "curvature": "use 'smoothness' of their rows",
    "longer": "a different number of steps than their pace",
    "twice": "descend twice in one exchange",
    "correct": "correct gradients on rows",
    "local loss": "train on the method's own loss",
    "ask": "asks for 'train' twice in one round",
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_around_the_noise_are_refused(way: str) -> None:
    with pytest.raises(md.Unsupported, match=f"Leaky cannot be private by row: .*{WAYS[way]}"):
        md.run(by_row(Leaky(way)), federation([5]), rounds=1, progress=False)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), "model has buffers, such as BatchNorm's"),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)), "draws random numbers"),
    ],
    ids=["BatchNorm", "dropout"],
)
def test_networks_that_mix_rows(module: nn.Module, reason: str) -> None:
    data = [(X.float(), y.float()[:, None]) for X, y in clients([6])]
    fed = md.Federation(md.problems.Network(module, loss="mse"), clients=data)
    with pytest.raises(md.Unsupported, match=reason):
        md.run(by_row(), fed, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip": 0.0}, r"Private\(clip=0.0\)"),
        ({"clip": md.privacy.Quantile()}, "give one number as clip"),
        ({"mechanism": md.privacy.Banded(2)}, "give one number as clip=, and no mechanism="),
        ({"exchanges": 2}, "here clients add noise in every local step"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        by_row(**given)


@pytest.mark.slow
def test_the_battery() -> None:
    """Without noise, whose streams are named after the clients: a check of the battery renumbers them."""
    conformance(by_row(md.SCAFFOLD(), noise=0.0, clip=50.0))


def test_the_files_of_a_private_run_hold_no_statistic_of_rows(tmp_path: Path) -> None:
    """Means and deviations are exact: they are kept where they are public; else predict refuses raw rows."""
    pandas = pytest.importorskip("pandas")
    g = torch.Generator().manual_seed(0)
    frame = pandas.DataFrame(torch.randn(40, 2, generator=g).numpy() * 3 + 7, columns=["age", "dose"])
    raw = md.datasets.Dataset(frame, torch.arange(40) % 2, classes=2)
    public = md.datasets.Dataset([[0.0, 0.0], [20.0, 20.0]], [0.0, 1.0], features=("age", "dose")).standardise()
    found = {}
    for name, data in (("own", raw.standardise()), ("public", raw.standardise(like=public))):
        fed = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(2), weights="uniform")
        r = md.run(by_row(), fed, rounds=1, progress=False, checkpoint=tmp_path / name)
        texts = [p.read_text() for p in (tmp_path / name).iterdir() if p.suffix in (".json", ".jsonl", ".csv", ".toml")]
        found[name] = any("deviation" in text for text in texts)
        if name == "own":
            with pytest.raises(md.RecipeError, match="does not store the mean and deviation"):
                r.predict(frame)
        else:
            assert r.predict(frame).shape == (40,)
    assert found == {"own": False, "public": True}
