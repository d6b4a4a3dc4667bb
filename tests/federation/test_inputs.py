"""Several inputs a row: token ids and numbers of each row, for a network of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import medley as md
from support.pairs import quick

RNG = np.random.default_rng(0)
WORDS, AGES = RNG.integers(0, 20, (300, 6)), RNG.normal(size=(300, 3))
Y = ((WORDS[:, 0] > 9) ^ (AGES[:, 0] > 0)).astype(int)
PARTS, TEST = [slice(0, 90), slice(90, 250)], slice(250, 300)
PACE = md.scenarios.Pace(lr=0.3, epochs=3, batch=16)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(8 * 6 + 3, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, words: Tensor, ages: Tensor) -> Tensor:
        out: Tensor = self.body(torch.cat([self.embed(words).flatten(1), ages], 1))
        return out


class Joined(nn.Module):
    """The same network on one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.net(X[:, :6].long(), X[:, 6:])
        return out


def named(rows: slice) -> dict[str, np.ndarray]:
    return {"words": WORDS[rows], "ages": AGES[rows]}


def federation(make: Any = named, module: nn.Module | None = None, **options: Any) -> md.Federation:
    clients = [(make(p), Y[p]) for p in PARTS]
    return md.Federation(
        md.problems.Network(module or Net()), clients=clients, test=(make(TEST), Y[TEST]), pace=PACE, **options
    )


@pytest.mark.slow
def test_several_inputs_train_as_the_same_numbers_in_one_tensor() -> None:
    one = md.run(md.FedAvg(), federation(lambda p: np.hstack([WORDS[p], AGES[p]]), Joined()), 4, engine="seq")
    for make in (named, lambda p: (WORDS[p], AGES[p]), lambda p: {"ages": AGES[p], "words": torch.tensor(WORDS[p])}):
        r = md.run(md.FedAvg(), federation(make), 4)
        assert r.settings["engine"] == "seq"
        assert torch.equal(r.x, one.x)
        assert r.history[-1]["accuracy"] == one.history[-1]["accuracy"]
        right = r.predict(make(TEST)) == Y[TEST]
        assert float(right.mean()) == r.history[-1]["accuracy"]
    assert one.history[-1]["loss"] < 0.9 * one.history[0]["loss"]


@pytest.mark.slow
def test_several_inputs_on_workers_from_a_checkpoint_and_by_hessians(tmp_path: Path) -> None:
    fed = federation()
    whole = md.run(md.SCAFFOLD(), fed, 4)
    assert md.run(md.SCAFFOLD(), fed, 4, transport=md.transports.Processes(workers=2)).digest == whole.digest
    md.run(md.SCAFFOLD(), fed, 2, checkpoint=tmp_path / "run")
    assert md.run(md.SCAFFOLD(), federation(), 4, resume=tmp_path / "run").digest == whole.digest
    loaded = md.Result.load(tmp_path / "run", module=Net())
    assert (loaded.predict(named(TEST)) == whole.predict(named(TEST))).all()
    client, slow = (f.draw(0).problem for f in (fed, federation(lambda p: np.hstack([WORDS[p], AGES[p]]), Joined())))
    x = client.initial(torch.Generator().manual_seed(0))
    v = torch.randn(len(x), generator=torch.Generator().manual_seed(1))
    rows = client.inputs(fed.data.X[:40])
    X = torch.from_numpy(np.hstack([WORDS[:40], AGES[:40]])).float()
    y = torch.from_numpy(Y[:40])
    one, two = client.bind(rows, y), slow.bind(X, y)
    assert torch.allclose(one.hvp(x, v), two.hvp(x, v), atol=1e-6)
    assert torch.allclose(one.squares(x), two.squares(x), atol=1e-7)
    assert torch.allclose(one.clipped(x, None, 0.1)[0], two.clipped(x, None, 0.1)[0], atol=1e-6)


@pytest.mark.slow
def test_a_data_set_of_several_inputs_is_split_dealt_and_compared() -> None:
    data = md.datasets.Dataset(named(slice(0, 300)), Y).split(test=0.2, validation=0.1)  # type: ignore[arg-type]
    assert "words [6], ages [3]" in repr(data)
    fed = md.Federation(md.problems.Network(Net()), data=data, partition=md.partitions.Dirichlet(clients=5, alpha=0.5))
    board = md.compare([md.FedAvg(), md.FedNorton(), md.FedSpeed()], fed, rounds=2, seeds=1, progress=False)
    assert len(board.results) == 3


@pytest.mark.slow
def test_a_transform_gets_the_inputs_as_they_were_given() -> None:
    seen: set[str] = set()

    def drop(row: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        seen.update(row)
        return row | {"words": torch.where(torch.rand(row["words"].shape, generator=generator) < 0.2, 0, row["words"])}

    fed = federation()
    changed = md.Federation(
        md.problems.Network(Net(), transform=drop), clients=[(named(p), Y[p]) for p in PARTS], pace=PACE
    )
    a, b = md.run(md.FedAvg(), changed, 2), md.run(md.FedAvg(), fed, 2)
    assert seen == {"words", "ages"}
    assert not torch.equal(a.x, b.x)


class Items(TorchDataset[Any]):
    """A data set of PyTorch, which counts its reads."""

    def __init__(self, rows: slice, form: str) -> None:
        self.rows, self.form, self.reads = range(*rows.indices(300)), form, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        k = self.rows[i]
        words, ages, y = torch.from_numpy(WORDS[k]), torch.from_numpy(AGES[k]).float(), int(Y[k])
        return {
            "flat": (words, ages, y),
            "pair": ((words, ages), y),
            "named": ({"words": words, "ages": ages}, y),
            "mapping": {"ages": ages, "label": y, "words": words},
        }[self.form]


@pytest.mark.parametrize("form", quick(1, ["flat", "pair", "named", "mapping"]))
@pytest.mark.shapes
def test_data_sets_of_pytorch_with_several_inputs_are_read_once_a_batch(form: str) -> None:
    sets = [Items(p, form) for p in PARTS]
    fed = md.Federation(md.problems.Network(Net()), clients=sets, pace=PACE)
    before = sum(s.reads for s in sets)
    r = md.run(md.FedAvg(), fed, 1)
    want = md.run(
        md.FedAvg(),
        md.Federation(
            md.problems.Network(Net()),
            clients=[
                TensorDataset(torch.from_numpy(WORDS[p]), torch.from_numpy(AGES[p]).float(), torch.from_numpy(Y[p]))
                for p in PARTS
            ],
            pace=PACE,
        ),
        1,
    )
    assert torch.equal(r.x, want.x)
    passes = (sum(s.reads for s in sets) - before) / 250
    assert 5 <= passes < 6  # three of training, two of evaluation; a few rows to try the network


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: md.run(md.FedAvg(), federation(), 1, engine="stacked"), "engine='stacked'.*several inputs"),
        (
            lambda: md.run(md.FedAvg(), federation(module=nn.Linear(3, 2)), 1),
            r"words \[6\], ages \[3\].*its forward takes",
        ),
        (
            lambda: md.run(
                md.FedAvg(),
                md.Federation(md.problems.Logistic(), clients=[(named(p), Y[p]) for p in PARTS]),
                1,
            ),
            "Logistic needs X as .rows, features., but this X has several inputs per row",
        ),
        (lambda: federation(lambda p: {"words": WORDS[p], "ages": AGES[:4]}), "90 rows of 'words', 4 rows of 'ages'"),
        (
            lambda: federation(lambda p: named(p) if p == PARTS[0] else (WORDS[p], AGES[p])),
            "client 1: rows have the shape",
        ),
        (
            lambda: federation(lambda p: {"words": WORDS[p], "ages": AGES[p] * np.nan}),
            "client 0, row 0, column 0: nan in the input .*ages",
        ),
        (
            lambda: md.run(md.FedAvg(), federation(lambda p: {"words": WORDS[p] + 15, "ages": AGES[p]}), 1),
            "ids.'words'.",
        ),
        (
            lambda: federation(lambda p: {"words": WORDS[p].astype(str), "ages": AGES[p]}),
            "row 0.*the input .'words'. is a number as text",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(make: Any, said: str) -> None:
    with pytest.raises(md.MedleyError, match=said):
        make()


def test_a_pair_of_arrays_and_test_rows_of_a_data_set() -> None:
    X, y = AGES[:200], (AGES[:200, 0] > 0).astype(int)
    deal = {"partition": md.partitions.IID(clients=4)}
    data = md.datasets.Dataset(X, y)  # type: ignore[arg-type]
    pair = md.Federation(md.problems.Logistic(), data=(X, y), test=(X[:50], y[:50]), **deal)  # type: ignore[arg-type]
    own = md.Federation(md.problems.Logistic(), data=data, test=(X[:50], y[:50]), **deal)  # type: ignore[arg-type]
    assert md.run(md.FedAvg(), pair, 2).digest == md.run(md.FedAvg(), own, 2).digest
    assert md.run(md.FedAvg(), own, 2).history[-1]["accuracy"] > 0.9
    with pytest.raises(md.RecipeError, match="already has test rows"):
        md.Federation(md.problems.Logistic(), data=own.data, test=(X, y), **deal)  # type: ignore[arg-type]


def test_spaces_at_the_ends_of_names_make_no_client_and_spellings_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [0.0, 1, 2, 3], "label": ["ill", "well", "ill", "well"]})
    padded = table.assign(label=table.label + " ")
    both = pd.concat([table.assign(client="A"), padded.assign(client="A ")], ignore_index=True)
    assert md.Federation(md.problems.Softmax(), clients=both).client_names == ("A",)
    assert "spellings" not in caplog.text
    md.Federation(md.problems.Softmax(), clients=[table, table.assign(label=table.label.str.upper())])
    assert "the labels 'ILL', 'WELL', 'ill', 'well' are different classes; if two are spellings" in caplog.text
    with pytest.raises(md.BadData, match="two clients are called 'A'"):
        md.Federation(md.problems.Softmax(), clients={"A": table, "A ": padded})
