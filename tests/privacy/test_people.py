"""Privacy of people with several rows: bound, batches, account, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import dp_accounting.pld
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley.contract.sampling import LocalSampling
from medley.privacy import rows
from medley.runtime.streams import Secret
from support.objectives import PROBLEMS, objective

LAW = LocalSampling(7, 1.0, 1)
PEOPLE = torch.tensor([0, 1, 0, 2, 0, 1, 3])
"""The person of each of seven rows: one has three, one two, and two have one."""


def summed(of: Any, x: Tensor, people: Tensor | None, bound: float, some: Tensor | None = None) -> Tensor:
    """The sum of a step, without noise and regulariser."""
    step = rows.NoisyGradient(of, bound, 0.0, LAW, Secret(0), people)
    total, _ = step._by_row(x, some, bound) if people is None else step._by_person(x, some)
    return total


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("bound", [0.05, 0.7, 1e9])
def test_people_are_bounded_with_all_their_rows(name: str, bound: float) -> None:
    """The sum is that of each person's gradient, which is the sum of those of its rows, scaled down to the bound."""
    of = objective(name)
    x = torch.randn(of.d, generator=torch.Generator().manual_seed(4), dtype=torch.float64) / 2
    some = torch.tensor([6, 0, 2, 3, 5, 4])
    expected = torch.zeros_like(x)
    for person in range(4):
        mine = [j for j in some.tolist() if PEOPLE[j] == person]
        g = sum(of.clipped(x, torch.tensor([j]), 1e9)[0] for j in mine)
        expected += g * min(1.0, bound / float(g.norm()))
    torch.testing.assert_close(summed(of, x, PEOPLE, bound, some), expected, rtol=1e-10, atol=1e-12)
    assert float(summed(of, x, PEOPLE, bound, torch.zeros(0, dtype=torch.int64)).norm()) == 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_person_moves_the_sum_by_at_most_the_bound(name: str) -> None:
    """Of 40 draws of all rows of a person with three, none moves the sum further than C from that without the person,
    and most reach it; three rows that are bounded one by one move it by more than 2 C."""
    of, bound, rng = objective(name), 0.3, torch.Generator().manual_seed(5)
    x = torch.randn(of.d, generator=rng, dtype=torch.float64)
    others = PEOPLE.ne(0).nonzero()[:, 0]
    moved: dict[bool, list[float]] = {True: [], False: []}
    for k in range(40):
        X = of.X.clone()
        X[PEOPLE == 0, :3] = torch.randn(1, 3, generator=rng, dtype=torch.float64) * 10.0 ** (k % 9 - 4)
        y = torch.where(PEOPLE == 0, of.y[0], of.y)
        changed = of.like(X, y)
        for together in moved:
            people = PEOPLE if together else None
            apart = summed(changed, x, people, bound) - summed(of, x, people, bound, others)
            moved[together].append(float(apart.norm()))
    assert max(moved[True]) <= bound * (1 + 1e-9)
    assert sorted(moved[True])[-5] == pytest.approx(bound)
    assert max(moved[False]) > 2 * bound


@pytest.mark.parametrize("size", [1e30, 1e155, 1e200, 1e308])
def test_no_person_makes_a_sum_overflow(size: float) -> None:
    of = objective("least squares")
    X = of.X.clone()
    X[PEOPLE == 0] = size
    total = summed(of.like(X, of.y), torch.ones(of.d, dtype=torch.float64), PEOPLE, 0.7)
    assert total.isfinite().all()
    assert float(total.norm()) <= 4 * 0.7 * (1 + 1e-12)


def table(sizes: list[int], a_person: int = 3, width: int = 3) -> md.datasets.Dataset:
    """Clients of these numbers of rows, and people with ``a_person`` rows each at one client."""
    g, n = torch.Generator().manual_seed(1), sum(sizes)
    X = torch.randn(n, width, generator=g, dtype=torch.float64)
    y = X.sum(1) + torch.randn(n, generator=g, dtype=torch.float64) / 5
    site = np.repeat(np.arange(len(sizes)), sizes)
    patient = [f"{i}-{k // a_person}" for i, size in enumerate(sizes) for k in range(size)]
    return md.datasets.Dataset(X, y, keys={"site": site, "patient": np.array(patient)})


def federation(data: md.datasets.Dataset, **pace: Any) -> md.Federation:
    how = md.scenarios.Pace(**{"lr": 0.1, "steps": 3, "batch": None, **pace})
    problem = md.problems.LeastSquares(mu=0.01, intercept=False)
    return md.Federation(problem, data=data, partition=md.partitions.ByKey("site"), pace=how)


def by_person(method: Any = None, **kw: Any) -> md.Private:
    return md.Private(method or md.FedAvg(), **{"unit": "person", "by": "patient", "noise": 1.0, "clip": 1.0, **kw})


@pytest.mark.parametrize("method", [md.FedAvg(), md.SCAFFOLD()], ids=lambda m: m.name)
def test_without_noise_and_bound_it_is_the_method_itself(method: Any) -> None:
    fed = federation(table([6, 9]))
    plain = md.run(method, fed, rounds=3, progress=False)
    private = md.run(by_person(method, noise=0.0, clip=1e9), fed, rounds=3, progress=False)
    torch.testing.assert_close(private.x, plain.x, rtol=1e-9, atol=1e-12)
    assert private.history[-1]["epsilon"] == math.inf


def batches(fed: md.Federation) -> list[Tensor]:
    """The rows of each step of one round."""
    drawn, right = list[Tensor](), rows.NoisyGradient.grad

    def watched(self: Any, x: Tensor, took: Any = None, *args: Any, **kw: Any) -> Tensor:
        drawn.append(took)
        return right(self, x, took, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.NoisyGradient, "grad", watched)
        md.run(by_person(), fed, rounds=1, progress=False)
    return drawn


def test_batches_are_of_people() -> None:
    """In 1,000 steps of 20 people with 3 rows and q = 1/4, each is drawn with all rows or with none: 5 people on
    average, with the variance 3.75 of independent draws."""
    many = batches(federation(table([60]), steps=1000, batch=15))
    assert len(many) == 1000
    assert all((took.bincount(minlength=60).reshape(20, 3).sum(1) % 3 == 0).all() for took in many)
    people = torch.tensor([len(took) / 3 for took in many], dtype=torch.float64)
    assert float(people.mean()) == pytest.approx(5, abs=4 * math.sqrt(3.75 / 1000))
    assert float(people.var()) == pytest.approx(3.75, rel=0.2)


def test_each_client_has_the_people_of_its_own_rows() -> None:
    """Two clients whose people have different numbers of rows, dealt in another order than the table's."""
    g = np.random.default_rng(0)
    site, patient = g.permutation(np.repeat([0, 1], [8, 12])), np.empty(20, object)
    patient[site == 0], patient[site == 1] = [*"aabbbbcc"], [*"defdefggggde"]
    seen, right = dict[int, list[int]](), rows.NoisyGradient.grad

    def watched(self: Any, *args: Any, **kw: Any) -> Tensor:
        seen[self.of.n] = self.people.tolist()
        return right(self, *args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.NoisyGradient, "grad", watched)
        md.run(by_person(), crossed(table([20]), site=site, patient=patient), rounds=1, progress=False)
    assert seen == {8: [0, 0, 1, 1, 1, 1, 2, 2], 12: [0, 1, 2, 0, 1, 2, 3, 3, 3, 3, 0, 1]}


def test_the_account_is_that_of_people() -> None:
    """ε is what dp-accounting says of 6 sums with noise 1.5 in which a person takes part with probability 15/60."""
    result = md.run(by_person(noise=1.5, delta=1e-4), federation(table([60]), batch=15), rounds=2, progress=False)
    event = dp_accounting.PoissonSampledDpEvent(15 / 60, dp_accounting.GaussianDpEvent(1.5))
    accountant = dp_accounting.pld.PLDAccountant().compose(event, 6)
    assert result.history[-1]["epsilon"] == pytest.approx(accountant.get_epsilon(1e-4), rel=2e-3)


@pytest.mark.slow
def test_a_budget_of_people_ends_the_run() -> None:
    method, fed = by_person(noise=None, epsilon=2.0, rounds=4), federation(table([12, 30]), batch=6)
    assert 1.9 < md.run(method, fed, rounds=4, progress=False).history[-1]["epsilon"] <= 2.0
    with pytest.raises(md.BudgetSpent, match=r"client '\d' has spent ε = \S+ of 2 for its rows .* round 5"):
        md.run(method, fed, rounds=9, progress=False)


@pytest.mark.slow
def test_resume_and_workers_have_the_same_bits(tmp_path: Any) -> None:
    method, fed = by_person(noise=1.1), federation(table([9, 12, 10]), batch=6)
    whole = md.run(method, fed, rounds=4, progress=False)
    md.run(method, fed, rounds=2, progress=False, checkpoint=tmp_path / "run")
    resumed = md.run(method, fed, rounds=4, progress=False, resume=tmp_path / "run")
    there = md.run(method, fed, rounds=4, progress=False, transport=md.transports.Processes(2))
    assert torch.equal(resumed.x, whole.x)
    assert torch.equal(there.x, whole.x)


def crossed(data: md.datasets.Dataset, **columns: Any) -> md.Federation:
    return federation(md.datasets.Dataset(data.X, data.y, keys={**data.keys, **columns}))


@pytest.mark.parametrize(
    ("patient", "message"),
    [
        (
            [*"aabbcc", *"ddeeaf"],
            "'a' has rows at client '0' and at client '1', as 1 of 6 people .*ByKey",
        ),
        ([*"aabbcc", " a", *"eefgg"], "'a' has rows at client '0' and at client '1'"),
        ([1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3], "as 3 of 3 people have at several.*the client's name before the number"),
        ([*"aabbcc", *"dd", "", *"eff"], "client '1', row 2: it has no patient"),
        ([1.0, 1.0, math.nan, *[2.0] * 3, *[3.0] * 6], "client '0', row 2: it has no patient"),
    ],
)
def test_people_that_are_not_known(patient: list[Any], message: str) -> None:
    fed = crossed(table([6, 6]), patient=np.array(patient))
    with pytest.raises(md.BadData, match=message):
        md.run(by_person(), fed, rounds=1, progress=False)


@pytest.mark.parametrize(
    "spellings", [[7, "7.0", " 7"], [7.0, "007", 7], ["A 1", "a1", "A1"], ["Jos\u00e9", "Jose\u0301", "JOS\u00c9"]]
)
def test_spellings_of_a_name_are_one_person(spellings: list[Any]) -> None:
    """Apart, each spelling's rows would be bounded by themselves, and the person would move a sum by three bounds."""
    seen, right = list[list[int]](), rows.NoisyGradient.grad

    def watched(self: Any, *args: Any, **kw: Any) -> Tensor:
        seen.append(self.people.tolist())
        return right(self, *args, **kw)

    patient = np.array([*spellings, *"bcdefghij"[: 12 - len(spellings)]], object)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.NoisyGradient, "grad", watched)
        md.run(by_person(), crossed(table([12]), patient=patient), rounds=1, progress=False)
    assert len({*seen[0][:3]}) == 1
    assert len({*seen[0]}) == 10


def test_the_remedy_for_a_person_at_two_clients() -> None:
    data = md.datasets.Dataset(table([12]).X, table([12]).y, keys={"patient": np.array([*"abcabcabcabc"])})
    fed = md.Federation(md.problems.LeastSquares(mu=0.1), data=data, partition=md.partitions.ByKey("patient"))
    assert md.run(by_person(), fed, rounds=1, progress=False).history[-1]["epsilon"] > 0


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(md.RecipeError, match=r"unknown 'pateint', did you mean 'patient'|pateint.*patient"):
        md.run(by_person(by="pateint"), federation(table([6, 6])), rounds=1, progress=False)
    fed = md.Federation(md.problems.LeastSquares(), data=md.datasets.diabetes(), partition=md.partitions.IID(2))
    with pytest.raises(md.RecipeError, match=r"no such column.*keys=\{'patient'"):
        md.run(by_person(), fed, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"by": ""}, "say by= which column names the person"),
        ({"unit": "row"}, r"Private\(unit='row', by='patient'\): by= needs unit='person'"),
        ({"unit": "client"}, "by= needs unit='person'"),
        ({"by": 3}, "by"),
        ({"clip": md.privacy.Quantile()}, r"Private\(unit='person', clip=.*give one number"),
        ({"exchanges": 2}, r"unit='person', exchanges=...\): here clients add noise in every local step"),
        ({"noise_at": "clients"}, "clients add the noise to their steps already"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        by_person(**given)


def test_methods_that_use_rows_elsewhere_are_refused() -> None:
    with pytest.raises(md.Unsupported, match="GradientDescent cannot be private by person: its clients use"):
        md.run(by_person(md.GradientDescent()), federation(table([6, 6])), rounds=1, progress=False)


def test_a_recipe_and_its_card_have_the_unit(tmp_path: Any) -> None:
    result = md.run(by_person(), federation(table([6, 6])), rounds=1, progress=False)
    assert result.settings["method.private.by"] == "patient"
    assert "private.by" not in md.Private(md.FedAvg(), unit="row", noise=1.0).settings()
    result.save_pretrained(tmp_path / "card")
    assert "differentially private by person: ε = " in (tmp_path / "card" / "README.md").read_text(encoding="utf-8")


class Choosy(nn.Module):
    """A network that fails at a row whose first input is above 5, as a user's own check does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, X: Tensor) -> Tensor:
        if self.training and bool((X[..., 0] > 5).any()):
            raise ValueError("an input is too large")
        out: Tensor = self.linear(X)
        return out


@pytest.mark.parametrize("people", [None, PEOPLE], ids=["row", "person"])
def test_a_row_that_fails_moves_the_sum_by_at_most_the_bound(people: Tensor | None) -> None:
    """The others' gradients stay. Were they left out for the sake of one, the sum would move by theirs."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(7, 3, generator=g), torch.arange(7) % 2
    problem = md.problems.Network(Choosy()).ready(X, y, 2, torch.float32, "cpu")
    x, bad = torch.randn(problem.d, generator=g), X.clone()
    bad[6, 0] = 9.0
    without = summed(problem.bind(X, y), x, people, 0.2, torch.arange(6))
    torch.testing.assert_close(summed(problem.bind(bad, y), x, people, 0.2), without)
    assert float(without.norm()) > 0.3
