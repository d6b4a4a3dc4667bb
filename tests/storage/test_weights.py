"""Weights out of a run and into another: results, modules, state dicts, files, folders."""

from __future__ import annotations

import copy
import json
import subprocess  # noqa: F401 - a structure that is not loaded names it
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn

import medley as md
from medley.storage import modules
from support.scripts import in_a_child


class Net(nn.Module):
    """A user's own module: BatchNorm, a function and a number among its attributes, and a frozen layer."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.hidden = hidden
        self.act = nn.functional.relu
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(64, hidden), nn.BatchNorm1d(hidden))
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.body(self.frozen(x))))


DATA = md.datasets.digits().flatten()


def federation(module: nn.Module, **how: str) -> md.Federation:
    return md.Federation(
        md.problems.Network(module, **how),  # type: ignore[arg-type]
        data=DATA,
        partition=md.partitions.IID(clients=5),
        pace=md.scenarios.Pace(lr=0.2),
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[md.Federation, md.Result, Path]:
    folder = tmp_path_factory.mktemp("runs") / "a"
    torch.manual_seed(0)  # the layers of Net are drawn
    fed = federation(Net())
    return fed, md.run(md.FedAvg(), fed, 3, checkpoint=folder), folder


def test_a_trained_model_is_not_drawn_anew_by_oversight(
    ran: tuple[md.Federation, md.Result, Path], caplog: pytest.LogCaptureFixture
) -> None:
    fed, r, folder = ran
    assert r.summary["accuracy"] > 0.8
    assert r.model is not None
    for module in (r.model, nn.Sequential(r.model, nn.ReLU()), md.Result.load(folder).model):
        assert module is not None
        with pytest.raises(md.RecipeError, match="start='module' begins at its weights; start='draw' draws new ones"):
            md.problems.Network(module)
    started = md.run(md.FedAvg(), federation(r.model, start="module"), 0)
    redrawn = md.run(md.FedAvg(), federation(r.model, start="draw"), 0)
    assert started.summary["accuracy"] == r.summary["accuracy"]
    assert redrawn.summary["accuracy"] < 0.4
    caplog.clear()
    with caplog.at_level("INFO", "medley"):
        md.run(md.FedAvg(), federation(Net()), 0)
    assert "x₀ is drawn by the layers' reset_parameters" in caplog.text
    # The module that the user gave was copied, and is as it was.
    assert federation(fed.problem.module, start="draw").problem.start == "draw"  # type: ignore[attr-defined]
    assert md.problems.Network(fed.problem.module).start is None  # type: ignore[attr-defined]


@pytest.mark.slow
def test_weights_that_no_layer_draws_are_not_lost_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """A trained state dict in a new module has no mark of a run; `Result.model` has one."""
    module = Net()
    with torch.no_grad():
        module.body[0].weight += 1  # as training may
    message = "Network(module): body.0.weight has values that its layer does not draw"
    md.run(md.FedAvg(), federation(module), 0)
    md.run(md.FedAvg(), federation(module), 0)  # once is enough
    assert [message in r.message for r in caplog.records if r.levelname == "WARNING"] == [True]
    caplog.clear()
    other = copy.deepcopy(module)
    for how in ("module", "draw"):
        md.run(md.FedAvg(), federation(other, start=how), 0)
    begun = md.run(md.FedAvg(), federation(other), 0, init=other)
    started = md.run(md.FedAvg(), federation(other, start="module"), 0)
    assert torch.equal(begun.x, started.x)
    md.run(md.FedAvg(), federation(Net()), 0)
    assert caplog.text == ""
    board = md.compare([md.FedAvg(), md.FedPer()], federation(other), 1, 2, jobs=1)
    assert [message in r.message for r in caplog.records if r.levelname == "WARNING"] == [True]
    assert board.status.ok


@pytest.mark.slow
def test_another_method_goes_on_from_every_form_of_the_weights(
    ran: tuple[md.Federation, md.Result, Path], tmp_path: Path
) -> None:
    fed, r, folder = ran
    torch.save(r.state_dict(), tmp_path / "w.pt")
    file = r.save_weights(tmp_path / "w.safetensors")
    forms = [r, md.Result.load(folder), r.state_dict(), r.model, file, str(tmp_path / "w.pt"), folder]
    first = [md.run(md.SCAFFOLD(), fed, 1, init=init) for init in forms]
    # Buffers came along: without BatchNorm's statistics the accuracy at x₀ would be another one.
    assert {f.history[0]["accuracy"] for f in first} == {r.summary["accuracy"]}
    assert len({f.digest for f in first}) == 1
    assert md.run(md.SCAFFOLD(), fed, 0, init=r.x).history[0]["accuracy"] < r.summary["accuracy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "head.bias"}, "lacks 'head.bias'"),
        (lambda s: {**s, "tail": torch.ones(2)}, "has 'tail'"),
        (lambda s: {**s, "head.bias": torch.ones(3)}, r"head.bias is \[3\], the module's \[10\]"),
        (lambda s: {**s, "head.bias": torch.full((10,), torch.nan)}, "not finite"),
        (lambda s: {**s, "frozen.bias": torch.ones(64)}, "frozen.bias is frozen"),
        (lambda s: {"x": torch.ones(3)}, "parameters, but init has shape"),
        (lambda s: {}, "cannot be made a tensor"),
        (lambda s: {f"module.{k}": t for k, t in s.items()}, r"its names begin with 'module\.': give {k.removeprefix"),
        (lambda s: "nowhere.pt", "no weights can be read there"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(
    ran: tuple[md.Federation, md.Result, Path], change: object, message: str
) -> None:
    fed, r, _ = ran
    with pytest.raises(md.RecipeError, match=message):
        md.run(md.FedAvg(), fed, 1, init=change(r.state_dict()))  # type: ignore[operator]


def test_a_checkpoint_of_another_trainer_is_refused_with_the_key_of_its_weights(
    ran: tuple[md.Federation, md.Result, Path], tmp_path: Path
) -> None:
    fed, r, _ = ran
    torch.save({"epoch": 3, "state_dict": r.state_dict()}, tmp_path / "a.ckpt")
    message = (
        r"the keys 'epoch', 'state_dict' is not a state_dict; pass the one in it, torch\.load\(path\)\['state_dict'\]"
    )
    with pytest.raises(md.RecipeError, match=message):
        md.run(md.FedAvg(), fed, 1, init=tmp_path / "a.ckpt")


def test_a_folder_brings_its_model_back_and_it_predicts(ran: tuple[md.Federation, md.Result, Path]) -> None:
    _, r, folder = ran
    X = DATA.X_test
    y = DATA.y_test
    assert X is not None
    assert y is not None
    loaded = md.Result.load(folder)
    assert isinstance(loaded.model, Net)
    assert loaded.model.hidden == 12
    assert torch.equal(loaded.outputs(X), r.outputs(X))
    assert float((r.predict(X.numpy()) == y.numpy()).mean()) == r.summary["accuracy"]
    assert torch.equal(r.outputs(X, batch=7).argmax(1), r.outputs(X).argmax(1))
    by_hand = Net()
    by_hand.load_state_dict(r.state_dict())
    assert torch.equal(by_hand.eval()(X), r.outputs(X))


@pytest.mark.parametrize("how", [{}, {"start": "module"}])
def test_frozen_numbers_are_the_folders_and_not_those_of_the_module_given(tmp_path: Path, how: dict[str, str]) -> None:
    """Also where the structure cannot be written, as that of a module that holds a lambda."""
    for unwritten in (False, True):
        module = Net()
        other = Net()
        if unwritten:
            module.act = other.act = lambda v: v.relu()
        r = md.run(md.FedAvg(), federation(module, **how), 1, progress=False)
        folder = r.save(tmp_path / str(unwritten))
        assert (folder / "model.json").exists() != unwritten
        rows = DATA.X[:50].float()
        assert torch.equal(md.Result.load(folder, module=other).outputs(rows), r.outputs(rows))
        raw = bytearray((folder / "model.safetensors").read_bytes())
        raw[-2] ^= 0x40
        (folder / "model.safetensors").write_bytes(raw)
        with pytest.raises(md.WireError, match=r"model\.safetensors is damaged"):
            md.Result.load(folder, module=other)


def test_safetensors_hold_the_state_dict(ran: tuple[md.Federation, md.Result, Path], tmp_path: Path) -> None:
    _, r, _ = ran
    tensors = load_file(r.save_weights(tmp_path / "deep" / "w.safetensors"))
    assert r.model is not None
    assert sorted(tensors) == sorted(r.model.state_dict())
    assert all(torch.equal(tensors[k], v) for k, v in r.model.state_dict().items())


@pytest.mark.slow
def test_a_process_that_has_not_imported_the_class_runs_none_of_its_code(
    ran: tuple[md.Federation, md.Result, Path],
) -> None:
    _, _, folder = ran
    code = f"""
import logging, sys
here = lambda: [name for name in sys.modules if {__name__!r} in name]
for name in here():
    del sys.modules[name]
import medley as md
logging.getLogger("medley").addHandler(logging.StreamHandler(sys.stdout))
print(md.Result.load({str(folder)!r}).model, here())
"""
    printed = in_a_child(code)
    assert "first, or pass Result.load(folder, module=...)" in printed
    assert printed.endswith("None []\n")
    assert md.Result.load(folder, module=Net()).model is not None
    with pytest.raises(md.WireError, match="another network"):
        md.Result.load(folder, module=Net(hidden=3))


def structure_in(folder: Path) -> dict[str, Any]:
    structure: dict[str, Any] = json.loads((folder / "model.json").read_text())["structure"]
    return structure


def put(folder: Path, structure: dict[str, Any], x: torch.Tensor) -> None:
    """Write a structure as if it belonged to the result, with a checksum that fits."""
    content = {"sum": modules._sum({"structure": structure, "still": []}, x), "structure": structure}
    (folder / "model.json").write_text(json.dumps(content))


def test_a_changed_structure_is_not_loaded_and_a_huge_one_is_not_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = nn.Sequential(nn.Linear(64, 10), nn.LeakyReLU(0.01))
    r = md.run(md.FedAvg(), federation(net), 1)
    text = (r.save(tmp_path) / "model.json").read_text()
    assert md.Result.load(tmp_path).model is not None
    (tmp_path / "model.json").write_text(text.replace("0.01", "9.01"))
    assert md.Result.load(tmp_path).model is None
    assert "model.json is damaged: its checksum does not match" in caplog.text
    structure = structure_in(tmp_path)
    structure["0"]["parameters"]["weight"]["shape"] = [10, 10**11]
    put(tmp_path, structure, r.x)
    assert md.Result.load(tmp_path).model is None
    assert "a network of 1000000000010 numbers, but the folder has 650" in caplog.text
    (tmp_path / "model.json").write_text("[" * 10**5)
    assert md.Result.load(tmp_path).model is None


@pytest.mark.parametrize("part", ["subprocess:Popen", "builtins:eval", "os:system"])
def test_a_structure_cannot_name_code_outside_of_the_networks_package(
    ran: tuple[md.Federation, md.Result, Path], tmp_path: Path, part: str
) -> None:
    ran[1].save(tmp_path)
    text = json.dumps(structure_in(tmp_path))
    for old in ("torch.nn.functional:relu", f"{Net.__module__}:Net"):
        assert old in text
        put(tmp_path, json.loads(text.replace(old, part)), ran[1].x)
        assert md.Result.load(tmp_path).model is None


def swish(X: torch.Tensor) -> torch.Tensor:
    return X * torch.sigmoid(X)


class Deep(nn.Module):
    """Settings of each kind that a folder may hold, a private one and a function of this file among them."""

    class Inner(nn.Linear):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.first = self.Inner(64, 8)
        self.last = nn.Linear(8, 10)
        self.act = swish
        self.norm = nn.LayerNorm
        self._width = {"a": [8, (1, None)]}
        self.wave = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.wave(self.act(self.first(x))))  # type: ignore[no-any-return]


def test_what_a_folder_may_hold_comes_back(tmp_path: Path) -> None:
    r = md.run(md.FedAvg(), federation(Deep()), 1)
    back = md.Result.load(r.save(tmp_path)).model
    assert isinstance(back, Deep)
    assert (back.act, back.norm, back._width, back.wave) == (swish, nn.LayerNorm, {"a": [8, (1, None)]}, torch.tanh)
    assert torch.equal(back(DATA.X[:5]), r.outputs(DATA.X[:5]))


GADGETS = ["torch:Tensor.byte", "torch:Tensor.ravel", "torch:Tensor.tolist", "torch:builtins.bytes", "torch:os.system"]


def test_a_folder_of_somebody_elses_runs_no_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Layers whose outputs are a command, and names that made bytes of them and called the shell."""
    command = f"echo > {tmp_path / 'ran'}\n".encode()
    net = nn.Sequential(nn.Linear(64, len(command)), *(nn.Identity() for _ in GADGETS))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.copy_(torch.tensor(list(command)))
    r = md.run(md.FedAvg(), federation(md.models.mlp(64, 10)), 1)
    r.x = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    r.model = net
    r.save(tmp_path)
    original = structure_in(tmp_path)
    for key in ("_compiled_call_impl", "forward", "_call_impl", "extra"):
        structure = copy.deepcopy(original)
        for i, name in enumerate(GADGETS, 1):
            structure[str(i)]["settings"][key] = {"name": name}
        put(tmp_path, structure, r.x)
        assert md.Result.load(tmp_path).model is None, key
    assert not (tmp_path / "ran").exists()
    assert "_compiled_call_impl is not a setting of torch.nn.modules.linear:Identity" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "torch.fx.graph_module:GraphModule",
        "torch.nn.modules.module:sys.modules",
        "torch.nn.modules.module:functools.partial",
        "torch.nn.modules.module:_IncompatibleKeys",
        "torch.nn:Linear",
        "medley.cli.node:node",
        "torch.hub:load",
        f"{__name__}:subprocess.getoutput",
        f"{__name__}:md.run",
    ],
)
def test_a_structure_names_classes_where_they_are_defined(
    ran: tuple[md.Federation, md.Result, Path], tmp_path: Path, name: str
) -> None:
    ran[1].save(tmp_path)
    text = json.dumps(structure_in(tmp_path))
    for old in ("torch.nn.functional:relu", f"{Net.__module__}:Net"):
        put(tmp_path, json.loads(text.replace(old, name)), ran[1].x)
        assert md.Result.load(tmp_path).model is None


def test_modules_of_many_kinds_come_back(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    rows = {"X": torch.randn(12, 4), "ids": torch.randint(0, 6, (12, 5))}
    for module, X in (
        (tied, rows["X"]),
        (md.models.gru(vocabulary=6, classes=4, embedding=3, hidden=4), rows["ids"]),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5)), rows["X"]),
    ):
        clients = [(X, torch.arange(12) % 4)]
        r = md.run(md.FedAvg(), md.Federation(md.problems.Network(module), clients=clients), 1)
        back = md.Result.load(r.save(tmp_path / type(module).__name__ / str(len(r.x))))
        assert torch.equal(back.outputs(X), r.outputs(X))
    assert back.model is not None


def test_linear_models_come_out_as_pytorchs(tmp_path: Path) -> None:
    for family in (md.problems.Softmax(mu=1e-3, intercept=True), md.problems.Softmax(mu=1e-3)):
        fed = md.Federation(family, data=DATA, partition=md.partitions.IID(clients=5))
        r = md.run(md.FedAvg(), fed, 2)
        assert isinstance(r.model, nn.Linear)
        assert float((r.predict(DATA.X_test) == np.asarray(DATA.y_test)).mean()) == r.summary["accuracy"]
        assert torch.equal(md.Result.load(r.save(tmp_path)).outputs(DATA.X_test), r.outputs(DATA.X_test))
    X = np.random.default_rng(0).normal(size=(40, 3))
    fed = md.Federation(md.problems.Logistic(mu=1e-3), clients=[(X, X[:, 0] > 0)])
    r = md.run(md.Newton(), fed, 3)
    assert (r.predict(X) == (X[:, 0] > 0)).all()
    with pytest.raises(md.RecipeError, match="a linear model has no state_dict"):
        md.run(md.Newton(), fed, 1, init=r.state_dict())
    assert md.run(md.Newton(), fed, 0, init=r).summary["loss"] == r.summary["loss"]


def test_an_init_of_another_content_is_another_run(ran: tuple[md.Federation, md.Result, Path], tmp_path: Path) -> None:
    fed, r, _ = ran
    md.run(md.FedAvg(), fed, 1, init=r, checkpoint=tmp_path / "b")
    again = md.run(md.FedAvg(), fed, 2, init=r, resume=tmp_path / "b")
    assert again.history[-1]["round"] == 2
    with pytest.raises(md.WireError, match="init"):
        md.run(md.FedAvg(), fed, 3, init=r.x, resume=tmp_path / "b")


def test_a_results_model_can_be_written_by_other_tools(tmp_path: Path) -> None:
    """Trained parameters are no views of one vector; a frozen base is not copied."""
    net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    net[0].weight.requires_grad_(False)
    fed = md.Federation(md.problems.Network(net), data=md.datasets.digits(), partition=md.partitions.IID(4))
    result = md.run(md.FedAvg(), fed, 1, progress=False)
    assert result.model is not None
    for p in result.model.parameters():
        assert p.untyped_storage().nbytes() == p.numel() * p.element_size()
    save_model(result.model, str(tmp_path / "model.safetensors"))
    other = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    load_model(other, str(tmp_path / "model.safetensors"))
    rows = torch.randn(5, 64)
    assert torch.equal(other(rows), result.model(rows))


def test_a_module_that_keeps_its_outputs_ends_no_run() -> None:
    class Keeps(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)
            return self.last

    fed = md.Federation(md.problems.Network(Keeps(64, 10)), data=md.datasets.digits(), partition=md.partitions.IID(4))
    result = md.run(md.FedAvg(), fed, 1, progress=False)
    assert result.model is not None
    assert torch.equal(result.model.weight.reshape(-1), result.x[:640])
