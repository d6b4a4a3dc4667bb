"""The fused engine against the reference, and the problems that it takes."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley import engines
from medley.contract.algorithm import Algorithm
from medley.contract.errors import RecipeError
from medley.engines.fused import products, span
from medley.engines.fused.engine import Fused
from support.pairs import crossed, quick

SIZES = (5, 11, 4, 7, 6, 9, 14)
LR, EPOCHS = [0.02, 0.05, 0.1, 0.03, 0.08, 0.02, 0.04], [1, 2, 2, 1, 2, 3, 1]

deep = nn.Sequential(
    nn.Linear(4, 40), nn.Tanh(), nn.Sequential(nn.Linear(40, 6), nn.ReLU()), nn.Identity(), nn.Linear(6, 3, bias=False)
)
strided = nn.Sequential(
    nn.Conv2d(2, 4, 3, padding=1, stride=2, groups=2, bias=False),
    nn.Tanh(),
    nn.MaxPool2d(3, 2, 1),
    nn.Flatten(),
    nn.Linear(16, 3),
)
PROBLEMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "softmax": (md.problems.Softmax(mu=0.1, intercept=True), (4,)),
    "logistic": (md.problems.Logistic(mu=0.1), (4,)),
    "least squares": (md.problems.LeastSquares(), (4,)),
    "deep": (md.problems.Network(deep), (4,)),
    "flattened": (md.problems.Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))), (1, 2, 2)),
    "lenet": (md.problems.Network(md.models.cnn((1, 10, 10), 3, channels=(3, 4), hidden=7)), (1, 10, 10)),
    "strided": (md.problems.Network(strided), (2, 8, 8)),
    "mse": (md.problems.Network(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), loss="mse"), (4,)),
}
PACES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "full batches": {"batch": None},
    "own batches": {"batch": [4, 8, 3, 10, 2, 5, 7]},
    "own steps, weight decay": {"steps": [1, 2, 3, 4, 5, 6, 7], "weight_decay": 0.1},
    "momentum": {"momentum": 0.5},
}


wide = nn.Sequential(nn.Flatten(), nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 3))
WIDE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "softmax": (md.problems.Softmax(mu=0.1), (60,)),
    "least squares": (md.problems.LeastSquares(), (60,)),
    "network": (md.problems.Network(wide), (5, 12)),
    "mse": (md.problems.Network(nn.Sequential(nn.Linear(60, 5), nn.ReLU(), nn.Linear(5, 2)), loss="mse"), (60,)),
}


def clients(name: str, shape: tuple[int, ...], sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)

    def labels(X: Tensor) -> Tensor:
        y = torch.randint(3, (len(X),), generator=g)
        return {"least squares": X[:, 0] + 1, "mse": X[:, :2], "logistic": (y > 0).long()}.get(name, y)

    Xs = [torch.randn(n, *shape, generator=g, dtype=torch.float64) for n in sizes]
    return [(X, labels(X)) for X in Xs]


def federation(name: str, problems: Any = PROBLEMS, **pace: Any) -> md.Federation:
    problem, shape = problems[name]
    classes = None if name in ("least squares", "mse") else 3 - (name == "logistic")
    return md.Federation(
        problem,
        clients=clients(name, shape),
        classes=classes,
        pace=md.scenarios.Pace(**{"lr": LR, "epochs": EPOCHS, "batch": 4} | pace),
    )


def both(method: Algorithm[Any, Any], fed: md.Federation, **more: Any) -> tuple[md.Result, md.Result]:
    options: dict[str, Any] = {"rounds": 2, "dtype": "float64", "progress": False} | more
    return md.run(method, fed, engine="seq", **options), md.run(method, fed, engine="fused", **options)


@pytest.mark.parametrize(("name", "pace"), quick(6, crossed(PROBLEMS, PACES)))
def test_the_engine_has_the_references_numbers_bytes_and_work(name: str, pace: str):
    fed = federation(name, **PACES[pace])
    # A pull and a shift, which round 2 has, and T of steps that fade under a pull.
    for method, rounds in ((md.FedDyn(alpha=0.5), 2), (md.FedNova(mu=0.2), 1)):
        a, b = both(method, fed, rounds=rounds)
        assert float((a.x - b.x).norm() / (1 + a.x.norm())) < 1e-12
        assert list(a.ledger) == list(b.ledger)
        assert a.history[-1]["seconds"] == pytest.approx(b.history[-1]["seconds"], rel=1e-12)
        # Momentum is not affine in the gradient: the record names the engine that ran, not the one that was asked for.
        ran = "seq" if pace == "momentum" else "fused"
        assert (a.settings["engine"], b.settings["engine"]) == ("seq", ran)


TERMS = [
    md.SCAFFOLD(),
    md.SCAFFOLD(option="I"),
    md.FedExP(),
    md.FedNorton(),
    md.FedNorton(flows="client"),
    md.FedECADO(),
    md.ECADO(),
]


@pytest.mark.parametrize("method", quick(2, TERMS))
@pytest.mark.shapes
def test_every_term_of_the_update_in_a_network(method: Algorithm[Any, Any]):
    a, b = both(method, federation("deep"))
    assert float((a.x - b.x).norm() / (1 + a.x.norm())) < 1e-11


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """By group: the numbers of rows of clients whose first layer is trained in their span; small ones are too."""
    monkeypatch.setattr(products, "ONEDNN", 1)
    rows: list[list[int]] = []
    whole = Fused.train

    def train(self: Any, group: Any, x: Tensor, X: Tensor, spanned: bool, terms: Any, first: Any = None) -> None:
        rows.append([s.n for s in group] if spanned else [])
        whole(self, group, x, X, spanned, terms, first)

    monkeypatch.setattr(Fused, "train", train)
    return rows


@pytest.mark.parametrize(("name", "pace"), quick(1, crossed(WIDE, PACES)))
def test_few_rows_span_all_that_a_wide_layer_can_become(name: str, pace: str, spans: list[list[int]]):
    longer = {"steps": [40, 50, 30, 60, 1, 40, 50]} if "steps" in PACES[pace] else {}
    fed = federation(name, WIDE, **({"epochs": [6, 9, 4, 8, 1, 7, 5]} | PACES[pace] | longer))
    for method, rounds in ((md.FedAvg(), 1), (md.FedDyn(alpha=0.5), 2), (md.FedNova(mu=0.2), 1)):
        a, b = both(method, fed, rounds=rounds)
        assert float((a.x - b.x).norm() / (1 + a.x.norm())) < 1e-12
    if pace == "momentum":
        assert spans == []
    else:  # and beside them those whose few steps are cheaper as they are; not where every step fades all weights
        assert any(spans)
        assert [] in spans or name == "softmax"
    if pace == "ragged":
        assert max(map(len, spans)) > 1


@pytest.mark.slow
@pytest.mark.shapes
def test_a_gram_matrix_that_is_too_large_is_not_made(spans: list[list[int]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(span, "TABLE_LIMIT", 9 * (9 + 8))  # rows, and rows and outputs
    a, b = both(md.FedAvg(), federation("network", WIDE, epochs=9))
    assert float((a.x - b.x).norm()) < 1e-12
    assert sorted({n for group in spans for n in group}) == [4, 5, 6, 7, 9]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
def test_a_weak_pull_is_not_rounded_away_in_float32(wide: bool, spans: list[list[int]]):
    """1 − lr·mu is 1 − 10⁻⁶ here, whose rounding is a twentieth of the pull."""
    # Two of the clients for one round: 1000 steps are what separates a lost pull from the rounding of weights.
    pace = md.scenarios.Pace(lr=1e-4, steps=1000, batch=4)
    problem, shape = (WIDE if wide else PROBLEMS)["mse"]
    fed = md.Federation(problem, clients=clients("mse", shape, (17, 30)), pace=pace)
    method = md.FedProx(mu=0.01)
    exact = md.run(method, fed, 1, dtype="float64", engine="seq", progress=False).x
    start = md.run(method, fed, 0, dtype="float64", progress=False).x
    # The engine adds pull and gradient to the weights one after the other, and rounds twice.
    for engine, error in (("seq", 2e-5), ("fused", 1.2e-4)):
        there = md.run(method, fed, 1, dtype="float32", engine=engine, progress=False).x.double()
        assert float((there - exact).norm() / (exact - start).norm()) < error
    assert any(spans) or not wide


def test_a_linear_model_in_float32_is_not_trained_in_the_span(spans: list[list[int]]):
    X, y = torch.randn(40, 100, generator=torch.Generator().manual_seed(0)) + 100, torch.arange(40) % 2
    fed = md.Federation(md.problems.Softmax(), clients=[(X, y)], pace=md.scenarios.Pace(lr=1e-7, steps=300, batch=None))
    exact, single = (
        md.run(md.FedAvg(), fed, 1, dtype=d, engine="fused", progress=False).x for d in ("float64", "float32")
    )
    assert float((single - exact).norm() / exact.norm()) < 2e-5
    assert [bool(group) for group in spans] == [True, False]


@pytest.mark.parametrize("method", quick(1, TERMS))
def test_every_term_of_the_update_in_the_span_of_the_rows(method: Algorithm[Any, Any], spans: list[list[int]]):
    for options in ({}, {"reply_policy": md.ReplyPolicy(retries=1)}):  # which has clients served one by one
        fed = federation("network", WIDE, epochs=8, weight_decay=0.05)
        a, b = both(method, fed, **options)
        assert float((a.x - b.x).norm() / (1 + a.x.norm())) < 1e-11
    assert {len(group) > 1 for group in spans if group} == {True, False}


def test_displacements_in_blocks_of_outputs_are_those_at_once(spans: list[list[int]], monkeypatch: pytest.MonkeyPatch):
    fed = federation("network", WIDE, epochs=8, weight_decay=0.05)
    run = lambda: md.run(md.SCAFFOLD(), fed, 2, engine="fused", progress=False).x
    whole = run()
    assert any(spans)
    monkeypatch.setattr(span, "BLOCK", 1)  # an output at a time
    assert float((run() - whole).norm() / whole.norm()) < 1e-13


@pytest.mark.parametrize(("columns", "part"), [(8, 1 << 18), (7, 1 << 18), (7, 30), (7, 3)])
def test_a_product_is_subtracted_in_blocks_from_rows_that_do_not_lie_as_the_processor_likes(
    columns: int, part: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(products, "PART", part)
    whole = torch.randn(11, columns)
    slopes, rows = torch.randn(5, 11), torch.randn(5, columns)
    W = whole.clone()
    products.subtract(W, slopes, rows)
    torch.testing.assert_close(W, whole - slopes.mT @ rows)


@pytest.mark.shapes
def test_the_span_of_the_rows_under_a_streams_masks(spans: list[list[int]]):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    X = torch.randn(80, 60, generator=g, dtype=torch.float64) + y[:, None]
    fed = md.Federation(
        md.problems.Network(nn.Sequential(nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 4))),
        data=md.datasets.Dataset(X, y, classes=4).split(test=0.2),
        partition=md.partitions.IID(3),
        pace=md.scenarios.Pace(lr=0.05, epochs=6, batch=4),
        stream=md.tasks.Split(tasks=2, mode="task"),
    )
    a, b = both(md.FedAvg(), fed)
    assert float((a.x - b.x).norm()) < 1e-12
    assert any(spans)


def test_a_stream_masks_the_same_classes():
    digits = md.datasets.digits()
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, hidden=(8,))),
        data=digits,
        partition=md.partitions.IID(3),
        pace=md.scenarios.Pace(lr=0.1, steps=2, batch=16),
        stream=md.tasks.Split(tasks=2, mode="task"),
    )
    a, b = both(md.FedAvg(), fed)
    assert float((a.x - b.x).norm()) < 1e-12
    last = [row["loss"] for row in a.history if row["task"] == 1]
    assert last[-1] < last[0]


@pytest.mark.shapes
def test_a_blank_image_gives_max_pooling_its_ties():
    # Where all of a window is equal, the gradient goes where torch's own goes: to its first cell.
    X, y = torch.zeros(6, 1, 10, 10, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    X[3:, :, :4] = 1.0
    problem = PROBLEMS["lenet"][0]
    fed = md.Federation(problem, clients=[(X, y)], classes=3, pace=md.scenarios.Pace(lr=0.1, steps=3, batch=4))
    a, b = both(md.FedAvg(), fed)
    assert float((a.x - b.x).norm()) < 1e-13


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(*[nn.Linear(4, 4)] * 2),
        nn.ModuleList([nn.Linear(4, 3)]),
    ],
)
def test_unknown_layers_are_left_to_the_reference(module: nn.Module):
    problem = md.problems.network.NetworkProblem(md.problems.Network(module), 3, torch.float32, "cpu")
    problem.row = torch.Size([4])
    assert engines.choose("auto", problem, "cpu").name == "seq"
    with pytest.raises(RecipeError, match="leave engine= out"):
        engines.choose("fused", problem, "cpu")


@pytest.mark.parametrize("hook", ["full_backward_hook", "full_backward_pre_hook", "forward_hook", "forward"])
def test_a_hook_is_heard_whatever_the_engine(hook: str) -> None:
    head = nn.Linear(4, 3)
    halved = {
        "full_backward_hook": lambda m, given, out: (0.5 * given[0],),
        "full_backward_pre_hook": lambda m, out: (0.5 * out[0],),
        "forward_hook": lambda m, given, out: 0.5 * out,
    }
    if hook == "forward":  # as autocast does it
        vars(head)["forward"] = MethodType(lambda m, X: 0.5 * nn.functional.linear(X, m.weight, m.bias), head)
    else:
        getattr(head, f"register_{hook}")(halved[hook])
    network = md.problems.Network(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), head), start="module")
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(8, 5, generator=g), torch.arange(8) % 3)] * 6
    x = [
        md.run(md.FedAvg(), md.Federation(network, clients=clients), 1, engine=engine, dtype="float64").x
        for engine in ("seq", "auto")
    ]
    assert torch.allclose(*x, rtol=1e-12, atol=1e-13)
    assert engines.choose("auto", network.ready(*clients[0], 3, None, "cpu"), "cpu").name != "fused"


@pytest.mark.parametrize("change", ["weight comes last", "another parameter", "bias is a buffer", "other sizes"])
def test_a_layer_whose_parameters_a_user_replaced_is_trained_as_it_is(change: str) -> None:
    head = nn.Linear(4, 3)
    if change == "weight comes last":  # as torch.nn.utils.remove_weight_norm leaves it
        weight = head._parameters.pop("weight")
        head.register_parameter("weight", weight)
    elif change == "another parameter":
        head.register_parameter("scale", nn.Parameter(torch.ones(2)))
    elif change == "bias is a buffer":
        bias = head._parameters.pop("bias")
        head.register_buffer("bias", bias.detach() + 1)
    else:
        head.weight, head.bias = nn.Parameter(torch.eye(4)), nn.Parameter(torch.ones(4))
    network = md.problems.Network(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), head), start="module")
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(8, 5, generator=g), torch.arange(8) % 3)] * 6
    fed = md.Federation(network, clients=clients)
    x = [md.run(md.FedAvg(), fed, 1, engine=engine, dtype="float64").x for engine in ("seq", "auto")]
    assert torch.allclose(*x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("transport", quick(1, [None, md.transports.Processes(2), md.transports.Lossy(duplicate=0.5)]))
def test_the_record_names_every_engine_that_ran(transport: Any, tmp_path: Any):
    fed = federation("deep", optimizer="adam")
    result = md.run(
        md.FedAvg(), fed, rounds=2, progress=False, engine="fused", transport=transport, checkpoint=tmp_path
    )
    assert result.settings["engine"] == "seq"
    result = md.run(
        md.FedAvg(), fed, rounds=2, progress=False, engine="fused", transport=transport, resume=tmp_path
    )  # nothing to do
    assert result.settings["engine"] == "seq"


def test_a_client_stack_fills_a_cache_and_leaves_work_for_several_processes():
    assert [engines.stack_size(d) for d in (1, 90, 8192, 80_000, 235_000, 10**8)] == [128, 128, 32, 8, 8, 1]


LAYOUTS: dict[str, Any] = {
    "as they are": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "every second": lambda t: torch.stack([t, t + 1], 1).flatten(0, 1)[::2],
    "a later part": lambda t: torch.cat([t + 1, t])[len(t) :],
    "a column of more": lambda t: torch.stack([t + 1, t], -1)[..., 1],
}


PLAIN = "as they are"


def in_layout(rows: str, labels: str, engine: str) -> Tensor:
    """x after three rounds on a partition of rows in their order, which hands out views of the user's own tensors."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(60, 4, generator=g, dtype=torch.float64)
    y = (X[:, 0] > 0).long() + (X[:, 1] > 0)
    hosts = {"host": torch.arange(60).numpy() // 10}
    data = md.datasets.Dataset(LAYOUTS[rows](X), LAYOUTS[labels](y), classes=3, keys=hosts)
    fed = md.Federation(
        md.problems.Softmax(),
        data=data,
        partition=md.partitions.ByKey("host"),
        participation=0.5,
        pace=md.scenarios.Pace(lr=0.3, batch=4),
    )
    return md.run(md.FedAvg(), fed, rounds=3, engine=engine, dtype="float64", progress=False).x


@pytest.fixture(scope="module")
def of_plain_rows() -> Tensor:
    return in_layout(PLAIN, PLAIN, "seq")


@pytest.mark.parametrize(
    ("rows", "labels"),
    quick(4, sorted({pair for k in LAYOUTS for pair in ((k, PLAIN), (PLAIN, k), (k, k))} - {(PLAIN, PLAIN)})),
)
def test_rows_and_labels_may_lie_in_memory_as_they_like(rows: str, labels: str, of_plain_rows: Tensor) -> None:
    for engine in ("seq", "fused", "stacked"):
        assert float((in_layout(rows, labels, engine) - of_plain_rows).abs().max()) < 1e-12
