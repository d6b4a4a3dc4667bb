"""Recipes and the command line with classes and functions of a user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley import recipe as recipes

TABLES = {
    "problem": {"kind": "Network", "model": "mlp"},
    "data": {"name": "digits", "train": 60, "flatten": True},
    "partition": {"kind": "IID", "clients": 3},
    "methods": [{"kind": "FedAvg"}],
}
CALL = {"kind": "subprocess:getoutput", "cmd": "true"}


@pytest.mark.parametrize(
    ("key", "tables"),
    [
        ("problem.kind", {"problem": {"kind": CALL["kind"]}}),
        ("problem.model", {"problem": {"kind": "Network", "model": CALL["kind"]}}),
        ("problem.loss", {"problem": {"kind": "Network", "model": "mlp", "loss": CALL["kind"]}}),
        ("problem.train", {"problem": {"kind": "Network", "model": "mlp", "train": CALL["kind"]}}),
        ("problem.transform", {"problem": {"kind": "Network", "model": "mlp", "transform": CALL["kind"]}}),
        ("data.name", {"data": {"name": CALL["kind"], "cmd": "true"}}),
        ("partition.kind", {"partition": CALL}),
        ("pace.lr.kind", {"pace": {"lr": CALL}}),
        ("pace.optimizer", {"pace": {"optimizer": CALL["kind"]}}),
        ("pace.optimizer.kind", {"pace": {"optimizer": CALL}}),
        ("devices.preset", {"devices": {"preset": CALL["kind"]}}),
        ("devices.speed.kind", {"devices": {"speed": CALL}}),
        ("participation.kind", {"participation": CALL}),
        ("stream.kind", {"stream": CALL}),
        ("replay.kind", {"replay": CALL}),
        ("codec.kind", {"codec": CALL}),
        ("codec.inner.kind", {"codec": {"kind": "Delta", "inner": CALL}}),
        ("run.metrics.m", {"run": {"metrics": {"m": CALL["kind"]}}}),
        ("methods.0.kind", {"methods": [CALL]}),
        ("methods.0.server_lr.kind", {"methods": [{"kind": "FedAvg", "server_lr": CALL}]}),
        ("methods.0.rule.kind", {"methods": [{"kind": "FedAvg", "rule": CALL}]}),
        ("methods.0.private.clip.kind", {"methods": [{"kind": "FedAvg", "private": {"noise": 1.0, "clip": CALL}}]}),
    ],
)
def test_anothers_recipe_imports_what_it_may_and_nothing_else(key: str, tables: dict[str, object]) -> None:
    r = recipes.Recipe({**TABLES, **tables}, "theirs", code=frozenset({"torch.optim:Adam"}))
    with pytest.raises(md.RecipeError, match=rf"theirs: {key} = 'subprocess:getoutput' is code that this node's owner"):
        r.methods(), r.options(), r.federation()


def test_code_that_may_be_imported_is(tmp_path: Path) -> None:
    tables = {**TABLES, "pace": {"optimizer": "torch.optim:Adam"}}
    assert (
        len(recipes.Recipe(tables, code=frozenset({"torch.optim:Adam"})).with_settings(["run.rounds=1"]).methods()) == 1
    )
    recipes.Recipe(tables, code=frozenset({"torch.optim:Adam"})).federation()
    with pytest.raises(md.RecipeError, match=r"allowed: torch.optim:Adam\); to allow it: medley node --allow"):
        recipes.Recipe(
            {**tables, "pace": {"optimizer": "torch.optim:SGD"}}, code=frozenset({"torch.optim:Adam"})
        ).federation()


MINE = '''
from dataclasses import dataclass
import torch
from torch import nn
import medley as md
from medley.datasets import augment
from medley.contract.algorithm import Algorithm, Client, on_client
from medley.contract.messages import Model, Step


def loose(classes, **options):
    return Net(None, classes, **options)


class Net(nn.Module):
    def __init__(self, shape, classes, hidden: int = 8):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x))


def rows(test: float = 0.2):
    return md.datasets.digits(test=test)


def smooth(outputs, y):
    return nn.functional.cross_entropy(outputs, y, label_smoothing=0.1)


def top3(outputs, y):
    return float((outputs.topk(3).indices == y[:, None]).any(1).double().mean())


def shift(X, generator):
    return X + 0.01 * torch.randn(X.shape, generator=generator)


@dataclass
class Server:
    x: torch.Tensor


@dataclass(frozen=True)
class FedHalf(Algorithm[Server]):
    """FedAvg with a step on the server."""

    step: float = 0.5

    def start(self, x):
        return Server(x)

    def round(self, s, clients) -> None:
        s.x = s.x + self.step * clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        return Step(me.descend(request.x).step)
'''

RECIPE = """
[problem]
kind = "Network"
model = "MODULE:Net"
hidden = 12
loss = "MODULE:smooth"
transform = "MODULE:shift"

[data]
name = "MODULE:rows"
test = 0.3

[partition]
kind = "IID"
clients = 5

[pace]
lr = 0.01
optimizer = { kind = "torch.optim:AdamW", weight_decay = 0.1 }

[run]
rounds = 2
metrics = { top3 = ["MODULE:top3", "max"] }

[[methods]]
kind = "MODULE:FedHalf"
step = 0.7
"""


def written(folder: Path, module: str) -> Path:
    (folder / f"{module}.py").write_text(MINE)
    path = folder / "recipe.toml"
    path.write_text(RECIPE.replace("MODULE", module))
    return path


def medley(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(p for p in sys.path if p.endswith("src"))
    code = "from medley.cli import app; app()"
    env = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-c", code, *args], cwd=cwd, env=env, capture_output=True, text=True)


def test_a_recipe_names_ones_own_model_loss_data_metric_optimizer_and_method(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = recipes.load(written(tmp_path, "own_for_library"))
    with caplog.at_level("WARNING", "medley"):
        fed = recipe.federation()
    assert f"importing own_for_library from {tmp_path / 'own_for_library.py'}" in caplog.text
    (method,) = recipe.methods()
    assert (method.name, method.settings()) == ("FedHalf", {"step": 0.7})  # type: ignore[union-attr]
    r = fed.run(method, recipe.rounds, **recipe.options())
    assert r.model is not None
    assert r.model.body[1].out_features == 12  # type: ignore[index,union-attr]
    assert 0 < r.summary["accuracy"] <= r.summary["top3"] <= 1
    assert len(fed.data.y_test) == 539  # type: ignore[arg-type]
    assert "AdamW" in str(fed.pace.optimizer)


@pytest.mark.slow
def test_a_model_with_options_takes_any_key(tmp_path: Path) -> None:
    path = written(tmp_path, "own_with_options")
    path.write_text(path.read_text().replace("own_with_options:Net", "own_with_options:loose"))
    recipe = recipes.load(path)
    r = recipe.federation().run(md.FedAvg(), 1)
    assert r.model is not None
    assert r.model.body[1].out_features == 12  # type: ignore[index,union-attr]
    path.write_text(path.read_text().replace("hidden = 12", ""))
    assert recipes.load(path).federation().run(md.FedAvg(), 1).model.body[1].out_features == 8  # type: ignore[index,union-attr]


@pytest.mark.slow
def test_a_method_of_ones_own_keeps_the_recipes_settings_by_whatever_name(tmp_path: Path) -> None:
    recipe = recipes.load(written(tmp_path, "own_by_name"))
    method = recipe.methods()[-1]
    for name in ("own_by_name:FedHalf", "FedHalf", "fedhalf"):
        assert recipe.methods([name]) == [method], name
        assert recipe.only(name).methods() == [method], name
    assert method.settings() != type(method)().settings()


@pytest.mark.slow
def test_the_command_line_takes_ones_own_method_from_beside_the_recipe(tmp_path: Path) -> None:
    written(tmp_path, "mine")
    (tmp_path / "else").mkdir()
    done = medley("run", "../recipe.toml", "--save", "out", cwd=tmp_path / "else")
    assert done.returncode == 0, done.stderr
    assert f"importing mine from {tmp_path / 'mine.py'}" in done.stderr
    assert json.loads((tmp_path / "else" / "out" / "result.json").read_text())["method"] == "FedHalf"
    done = medley("compare", "recipe.toml", "--methods", "fedavg,mine:FedHalf", "--seeds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedHalf" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("own_for_errors:Net", "nowhere:Net"), "there is no module 'nowhere'"),
        (("own_for_errors:Net", "own_for_errors:Nett"), "Did you mean|has no 'Nett'"),
        (("own_for_errors:FedHalf", "own_for_errors:top3"), "is not an Algorithm"),
        (("own_for_errors:rows", "own_for_errors:top3"), "test"),
        (("hidden = 12", "hiden = 12"), "hiden"),
        (("torch.optim:AdamW", "torch.optim:AdamWW"), "AdamWW"),
    ],
)
def test_names_that_lead_nowhere_are_refused_with_their_key(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = written(tmp_path, "own_for_errors")
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    recipe = recipes.load(path)
    read = recipe.methods if "is not an Algorithm" in message else recipe.federation
    with pytest.raises(md.RecipeError, match=message):
        read()


def test_a_module_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    path = written(tmp_path, "own_that_fails")
    (tmp_path / "own_that_fails.py").write_text("import nothing_of_this_name")
    with pytest.raises(md.RecipeError, match="importing own_that_fails failed: ModuleNotFoundError"):
        recipes.load(path).federation()


def test_a_folder_of_the_modules_name_is_no_module_and_a_run_folder_wants_the_recipe_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "own_project"
    project.mkdir()
    recipe = written(project, "own_project")
    monkeypatch.chdir(tmp_path)  # from here a project's folder has its module's name
    saved = recipes.load(recipe).save("runs/recipe.toml")
    with pytest.raises(md.RecipeError, match=r"there is no module 'own_project'.*put its file next to the recipe"):
        recipes.load(saved).federation()
    (saved.parent / "run.json").touch()
    with pytest.raises(md.RecipeError, match=r"there is no module .*, medley run RECIPE.toml --resume DIR$"):
        recipes.load(saved).federation()
    recipes.load("own_project/recipe.toml").federation()


@pytest.mark.slow
def test_a_recipe_begins_at_a_file_of_weights_beside_it_and_holds_a_mean_against_its_target(tmp_path: Path) -> None:
    path = written(tmp_path, "own_for_init")
    recipe = recipes.load(path)
    first = recipe.federation().run(md.FedAvg(), 2, **recipe.options())
    first.save_weights(tmp_path / "w.safetensors")
    text = path.read_text().replace(
        "rounds = 2", 'rounds = 2\ninit = "w.safetensors"\ntarget = { top3 = 2.0 }\ntarget_over = 2'
    )
    path.write_text(text.replace("rounds = 2\n", "rounds = 2\nclients_every = 1\n"))
    recipe = recipes.load(path)
    assert recipe.options()["init"] == str(tmp_path / "w.safetensors")
    assert not {"target", "target_over"} & recipe.tuning().keys()
    second = recipe.federation().run(md.FedProx(), 2, **recipe.options())
    assert second.history[0]["accuracy"] == first.history[-1]["accuracy"]
    assert {row["round"] for row in second.clients} >= {1, 2}


@pytest.mark.parametrize(
    "named",
    [
        {"auroc": "medley.metrics:AUROC"},
        {"auroc": ["medley.metrics:AUROC", "max"]},
        {"auc": "AUROC"},
        {"auc": ["auroc", "max"]},
        {"auc": {"kind": "auroc", "bins": 500}},
        ["auroc"],
    ],
)
def test_a_metric_is_made_from_its_class_or_name(named: Any) -> None:
    (instance,) = recipes.Recipe({**TABLES, "run": {"metrics": named}}).options()["metrics"].values()
    metric = instance[0] if isinstance(instance, tuple) else instance
    assert metric(torch.tensor([0.1, 0.4, 0.2, 0.9]), torch.tensor([0, 0, 1, 1])) == 0.75


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["auroq"], r"^recipe: run\(metrics=...\) has no 'auroq'\. Did you mean 'auroc'\?"),
        ({"auc": {"kind": "auroc", "bin": 9}}, r"^recipe: run\.metrics\.auc has no 'bin'\. Did you mean 'bins'\?"),
        (
            {"auc": "medley.federation.figures:AUROC"},
            r"^recipe: run\.metrics\.auc = 'medley\.federation\.figures:AUROC' is now 'medley\.metrics:AUROC'$",
        ),
    ],
)
def test_a_metric_that_is_not_there_is_refused(named: Any, message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        recipes.Recipe({**TABLES, "run": {"metrics": named}}).options()


@pytest.mark.parametrize("loss", ["torch.nn:CrossEntropyLoss", "torch.nn:NLLLoss"])
def test_a_class_of_losses_is_made(loss: str) -> None:
    tables = {**TABLES, "problem": {"kind": "Network", "model": "mlp", "loss": loss}}
    problem: Any = recipes.Recipe(tables).federation().problem
    assert type(problem.loss).__name__ == loss.partition(":")[2]


def test_a_class_that_needs_arguments_is_refused() -> None:
    with pytest.raises(md.RecipeError, match=r"run\.metrics\.m = .*needs arguments.*make the object in your module"):
        recipes.Recipe({**TABLES, "run": {"metrics": {"m": "functools:partial"}}}).options()


@pytest.mark.parametrize(
    "call", [lambda r: r.methods(), lambda r: r.methods(["fedavg"]), lambda r: r.only("fedavg").federation()]
)
def test_a_study_where_methods_are_wanted_says_what_to_do_and_that_works(call: Callable[[Any], object]) -> None:
    pandas = pytest.importorskip("pandas")
    read = recipes.Recipe({"study": [{"kind": "describe", "columns": ["age"]}]})
    with pytest.raises(md.RecipeError, match=r"medley deploy run; here, .* by medley study recipe A\.csv B\.csv"):
        call(read)
    frames = {name: pandas.DataFrame({"age": [50.0 + k for k in range(30)]}) for name in "AB"}
    (result,) = (md.statistics.Study(frames).run(analysis) for analysis in read.analyses())
    assert "age" in str(result)
