"""Streams of tasks, and the runs that walk them."""

from __future__ import annotations

import dataclasses
import datetime
from itertools import pairwise

import numpy as np
import pytest
import torch

import medley as md
from medley import recipe
from medley.contract.errors import BadData, RecipeError, Unsupported
from medley.engines.seq import Seq
from medley.numerics.forgetting import figures
from medley.problems import LeastSquares
from medley.runtime import streams

PACE = md.scenarios.Pace(lr=0.2, epochs=1, batch=16)


def rows(n: int = 240, classes: int = 6, seed: int = 0) -> md.datasets.Dataset:
    """Blobs, a test set beside."""
    g = streams.generator(seed, "rows")
    y = torch.randint(classes, (n + 120,), generator=g)
    X = 0.3 * torch.randn(n + 120, 5, generator=g) + torch.randn(classes, 5, generator=g)[y]
    return md.datasets.Dataset(X[:n], y[:n], X[n:], y[n:], classes=classes)


def federation(stream, data=None, problem=None, **rest) -> md.Federation:
    rest = {"partition": md.partitions.Dirichlet(clients=4, alpha=0.5), "pace": PACE, "data": data or rows()} | rest
    return md.Federation(problem or md.problems.Softmax(mu=1e-3), stream=stream, **rest)


def run(method, fed, rounds=3, **options) -> md.Result:
    return md.run(method, fed, rounds, progress=False, **options)


@pytest.mark.parametrize("mode", ["task", "class"])
@pytest.mark.parametrize("own_order", [False, True])
def test_cf18_every_row_is_in_one_task_at_one_client_and_labels_stay_apart(mode, own_order):
    fed = federation(md.tasks.Split(3, mode, own_order=own_order))
    full = fed.data
    for seed in (0, 1):
        tasks = fed.tasks(seed)
        assert sorted(c for _, classes, *_ in tasks for c in classes) == list(range(6))
        assert sum(len(data.X) for data, *_ in tasks) == len(full.X)
        for data, classes, parts, _ in tasks:
            assert set(data.y.tolist()) == set(data.y_test.tolist()) == set(classes)
            assert len(classes) == 2
            assert sorted(np.concatenate(parts).tolist()) == list(range(len(data.X)))
        world = fed.draw(seed, rounds=2)
        for i in range(4):
            seen_classes = [tuple(world.client(i, t, Seq()).task.now.nonzero()[:, 0].tolist()) for t in (1, 3, 5)]
            assert sorted(seen_classes) == sorted(tuple(sorted(classes)) for _, classes, *_ in tasks)
    orders = {tuple(turn.tolist()) for turn in fed.draw(0).plan.orders}
    assert len(orders) > 1 if own_order else orders == {(0, 1, 2)}


def test_a_client_alone_has_the_rows_of_its_tasks_in_its_own_order():
    fed = federation(md.tasks.Split(3, "class", own_order=True), partition=md.partitions.IID(1))
    seed = next(s for s in range(9) if fed.draw(s).plan.order(0).tolist() != [0, 1, 2])
    world = fed.draw(seed, rounds=1)
    for t, k in enumerate(world.plan.order(0), 1):
        me = world.client(0, t, Seq())
        assert set(me.problem.y.tolist()) == set(fed.tasks(seed)[k].classes)
        assert set(me.problem.y.tolist()) == set(me.task.now.nonzero()[:, 0].tolist())


def test_classes_in_a_given_order():
    order = [[5, 0], [1, 2], [4, 3]]
    for classes in (order, [5, 0, 1, 2, 4, 3]):
        tasks = federation(md.tasks.Split(3, classes=classes)).tasks(7)
        assert [sorted(c) for _, c, *_ in tasks] == [sorted(g) for g in order]


@pytest.mark.parametrize("mode", ["task", "class"])
def test_the_loss_compares_what_the_mode_allows(mode):
    """Cross-entropy by hand over the outputs of the row's task, or of the classes seen so far; network and softmax."""
    for problem in (md.problems.Softmax(), md.problems.Network(md.models.mlp(5, 6, (4,)))):
        fed = federation(md.tasks.Split(3, mode), problem=problem, replay=md.replay.Ring(20))
        world = fed.draw(0, dtype=torch.float64, rounds=1)
        x = 0.5 * torch.randn(world.problem.d, generator=streams.generator(0), dtype=torch.float64)
        groups = [set(classes) for _, classes, *_ in fed.tasks(0)]
        for t in (1, 2, 3):
            for i in range(4):
                me = world.client(i, t, Seq())
                for f, y in ((me.problem, me.problem.y), (me.replay.problem, me.replay.problem.y)):
                    if not f.n:
                        continue
                    total = 0.0
                    hits = 0.0
                    for z, label in zip(f.outputs(x), y.tolist(), strict=True):
                        group = next(g for g in groups if label in g) if mode == "task" else set().union(*groups[:t])
                        total += float(torch.logsumexp(z[sorted(group)], 0) - z[label]) / f.n
                        hits += max(group, key=lambda c, z=z: float(z[c])) == label
                    assert f.loss(x) == pytest.approx(total, abs=1e-12)
                    assert float(world.problem_at(t).hits(f.outputs(x), y).sum()) == hits
                    v = torch.randn(len(x), generator=streams.generator(1), dtype=torch.float64)
                    slope = (f.loss(x + 1e-6 * v) - f.loss(x - 1e-6 * v)) / 2e-6
                    assert float(f.grad(x) @ v) == pytest.approx(slope, abs=1e-7)


def test_squared_row_gradients_are_those_of_single_rows():
    for problem in (md.problems.Softmax(), md.problems.Network(md.models.mlp(5, 6, (4,)))):
        world = federation(md.tasks.Split(3, "class"), problem=problem).draw(0, dtype=torch.float64)
        f = world.client(0, 1, Seq()).problem
        x = torch.randn(world.problem.d, generator=streams.generator(0), dtype=torch.float64)
        want = sum(f.grad(x, torch.tensor([j])).square() for j in range(f.n)) / f.n
        assert float((f.squares(x) - want).norm()) < 1e-13
        two = (f.grad(x, torch.tensor([1])).square() + f.grad(x, torch.tensor([3])).square()) / 2
        assert float((f.squares(x, torch.tensor([1, 3])) - two).norm()) < 1e-13


def test_what_a_client_holds_is_its_own_past():
    fed = federation(md.tasks.Split(3, "class"), replay=md.replay.Ring(8, sample=3))
    world = fed.draw(0, rounds=2)
    again = fed.draw(0, rounds=2)
    for i in range(4):
        mine: list[float] = []
        for t in (1, 3, 5):
            me = world.client(i, t, Seq())
            assert bool(me.replay) == (t > 1 and me.task.first > 0)
            past = me.replay.problem
            assert {float(v) for v in past.X[:, 0]} <= set(mine)
            assert past.n <= 8 * (t // 2)
            assert me.replay.past == me.task.first == len(mine)
            # Worked out in another order, by whoever is asked: the same rows.
            assert torch.equal(again.client(i, t, Seq()).replay.problem.X, past.X)
            if past.n > 3:
                first, second = (next(me.replay.batches()) for _ in range(2))
                assert torch.equal(first, second)
                assert len(set(first.tolist())) == 3
            n = me.problem.n
            recalled = me.recall(torch.arange(me.task.first, me.task.first + n))
            assert torch.equal(recalled.X, me.problem.X)
            with pytest.raises(BadData, match=f"client {i}"):
                me.recall(torch.tensor([me.task.first + n]))
            mine += [float(v) for v in me.problem.X[:, 0]]


def test_cf17_figures_of_a_matrix_by_hand():
    a = [[0.9, 0.1, 0.2], [0.5, 0.8, 0.3], [0.6, 0.4, 0.7]]
    values = figures(a)
    assert values["acc"] == pytest.approx(1.7 / 3)
    assert values["fgt"] == pytest.approx((0.3 + 0.4) / 2) == -values["bwt"]
    assert values["learn"] == pytest.approx(2.4 / 3)
    assert figures([[0.5, 0], [0.7, 0.6]])["fgt_max"] == 0 == figures([[0.5]])["fgt"]
    assert figures([[0.5, 0, 0], [0.7, 0.6, 0], [0.2, 0.6, 0.9]])["fgt_max"] == pytest.approx(0.25)
    early = [[0.5, 0.9, 0.1], [0.7, 0.6, 0.2], [0.2, 0.6, 0.9]]  # a client had task 1 at step 0
    assert figures(early)["fgt_max"] == pytest.approx((0.5 + 0) / 2)
    assert figures(early, [0, 0, 1])["fgt_max"] == pytest.approx((0.5 + 0.3) / 2)
    for matrix in (a, a[:2]):
        values = figures(matrix)
        n = len(matrix)
        assert values["acc"] == pytest.approx(values["learn"] - (n - 1) / n * values["fgt"], abs=1e-15)


def test_the_matrix_is_accuracy_on_each_tasks_test_rows():
    fed = federation(md.tasks.Split(3, "class"))
    r = run(md.FineTune(), fed)
    assert [row["task"] for row in r.history] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    W = r.x.view(6, 5)
    for j, (data, *_) in enumerate(fed.tasks(0)):
        right = (data.X_test.double() @ W.T).argmax(1) == data.y_test
        assert r.summary["matrix"][2][j] == pytest.approx(float(right.double().mean()))
    assert r.summary["matrix"][0][1:] == [0, 0]  # labels that nobody has seen
    assert r.history[3]["accuracy"] == r.summary["matrix"][0][0]


def test_no_rounds_leave_the_first_row():
    r = run(md.FineTune(), federation(md.tasks.Split(3, "class")), rounds=0)
    assert [row["round"] for row in r.history] == [0]


@pytest.mark.slow
def test_a_run_cut_anywhere_and_resumed_is_the_same_run(tmp_path):
    fed = federation(md.tasks.Split(3, "class"), replay=md.replay.Ring(12, sample=4))
    uninterrupted = run(md.CFLAG.joint(), fed)
    for cut in (3, 7):

        def stop(row, cut=cut):
            if row["round"] == cut:
                raise KeyboardInterrupt

        part = run(md.CFLAG.joint(), fed, checkpoint=tmp_path / str(cut), on_round=stop)
        assert part.status.outcome == "interrupted"
        assert len(part.summary.get("matrix", [])) == cut // 3
        rest = run(md.CFLAG.joint(), fed, resume=tmp_path / str(cut))
        assert torch.equal(rest.x, uninterrupted.x)
        assert rest.summary["matrix"] == uninterrupted.summary["matrix"]
        assert {k: v for k, v in rest.summary.items() if k != "wall"} == {
            k: v for k, v in uninterrupted.summary.items() if k != "wall"
        }
    with pytest.raises(md.WireError, match="stream"):
        run(
            md.CFLAG.joint(),
            federation(md.tasks.Split(2, "class"), replay=md.replay.Ring(12, sample=4)),
            resume=tmp_path / "7",
        )


def test_a_saved_result_has_its_matrix(tmp_path):
    r = run(md.FineTune(), federation(md.tasks.Split(2, "task")))
    assert md.Result.load(r.save(tmp_path)).summary["matrix"] == r.summary["matrix"]


def test_a_client_without_rows_of_a_task_sits_it_out():
    """Client 1 has no class of the first task, class 4 is at client 2 alone."""
    data = rows()
    has = [
        torch.isin(data.y, torch.tensor(c)) & (torch.arange(240) % 3 == i)
        for i, c in enumerate(([0, 1, 2, 3], [2, 3, 5], [0, 1, 3, 4]))
    ]
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3), clients=[(data.X[m], data.y[m]) for m in has], test=(data.X_test, data.y_test),
        pace=PACE, stream=md.tasks.Split(3, "class", classes=[[0, 1], [2, 3], [4, 5]]), replay=md.replay.Ring(10),
    )  # fmt: skip
    clients_asked: dict[int, set[int]] = {}
    r = run(md.FineTune(), fed, 2)
    for e in r.ledger:
        clients_asked.setdefault(e.round, set()).add(e.client)
    assert [clients_asked[t] for t in (1, 3, 5)] == [{0, 2}, {0, 1, 2}, {1, 2}]
    world = fed.draw(0, rounds=2)
    assert world.view(1).p[1] == 0
    assert sum(world.view(1).p.values()) == pytest.approx(1)
    # Client 0 has nothing new in the last task, and still speaks for what it holds.
    r = run(md.CFLAG.joint(), fed, 2)
    assert {e.client for e in r.ledger if e.round == 5 and e.method == "descend"} == {0, 1, 2}
    assert r.status.ok


@pytest.mark.shapes
def test_domain_streams_keep_the_classes_and_change_the_rows():
    data = rows()
    permuted = federation(md.tasks.Permuted(3), data).tasks(0)
    for s, (task, classes, *_) in enumerate(permuted):
        assert classes == tuple(range(6))
        assert torch.equal(task.y, data.y)
        assert torch.equal(task.X.sort(1).values, data.X.sort(1).values)
        assert torch.equal(task.X, data.X) == (s == 0)
    images = md.datasets.Dataset(
        torch.rand(20, 1, 6, 6), torch.arange(20) % 2, torch.rand(4, 1, 6, 6), torch.arange(4) % 2, classes=2
    )
    turned = federation(md.tasks.Rotated(3, degrees=180), images, partition=md.partitions.IID(2)).tasks(0)
    assert torch.equal(turned[0][0].X, images.X)
    assert torch.allclose(turned[2][0].X, images.X.flip(2, 3), atol=1e-5)
    assert torch.allclose(turned[1][0].X_test, images.X_test.rot90(1, (2, 3)), atol=1e-5) or torch.allclose(
        turned[1][0].X_test, images.X_test.rot90(-1, (2, 3)), atol=1e-5
    )


@pytest.mark.parametrize("column", [None, 2])
@pytest.mark.shapes
def test_time_runs_through_the_rows_or_a_column(column):
    data = rows()
    tasks = [task for task, *_ in federation(md.tasks.TimeOrder(4, column=column), data).tasks(0)]
    assert [len(t.X) for t in tasks] == [60] * 4
    assert sum(len(t.X_test) for t in tasks) == 120
    if column is None:
        assert torch.equal(torch.cat([t.X for t in tasks]), data.X)
    else:
        for a, b in pairwise(tasks):
            assert float(a.X[:, 2].max()) < float(b.X[:, 2].min())
            assert float(a.X_test[:, 2].max()) < float(b.X_test[:, 2].min())
    r = run(md.FineTune(), federation(md.tasks.TimeOrder(4, column=column), data))
    assert len(r.summary["matrix"]) == 4
    assert r.summary["acc"] > 0.5


@pytest.mark.shapes
def test_tasks_of_ones_own():
    a = rows(classes=3)
    b = rows(seed=1, classes=3)
    pairs = [((d.X.numpy(), d.y.numpy()), (d.X_test, d.y_test)) for d in (a, b)]
    for mode, classes in (("task", 6), ("class", 3), ("domain", 3)):
        fed = md.Federation(
            md.problems.Softmax(mu=1e-3),
            stream=md.tasks.Tasks(pairs, mode),
            partition=md.partitions.IID(3),
            pace=PACE,
            validation=0.1,
        )
        assert fed.data.classes == classes
        r = run(md.FineTune(), fed)
        assert r.summary["learn"] > 0.8
        assert len(run(md.FineTune(), fed, evaluate_on="validation").summary["matrix"]) == 2


def test_labels_may_be_of_any_whole_type():
    X = torch.eye(2)
    y = torch.tensor([0, 1])
    for kind in (torch.bool, torch.uint8, torch.uint16, torch.int32):
        tasks = md.tasks.Tasks([((X, y.to(kind)), (X, y.to(kind)))] * 2)
        assert all(torch.equal(part[k], y) for part in tasks.parts() for k in (1, 3))


def test_methods_that_need_a_stream_are_refused_without():
    data = rows()
    plain = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(3))
    with pytest.raises(Unsupported, match="stream"):
        run(md.FineTune(), plain)
    with pytest.raises(Unsupported, match="replay"):
        run(md.CFLAG.joint(), federation(md.tasks.Split(3)))


def test_an_update_of_a_target_is_refused():
    with pytest.raises(RecipeError, match="target"):
        run(md.FineTune(), federation(md.tasks.Split(3)), target={"accuracy": 0.9})


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: federation(md.tasks.Split(7, "class")).tasks(0), RecipeError, "task 6 would have 0"),
        (lambda: federation(md.tasks.Split(4, "task")).tasks(0), RecipeError, "1 of the 6 classes"),
        (lambda: federation(md.tasks.Split(3, classes=[0, 1, 2, 3, 4, 4])).tasks(0), RecipeError, "4 is repeated"),
        (lambda: federation(md.tasks.Split(3, classes=[0, 1, 2, 3, 4])).tasks(0), RecipeError, "no class 5"),
        (lambda: federation(md.tasks.Split(2, classes=[[0], [1], [2]])), RecipeError, "3 groups"),
        (lambda: md.tasks.Split(2, classes=np.arange(6)), RecipeError, "a ndarray; give a list"),
        (lambda: md.tasks.Split(3, classes="abc"), RecipeError, r"Split\(classes='abc'\): must be a list"),
        (lambda: md.tasks.Split(2, classes=[[0, 1, 2, 3, 4], 5]), RecipeError, r"5 stands next to lists .*: \[5\]"),
        (lambda: md.tasks.Split(0), RecipeError, r"Split\(tasks=0\): must be a whole number in \[1, "),
        (lambda: md.tasks.Tasks(p for p in ()), RecipeError, "pairs is a generator; give a list"),
        (lambda: federation(md.tasks.TimeOrder(300)).tasks(0), BadData, "240 rows"),
        (lambda: md.tasks.TimeOrder(3, column=1.5), RecipeError, r"TimeOrder\(column=1.5\): must be a whole number"),
        (lambda: md.tasks.TimeOrder(3, column=True), RecipeError, r"TimeOrder\(column=True\): must be a whole"),
        (lambda: federation(md.tasks.TimeOrder(3, column=5)).tasks(0), RecipeError, r"column=5\): rows are \[5\]"),
        (lambda: federation(md.tasks.TimeOrder(column=0), md.datasets.digits()).tasks(0), BadData,
         r"column=0\): \d+ rows have 1 different values .* use fewer tasks"),
        (lambda: federation(md.tasks.Rotated(3)).tasks(0), RecipeError, "not images"),
        (lambda: federation(None, replay=md.replay.Ring(3)), RecipeError, "replay needs stream="),
        (lambda: federation(md.tasks.Split(3), problem=LeastSquares()).draw(0).problem_at(1), BadData, "Softmax"),
        (lambda: federation(md.tasks.Tasks([((torch.ones(2, 2), torch.zeros(2).long()),) * 2], "task"), data=None),
         RecipeError, "leave data= out"),
    ],
)  # fmt: skip
def test_streams_that_make_no_sense(make, kind, says):
    with pytest.raises(kind, match=says):
        make()


@pytest.mark.parametrize(
    ("pairs", "mode", "says"),
    [
        ([((torch.ones(2, 2), torch.tensor([0, 0])),) * 2], "task", "task 0 has only one class"),
        ([((torch.ones(2, 2), torch.tensor([0.5, 1])),) * 2], "class", "whole numbers"),
        ([((torch.ones(2, 2), torch.tensor([0, 1])),) * 2, ((torch.ones(2, 3), torch.tensor([0, 1])),) * 2], "class",
         "rows of task 1"),
        ([((torch.ones(2, 2), torch.tensor([0, 0])), (torch.ones(2, 2), torch.tensor([0, 1])))], "task",
         "task 0 has only one class"),
        ([((torch.ones(2, 2), torch.tensor([0, 1])), (torch.ones(2, 2), torch.tensor([0, 2])))], "task",
         "task 0 has test rows of class 2, which none of its training rows"),
        ([((torch.ones(2, 2), torch.tensor([0, 1])),) * 2,
          ((torch.ones(2, 2), torch.tensor([2, 2])), (torch.ones(2, 2), torch.tensor([1, 3])))], "class",
         "task 1 has test rows of class 3, which none of its and earlier tasks'"),
        ([1, 2], "class", r"task 0 is not \(\(X, y\)"),
        ([((torch.ones(2, 2), torch.tensor([0, 1])), 3)], "class", r"task 0 is not \(\(X, y\)"),
        ([((torch.ones(2, 2), torch.tensor([0, 1, 1])),) * 2], "class", "task 0 has training X"),
    ],
)  # fmt: skip
def test_tasks_that_do_not_fit(pairs, mode, says):
    with pytest.raises(BadData, match=says):
        md.Federation(md.problems.Softmax(), stream=md.tasks.Tasks(pairs, mode), partition=md.partitions.IID(1))


def test_a_task_without_test_rows_is_named():
    data = rows()
    keep = data.y_test < 5
    short = md.datasets.Dataset(data.X, data.y, data.X_test[keep], data.y_test[keep], classes=6)
    with pytest.raises(BadData, match="task 5 has no test rows"):
        run(md.FineTune(), federation(md.tasks.Split(6, "class", classes=list(range(6))), short))


def test_a_recipe_says_the_same_as_the_constructors():
    text = """
        [problem]
        kind = "Softmax"
        [data]
        name = "digits"
        flatten = true
        [partition]
        kind = "IID"
        clients = 4
        [stream]
        kind = "split"
        tasks = 2
        mode = "class"
        classes = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        [replay]
        kind = "ring"
        capacity = 10
    """
    r = recipe.loads(text)
    fed = r.federation()
    assert fed.stream == md.tasks.Split(2, "class", [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    assert fed.replay == md.replay.Ring(10)
    assert recipe.loads(r.dumps()).federation().settings() == fed.settings()
    with pytest.raises(RecipeError, match="Did you mean 'tasks'"):
        r.with_settings(["stream.task=3"]).federation()


@pytest.mark.slow
def test_methods_are_compared_and_tuned_over_streams():
    fed = federation(md.tasks.Split(2, "class"), replay=md.replay.Ring(20), validation=0.2)
    board = md.compare([md.FineTune(), md.CFLAG.joint()], fed, 2, 2, jobs=1, progress=False)
    rows_ = {row["method"]: row for row in board.rows}
    mean = sum(run(md.CFLAG.joint(), fed, 2, seed=seed).summary["acc"] for seed in (0, 1)) / 2
    assert rows_["CFLAG.joint"]["acc"] == pytest.approx(mean)
    assert {"acc", "learn", "fgt"} <= rows_["CFLAG.joint"].keys()
    (difference,) = board.paired()
    assert difference.metric == "acc"
    assert difference.n == 2
    best = md.tune(md.FineTune(), fed, {"lr": [1e-6, 1.0]}, 2, jobs=1, progress=False)
    assert best.lr == 1.0
    assert [row["score"] for row in best.record] == [
        run(md.Tuned(md.FineTune(), lr), fed, 2, evaluate_on="validation").summary["acc"] for lr in (1e-6, 1.0)
    ]


def test_finetune_is_fedavg_over_a_stream():
    fed = federation(md.tasks.Split(3, "class"))
    assert torch.equal(run(md.FineTune(), fed).x, run(md.FedAvg(), fed).x)


def test_a_task_may_have_one_class_where_it_is_compared_with_those_seen():
    r = run(md.CFLAG.joint(), federation(md.tasks.Split(6, "class"), replay=md.replay.Ring(10)), 2)
    assert len(r.summary["matrix"]) == 6
    assert r.summary["matrix"][0][0] == 1  # nothing to compare with yet


@pytest.mark.slow
def test_worker_processes_walk_the_same_stream():
    fed = federation(md.tasks.Split(3, "class", own_order=True), replay=md.replay.Reservoir(12, sample=4))
    local = run(md.CFLAG.joint(form="svrg"), fed, 2)
    remote = run(md.CFLAG.joint(form="svrg"), fed, 2, transport=md.transports.Processes(2))
    assert torch.equal(local.x, remote.x)
    assert local.summary["matrix"] == remote.summary["matrix"]
    assert list(local.ledger) == list(remote.ledger)


def test_uniform_weights_count_those_who_are_there():
    fed = federation(md.tasks.Split(3, "class"), weights="uniform")
    world = fed.draw(0, rounds=2)
    for t in (1, 3, 5):
        p = world.view(t).p
        sizes = world.task(t).sizes
        present = [i for i in p if sizes[i]]
        assert all(p[i] == (1 / len(present) if i in present else 0) for i in p)
        means = [world.client(i, t, Seq()).problem.loss(torch.ones(30).double()) for i in present]
        loss = world.evaluate(torch.ones(30).double(), None, round=t)["loss"]
        assert loss == pytest.approx(sum(means) / len(means), rel=1e-12)


def test_a_stream_is_not_resumed_with_other_rounds_a_task(tmp_path):
    fed = federation(md.tasks.Split(3, "class"))
    md.run(md.FineTune(), fed, 2, checkpoint=tmp_path, progress=False)
    with pytest.raises(md.MedleyError, match="rounds a task"):
        md.run(md.FineTune(), fed, 3, resume=tmp_path, progress=False)


@pytest.mark.parametrize("method", [md.LwF(), md.ICaRL()], ids=["LwF", "ICaRL"])
def test_a_network_may_have_more_outputs_than_classes(method):
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 12, (8,))), data=md.datasets.digits().flatten().take(n_train=200),
        partition=md.partitions.IID(2), pace=md.scenarios.Pace(lr=0.1, steps=1, batch=16),
        stream=md.tasks.Split(2, "class"), replay=md.replay.Ring(capacity=8),
    )  # fmt: skip
    assert md.run(method, fed, 1, progress=False).status.outcome == "finished"


def test_the_tail_of_a_loss_is_of_the_last_task_alone():
    data = rows()
    values = dataclasses.replace(data, y=data.y.double(), y_test=data.y_test.double(), classes=None)
    fed = federation(md.tasks.TimeOrder(3, column=0), values, LeastSquares(), partition=md.partitions.IID(4))
    r = run(md.FineTune(), fed, rounds=4)
    last = [row["loss"] for row in r.history if row["task"] == 2]
    assert len(last) == 4
    assert r.summary["tail_loss"] == pytest.approx(sum(last) / 4, rel=1e-12)
    assert "matrix" not in r.summary


DAYS = ["2024-05-31", "2023-12-01", "2024-06-01", "2024-01-15"]


@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        np.array(DAYS, "M8[D]"),
        [3, 1, 4, 2],
        [0.3, 0.1, 0.4, 0.2],
        np.array(DAYS, object),
        ["2024-05", "2023-12", "2024-06", "2024-01"],
        ["9", "-1", "10", "+1e0"],
        ["20240531", "20231201", "20240601", "20240115"],
        ["2024-05-31T10:00:00", "2024-05-31T09:00", "2024-05-31 10:00:00.5", "2024-05-31 09:59"],
        ["2024-05-31T10:00Z", "2024-05-31T10:00+05:00", "2024-05-31T10:00-05:00", "2024-05-31T09:00Z"],
        [datetime.date(2024, 5, 31), datetime.date(2023, 12, 1), datetime.date(2024, 6, 1), datetime.date(2024, 1, 15)],
    ],
)
def test_time_order_by_a_key(values):
    """Training and test rows of a day come in one task; equal values stay together."""
    X = torch.arange(40.0)[:, None]
    key = np.resize(np.asarray(values), 40)
    d = md.datasets.Dataset(
        X, np.arange(40) % 2, X[:8], np.arange(8) % 2, keys={"day": key}, test_keys={"day": key[:8]}
    )
    stream = md.tasks.TimeOrder(tasks=4, key="day")
    fed = md.Federation(md.problems.Logistic(), data=d, partition=md.partitions.IID(2), stream=stream)
    keys = [{*(task.data.X[:, 0] % 4).tolist()} for task in fed.tasks(0)]
    tests = [{*(task.data.X_test[:, 0] % 4).tolist()} for task in fed.tasks(0)]
    assert keys == tests == [{1.0}, {3.0}, {0.0}, {2.0}]


@pytest.mark.parametrize(
    ("values", "row", "message"),
    [
        (
            ["2024-01-05", "5/1/2024"],
            1,
            "'5/1/2024', which is not a date that can be sorted; write days as 2024-05-31",
        ),
        (["Jan 5", "Feb 3"], 0, "'Jan 5', which is not a date"),
        (["2024-01-05", "2024-31-05"], 1, "'2024-31-05', which is not a date"),
        (["2024-01-05", ""], 1, "'', which is not a date"),
        (["9", "ten"], 0, "'9', which is not a date"),
        (["2024-01-05T10:00Z", "2024-01-05T10:00"], 1, "give all of them an offset from UTC, or none"),
        ([1.0, float("nan")], 1, "no value; fill it in"),
        (np.array(["2024-01-05", "NaT"], "M8[D]"), 1, "no value; fill it in"),
        (np.array(["2024-01-05", None], object), 1, "no value; fill it in"),
        (np.array(["2024-01-05", 3], object), 1, "3 beside '2024-01-05'; give all of one kind"),
    ],
)
def test_a_key_whose_place_in_time_is_not_known_is_refused_by_its_row(values, row, message):
    key = np.asarray(values)
    d = md.datasets.Dataset(torch.zeros(2, 1), [0, 1], keys={"day": key})
    with pytest.raises(BadData, match=message) as e:
        d.order_of("day")
    assert e.value.row == row
    d = md.datasets.Dataset(
        torch.zeros(2, 1), [0, 1], torch.zeros(2, 1), [0, 1], keys={"day": key[:1][[0, 0]]}, test_keys={"day": key}
    )
    with pytest.raises(BadData, match="row"):
        d.order_of("day")


def test_time_order_by_a_key_says_what_it_lacks():
    d = md.datasets.Dataset(torch.zeros(8, 1), np.arange(8) % 2, keys={"day": np.arange(8) // 4})
    of = {"data": d, "partition": md.partitions.IID(2)}
    stream = lambda **how: md.Federation(md.problems.Logistic(), **of, stream=md.tasks.TimeOrder(**how)).tasks(0)
    with pytest.raises(RecipeError, match="'hour'"):
        stream(tasks=2, key="hour")
    with pytest.raises(BadData, match="8 rows have 2 different values of that key 'day'"):
        stream(tasks=3, key="day")
    with pytest.raises(RecipeError, match="give the name of a key, and no column"):
        stream(tasks=2, key="day", column=0)
    of["data"] = md.datasets.Dataset(d.X, d.y, d.X, d.y, keys=d.keys)
    with pytest.raises(BadData, match="its test rows have no key 'day'"):
        stream(tasks=2, key="day")
