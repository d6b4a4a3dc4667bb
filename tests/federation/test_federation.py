from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import medley as md
from medley.contract.algorithm import Algorithm
from medley.contract.cohort import Cohort

F64 = torch.float64


def least_squares(sizes: tuple[int, ...] = (4, 6, 10), d: int = 3) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, d, generator=g, dtype=F64), torch.randn(n, generator=g, dtype=F64)) for n in sizes]


def labelled(sizes: tuple[int, ...] = (8, 12), d: int = 3, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, d, generator=g, dtype=F64), torch.arange(n) % classes) for n in sizes]


full = md.scenarios.Pace(lr=0.1, batch=None)
brisk = md.scenarios.Pace(lr=0.3, batch=None)


def test_a_run_as_a_reader_would_type_it():
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, hidden=(16,))),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(clients=20, alpha=0.5),
        pace=md.scenarios.Pace(
            lr=md.distributions.Uniform(0.05, 0.2), epochs=md.distributions.Integers(1, 5), batch=32
        ),
        participation=0.5,
    )
    run = md.run(md.FedAvg(), fed, rounds=8, seed=0)
    assert run.status.outcome == "finished"
    assert run.summary["accuracy"] > 0.5
    assert run["loss"][-1] < 0.7 * run["loss"][0]
    assert len({e.client for e in run.ledger if e.round == 1}) == 10
    assert run.x.dtype == torch.float32
    assert fed.run(md.FedAvg(), 1, seed=3).x.tolist() == md.run(md.FedAvg(), fed, 1, seed=3).x.tolist()


def test_logistic_labels_of_both_kinds_make_the_same_run():
    clients = [(X, (y > 0).long()) for X, y in labelled()]
    signed = [(X, 2 * y - 1) for X, y in clients]
    test = clients[0]
    runs = [
        md.run(md.FedAvg(), md.Federation(md.problems.Logistic(mu=0.1), clients=c, test=t, pace=full), 3)
        for c, t in ((clients, test), (signed, (test[0], 2 * test[1] - 1)))
    ]
    assert torch.equal(runs[1].x, runs[0].x)
    assert runs[1]["accuracy"] == runs[0]["accuracy"]
    assert runs[1]["client_accuracy_mean_estimate"] == runs[0]["client_accuracy_mean_estimate"]


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_weights_in_the_loss_and_at_the_fixed_point(weights: str):
    clients = least_squares()
    mu = 0.5
    fed = md.Federation(md.problems.LeastSquares(mu=mu), clients=clients, weights=weights, pace=brisk)  # type: ignore[arg-type]
    p = [4 / 20, 6 / 20, 10 / 20] if weights == "size" else [1 / 3] * 3
    H = sum(q * X.T @ X / len(y) for q, (X, y) in zip(p, clients, strict=True)) + mu * torch.eye(3, dtype=F64)
    b = sum(q * X.T @ y / len(y) for q, (X, y) in zip(p, clients, strict=True))
    x = torch.linalg.solve(H, b)
    r = md.run(md.FedAvg(), fed, 100, target={"grad_norm": 1e-6})
    assert r.status.outcome == "target"
    assert float((r.x - x).norm()) < 1e-5
    want = sum(q * float(((X @ r.x - y) ** 2).mean()) / 2 for q, (X, y) in zip(p, clients, strict=True))
    assert r["loss"][-1] == pytest.approx(want + mu / 2 * float(r.x @ r.x), rel=1e-12)
    sim = fed.draw(0)
    assert list(sim.p) == [0, 1, 2]
    assert list(sim.p.values()) == pytest.approx(p, rel=1e-15)


def test_the_loss_is_the_mean_over_clients_of_what_a_loss_of_ones_own_says():
    own = lambda z, y: ((z - y[:, None]) ** 2).mean() / 2
    for weights in ("size", "uniform"):
        nets = [
            md.Federation(problem, clients=least_squares(), weights=weights, test=least_squares()[0], pace=full)  # type: ignore[arg-type]
            for problem in (
                md.problems.Network(torch.nn.Linear(3, 1, bias=False), loss=own),
                md.problems.LeastSquares(),
            )
        ]
        x = torch.tensor([0.3, -0.2, 0.7], dtype=F64)
        a, b = (md.run(md.FedAvg(), fed, 2, init=x, dtype=F64, target={"grad_norm": 0.0}) for fed in nets)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-12)
        assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-12)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_rows_of_weight_two_are_two_rows_also_in_shares_and_losses(weights: Any):
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(30, 3, generator=g, dtype=torch.float64), torch.randint(2, (30,), generator=g)
    w = torch.randint(4, (30,), generator=g).double()
    parts = torch.arange(30).split([5, 10, 15])
    twice = [p.repeat_interleave(w[p].long()) for p in parts]
    weighed, repeated = (
        md.Federation(md.problems.Logistic(mu=0.1), clients=clients, weights=weights)
        for clients in ([(X[p], y[p], w[p]) for p in parts], [(X[p], y[p]) for p in twice])
    )
    assert weighed.draw(0).p == pytest.approx(repeated.draw(0).p, rel=1e-14)
    a, b = (md.run(md.Newton(), f, 4, target={"grad_norm": 0.0}, progress=False) for f in (weighed, repeated))
    torch.testing.assert_close(a.x, b.x, rtol=1e-10, atol=1e-12)
    for column in ("loss", "grad_norm"):
        assert a[column] == pytest.approx(b[column], rel=1e-9, abs=1e-13)
    for fed in (weighed, repeated):
        fed.pace = md.scenarios.Pace(lr=0.5, steps=2)
    a, b = (md.run(md.FedAvg(), f, 4, progress=False) for f in (weighed, repeated))
    torch.testing.assert_close(a.x, b.x, rtol=1e-12, atol=1e-14)


def test_weights_that_cannot_be_used():
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    problem = md.problems.Logistic(mu=0.1)
    for w, text in (
        ([1, 1, 1], r"client 0: there are 4 rows and weights \[3\]; give one weight per row"),
        ([1, 1, 1, -1], "client 0, row 3: its weight is -1.0; give finite weights of at least 0"),
        ([1, 1, 1, np.nan], "client 0, row 3: its weight is nan; give finite weights of at least 0"),
    ):
        with pytest.raises(md.BadData, match=text):
            md.Federation(problem, clients=[(X, y, w)])
    with pytest.raises(md.BadData, match="some clients' rows have weights"):
        md.Federation(problem, clients=[(X, y, np.ones(4)), (X, y)])
    with pytest.raises(md.BadData, match="client 1: all its rows have weight 0"):
        md.Federation(problem, clients=[(X, y, np.ones(4)), (X, y, np.zeros(4))]).draw(0)
    network = md.problems.Network(md.models.mlp(4, 2), loss=lambda z, y: torch.nn.functional.cross_entropy(z, y))
    with pytest.raises(md.Unsupported, match="Network cannot weight rows if the loss returns a mean"):
        md.Federation(network, clients=[(X, y, np.ones(4))]).draw(0)
    with pytest.raises(md.BadData, match=r"row 1: its weight is -1"):
        md.datasets.Dataset(torch.eye(2), torch.tensor([0, 1]), classes=2, weights=torch.tensor([1.0, -1.0]))


def test_every_seed_draws_its_partition_anew_and_all_shares_sum_to_1():
    data = md.datasets.digits()
    fed = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.Dirichlet(clients=15, alpha=0.3))
    sims = [fed.draw(seed) for seed in (0, 1, 0)]
    for sim in sims:
        assert sum(sim.p.values()) == pytest.approx(1.0, abs=1e-14)
        assert sum(sim.sizes) == len(data.X)
        rows = np.sort(np.concatenate(fed.parts(sim.seed)[0]))
        assert (rows == np.arange(len(data.X))).all()
    assert sims[0].sizes.tolist() == sims[2].sizes.tolist() != sims[1].sizes.tolist()
    parts = fed.parts(0)[0]
    X, y, _ = sims[0].rows.of(0, 3)
    assert torch.equal(X, data.X[parts[3]].double())
    assert torch.equal(y, data.y[parts[3]])


def test_validation_rows_are_never_trained_on():
    clients = least_squares((10, 20))
    for i, (X, _) in enumerate(clients):
        X[:, 0] = torch.arange(len(X)) + 100.0 * i  # every row can be told
    fed = md.Federation(md.problems.LeastSquares(), clients=clients, validation=0.2)
    train, held = fed.draw(0), fed.draw(0, "validation")
    assert train.sizes.tolist() == [8, 16]
    assert held.tasks[0].held is not None
    kept = set(held.tasks[0].held[0][:, 0].tolist())
    trained = set(train.rows.X[:, 0].tolist())
    assert len(kept) == 6
    assert kept | trained == set(torch.cat([X[:, 0] for X, _ in clients]).tolist())
    assert not kept & trained
    assert sum(k < 100 for k in kept) == 2
    assert set(fed.draw(1, "validation").tasks[0].held[0][:, 0].tolist()) != kept  # type: ignore[index]
    data = md.datasets.digits()
    pooled = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(5), validation=0.25)
    sim = pooled.draw(0, "validation")
    assert sim.tasks[0].held is not None
    assert len(sim.tasks[0].held[0]) == round(0.25 * len(data.X))
    assert len(sim.rows.X) + len(sim.tasks[0].held[0]) == len(data.X)
    r = md.run(md.FedAvg(), pooled, 1, evaluate_on="validation")
    assert r["accuracy"] != md.run(md.FedAvg(), pooled, 1)["accuracy"]
    with pytest.raises(md.RecipeError, match=r"no validation data: pass Federation\(validation=0\.1\), or .* recipe's"):
        md.run(md.FedAvg(), md.Federation(md.problems.LeastSquares(), clients=clients), 1, evaluate_on="validation")


def test_accuracy_over_clients_by_hand():
    clients = [
        (torch.eye(3, dtype=F64)[[0, 0, 1, 2]], torch.tensor([0, 0, 1, 2])),
        (torch.eye(3, dtype=F64)[[2, 2]], torch.tensor([2, 2])),
        (torch.eye(3, dtype=F64)[[0, 1]], torch.tensor([0, 1])),
    ]
    # Test rows: class 0 right 3 of 4, class 1 right 1 of 2, class 2 right 0 of 1, under x = the identity.
    X = torch.eye(3, dtype=F64)[[0, 0, 0, 1, 1, 0, 1]]
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    fed = md.Federation(md.problems.Softmax(), clients=clients, test=(X, y), pace=full)
    seen = []

    def metric(z: Tensor, labels: Tensor) -> float:
        seen.append((z.shape, labels.shape))
        return float((z.argmax(1) == labels).sum())

    r = md.run(md.FedAvg(), fed, 0, init=torch.eye(3, dtype=F64).reshape(-1), metrics={"right": metric})
    row = r.history[0]
    by_client = [(2 * 3 / 4 + 1 / 2 + 0) / 4, 0.0, (3 / 4 + 1 / 2) / 2]
    assert row["accuracy"] == 4 / 7
    assert row["right"] == 4.0
    assert seen == [((7, 3), (7,))]
    assert row["client_accuracy_mean_estimate"] == pytest.approx(sum(by_client) / 3, rel=1e-14)
    assert row["client_accuracy_worst_estimate"] == 0.0
    assert row["test_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(X, y)), rel=1e-14)


def test_init_codec_engine_and_tuned():
    fed = md.Federation(md.problems.LeastSquares(), clients=least_squares(), pace=full)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    assert md.run(md.FedAvg(), fed, 0, init=x).x.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(md.RecipeError, match=r"run\(init=\.\.\.\): x has 3 parameters, but init has shape \[4\]"):
        md.run(md.FedAvg(), fed, 0, init=torch.zeros(4))
    half = md.run(md.Tuned(md.FedAvg(), lr=0.5), fed, 3)
    slow = md.Federation(
        md.problems.LeastSquares(), clients=least_squares(), pace=md.scenarios.Pace(lr=0.05, batch=None)
    )
    assert torch.equal(half.x, md.run(md.FedAvg(), slow, 3).x)
    assert half.settings["lr multiplier"] == 0.5
    with pytest.raises(md.RecipeError, match=r"Tuned\(lr=0\)"):
        md.Tuned(md.FedAvg(), lr=0)
    with pytest.raises(md.RecipeError, match=r"run\(engine=\.\.\.\) has no 'warp'"):
        md.run(md.FedAvg(), fed, 1, engine="warp")


def test_one_client_is_a_federation():
    X, y = least_squares((8,))[0]
    fed = md.Federation(md.problems.LeastSquares(), clients=[(X, y)], pace=full)
    r = md.run(md.FedAvg(), fed, 1)
    assert torch.allclose(r.x, 0.1 * X.T @ y / 8, rtol=1e-12)


def bad(clients: list[Any], problem: Any = None, **options: Any) -> md.BadData:
    with pytest.raises(md.BadData) as caught:
        md.Federation(problem or md.problems.LeastSquares(), clients=clients, **options).draw(0)
    return caught.value


def test_large_finite_numbers_are_fine():
    clients = [(torch.full((2, 3), 1.6e308, dtype=F64), torch.zeros(2, dtype=F64))]
    assert md.Federation(md.problems.LeastSquares(), clients=clients).draw(0).p == {0: 1.0}


def test_other_data_that_cannot_be_used():
    two = least_squares()
    X, y = two[0]
    assert "client 1: there are no rows" in str(e := bad([two[0], (X[:0], y[:0])]))
    assert e.client == 1
    assert "client 2: X is [4, 3] and y is [3]" in str(bad([*two[:2], (X, y[:3])]))
    assert "client 1: rows have the shape [2], but those of client 0 [3]" in str(bad([two[0], (X[:, :2], y)]))
    assert "client 0: X is [4] and y is [4]; give one row per sample" in str(bad([(y, y)]))
    assert "there are no clients" in str(bad([]))
    assert "client 0, row 0, column 0: a is text" in str(bad([(np.array([["a", "b"]]), [1.0])]))
    assert "client 0: X cannot be made an array of rows" in str(bad([([[1.0, 2.0], [3.0]], [1.0, 2.0])]))
    assert "needs y as [rows], but this y is [20, 1]" in str(bad([(X, y[:, None]) for X, y in two]))
    assert "needs X as [rows, features]" in str(bad([(X[:, None], y)]))
    assert "rows have the shape [2], but the training rows [3]" in str(bad(two, test=(X[:, :2], y)))
    assert "test" in str(bad(two, test=(X[:2], y)))


def test_labels_name_client_and_row():
    clients = labelled()
    clients[1][1][5] = 7
    e = bad(clients, md.problems.Softmax(), classes=3)
    assert (e.client, e.row) == (1, 5)
    assert "client 1, row 5" in str(e)
    assert "the label 7 is none of 0..2" in str(e)
    clients = labelled(classes=2)
    clients = labelled(classes=3)
    e = bad(clients, md.problems.Logistic())
    assert (e.client, e.row) == (0, 2)
    assert "labels 0 and 1, or -1 and 1" in str(e)
    net = md.problems.Network(md.models.mlp(3, 2))
    assert "the data has 3 classes, but the network's outputs are [2] a row" in str(bad(labelled(), net))
    assert "the network cannot read rows of shape [3]" in str(bad(labelled(), md.problems.Network(md.models.mlp(4, 3))))


def test_labels_of_maps_may_leave_gaps_and_a_huge_one_takes_no_memory():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Unflatten(1, (2, 2)))
    X, y = torch.eye(3), torch.tensor([[0, 1], [1, 0], [0, 10**6]])
    fed = md.Federation(md.problems.Network(net), clients=[(X, y)])
    assert fed.whole(0)[0].classes == range(10**6 + 1)  # not a list of as many numbers
    with pytest.raises(md.BadData, match="the data has 1000001 classes, but the network's outputs are"):
        fed.draw(0)


def test_a_bad_test_label_is_not_blamed_on_a_client():
    X, y = labelled()[0]
    e = bad(labelled(), md.problems.Softmax(), classes=3, test=(X, y + 2))
    assert e.client is None
    assert e.row == 1
    assert "Federation(test=...), row 1" in str(e)


def test_bytes_for_a_network_of_floats_are_explained():
    clients = [(X.to(torch.uint8), y) for X, y in labelled()]
    e = bad(clients, md.problems.Network(md.models.mlp(3, 3)))
    assert "of integers (convert them to floats if it does not embed them)" in str(e)


def test_rows_that_ask_for_a_gradient_are_just_rows():
    X, y = least_squares()[0]
    fed = md.Federation(md.problems.LeastSquares(), clients=[(X.requires_grad_(), y)], pace=full)
    assert not md.run(md.FedAvg(), fed, 1).x.requires_grad


def test_a_metric_cannot_take_the_name_of_a_column():
    fed = md.Federation(md.problems.LeastSquares(), clients=least_squares(), test=least_squares()[0])
    with pytest.raises(md.RecipeError, match=r"run\(metrics=...\): 'loss' is a column already"):
        md.run(md.FedAvg(), fed, 1, metrics={"loss": lambda z, y: 0.0})
    with pytest.raises(md.RecipeError, match=r"run\(init=...\): it contains numbers that are not finite"):
        md.run(md.FedAvg(), fed, 1, init=torch.full((3,), math.nan))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("bfloat16", "bfloat16"), (torch.bfloat16, "bfloat16"), ("half", "float16"), (torch.float16, "float16")],
)
def test_a_model_of_16_bits_is_refused_with_the_codec_that_saves_bytes(dtype: Any, kind: str) -> None:
    """An MLP in bfloat16 came to 33 % on digits after 30 rounds at lr 0.01, and to 44 % in float32."""
    fed = md.Federation(md.problems.LeastSquares(), clients=least_squares())
    said = rf"run\(dtype=.*\): choose float32 or float64. The model itself would be {kind}, .*Cast\('{kind}'\)"
    with pytest.raises(md.RecipeError, match=said) as e:
        md.run(md.FedAvg(), fed, 1, dtype=dtype)
    assert e.value.key == "dtype"
    with pytest.raises(md.RecipeError, match=r"choose float32 or float64$"):
        md.run(md.FedAvg(), fed, 1, dtype="float8_e4m3fn")


def slips() -> list[Callable[[], object]]:
    X = torch.eye(3)
    pair = X, X[:, 0]
    ls: Any = md.problems.LeastSquares()
    fed = md.Federation(ls, clients=[pair])
    return [
        lambda: md.run(md.FedAvg, fed, 1),
        lambda: md.run(fed, md.FedAvg(), 1),
        lambda: md.run(md.FedAvg(), fed, 1.5),
        lambda: md.run(md.FedAvg(), fed, 1, transport="local"),
        lambda: md.run(md.FedAvg(), fed, 1, codec="float16"),
        lambda: md.run(md.FedAvg(), fed, 1, target="loss"),
        lambda: md.Federation(torch.nn.Linear(3, 1), clients=[pair]),
        lambda: md.Federation(md.problems.Softmax, clients=[pair]),
        lambda: md.Federation(ls, clients=[pair], pace=0.1),
        lambda: md.Federation(ls, data=list(pair), partition=md.partitions.IID(1)),
        lambda: md.Federation(ls, clients=[pair], test=X),
        lambda: md.Federation(ls, clients=[pair, X]),
        lambda: md.Federation(ls, clients={"a": pair[0]}),
        lambda: md.Federation(ls, clients=torch.ones(2, 3).numpy()),
        lambda: md.Federation(ls, data=md.datasets.diabetes(), partition=3),
        lambda: md.Federation(ls, data=md.datasets.diabetes(), partition=md.partitions.IID),
        lambda: md.scenarios.Pace(optimizer="adamw"),
        lambda: md.scenarios.Pace(optimizer=torch.optim.SGD, optimizer_state="stale"),
        lambda: md.scenarios.Pace(drop_last=1),
        lambda: md.Federation(ls, clients=[pair], participation=md.participation.Everyone),
        lambda: md.Federation(ls, clients=[pair], devices=md.devices.phones),
        lambda: md.Federation(ls, clients=[pair], validation="0.1"),
        lambda: md.Federation(ls, clients=[pair], classes="2"),
        lambda: md.Federation(ls, clients=[pair], f_star="0"),
        lambda: md.run(md.FedAvg(), None, 1),
        lambda: md.run(md.FedAvg(), fed, 1, seed="a"),
        lambda: md.run(md.FedAvg(), fed, 1, init="zeros"),
        lambda: md.run(md.FedAvg(), fed, 1, device="gpu"),
        lambda: md.run(md.FedAvg(), fed, 1, engine=None),
        lambda: md.run(md.FedAvg(), fed, 1, checkpoint=3),
        lambda: md.run(md.FedAvg(), fed, 1, metrics=[len]),
        lambda: md.run(md.FedAvg(), fed, 1, on_round=3),
        lambda: md.run(md.FedAvg(), fed, 1, target={"loss": "low"}),
        lambda: md.run(md.FedAvg(), fed, 1, evaluate_on="train"),
        lambda: md.compare(md.FedAvg(), fed, 1, 1),
        lambda: md.compare(["fedavg"], fed, 1, 1),
        lambda: md.compare([md.FedAvg], fed, 1, 1),
        lambda: md.compare([md.FedAvg()], fed, 1, "3"),
        lambda: md.compare([md.FedAvg()], fed, 1, [0.5]),
        lambda: print(md.run(md.FedAvg(), fed, np.int64(2), seed=np.int64(3)).summary["round"], "rounds: no slip"),
    ]


def test_slips_of_a_user_are_answered_in_words(capsys: pytest.CaptureFixture[str]):
    for slip in slips():
        try:
            slip()
        except md.MedleyError as e:
            print(e)
    assert capsys.readouterr().out.splitlines() == [
        "run(method=...): the class FedAvg; give an object such as FedAvg()",
        "run(method=...): a Federation; give an object such as FedAvg()",
        "run(rounds=1.5): must be a whole number, at least 0",
        "run(transport='local'): must be an object such as transports.InProcess(), or None",
        "run(codec='float16'): must be an object such as codecs.Cast('float16'), or None. In Medley the codec is: "
        'run(..., codec=md.codecs.Cast("float16")).',
        "run(target='loss'): must be a table such as {'accuracy': 0.9}, or None",
        "Federation(problem): this is a module; wrap it: problems.Network(module)",
        "Federation(problem) is the class Softmax; give an object such as problems.Softmax()",
        "Federation(pace=...) is a float; give an object such as scenarios.Pace(lr=0.1)",
        "Federation(data=...) is a list; give an object such as datasets.Dataset(X, y, classes=10)",
        "Federation(test=...): its type is Tensor; give a pair (X, y), a frame or a data set",
        "client 1: it is one array [3, 3], rows without targets; "
        "give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter and weights",
        "client 'a': it is one array [3, 3], rows without targets; "
        "give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter and weights",
        "client 0: it is one array [3], rows without targets; "
        "give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter and weights",
        "Federation(partition=...) is a int; give an object such as partitions.IID(clients=10)",
        "Federation(partition=...) is the class IID; give an object such as partitions.IID(clients=10)",
        "Pace(optimizer='adamw'): must be 'sgd', 'adam', or a function such as torch.optim.AdamW",
        "Pace(optimizer_state=...) has no 'stale'. It knows: fresh, kept.",
        "Pace(drop_last=1): must be True or False",
        "Federation(participation=...) is the class Everyone; give an object such as participation.Everyone()",
        "Federation(devices=...) is a function; give an object such as devices.phones()",
        "Federation(validation='0.1'): must be a share in [0, 1); it is a text, write 0.1 without quotes",
        "Federation(classes='2'): must be a whole number, at least 2; it is a text, write 2 without quotes",
        "Federation(f_star='0'): must be a finite number, the optimal loss",
        "run(fed=None): must be an object such as Federation(problem, data=..., partition=...)",
        "run(seed='a'): must be a whole number",
        "run(init='zeros'): no weights can be read there: [Errno 2] No such file or directory: 'zeros'; pass a "
        "safetensors file, a state_dict from torch.save, or a run's folder",
        "run(device='gpu'): torch finds no such device here; leave device= out, or take 'cpu'; "
        "torch calls an Nvidia GPU 'cuda'",
        "run(engine=None): must be text such as 'auto'",
        "run(checkpoint=3): must be text such as 'runs/a', a pathlib.Path, or None",
        "run(metrics=[<built-in function len>]): must be a table such as {'top3': (function, 'max')}, a list, each "
        "text such as 'auroc', or None",
        "run(on_round=3): must be a function, or None",
        "run(target={'loss': 'low'}): must be a finite number",
        "run(evaluate_on=...) has no 'train'. It knows: test, validation.",
        "compare(FedAvg(server_lr=1.0)): give a list of methods such as [FedAvg(), SCAFFOLD()]",
        "compare(['fedavg']): give a list of methods such as [FedAvg(), SCAFFOLD()]",
        "compare([<class 'medley.algorithms.fedavg.FedAvg'>]): give a list of methods such as [FedAvg(), SCAFFOLD()]; "
        "FedAvg is a class: write FedAvg()",
        "compare(seeds='3'): give a number from 1, or different integers",
        "compare(seeds=[0.5]): give a number from 1, or different integers",
        "2 rounds: no slip",
    ]


def test_a_label_that_the_network_has_no_output_for_names_client_and_row():
    (X, y), (Z, w) = labelled((4, 3))
    fed = md.Federation(md.problems.Network(torch.nn.Linear(3, 3)), clients=[(X, y), (Z, w + 1)])
    with pytest.raises(md.BadData, match=r"^client 1, row 2: the data has 4 classes, .* outputs are \[3\] a row") as e:
        md.run(md.FedAvg(), fed, 1)
    assert (e.value.client, e.value.row) == (1, 2)


def test_bad_rows_of_a_data_set():
    X, y = torch.randn(6, 2), torch.zeros(6, dtype=torch.int64)
    X[4, 1] = math.nan
    with pytest.raises(md.BadData, match=r"row 4, column 1: nan is not finite"):
        md.datasets.Dataset(X, y, classes=2)


def ours(**options: Any) -> md.Federation:
    return md.Federation(md.problems.LeastSquares(), **{"clients": least_squares(), **options})


@pytest.mark.parametrize(
    ("options", "words", "key"),
    [
        ({"clients": None}, "either data= with partition=, or clients=", "data"),
        ({"data": md.datasets.digits()}, "either data= with partition=, or clients=", "data"),
        ({"data": md.datasets.digits(), "clients": None}, "pass partition=", "partition"),
        ({"partition": md.partitions.IID(2)}, "they already hold their data", "partition"),
        ({"validation": 1.0}, r"share in \[0, 1\)", "validation"),
        ({"participation": 0}, r"must be in \(0, 1\]", "participation"),
        ({"participation": 1.5}, r"must be in \(0, 1\]", "participation"),
        ({"pace": md.scenarios.Pace(lr=[0.1, 0.2])}, r"lr.* 2 .* 3 clients", "lr"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], words: str, key: str):
    with pytest.raises(md.RecipeError, match=words) as caught:
        ours(**options).draw(0)
    assert caught.value.key == key


@pytest.mark.parametrize("lr", [0, -0.1, math.nan, [0.1, 0.0]])
def test_learning_rates_that_make_no_sense(lr: Any):
    with pytest.raises(md.RecipeError, match="a learning rate must be above 0") as caught:
        md.scenarios.Pace(lr=lr)
    assert caught.value.key == "lr"


def test_more_clients_than_rows():
    data = md.datasets.digits().take(10)
    for partition in (md.partitions.IID(11), md.partitions.Dirichlet(11, 0.5)):
        fed = md.Federation(md.problems.Softmax(), data=data, partition=partition)
        with pytest.raises(md.MedleyError, match=r"11.*10|10.*11") as caught:
            md.run(md.FedAvg(), fed, 1)
        assert isinstance(caught.value, md.BadData | md.RecipeError)


class Needy(Algorithm[Any]):
    def __init__(self, *needs: str) -> None:
        self.wants = frozenset(needs)

    def requires(self) -> frozenset[str]:
        return self.wants

    def settings(self) -> dict[str, Any]:
        return {}

    def start(self, x: Tensor) -> Any:
        raise AssertionError("it must be refused before it starts")

    def round(self, s: Any, clients: Cohort) -> None:
        raise AssertionError("it must be refused before it starts")


@pytest.mark.parametrize(
    ("need", "options"),
    [("everyone", {"participation": 0.5}), ("convex", {"problem": "net"}), ("classes", {}), ("replay", {})],
)
def test_what_a_run_cannot_give_is_refused_before_it_begins(need: str, options: dict[str, Any]):
    problem: Any = md.problems.LeastSquares()
    if options.pop("problem", None):
        problem = md.problems.Network(torch.nn.Linear(3, 1), loss=lambda z, y: (z[:, 0] - y).square().mean())
    fed = md.Federation(problem, clients=least_squares(), **options)
    with pytest.raises(md.Unsupported, match="Needy needs") as caught:
        md.run(Needy(need), fed, 1)
    assert (caught.value.method, caught.value.need) == ("Needy", need)


def test_what_a_run_gives_is_not_refused():
    fed = md.Federation(md.problems.Softmax(), clients=labelled())
    with pytest.raises(AssertionError, match="before it starts"):
        md.run(Needy("everyone", "hessian", "convex", "features", "classes"), fed, 1)


def test_a_network_without_a_linear_layer_has_no_features():
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3, 3))

        def forward(self, X: Tensor) -> Tensor:
            return X @ self.w

    fed = md.Federation(md.problems.Network(Bare()), clients=labelled())
    with pytest.raises(md.Unsupported, match="Needy needs a network whose last layer is linear"):
        md.run(Needy("features"), fed, 1)
    assert md.run(md.FedAvg(), fed, 1).x.shape == (9,)


def test_the_record_has_everything_that_made_the_run():
    fed = md.Federation(md.problems.LeastSquares(mu=0.5), clients=least_squares(), participation=0.5, weights="uniform")
    s = md.run(md.FedAvg(server_lr=0.5), fed, 1, seed=4).settings
    assert {k: s[k] for k in ("method", "method.server_lr", "problem", "mu", "weights", "seed", "dtype", "engine")} == {
        "method": "FedAvg", "method.server_lr": 0.5, "problem": "LeastSquares", "mu": 0.5, "weights": "uniform",
        "seed": 4, "dtype": "float64", "engine": "fused",
    }  # fmt: skip
    assert "20, 3" in s["data"]
    other = least_squares()
    other[0][0][0, 0] += 1e-9
    X, y = (torch.cat(part) for part in zip(*least_squares(), strict=True))
    feds = [
        md.Federation(md.problems.LeastSquares(), clients=clients, test=test)
        for clients, test in (
            (least_squares(), None),
            (other, None),
            ([(X[:10], y[:10]), (X[10:], y[10:])], None),
            ([(X[:9], y[:9]), (X[9:], y[9:])], None),
            (least_squares(), (X[:3], y[:3])),
            (least_squares(), (X[:3], y[1:4])),
        )
    ]
    assert len({fed.settings()["data"] for fed in feds}) == len(feds)
    assert feds[0].settings()["data"] == s["data"]


def test_a_label_that_only_the_test_set_has_is_blamed_on_it():
    X, y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
    data = md.datasets.Dataset(X, y, X, torch.tensor([0, 1, 2, 0]), classes=3)
    with pytest.raises(
        md.BadData, match=r"^data, test row 2, column 'y': Logistic has two classes, .* 2 \(0 rows\)"
    ) as caught:
        md.Federation(md.problems.Logistic(), data=data, partition=md.partitions.IID(2))
    assert (caught.value.client, caught.value.row) == (None, 2)


def test_progress_goes_to_stderr_and_leaves_no_trace(capfd: pytest.CaptureFixture[str]):
    fed = md.Federation(md.problems.LeastSquares(), clients=least_squares())
    md.run(md.FedAvg(), fed, 2, progress=False)
    assert capfd.readouterr() == ("", "")
    md.run(md.FedAvg(), fed, 2, progress=True)
    assert capfd.readouterr().out == ""


def test_virtual_seconds_without_devices_are_those_of_an_ordinary_phone() -> None:
    clients = [(torch.eye(4), torch.tensor([0, 1, 0, 1]))] * 2
    given = [{}, {"devices": md.devices.Devices()}]
    feds = [md.Federation(md.problems.Softmax(), clients=clients, **more) for more in given]
    seconds = [md.run(md.FedAvg(), fed, 1, progress=False).summary["seconds"] for fed in feds]
    # 8 weights of 8 bytes each way and 4 rows: 0.05 + 64/2.5e6 + 4/1000 + 64/1e6.
    assert seconds == [pytest.approx(0.05 + 64 / 2.5e6 + 4 / 1000 + 64 / 1e6, rel=1e-9)] * 2


def test_errors_found_when_clients_are_drawn_have_their_names_too():
    X, y = labelled()[0]
    wide = {"Bern": (X, y), "Basel": (X, torch.where(torch.arange(len(y)) == 3, 5, y))}
    with pytest.raises(md.BadData, match="client 'Basel', row 3: the data has 6 classes"):
        md.Federation(md.problems.Network(torch.nn.Linear(3, 3)), clients=wide, classes=6, pace=full).draw(0)


class Torn(torch.utils.data.Dataset[Any]):
    """A data set whose row 7: it cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        if i == 7:
            raise OSError("no such image")
        return torch.ones(3), i % 2


def test_a_data_set_that_fails_names_client_and_row():
    with pytest.raises(md.BadData, match="client 'Basel', row 7: it cannot be read, OSError: no such image") as e:
        md.Federation(md.problems.Softmax(), clients={"Bern": (torch.ones(4, 3), torch.arange(4) % 2), "Basel": Torn()})
    assert (e.value.client, e.value.row) == (1, 7)


@pytest.mark.parametrize("goal", [90, 1.5, -0.1])
def test_a_target_accuracy_is_a_share(goal: float):
    fed = md.Federation(md.problems.Softmax(), clients=labelled(), test=labelled()[0], pace=full)
    with pytest.raises(md.RecipeError, match=r"write 0\.9 for 90 %"):
        md.run(md.FedAvg(), fed, 1, target={"accuracy": goal})


@pytest.mark.parametrize(("replies", "warns"), [(None, True), (2, True), (7, True), (1, False), (0.5, False)])
def test_a_method_for_late_replies_warns_where_none_can_be_late(
    replies: float | None, warns: bool, caplog: pytest.LogCaptureFixture
):
    fed = md.Federation(md.problems.Softmax(), clients=labelled(), pace=full, devices=md.devices.Devices())
    md.run(md.FedBuff(), fed, 1, reply_policy=md.ReplyPolicy(replies=replies))
    assert ("waits for every reply: the method is then FedAvg" in caplog.text) == warns


def test_bytes_at_one_client_beside_floats_at_another_are_refused() -> None:
    y = torch.tensor([0, 1])
    whole = (torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8), y)
    with pytest.raises(md.BadData, match=r"client 1: X is uint8, from 0 to 255, and X of client 0 has floats") as e:
        md.Federation(md.problems.Softmax(), clients=[(whole[0] / 255, y), whole])
    assert e.value.client == 1
    md.Federation(md.problems.Softmax(), clients=[whole, whole])


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.a(a) + b[:, None]
        return z


def test_inputs_go_by_name_in_any_order() -> None:
    a, b, y = torch.randn(8, 3), torch.randn(8), torch.arange(8) % 2
    of = lambda second: md.Federation(md.problems.Network(Both()), clients=[({"a": a, "b": b}, y), (second, y)])
    same, turned = (md.run(md.FedAvg(), of(X), 2) for X in ({"a": a, "b": b}, {"b": b, "a": a}))
    assert torch.equal(same.x, turned.x)
    assert np.array_equal(turned.predict({"b": b, "a": a}), turned.predict({"a": a, "b": b}))


X_Y = torch.ones(8, 3), torch.arange(8) % 2


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (
            (X_Y[0], torch.full((8, 2), 0.25)),
            r"^client 0, row 0, column 'y': .* 0\.25\. If they are soft labels .* of your own",
        ),
        (
            TensorDataset(*X_Y, torch.full((8,), 0.5)),
            r"^client 0, row 0.*: .* Of the 3 tensors the last .* label, .* as \(X, y, weights\)$",
        ),
        (
            (X_Y[0].numpy()[0], X_Y[1].numpy()[0]),
            r"^client 0: y is .*; give one target for each row, y\[None\] and X\[None\] for one row$",
        ),
    ],
)
def test_labels_that_are_none_are_refused_with_a_remedy(client: Any, said: str) -> None:
    with pytest.raises(md.BadData, match=said) as caught:
        md.Federation(md.problems.Network(nn.Linear(3, 2)), clients=[client])
    assert "ignore_index" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [(torch.float64, r"float32; to keep float64, pass run\(dtype='float64'\)"), (torch.float16, r"model.to\(.*16\)")],
)
def test_the_log_says_in_which_dtype_a_module_trains(
    dtype: torch.dtype, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "medley"):
        fed = md.Federation(md.problems.Network(nn.Linear(3, 2).to(dtype)), clients=[X_Y])
        md.run(md.FedAvg(), fed, 0)
    assert len(re.findall(said, caplog.text)) == 1
