from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medley import FedAvg, Federation, datasets, run
from medley.contract.errors import BadData, MedleyError, RecipeError, WireError
from medley.partitions import IID, ByKey, Dirichlet, Labels, Partition, Quantity, Saved, Shards, load, save
from medley.partitions.dealing import Parts
from medley.problems import Softmax
from medley.scenarios import describe

TEN = np.repeat(np.arange(10), 100)


def complete(parts, n, minimum=1):
    """Every row once, ascending within a client, and nobody short."""
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    for rows in parts:
        assert rows.dtype == np.int64
        assert (np.diff(rows) > 0).all()
        assert len(rows) >= minimum


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(i, j) for i, j in zip(a, b, strict=True))


@st.composite
def cases(draw):
    clients = draw(st.integers(1, 40))
    minimum = draw(st.integers(1, 5))
    n = draw(st.integers(clients * minimum, clients * minimum + 300))
    y = np.random.default_rng(draw(st.integers(0, 99))).integers(0, draw(st.integers(1, 12)), n)
    alpha = 10.0 ** draw(st.floats(-3, 3))
    return clients, minimum, n, y, alpha, draw(st.integers(0, 2**40))


@given(cases(), st.booleans())
def test_dirichlet_deals_every_row_once_and_nobody_gets_less_than_the_minimum(case, balanced):
    clients, minimum, n, y, alpha, seed = case
    rule = Dirichlet(clients, alpha, minimum, balanced)
    parts = rule.split(y, n, seed)
    assert isinstance(rule, Partition)
    assert len(parts) == rule.clients == clients
    complete(parts, n, minimum)
    assert same(parts, rule.split(y, n, seed))
    if balanced:
        sizes = [len(rows) for rows in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes.count(n // clients + 1) == n % clients


@given(cases())
def test_quantity_iid_and_shards_deal_every_row_once(case):
    clients, minimum, n, y, alpha, seed = case
    for rule in (Quantity(clients, alpha, minimum), IID(clients), Shards(clients, per_client=minimum)):
        parts = rule.split(y, n, seed)
        assert len(parts) == clients
        complete(parts, n, minimum if isinstance(rule, Quantity) else 1)
        assert same(parts, rule.split(y, n, seed))
        if not isinstance(rule, Quantity):
            sizes = [len(rows) for rows in parts]
            assert max(sizes) - min(sizes) <= (1 if isinstance(rule, IID) else minimum)


@pytest.mark.slow
@given(cases(), st.integers(1, 12))
def test_labels_gives_exactly_that_many_labels_to_everyone(case, per_client):
    clients, _, n, y, _, seed = case
    present, totals = np.unique(y, return_counts=True)
    rule = Labels(clients, per_client)
    takers = clients * per_client / len(present)  # each label is taken this often, rounded up or down
    if per_client > len(present):
        with pytest.raises(RecipeError, match="per_client can be at most that"):
            rule.split(y, n, seed)
        return
    if totals.min() < math.ceil(takers):
        return  # may or may not be possible; the refusal has its own test
    d = describe(rule.split(y, n, seed), y)
    assert ((d.counts > 0).sum(1) == per_client).all()
    labels = (d.counts > 0).sum(0)
    by_label = dict(zip(d.labels.tolist(), labels.tolist(), strict=True))
    assert set(by_label.values()) <= {math.floor(takers), math.ceil(takers)}
    for c, m in zip(d.labels, d.counts.T, strict=True):  # all rows of a label or none, dealt to within one
        assert m.sum() == (0 if by_label[c] == 0 else (y == c).sum())
        assert by_label[c] == 0 or m[m > 0].max() - m[m > 0].min() <= 1


def test_labels_that_no_client_takes_are_left_out_and_the_log_says_so(caplog):
    rule = Labels(2, per_client=1)
    y = np.arange(24) % 3
    assert sum(map(len, rule.split(y, 24, 0))) == 16
    assert f"{rule!r} leaves out 8 of the 24 rows: no client takes their labels; use more clients" in caplog.text
    caplog.clear()
    assert sum(map(len, Labels(3, per_client=1).split(y, 24, 0))) == 24
    assert not caplog.text


def test_seeds_differ_and_a_seed_does_not():
    for rule in (IID(20), Dirichlet(20, 0.5), Dirichlet(20, 0.5, balanced=True), Shards(20), Labels(20, 2)):
        assert same(rule.split(TEN, 1000, 3), rule.split(TEN, 1000, 3))
        assert not same(rule.split(TEN, 1000, 3), rule.split(TEN, 1000, 4))


@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_runs_from_one_label_a_client_to_iid(balanced):
    def distance(alpha):
        return np.mean(
            [describe(Dirichlet(20, alpha, balanced=balanced).split(TEN, 1000, s), TEN).distance for s in range(5)]
        )

    # Closed forms of the limits: one label of ten is 1 - 1/10 away from the whole, fifty dealt rows near 0.
    d = [distance(alpha) for alpha in (1e-3, 0.1, 1.0, 10.0, 1e3)]
    assert d == sorted(d, reverse=True)
    assert 0.75 < d[0] <= 0.9
    assert d[-1] < 0.06


@pytest.mark.slow
def test_dirichlet_shares_have_the_mean_and_variance_of_the_law():
    k = 8
    alpha = 0.7
    m = 4000
    y = np.zeros(m, dtype=int)
    shares = np.array([[len(r) / m for r in Dirichlet(k, alpha).split(y, m, seed)] for seed in range(600)])
    var = (1 / k) * (1 - 1 / k) / (k * alpha + 1)
    assert shares.mean(0) == pytest.approx(np.full(k, 1 / k), abs=4 * math.sqrt(var / 600))
    assert shares.var() == pytest.approx(var, rel=0.1)


def test_rows_of_rare_labels_favour_no_client():
    # 5 rows a label over 100 clients, 40 labels, equal proportions: rounding each label alike would give the same five
    # clients everything.
    y = np.repeat(np.arange(40), 5)
    sizes = describe(Dirichlet(100, 1e6).split(y, 200, 0), y).sizes
    assert sizes.max() <= 10
    assert (sizes > 1).sum() > 30


def test_topping_up_cuts_the_largest_to_a_common_level_and_moves_no_more_than_needed():
    before = [len(r) for r in Dirichlet(30, 0.05).split(TEN, 1000, 7)]
    after = [len(r) for r in Dirichlet(30, 0.05, minimum=20).split(TEN, 1000, 7)]
    assert min(before) < 20 <= min(after)
    moved = sum(max(20 - b, 0) for b in before)
    assert sum(max(b - a, 0) for b, a in zip(before, after, strict=True)) == pytest.approx(moved, abs=30)
    donors = [a for b, a in zip(before, after, strict=True) if a < b]
    assert max(donors) - min(donors) <= 1  # one level
    assert max(after) == max(donors)


def test_a_minimum_that_takes_everything_leaves_equal_clients():
    assert {len(r) for r in Dirichlet(50, 1e-3, minimum=20).split(TEN, 1000, 0)} == {20}
    assert {len(r) for r in Quantity(50, 1e-3, minimum=20).split(None, 1000, 0)} == {20}


def test_shards_hold_few_labels():
    d = describe(Shards(50, per_client=2).split(TEN, 1000, 0), TEN)
    assert ((d.counts > 0).sum(1) <= 2).all()  # 100 shards of 10 rows cut no label of 100 rows
    assert (d.sizes == 20).all()
    d = describe(Shards(7, per_client=3).split(TEN, 1000, 0), TEN)
    assert ((d.counts > 0).sum(1) <= 6).all()


def test_labels_leaves_out_what_nobody_takes():
    parts = Labels(2, 3).split(TEN, 1000, 0)
    assert sum(map(len, parts)) == 600
    assert len(np.unique(TEN[np.concatenate(parts)])) == 6


@pytest.mark.shapes
def test_quantity_ignores_labels():
    assert same(Quantity(5, 0.3).split(TEN, 1000, 1), Quantity(5, 0.3).split(None, 1000, 1))
    sizes = describe(Quantity(5, 1e6).split(None, 1000, 1), None).sizes
    assert abs(sizes - 200).max() <= 2


def test_natural_clients():
    who = np.array(["cy", "al", "bo", "al", "cy", "cy"])
    assert [r.tolist() for r in ByKey("who").split(None, 6, 0, {"who": who})] == [[1, 3], [2], [0, 4, 5]]
    assert [r.tolist() for r in ByKey("who", minimum=2).split(None, 6, 9, {"who": who})] == [[1, 3], [0, 4, 5]]
    assert ByKey("who").clients is None
    with pytest.raises(RecipeError, match=r"no 'woh'. Did you mean 'who'\? It knows: who"):
        ByKey("woh").split(None, 6, 0, {"who": who})
    with pytest.raises(RecipeError, match=r"only inputs and labels; .*client='who'"):
        ByKey("who").split(None, 6, 0)
    with pytest.raises(RecipeError, match="no client has 4 rows; the largest has 3"):
        ByKey("who", minimum=4).split(None, 6, 0, {"who": who})
    with pytest.raises(BadData, match=r"key 'who' has the shape \(6,\), but 7 rows need \(7,\)"):
        ByKey("who").split(None, 7, 0, {"who": who})
    with pytest.raises(BadData, match="row 1 has no key") as e:
        ByKey("k").split(None, 2, 0, {"k": np.array([1.0, np.nan])})
    assert e.value.row == 1
    with pytest.raises(BadData, match="row 2 has no key"):
        ByKey("k").split(None, 3, 0, {"k": np.array(["b", "a", None], dtype=object)})
    with pytest.raises(BadData, match="of one kind"):
        ByKey("k").split(None, 2, 0, {"k": np.array(["a", 1], dtype=object)})


@given(cases())
def test_a_saved_partition_comes_back(tmp_path_factory, case):
    clients, minimum, n, y, alpha, seed = case
    path = tmp_path_factory.mktemp("p") / "parts.json"
    parts = Dirichlet(clients, alpha, minimum).split(y, n, seed)
    save(parts, path)
    assert same(parts, load(path))
    assert same(parts, Saved(path).split(y, n, seed + 1))
    assert Saved(str(path)).clients == clients
    assert [p.name for p in path.parent.iterdir()] == ["parts.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "parts.json"
    save([np.array([0])], path)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MedleyError, match=r"cannot write .*parts\.json: disk full"):
        save([np.array([1])], path)
    assert [p.name for p in tmp_path.iterdir()] == ["parts.json"]
    assert load(path)[0].tolist() == [0]


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "parts.json"
    with pytest.raises(RecipeError, match="There is no partition file"):
        load(path)
    save([np.arange(5), np.arange(5, 9)], path)
    original = path.read_bytes()
    for cut in range(len(original)):
        path.write_bytes(original[:cut])
        with pytest.raises(WireError, match="damaged"):
            load(path)
    for content, message in (
        ([1], "client 0 is not a list of whole numbers"),
        ({"a": [1]}, "no partition file"),
        ({"0": [1], "2": [0]}, "its clients are 0, 2, not 0 to 1"),
        ({"format": "other", "clients": [[1]]}, "no partition file"),
        ({"format": "medley-partition-1", "clients": []}, "holds no clients"),
        ({"format": "medley-partition-1", "clients": [[0], [1.5]]}, "client 1 is not a list of whole numbers"),
        ({"format": "medley-partition-1", "clients": [[2**70]]}, "client 0 is not"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(WireError, match=message):
            load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WireError, match="damaged"):
        load(path)


def test_a_saved_partition_is_checked_against_the_data(tmp_path):
    path = tmp_path / "parts.json"
    save([np.array([0, 1]), np.array([2, 9])], path)
    with pytest.raises(BadData, match="client 1 holds row 9, but the data has rows 0 to 8") as e:
        Saved(path).split(None, 9, 0)
    assert (e.value.client, e.value.row) == (1, 9)
    save([np.array([0, 1]), np.array([1, 2])], path)
    with pytest.raises(BadData, match=r"row 1 is held 2 times, by clients \[0, 1\]"):
        Saved(path).split(None, 9, 0)
    save([np.array([0]), np.array([], dtype=np.int64)], path)
    with pytest.raises(BadData, match="client 1 holds no rows"):
        Saved(path).split(None, 9, 0)


def test_describe_by_hand():
    y = np.array(["a", "a", "b", "b", "b", "b"])
    d = describe([np.array([0, 1]), np.array([2, 3]), np.array([], dtype=np.int64), np.array([4, 5])], y)
    assert d.sizes.tolist() == [2, 2, 0, 2]
    assert d.labels.tolist() == ["a", "b"]
    assert d.counts.tolist() == [[2, 0], [0, 2], [0, 0], [0, 2]]
    assert d.distance == pytest.approx((2 / 3 + 1 / 3 + 1 / 3) / 3)
    assert describe([np.arange(3)], None).counts.shape == (1, 0)
    assert describe(IID(1).split(TEN, 1000, 0), TEN).distance == 0
    with pytest.raises(BadData, match="has row 6, but there are 6 labels"):
        describe([np.array([6])], y)


def test_settings_that_make_no_sense():
    for make in (IID, lambda c: Dirichlet(c, 1.0), Shards, lambda c: Labels(c, 1), lambda c: Quantity(c, 1.0)):
        for bad in (0, -3):
            with pytest.raises(RecipeError, match=rf"clients={bad}\): must be a whole number, at least 1") as e:
                make(bad)
            assert e.value.key == "clients"
    for bad in (0, -1.0, math.nan, math.inf):
        for kind in (Dirichlet, Quantity):
            with pytest.raises(RecipeError, match=rf"{kind.__name__}\(alpha={bad}\): alpha must be above 0 and finite"):
                kind(3, bad)
    with pytest.raises(RecipeError, match=r"minimum=.*must be a whole number"):
        Dirichlet(3, 1.0, minimum=0)


def test_data_that_does_not_fit():
    for rule in (Dirichlet(3, 1.0), Shards(3), Labels(3, 1)):
        with pytest.raises(RecipeError, match="deals rows by label, and there are none: use Quantity"):
            rule.split(None, 10, 0)
        with pytest.raises(RecipeError, match="targets are real numbers: use Quantity"):
            rule.split(np.linspace(0, 1, 10), 10, 0)
        with pytest.raises(BadData, match=r"y has the shape \(9,\), but 10 rows need \(10,\)"):
            rule.split(np.zeros(9, dtype=int), 10, 0)
    for rule in (Dirichlet(6, 1.0, minimum=2), Quantity(6, 1.0, minimum=2), Shards(6)):
        with pytest.raises(
            RecipeError, match=r"6 clients of at least 2 rows need 12 rows.*has 11: use at most 5 clients"
        ):
            rule.split(np.zeros(11, dtype=int), 11, 0)
    with pytest.raises(RecipeError, match="12 clients of at least 1 rows need 12"):
        IID(12).split(None, 11, 0)
    with pytest.raises(RecipeError, match="4 clients must see label 7, which has only 3 rows"):
        Labels(4, 1).split(np.array([7, 7, 7]), 3, 0)
    assert len(Dirichlet(3, 1.0).split(np.array([0.0, 1.0, 1.0, 0.0]), 4, 0)) == 3  # whole floats are labels


@pytest.mark.parametrize(
    "parts",
    [
        [[0, 1, 2], [4, 3]],
        ([0, 1, 2], (3, 4)),
        {"0": [0, 1, 2], "1": [3, 4]},
        {1: np.array([3, 4]), 0: np.array([0, 1, 2])},
        [np.array([0, 1, 2], np.uint8), np.array([3, 4])],
    ],
)
def test_partitions_are_lists_and_dicts_as_json_has_them(tmp_path, parts):
    want = [np.array([0, 1, 2]), np.array([3, 4])]
    save(parts, tmp_path / "saved.json")
    assert same(load(tmp_path / "saved.json"), want)
    (tmp_path / "plain.json").write_text(json.dumps(parts, default=np.ndarray.tolist))
    assert same(Saved(tmp_path / "plain.json").split(None, 5, 0), want)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "it holds no clients"),
        ({"0": [0], "2": [1]}, "its clients are 0, 2, not 0 to 1; give a list"),
        ({"north": [0], "south": [1]}, "its clients are north, south, not 0 to 1"),
        ([[0], [1.5]], "client 1 is not a list of whole numbers"),
        ([[0], [True]], "client 1 is not"),
        ([[0], "1"], "client 1 is not"),
        ([0, 1], "client 0 is not"),
        (3, "it is a int, not a list of clients"),
    ],
)
def test_a_partition_that_is_none_is_not_saved(tmp_path, parts, message):
    with pytest.raises(BadData, match=message):
        save(parts, tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()


def test_a_partition_of_other_data_is_refused_or_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = [np.arange(5), np.arange(5, 9)]
    path = tmp_path / "p.json"
    save(parts, path, rows=10)
    assert same(parts, Saved(path).split(None, 10, 0))
    assert same(parts, load(path))
    assert not caplog.text
    with pytest.raises(BadData, match="was made for data of 10 rows, but this has 12; make one for this data"):
        Saved(path).split(None, 12, 0)
    with pytest.raises(BadData, match=r"rows=8\): the partition has row 8; use rows=len\(data.X\)"):
        save(parts, path, rows=8)
    save(parts, path)
    assert same(parts, Saved(path).split(None, 12, 0))
    assert "leaves out 3 of the 12 rows; was it made for other data?" in caplog.text
    path.write_text('{"format": "medley-partition-1", "rows": "9", "clients": [[0]]}')
    with pytest.raises(WireError, match="its rows are '9', not a whole number"):
        load(path)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.arange(4) < 2, np.arange(4) >= 2], r"client 0 bool \[4\]; give the numbers of its rows"),
        ([np.array([0, 1]), np.array([2.5])], r"client 1 float64 \[1\]; give"),
        ([np.array([[0], [1]])], r"client 0 int64 \[2, 1\]; give"),
        ([np.array([0, 1]), np.array([2, 1])], "client 1: the partition gives it row 1, but a client has it already"),
        ([np.array([0, 1]), np.array([-1])], "client 1: the partition gives it row -1, but rows go from 0 to 3"),
        ([np.array([0, 1]), np.array([2, 4])], "client 1: the partition gives it row 4, but rows go from 0 to 3"),
        ([], "the partition has no clients"),
    ],
)
def test_rows_that_a_users_partition_cannot_mean_are_refused(parts, message):
    class Own:
        clients = None

        def split(self, y, n, seed, keys=None):
            return parts

    data = datasets.Dataset(torch.eye(4), torch.arange(4) % 2, classes=2)
    with pytest.raises(BadData, match=message):
        Federation(Softmax(), data=data, partition=Own()).parts(0)


def test_lists_and_small_integers_are_rows_too():
    assert same(Parts.of([[2, 0], [], np.array([1], np.uint8)], 3), [[2, 0], [], [1]])


def test_a_rule_of_ones_own_deals_to_as_many_clients_as_it_says():
    class Own:
        clients = 6

        def split(self, y, n, seed, keys=None):
            return np.array_split(np.arange(n), 5)

    fed = Federation(Softmax(mu=1e-3), data=datasets.digits(), partition=Own())
    with pytest.raises(
        BadData, match=r"Own\.split\(\) deals rows to 5 clients, but its clients is 6; return that many"
    ):
        run(FedAvg(), fed, 0, progress=False)
