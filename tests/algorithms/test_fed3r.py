"""Fed3R: the pooled ridge regression at any partition, transport and order of clients; sentences where it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import medley as md
from medley.contract.errors import BadData, Diverged, Unsupported
from medley.models.fourier import Fourier
from medley.numerics.ridge import GRID, cross_validated, decomposed, weights

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 5)) * [1, 2, 0.5, 1, 3] + 1
Y = X @ RNG.normal(size=(5, 3)) + 0.1 * RNG.normal(size=(120, 3)) + [3, -1, 0]
LABELS = Y.argmax(1)
CUTS = {"even": [np.arange(i, 120, 4) for i in range(4)], "by class": [np.flatnonzero(c == LABELS) for c in range(3)]}
UNEVEN = [np.arange(3), np.arange(3, 50), np.arange(50, 51), np.arange(51, 120)]


def pooled(X: Any, Y: Any, penalty: float, intercept: bool = True, w: Any = None) -> Any:
    """[f (+1), c] by the normal equations of all rows."""
    w = np.ones(len(X)) if w is None else w
    Z = np.c_[X, np.ones(len(X))] if intercept else X
    P = penalty * np.eye(Z.shape[1])
    if intercept:
        P[-1, -1] = 0
    return np.linalg.solve((Z.T * w) @ Z / len(X) + P, (Z.T * w) @ Y / len(X))


def fed(cuts: Any, y: Any, problem: Any = None, **settings: Any) -> md.Federation:
    problem = problem or md.problems.LeastSquares(intercept=True)
    return md.Federation(problem, clients=[(X[c], y[c]) for c in cuts], **settings)


def go(federation: md.Federation, method: Any = None, rounds: int = 1, **options: Any) -> md.Result:
    return md.run(method or md.Fed3R(penalty=0.01), federation, rounds=rounds, progress=False, **options)


def head(run: md.Result, outputs: int = 3) -> Any:
    return run.x.double().view(outputs, -1).numpy().T


@pytest.mark.parametrize("cuts", [*CUTS.values(), UNEVEN, [np.arange(120)]], ids=[*CUTS, "uneven", "one"])
def test_it_is_the_pooled_ridge_regression(cuts: Any):
    np.testing.assert_allclose(head(go(fed(cuts, Y))), pooled(X, Y, 0.01), rtol=0, atol=1e-11)
    softmax = go(fed(cuts, LABELS, md.problems.Softmax(intercept=True)))
    np.testing.assert_allclose(head(softmax), pooled(X, np.eye(3)[LABELS], 0.01), rtol=0, atol=1e-11)


def test_the_penalty_is_the_same_at_any_partition():
    runs = [go(fed(cuts, Y), md.Fed3R()) for cuts in (*CUTS.values(), UNEVEN)]
    assert len({f"{r.history[-1]['penalty']:.9e}" for r in runs}) == 1
    for r in runs[1:]:
        np.testing.assert_allclose(r.x, runs[0].x, rtol=0, atol=1e-11)


def test_the_penalty_is_near_that_of_leaving_each_row_out():
    """On 30 rows and 20 features, where it matters: within 10 per cent of the least error of single rows left out."""
    rng = np.random.default_rng(1)
    Z, c = rng.normal(size=(30, 20)), rng.normal(size=(20, 2))
    T = Z @ c + 3 * rng.normal(size=(30, 2))
    means = [torch.from_numpy(m) for m in (Z.T @ Z / 30, Z.T @ T / 30)]
    squares = decomposed(*means, square=float((T**2).sum(1).mean()), ones=False)

    def left_out(penalty: float) -> float:
        H = Z @ np.linalg.solve(Z.T @ Z / 30 + penalty * np.eye(20), Z.T / 30)
        return float((((T - H @ T) / (1 - np.diag(H))[:, None]) ** 2).sum(1).mean())

    penalty, error = cross_validated(squares, 30)
    scale = float(squares.values.mean())
    assert left_out(penalty) <= 1.1 * min(left_out(g * scale) for g in GRID)
    assert error == pytest.approx(left_out(penalty), rel=0.15)
    assert left_out(1e-6) > 1.5 * left_out(penalty)
    np.testing.assert_allclose(weights(squares, penalty), pooled(Z, T, penalty, False), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [{"secure": md.SecureSum(bits=64, bound=256.0)}, {"transport": md.transports.Processes(workers=2)}],
    ids=["secure", "processes"],
)
def test_every_way_gives_the_same(options: Any):
    np.testing.assert_allclose(
        head(go(fed(UNEVEN[:2] + UNEVEN[3:], Y), **options)),
        pooled(*(np.delete(t, 50, 0) for t in (X, Y)), 0.01),
        rtol=0,
        atol=1e-9,
    )


def test_clients_are_counted_once_as_they_come():
    """Two groups take turns: after two rounds everybody is counted, and the third asks nobody."""
    cuts = CUTS["even"]
    run = go(fed(cuts, Y, participation=md.participation.Cyclic(2)), rounds=3)
    assert [h.get("counted") for h in run.history] == [None, 2, 4, None]
    assert run.history[-1]["exchanges"] == 2
    np.testing.assert_allclose(head(run), pooled(X, Y, 0.01), rtol=0, atol=1e-11)


def test_who_joins_later_counts_by_its_rows():
    cuts = UNEVEN
    joins = md.scenarios.Membership(joins={3: 2}, leaves={0: 2})
    run = go(fed(cuts, Y, membership=joins), rounds=2)
    np.testing.assert_allclose(head(run), pooled(X, Y, 0.01), rtol=0, atol=1e-11)
    with pytest.raises(Unsupported, match="all clients that it counted have left"):
        go(fed(cuts, Y, membership=md.scenarios.Membership(joins={3: 2}, leaves={0: 2, 1: 2, 2: 2})), rounds=2)


def test_a_lost_reply_is_asked_for_again():
    lossy = md.transports.Lossy(loss=0.5)
    run = go(fed(CUTS["even"], Y), rounds=8, transport=lossy)
    assert [h["counted"] for h in run.history if "counted" in h][-1] == 4
    np.testing.assert_allclose(head(run), pooled(X, Y, 0.01), rtol=0, atol=1e-11)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path):
    two = fed(CUTS["even"], Y, participation=md.participation.Cyclic(2))
    whole = go(two, rounds=2)
    go(two, rounds=1, checkpoint=tmp_path / "run")
    assert torch.equal(go(two, rounds=2, resume=tmp_path / "run").x, whole.x)


def test_only_the_triangle_travels():
    """f(f + 1)/2 + fc + 2 numbers of 8 bytes from each client: f = 6 with the intercept, c = 3."""
    run = go(fed(CUTS["even"], Y))
    assert {e.up for e in run.ledger} == {8 * (21 + 18 + 2)}
    cast = go(fed(CUTS["even"], Y), codec=md.codecs.Cast("float32"))
    assert {e.up for e in cast.ledger} == {4 * (21 + 18) + 8 * 2}


def test_rows_and_classes_with_weights():
    w = RNG.uniform(0.5, 2, 120)
    clients = [(X[c], Y[c], w[c]) for c in UNEVEN]
    weighted = md.Federation(md.problems.LeastSquares(intercept=True), clients=clients)
    np.testing.assert_allclose(head(go(weighted)), pooled(X, Y, 0.01, w=w / w.mean()), rtol=0, atol=1e-11)
    network = md.problems.Network(nn.Linear(5, 3), class_weights=[1.0, 2.0, 4.0])
    run = go(fed(CUTS["even"], LABELS, network), dtype="float64")
    want = pooled(X, np.eye(3)[LABELS], 0.01, w=np.array([1.0, 2.0, 4.0])[LABELS])
    np.testing.assert_allclose(run.x[:15].view(3, 5).numpy().T, want[:-1], rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.x[15:], want[-1], rtol=0, atol=1e-11)


def test_sparse_rows():
    clients = [(scipy.sparse.csr_array(X[c]), Y[c, 0]) for c in CUTS["even"]]
    run = go(md.Federation(md.problems.LeastSquares(), clients=clients))
    np.testing.assert_allclose(head(run, 1), pooled(X, Y[:, :1], 0.01, False), rtol=0, atol=1e-11)


def test_the_body_of_a_network_stays_and_the_whole_trains_on():
    """Fed3R+FT: the head is the ridge regression on the body's features, and FedAvg goes on from there."""
    body = md.models.mlp(5, 3, (8,))
    federation = fed(CUTS["by class"], Y.astype("float32"), md.problems.Network(body, loss="mse"))
    run = go(federation, dtype="float64")
    first = go(federation, md.FedAvg(), rounds=0, dtype="float64")
    assert torch.equal(run.x[:48], first.x[:48])
    with torch.no_grad():
        phi = first.model[:-1](torch.from_numpy(X)).numpy()
    want = pooled(phi, Y.astype("float32").astype(float), 0.01)
    np.testing.assert_allclose(run.x[48:72].view(3, 8).numpy().T, want[:-1], rtol=0, atol=1e-9)
    gentle = fed(CUTS["by class"], Y.astype("float32"), federation.scenario.problem, pace=md.scenarios.Pace(lr=1e-3))
    tuned = go(gentle, md.FedAvg(), rounds=3, init=run, dtype="float64")
    assert tuned.history[0]["loss"] == pytest.approx(run.history[-1]["loss"])
    assert tuned.history[-1]["loss"] < run.history[-1]["loss"]


def test_normalised_classes_have_weights_of_norm_1():
    run = go(fed(CUTS["even"], LABELS, md.problems.Softmax(intercept=True)), md.Fed3R(penalty=0.01, normalise=True))
    ridge = pooled(X, np.eye(3)[LABELS], 0.01)
    np.testing.assert_allclose(head(run), ridge / np.linalg.norm(ridge[:-1], axis=0), rtol=0, atol=1e-11)


def test_a_stream_of_classes_ends_where_all_rows_at_once_do():
    data = md.datasets.digits().flatten()
    settings: Any = {"data": data, "partition": md.partitions.IID(3)}
    stream = md.tasks.Split(tasks=2, mode="class")
    run = go(md.Federation(md.problems.Softmax(), stream=stream, **settings), rounds=2)
    assert run.history[-1]["exchanges"] == 2
    assert run.summary["acc"] > 0.85


@pytest.mark.parametrize(
    ("method", "cuts", "y", "problem", "error", "text"),
    [
        (md.Fed3R(penalty=0), [[0, 1], [2, 3]], Y, None, Diverged, "rows of 2 clients show only 3 independent direc"),
        (md.Fed3R(), [[], [1, 2]], Y, None, BadData, "client 0: there are no rows; leave it out"),
        (
            md.Fed3R(),
            [[0, 1]],
            Y,
            md.problems.Network(nn.Linear(5, 3), loss=nn.MSELoss()),
            Unsupported,
            "Network on cross",
        ),
        (
            md.Fed3R(),
            [[0, 1]],
            Y,
            md.problems.Network(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).requires_grad_(False)), loss="mse"),
            Unsupported,
            "fits the last linear layer, which this network does not train",
        ),
        (md.Fed3R(normalise=True), [[0, 1]], Y, None, Unsupported, "labels in classes"),
    ],
)
def test_what_it_cannot_do_is_a_sentence(method: Any, cuts: Any, y: Any, problem: Any, error: Any, text: str):
    with pytest.raises(error, match=text):
        go(fed([np.array(c, int) for c in cuts], y, problem), method)


def test_random_features_are_one_draw_everywhere():
    """The kernel that the features approximate, to the 1/√D of their number; the same bits for the same seed."""
    rows = torch.from_numpy(X[:20]).float()
    phi = Fourier(5, 20_000, scale=0.7, seed=3)(rows)
    kernel = torch.exp(-(torch.cdist(rows, rows) ** 2) * 0.7**2 / 5 / 2)
    assert float((phi @ phi.T - kernel).abs().max()) < 0.03
    assert torch.equal(phi, Fourier(5, 20_000, scale=0.7, seed=3)(rows))
    assert not torch.equal(phi, Fourier(5, 20_000, scale=0.7, seed=4)(rows))


@pytest.mark.parametrize(("clients", "rounds"), [(5, 12), (7, 24)])
@pytest.mark.parametrize("threshold", [0.6, 2])
def test_a_client_that_alone_is_new_waits_for_others_in_secure_sums(clients: int, rounds: int, threshold: float):
    """Two in a round, by turns: nobody is ever asked alone, nobody is left over, and all are counted at the end."""
    cuts = [np.arange(i, 120, clients) for i in range(clients)]
    secure = md.SecureSum(bits=64, bound=256.0, threshold=threshold)
    for seed in range(3):
        run = go(fed(cuts, Y, participation=2.5 / clients), rounds=rounds, seed=seed, secure=secure)
        counted = [h["counted"] for h in run.history if "counted" in h]
        assert counted[-1] == clients
        assert clients - 1 not in counted
        np.testing.assert_allclose(head(run), pooled(X, Y, 0.01), rtol=0, atol=1e-9)


C = md.codecs


@pytest.mark.parametrize(
    "codec",
    [C.TopK(0.5), C.Quantise(), C.Delta(C.TopK(0.5, feedback=False)), C.Delta(), C.TwoWay(up=C.Quantise(4))],
    ids=["topk", "quantise", "delta of topk", "delta", "two ways"],
)
def test_codecs_that_lose_small_entries_are_refused(codec: Any):
    with pytest.raises(Unsupported, match=r"Fed3R solves equations .* loses their small entries; leave codec= out, or"):
        go(fed(CUTS["even"], Y), codec=codec)


def test_no_penalty_is_below_the_rounding_of_the_sums():
    """In bfloat16 500 features have an eigenvalue of -6e-5: the penalty is above that, or it is a sentence."""
    problem = md.problems.Network(md.models.fourier(64, 10, width=500, scale=3.0))
    digits = md.Federation(problem, data=md.datasets.digits(), partition=md.partitions.IID(5))
    exact, narrow, rough = (go(digits, md.Fed3R(), codec=c and C.Cast(c)) for c in (None, "float32", "bfloat16"))
    assert abs(narrow.history[-1]["accuracy"] - exact.history[-1]["accuracy"]) < 0.003
    assert rough.history[-1]["penalty"] > 3e-5 > 0
    assert rough.history[-1]["accuracy"] > 0.96
    with pytest.raises(
        Diverged, match=r"penalty=1e-07 is not above the .* give a penalty of at least .*Cast\('float32'\)"
    ):
        go(digits, md.Fed3R(penalty=1e-7), codec=C.Cast("bfloat16"))


def test_more_columns_than_rows():
    """Forty features of twelve rows: the pooled ridge regression, and a penalty above 0 where none is given."""
    rng = np.random.default_rng(5)
    wide, targets = rng.normal(size=(12, 40)), rng.normal(size=(12, 2))
    clients = [(wide[i::3], targets[i::3]) for i in range(3)]
    run = go(md.Federation(md.problems.LeastSquares(), clients=clients))
    np.testing.assert_allclose(head(run, 2), pooled(wide, targets, 0.01, False), rtol=0, atol=1e-11)
    chosen = go(md.Federation(md.problems.LeastSquares(), clients=clients), md.Fed3R())
    assert chosen.history[-1]["penalty"] > 0
