"""What surrounds a run, such as autocast or no_grad, does not change its bits, or is refused by name."""

import contextlib
import threading

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.statistics import Study
from support.pairs import quick

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def network(*layers):
    torch.manual_seed(0)
    return md.problems.Network(nn.Sequential(*(layer() for layer in layers)))


LINEAR = lambda: network(lambda: nn.Linear(4, 2))
MLP = lambda: network(lambda: nn.Linear(4, 8), nn.ReLU, lambda: nn.Linear(8, 2))
DROPOUT = lambda: network(lambda: nn.Linear(4, 8), nn.Dropout, lambda: nn.BatchNorm1d(8), lambda: nn.Linear(8, 2))
RUNS = {
    "linear, auto": (LINEAR, {}),
    "linear, seq": (LINEAR, {"engine": "seq"}),
    "linear, stacked": (LINEAR, {"engine": "stacked"}),
    "mlp, fused": (MLP, {"engine": "fused"}),
    "BatchNorm and Dropout": (DROPOUT, {}),
    "Logistic": (lambda: md.problems.Logistic(mu=0.1), {}),
    "two processes": (MLP, {"transport": md.transports.Processes(2)}),
    "secure": (MLP, {"secure": md.SecureSum()}),
    "best": (MLP, {"best": "accuracy", "evaluate_on": "validation", "patience": 2}),
}


def federation(problem, **more):
    halves = [(torch.tensor(X[i::3]), torch.tensor(Y[i::3])) for i in range(3)]
    return md.Federation(problem, clients=halves, validation=0.2, pace=md.scenarios.Pace(lr=0.5, batch=8), **more)


def made(kind):
    """The digest of a run, what its model predicts, and what it says of rows outside."""
    problem, options = RUNS[kind]
    result = md.run(md.FedAvg(), federation(problem()), rounds=2, progress=False, **options)
    return result.digest, result.outputs(X).numpy().tobytes()


@contextlib.contextmanager
def setting(write, value, before):
    write(value)
    try:
        yield
    finally:
        write(before)


AROUND = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device("meta"),
    "set_default_device": lambda: setting(torch.set_default_device, "meta", None),
    "products in bfloat16": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "without oneDNN": lambda: setting(torch._C._set_mkldnn_enabled, False, True),
    "NumPy's errors": lambda: np.errstate(all="raise"),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
}

PLAIN = {}


def kinds_for(around, every):
    """All kinds of runs, or four for each mode that changes no numbers, so that each kind has some."""
    kinds, k = [*RUNS], [*AROUND].index(around)
    if every or around in ("autocast", "inference_mode", "default dtype"):
        return kinds
    return (2 * kinds)[k % 9 : k % 9 + 4]


def modes(names):
    """Each mode with some kinds of runs, and slowly with every kind."""
    return quick(len(names), [(name, every) for every in (False, True) for name in names])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(("around", "every"), modes([*AROUND]))
def test_no_mode_around_a_run_changes_its_bits(around, every):
    for kind in kinds_for(around, every):
        if kind not in PLAIN:
            PLAIN[kind] = made(kind)
        problem, options = RUNS[kind]
        fed = federation(problem())
        with AROUND[around]():
            result = md.run(md.FedAvg(), fed, rounds=2, progress=False, **options)
            said = result.outputs(X).numpy().tobytes()
        assert (result.digest, said) == PLAIN[kind], kind
        assert result.outputs(X).numpy().tobytes() == said
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert np.geterr()["invalid"] == "warn"
    assert torch.get_default_device().type == "cpu"


@pytest.mark.parametrize(("around", "every"), modes(["autocast", "no_grad", "inference_mode", "NumPy's errors"]))
def test_nor_does_it_if_the_data_and_the_module_are_made_inside_too(around, every):
    for kind in kinds_for(around, every):
        plain = PLAIN.get(kind) or made(kind)
        with AROUND[around]():
            assert made(kind) == plain, kind


@pytest.mark.parametrize("around", ["autocast", "no_grad", "inference_mode", "default dtype", "default device"])
def test_nor_of_tune_compare_and_a_study(around):
    def everything():
        tuned = md.tune(md.FedAvg(), fed, {"lr": [0.3, 1.0]}, rounds=3, progress=False, jobs=1)
        board = md.compare([md.FedAvg(), md.FedProx(0.1)], fed, rounds=2, seeds=2, progress=False, jobs=1)
        fit = Study({"A": frame[:30], "B": frame[30:]}).glm("t ~ x")
        return tuned.record, [r.digest for r in board.results], fit.params.tolist()

    pandas = pytest.importorskip("pandas")
    fed, frame = federation(MLP()), pandas.DataFrame({"x": X[:, 0], "t": X[:, 1] + X[:, 0]})
    plain = PLAIN["others"] = PLAIN.get("others") or everything()
    with AROUND[around]():
        assert everything() == plain


def through(transform):
    fed = federation(MLP())
    transform(lambda x: (md.run(md.FedAvg(), fed, rounds=1), x.sum())[1])(torch.ones(2))


@contextlib.contextmanager
def hooked(register):
    handle = register(lambda module, *args: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("around", "word"),
    [
        (lambda: hooked(nn.modules.module.register_module_forward_hook), "handle.remove()"),
        (lambda: hooked(nn.modules.module.register_module_forward_pre_hook), "handle.remove()"),
        (lambda: hooked(nn.modules.module.register_module_full_backward_hook), "handle.remove()"),
        (lambda: torch.autograd.graph.save_on_cpu(), "saved_tensors_hooks"),
        (lambda: torch._subclasses.FakeTensorMode(), "FakeTensorMode"),
    ],
)
def test_what_cannot_be_set_aside_is_refused_by_name(around, word):
    fed = federation(MLP())
    with around(), pytest.raises(md.RecipeError, match=word.replace("(", r"\(").replace(")", r"\)")):
        md.run(md.FedAvg(), fed, rounds=1, progress=False)
    assert md.run(md.FedAvg(), fed, rounds=1, progress=False).status.ok


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_nor_does_it_train_inside_a_transform(transform):
    with pytest.raises(md.RecipeError, match=r"torch\.func"):
        through(transform)


def test_runs_at_once_in_threads_draw_what_each_draws_alone():
    feds = [federation(DROPOUT()) for _ in range(4)]

    def go(seed):
        digests[seed] = md.run(md.FedAvg(), feds[seed], rounds=6, seed=seed, progress=False).digest

    digests = {}
    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    at_once, digests = digests, {}
    for seed in range(4):
        go(seed)
    assert at_once == digests
    assert len({*digests.values()}) == 4


def test_the_streams_of_torch_and_numpy_around_a_run_are_neither_read_nor_changed():
    plain, fed = made("BatchNorm and Dropout"), federation(DROPOUT())
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        torchs, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
        assert md.run(md.FedAvg(), fed, rounds=2, progress=False).digest == plain[0]
        assert torch.equal(torch.get_rng_state(), torchs)
        assert np.array_equal(np.random.get_state()[1], numpys)


@pytest.mark.parametrize("how", ["thread", "own thread", "nested"])
def test_a_run_that_on_round_starts_in_a_thread_and_waits_for_ends(how, monkeypatch, caplog):
    monkeypatch.setattr("medley.runtime.turns.PATIENCE", 0.05)
    plain, fed, outer, inner = made("BatchNorm and Dropout"), federation(DROPOUT()), federation(DROPOUT()), []

    def other(on_round=None):
        inner.append(md.run(md.FedAvg(), fed, rounds=2, progress=False, on_round=on_round).digest)

    def waits(row):
        if how == "own thread":
            other()
        else:
            on_round = (lambda row: in_a_thread(other)) if how == "nested" and row["round"] == 1 else None
            in_a_thread(lambda: other(on_round))

    with torch.autocast("cpu", dtype=torch.bfloat16), setting(torch.set_default_dtype, torch.float64, torch.float32):
        assert md.run(md.FedAvg(), outer, rounds=2, progress=False, on_round=waits).digest == plain[0]
        assert torch.get_default_dtype() == torch.float64
    assert inner == [plain[0]] * (6 if how == "nested" else 3)
    assert ("takes the turn of another one" in caplog.text) == (how != "own thread")


def in_a_thread(f):
    thread = threading.Thread(target=f)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def process_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def threads_inside(outputs, targets):
    return torch.get_num_threads()


def test_a_resumed_run_computes_with_the_number_of_threads_that_it_began_with(process_threads, tmp_path, caplog):
    options = {"metrics": {"threads": (threads_inside, "min")}, "evaluate_on": "validation", "progress": False}
    fed, digests = federation(md.problems.Logistic(mu=0.1)), {}
    for begun in (1, 3):
        process_threads(begun)
        digests[begun] = md.run(md.FedAvg(), fed, rounds=2, **options).digest
        md.run(md.FedAvg(), fed, rounds=1, checkpoint=tmp_path / str(begun), **options)
    assert digests[1] != digests[3]
    for begun, other in ((1, 3), (3, 1)):
        process_threads(other)
        with caplog.at_level("INFO", logger="medley"):
            resumed = md.run(md.FedAvg(), fed, rounds=2, resume=tmp_path / str(begun), **options)
        assert resumed.digest == digests[begun]
        assert resumed.environment["threads"] == begun
        assert f"began with {begun} as torch's number of threads" in caplog.text
        assert f"this process has {other}" in caplog.text
        assert torch.get_num_threads() == other
