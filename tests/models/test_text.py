from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley import models
from medley.contract.errors import BadData, RecipeError

CLASSIFIERS: list[Callable[[], nn.Module]] = [
    lambda: models.lstm(20, 3, 6, 7, 2),
    lambda: models.gru(20, 3, 6, 7, 2),
    lambda: models.text_cnn(20, 3, 6, channels=5),
]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def sentences(n: int, length: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of 4 to 7 words, padded; the class is told by one word, 1 or 2, at the first or the second place."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randint(3, 12, (n, length), generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    X[torch.arange(n), torch.randint(0, 2, (n,), generator=g)] = 1 + y
    X[torch.arange(length) >= torch.randint(4, 8, (n, 1), generator=g)] = 0
    return X, y


def test_sizes() -> None:
    leaf = 80 * 8 + 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1) + 80 * 257
    assert leaf == 817_872  # LEAF's network, of one bias vector a layer
    assert count(models.char_lstm()) == 819_920 == leaf + 2 * 4 * 256
    # TensorFlow Federated publishes 820,522 for 90 characters.
    assert count(models.char_lstm(classes=90)) == 820_522 + 2 * 4 * 256
    assert count(models.lstm(1000, 3, 50, 64, 2)) == 1000 * 50 + 4 * 64 * (50 + 64 + 2) + 4 * 64 * 130 + 3 * 65
    assert count(models.gru(1000, 3, 50, 64)) == 1000 * 50 + 3 * 64 * (50 + 64 + 2) + 3 * 65
    assert count(models.text_cnn(1000, 2)) == 300 * 1000 + 360_300 + 301 * 2


@pytest.mark.parametrize("make", CLASSIFIERS)
@pytest.mark.shapes
def test_padding_does_not_count(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    rows = [[3, 4, 5, 6, 7], [8, 9], [10]]
    short, long = (torch.tensor([r + [0] * (n - len(r)) for r in rows]) for n in (5, 11))
    together = model(long)
    assert torch.allclose(model(short), together, atol=1e-6)
    for row, out in zip(rows, together, strict=True):
        assert torch.allclose(model(torch.tensor([row]))[0], out, atol=1e-6)
    # Not so with a word in the place of padding.
    assert not torch.allclose(model(long.clamp(min=1)), together, atol=1e-3)
    together.sum().backward()
    assert model.embed.weight.grad[0].abs().sum() == 0  # type: ignore[union-attr,index]
    assert model(torch.zeros(2, 4, dtype=torch.int64)).isfinite().all()


def test_lstm_computes_the_published_recursion() -> None:
    torch.manual_seed(0)
    model = models.lstm(9, 2, 4, 5)
    E, W, U, b, c, H, h = model.parameters()
    ids = torch.tensor([[3, 1, 4, 0]])
    s, m = torch.zeros(5), torch.zeros(5)
    for t in (3, 1, 4):
        i, f, g, o = (W @ E[t] + b + U @ s + c).split(5)
        m = f.sigmoid() * m + i.sigmoid() * g.tanh()
        s = o.sigmoid() * m.tanh()
    assert torch.allclose(model(ids)[0], H @ s + h, atol=1e-6)


def test_char_lstm_reads_id_0_as_a_character() -> None:
    torch.manual_seed(0)
    model = models.char_lstm(5, 3, 4)
    one, other = torch.tensor([[1, 2]]), torch.tensor([[1, 2, 0]])
    assert not torch.allclose(model(one), model(other))
    assert model.embed.padding_idx is None


def test_text_cnn_takes_the_maximum_over_windows_of_words() -> None:
    torch.manual_seed(0)
    model = models.text_cnn(9, 2, 4, (2, 3), 5, dropout=0.0)
    E, K, k, L, m, H, h = model.parameters()
    row = [3, 1, 4]
    x = torch.cat([E[torch.tensor(row)], torch.zeros(2, 4)])
    pairs = [
        torch.stack([(W * x[t : t + n].T).sum((1, 2)) + b for t in range(3)]).clamp(min=0).amax(0)
        for n, W, b in ((2, K, k), (3, L, m))
    ]
    assert torch.allclose(model(torch.tensor([[*row, 0]]))[0], H @ torch.cat(pairs) + h, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "lr"),
    [
        (models.lstm(12, 2, 8, 16), 2.0),
        pytest.param(models.gru(12, 2, 8, 16), 1.0, marks=pytest.mark.slow),
        pytest.param(models.text_cnn(12, 2, 8, channels=8), 0.5, marks=pytest.mark.slow),
    ],
)
def test_a_federation_learns_from_tokens(model: nn.Module, lr: float) -> None:
    X, y = sentences(240)
    data = md.datasets.Dataset(X, y, *sentences(120, seed=1), classes=2)
    fed = md.Federation(
        md.problems.Network(model),
        data=data,
        partition=md.partitions.IID(3),
        pace=md.scenarios.Pace(lr=lr, epochs=4, batch=20),
    )
    run = md.run(md.FedAvg(), fed, rounds=6, progress=False)
    assert run.history[0]["accuracy"] < 0.8
    assert run.history[-1]["accuracy"] > 0.95


@pytest.mark.slow
def test_lstms_repeat_their_bits_in_worker_processes() -> None:
    X, y = sentences(40)
    fed = md.Federation(
        md.problems.Network(models.lstm(12, 2, 4, 6, 2)),
        data=md.datasets.Dataset(X, y, classes=2),
        partition=md.partitions.IID(3),
        pace=md.scenarios.Pace(lr=0.5, epochs=1, batch=20),
    )
    one = md.run(md.FedAvg(), fed, rounds=2, progress=False)
    again = md.run(md.FedAvg(), fed, rounds=2, progress=False)
    apart = md.run(md.FedAvg(), fed, rounds=2, progress=False, transport=md.transports.Processes(workers=2))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.x, apart.x)


def test_ids_beyond_the_vocabulary_are_refused_before_round_1() -> None:
    X, y = sentences(30)
    X[17, 3] = 12
    problem = md.problems.Network(models.lstm(12, 2, 4, 4))
    clients = [(X[:10], y[:10]), (X[10:], y[10:])]
    with pytest.raises(BadData, match=r"client 1, row 7: .*cannot read ids 0..12") as caught:
        md.run(md.FedAvg(), md.Federation(problem, clients=clients), rounds=1, progress=False)
    assert (caught.value.client, caught.value.row) == (1, 7)
    fed = md.Federation(problem, clients=[(X[:10], y[:10])], test=(X[10:], y[10:]))
    with pytest.raises(BadData, match=r"the test set, row 7: .*cannot read ids 0..12") as caught:
        md.run(md.FedAvg(), fed, rounds=1, progress=False)
    assert caught.value.row == 7
    with pytest.raises(BadData, match=r"row 0: .*cannot read ids -1..\d+ "):
        md.run(md.FedAvg(), md.Federation(problem, clients=[(X[:10] - 1, y[:10])]), rounds=1, progress=False)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"models\.gru\(hidden=0\)"):
        models.gru(5, 2, hidden=0)
    with pytest.raises(RecipeError, match=r"models\.text_cnn\(kernels=\(\)\)"):
        models.text_cnn(5, 2, kernels=())
    with pytest.raises(RecipeError, match="dropout=-1"):
        models.text_cnn(5, 2, dropout=-1.0)
