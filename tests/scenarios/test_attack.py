"""Attacks: who lies, what lies are, what they do to rows, and what they are refused for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import medley as md
from medley.contract.errors import BadData, MedleyError, RecipeError
from medley.recipe import loads
from medley.scenarios import Attack
from medley.scenarios.attack import z_max
from medley.transports import Lossy, Processes
from support.pairs import quick

R = md.robust


def federation(attack: Attack | None = None, n: int = 10, **arguments: Any) -> md.Federation:
    settings = {"weights": "uniform", "partition": md.partitions.IID(n), "pace": md.scenarios.Pace(lr=0.3), **arguments}
    return md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), attack=attack, **settings)


def run(method: Any, fed: md.Federation, rounds: int = 4, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, progress=False, **options)


def replies(n: int, d: int = 5) -> dict[int, dict[str, Any]]:
    g = torch.Generator().manual_seed(n)
    return {
        i: {"delta": torch.randn(d, generator=g, dtype=torch.float64), "T": 0.5, "n": 3, "o": None} for i in range(n)
    }


def lied(attack: Attack, n: int = 10, tag: tuple[int, int] = (1, 0)) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """The replies as the server gets them, and the liars."""
    lies = attack.lies(0, n)
    assert lies is not None
    return lies(tag, replies(n)), list(attack.attackers(0, n))  # type: ignore[arg-type,return-value]


def vectors(of: dict[int, dict[str, Any]], ids: Any) -> Tensor:
    return torch.stack([of[i]["delta"] for i in ids])


def test_liars_are_drawn_once_and_more_include_fewer() -> None:
    few = Attack("alie", 0.1).attackers(3, 40)
    many = Attack("ipm", 0.4).attackers(3, 40)
    assert (len(few), len(many)) == (4, 16)
    assert set(few) < set(many)
    assert few != Attack("alie", 0.1).attackers(4, 40)
    assert Attack("alie", 0.29).attackers(0, 100) == Attack("gaussian", 0.29).attackers(0, 100)
    assert len(Attack("alie", 0.29).attackers(0, 100)) == 29
    honest = Attack("alie", 0.4, honest=many).attackers(3, 40)
    assert not set(honest) & set(many)
    assert Attack("alie", 0.0).attackers(0, 10) == ()
    assert Attack("alie", 0.0).lies(0, 10) is None


def test_sign_flips_inner_products_and_boosts() -> None:
    was = replies(10)
    lies, liars = lied(Attack("sign flip", 0.3, strength=2.0))
    honest = [i for i in range(10) if i not in liars]
    assert torch.equal(vectors(lies, liars), -2 * vectors(was, liars))
    assert torch.equal(vectors(lies, honest), vectors(was, honest))
    assert [lies[liars[0]][k] for k in ("T", "n", "o")] == [0.5, 3, None]
    ipm, _ = lied(Attack("ipm", 0.3, strength=0.6))
    assert torch.allclose(vectors(ipm, liars), -0.6 * vectors(was, honest).mean(0).expand(3, -1))
    assert bool((vectors(ipm, liars) @ vectors(was, honest).mean(0) < 0).all())
    boosted, _ = lied(Attack("backdoor", 0.3, strength=5.0))
    assert torch.equal(vectors(boosted, liars), 5 * vectors(was, liars))
    assert Attack("backdoor", 0.3).lies(0, 10) is None
    assert Attack("label flip", 0.3).lies(0, 10) is None


def test_alie_is_a_shift_by_deviations_of_the_replies_that_liars_know() -> None:
    was = replies(10)
    lies, liars = lied(Attack("alie", 0.3))
    rows = vectors(was, [i for i in range(10) if i not in liars])
    assert torch.allclose(vectors(lies, liars), (rows.mean(0) + 1.5 * rows.std(0)).expand(3, -1))
    of_liars, _ = lied(Attack("alie", 0.3, knows="attackers", strength=2))
    rows = vectors(was, liars)
    assert torch.allclose(vectors(of_liars, liars), (rows.mean(0) + 2 * rows.std(0)).expand(3, -1))
    one, liars = lied(Attack("alie", 0.1, knows="attackers"))
    assert torch.equal(vectors(one, liars), vectors(was, liars))  # one liar has no deviation to go by
    # n = 50 workers, m = 24 of them liars: s = 2, Φ(z) = 24/26.
    assert z_max(50, 24) == pytest.approx(1.4261, abs=1e-4)
    hidden, liars = lied(Attack("alie", 0.4, strength="z_max"))
    rows = vectors(was, [i for i in range(10) if i not in liars])
    assert torch.allclose(vectors(hidden, liars)[0], rows.mean(0) + z_max(10, 4) * rows.std(0))


def test_alie_and_inner_products_are_those_of_byzfl() -> None:
    file = Path(__file__).parents[1] / "robust" / "byzfl.json"
    for case in json.loads(file.read_text())["cases"]:
        a = case["a"]
        f = case["f"]
        if not f:
            continue
        for kind, name, s in (("alie", "ALIE", 1.2), ("ipm", "IPM", 0.6)):
            attack = Attack(kind, f / a, strength=s)  # type: ignore[arg-type]
            liars = attack.attackers(0, a)
            order = [*(i for i in range(a) if i not in liars), *liars]
            x = torch.tensor(case["rows"], dtype=torch.float64)
            lies = attack.lies(0, a)
            assert lies is not None
            replies = lies((1, 0), dict(sorted((i, {"delta": x[k]}) for k, i in enumerate(order))))
            theirs = torch.tensor(case["byzfl"][name], dtype=torch.float64)
            assert all(torch.allclose(replies[i]["delta"], theirs, atol=1e-12) for i in liars)  # type: ignore[arg-type]


def test_gaussian_lies_are_noise_of_a_named_stream() -> None:
    attack = Attack("gaussian", 0.3, strength=2.0)
    lies = attack.lies(0, 10)
    n = 20_000
    assert lies is not None
    zero = {i: {"delta": torch.zeros(n, dtype=torch.float64)} for i in range(10)}
    a, again, later = lies((1, 0), zero), lies((1, 0), zero), lies((2, 0), zero)  # type: ignore[arg-type]
    i, j, *_ = attack.attackers(0, 10)
    noise = a[i]["delta"]
    assert isinstance(noise, Tensor)
    assert float(noise.std()) == pytest.approx(2.0, rel=0.03)
    assert abs(float(noise.mean())) < 0.06
    assert torch.equal(noise, again[i]["delta"])  # type: ignore[arg-type]
    assert not torch.equal(noise, later[i]["delta"])  # type: ignore[arg-type]
    assert not torch.equal(noise, a[j]["delta"])  # type: ignore[arg-type]


def test_labels_flip_at_liars_alone() -> None:
    plain = federation().draw(1)
    flipped = federation(Attack("label flip", 0.3)).draw(1)
    liars = Attack("label flip", 0.3).attackers(1, 10)
    for i in range(10):
        (_, y, _), (_, z, _) = plain.rows.of(0, i), flipped.rows.of(0, i)
        assert torch.equal(z, 9 - y if i in liars else y)
    assert torch.equal(federation().data.y, federation(Attack("label flip", 0.3)).data.y)


@pytest.mark.shapes
def test_a_backdoor_writes_its_patch_into_a_part_of_the_liars_rows() -> None:
    attack = Attack("backdoor", 0.2, target=3, patch=2, poisoned=0.25)
    plain = federation().draw(0)
    poisoned = federation(attack).draw(0)
    liars = attack.attackers(0, 10)
    for i in range(10):
        (X, y, _), (X_now, y_now, _) = plain.rows.of(0, i), poisoned.rows.of(0, i)
        changed = (X_now != X).any(1) | (y != y_now)
        if i not in liars:
            assert not changed.any()
            continue
        marked = (X_now[:, 60:64] == 1).all(1)
        assert round(0.25 * len(y)) == int(marked.sum())
        assert bool((y_now[marked] == 3).all())
        assert torch.equal(X[:, :60], X_now[:, :60])
        assert torch.equal(y[~marked], y_now[~marked])


def test_the_trigger_is_a_corner_of_images() -> None:
    X = torch.rand(4, 2, 6, 5)
    rows = Attack("backdoor", 0.2, patch=2).triggered(X, 7.0)
    assert bool((rows[..., -2:, -2:] == 7).all())
    rows[..., -2:, -2:] = X[..., -2:, -2:]
    assert torch.equal(rows, X)


@pytest.mark.slow
@pytest.mark.shapes
def test_success_is_measured_on_test_rows_of_other_classes() -> None:
    attack = Attack("backdoor", 0.4, target=3, strength=2.0)
    r = run(md.FedAvg(), federation(attack), 30)
    clean = run(md.FedAvg(), federation(Attack("backdoor", 0.0, target=3)), 30)
    assert "attack_success" not in run(md.FedAvg(), federation(), 1).history[-1]
    assert clean.history[-1]["attack_success"] < 0.3 < 0.9 < r.history[-1]["attack_success"]
    data = md.datasets.digits()
    others = data.y_test != 3
    X = data.X_test[others].clone()
    X[:, -9:] = data.X.max()
    with torch.no_grad():
        predictions = r.model(X.to(r.x.dtype)).argmax(1)
    assert float((predictions == 3).double().mean()) == pytest.approx(r.history[-1]["attack_success"])
    board = md.Board([r])
    assert "attack success" in repr(board) or "attack_success" in repr(board) or "attack success" in board._repr_html_()


@pytest.mark.parametrize(
    "kind",
    quick(
        1,
        [
            "gaussian",
            "backdoor",
            *(pytest.param(k, marks=pytest.mark.slow) for k in ("label flip", "sign flip", "alie", "ipm")),
        ],
    ),
)
def test_a_run_under_attack_has_the_same_bits_elsewhere_and_resumes(kind: Any, tmp_path: Path) -> None:
    fed = federation(Attack(kind, 0.3))
    method = md.SCAFFOLD()
    uninterrupted = run(method, fed)
    assert torch.equal(uninterrupted.x, run(method, fed, transport=Processes(2)).x)
    run(method, fed, 2, checkpoint=tmp_path / "run")
    assert torch.equal(uninterrupted.x, run(method, fed, resume=tmp_path / "run").x)
    assert not torch.equal(uninterrupted.x, run(method, federation()).x)
    with pytest.raises(MedleyError, match="attack"):
        run(method, federation(Attack(kind, 0.4)), resume=tmp_path / "run")
    assert uninterrupted.ledger.up == run(method, federation()).ledger.up


def test_means_sums_and_single_replies_are_lied_to_alike() -> None:
    fed = federation(Attack("sign flip", 0.3, strength=3.0))
    lied_to = run(md.FedAvg(), fed, 1)
    honest = run(md.FedAvg(), federation(), 1)
    robust = run(md.Robust(md.FedAvg(), rule=R.TrimmedMean(0.0)), fed, 1)
    assert torch.allclose(lied_to.x, robust.x, atol=1e-6)
    assert float((lied_to.x - honest.x).norm()) > 0.1 * float(honest.x.norm())


def test_nobody_who_lies_is_the_plain_run() -> None:
    a = run(md.FedAvg(), federation(Attack("sign flip", 0.0)))
    b = run(md.FedAvg(), federation())
    assert torch.equal(a.x, b.x)


def test_replies_are_bounded_after_they_are_lied_about() -> None:
    pytest.importorskip("dp_accounting")
    fed = federation(Attack("ipm", 0.3, strength=1e6))
    private = run(md.Private(md.FedAvg(), noise=0.0, clip=0.1), fed, 1)
    assert float((private.x - run(md.FedAvg(), federation(), 0).x).norm()) <= 0.1 + 1e-6
    assert run(md.FedAvg(), fed, 1, throw=False).x.norm() > 1e3


def test_lost_liars_lie_about_nothing() -> None:
    fed = federation(Attack("alie", 0.3))
    assert run(md.Robust(md.FedAvg(), rule=R.Median()), fed, 5, transport=Lossy(loss=0.5)).status.ok


@pytest.mark.slow
def test_folds_hold_where_the_mean_breaks() -> None:
    fed = federation(Attack("ipm", 0.3, strength=10.0))
    broken = run(md.FedAvg(), fed, 20, throw=False).history[-1]["accuracy"]
    robust = run(md.Robust(md.FedAvg(), rule=R.Mixed(R.TrimmedMean(0.3), 0.3)), fed, 20).history[-1]["accuracy"]
    assert broken < 0.3 < 0.8 < robust


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.0}, r"share=1.0\): must be a number in \[0, 1\)"),
        ({"share": -0.1}, "share=-0.1"),
        ({"kind": "label flip", "strength": 2.0}, "this kind has none; leave it out"),
        ({"strength": "z_max"}, "only 'alie' has z_max; pass a number"),
        ({"poisoned": 0.0}, "poisoned=0.0"),
        ({"patch": 0}, "patch=0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Attack(**{"kind": "sign flip", "share": 0.2, **settings})


def test_attacks_that_this_federation_cannot_have() -> None:
    with pytest.raises(
        RecipeError, match="of 10 clients, 0 of them in honest=, that makes 0 Byzantine; it must make 1 to 10"
    ):
        federation(Attack("alie", 0.05)).draw(0)
    with pytest.raises(RecipeError, match="there is no client 12; there are 0 to 9"):
        federation(Attack("alie", 0.2, honest=(12,))).draw(0)
    with pytest.raises(RecipeError, match="choose one from 0 to 9"):
        federation(Attack("backdoor", 0.2, target=10)).draw(0)
    with pytest.raises(RecipeError, match=r"rows are \[64\]; use at most 8"):
        federation(Attack("backdoor", 0.2, patch=9)).draw(0)
    with pytest.raises(RecipeError, match="'label flip' changes rows of one data set, but a stream has several"):
        federation(Attack("label flip", 0.2), stream=md.tasks.Split(tasks=2))
    numbers = [(torch.randn(4, 2), torch.randn(4)) for _ in range(4)]
    fed = md.Federation(md.problems.LeastSquares(), clients=numbers, attack=Attack("label flip", 0.5))
    with pytest.raises(RecipeError, match=r"Attack\('label flip'\) changes labels in classes, and this data has none"):
        fed.draw(0)
    assert run(md.FedAvg(), federation(Attack("alie", 0.3), stream=md.tasks.Split(tasks=2)), 2).status.ok


def test_tokens_have_no_patch() -> None:
    X = torch.randint(5, (12, 4))
    y = torch.arange(12) % 2
    with pytest.raises(BadData, match="rows of numbers; yours are sparse, mapped or tokens"):
        Attack("backdoor", 0.5).poison(X, y, 2, {0: np.arange(4)}, 0)


@pytest.mark.shapes
def test_replies_of_several_shapes_have_no_mean() -> None:
    lies = Attack("alie", 0.5).lies(0, 4)
    assert lies is not None
    with pytest.raises(MedleyError, match="needs replies of one shape, and 'v' has several; use 'sign flip'"):
        lies((1, 0), {i: {"v": torch.zeros(i + 1)} for i in range(4)})


def test_a_recipe_has_a_table_for_it_and_real_clients_have_none() -> None:
    text = """
[problem]
kind = "Softmax"
[data]
name = "digits"
[partition]
kind = "IID"
clients = 10
[attack]
kind = "alie"
share = 0.2
honest = [1, 2]
[[methods]]
kind = "FedAvg"
"""
    recipe = loads(text)
    assert recipe.federation().attack == Attack("alie", 0.2, honest=(1, 2))
    with pytest.raises(RecipeError, match="clients on other machines are real: leave it out, or run the recipe here"):
        recipe.scenario((64,), 10)
    with pytest.raises(RecipeError, match="Did you mean 'share'"):
        recipe.with_settings(["attack.shear=0.1"]).federation()


@pytest.mark.shapes
def test_it_is_in_the_record() -> None:
    r = run(md.FedAvg(), federation(Attack("alie", 0.3)), 1)
    assert "Attack(kind='alie', share=0.3" in r.settings["attack"]
    assert "attack" not in run(md.FedAvg(), federation(), 1).settings
