"""Every recipe under papers/: its data is read, its networks are built and trained, and its plan is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from medley import cli, recipe
from medley.experiments.compare import names
from support.fixture_data import write_all

PAPERS = sorted((Path(__file__).parents[2] / "papers").glob("*/*.toml"))

PARAMETERS = {
    "table1": 9_225_610, "table2": 9_225_610, "table3": 21_328_292, "table4": 11_194_482, "table5": 1_118_018,
    "table7": 21_328_292, "full_cifar10": 11_173_962, "full_cifar100": 11_220_132, "split_cifar10": 19_954,
    "split_mnist": 55_050, "fashion_softmax": 1_970, "fashion_async": 1_970, "fashion_cnn": 9_802,
}  # fmt: skip
"""d of each recipe's model."""

ROWS = 100
"""Training rows of each data set: one of each class."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL.Image")
    return write_all(tmp_path_factory.mktemp("data"), rows=ROWS, test=20)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=[f"{p.parent.name}/{p.stem}" for p in PAPERS])
def test_a_recipe_trains_two_clients_and_prints_its_plan(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDLEY_DATA", str(folder))
    r = recipe.load(path)
    # A client has six steps of eight rows: the size of the networks is the recipe's, and takes nearly all the time.
    small = ["partition.clients=2", "pace.batch=8", "pace.epochs=1", "participation=1.0"]
    small += [f"data.{k}={n}" for k, n in (("train", ROWS), ("test", 20)) if k in r.tables["data"]]
    small += ["replay.sample=8"] if "replay" in r.tables else []
    r = r.with_settings(small)
    methods = r.methods()
    r.federation().check(dict(zip(names(methods), methods, strict=True)), {n: r.options() for n in names(methods)})
    first = methods[0].name
    changes = [a for s in [*small, f"methods=[{{kind = '{first}'}}]"] for a in ("--set", s)]
    got = CliRunner().invoke(cli.app, ["plan", str(path), *changes])
    assert got.exit_code == 0, got.output
    assert f"{PARAMETERS[path.stem]:,} parameters; 2 clients a round" in got.stdout
    assert f"{r.rounds * (5 if path.parent.name == 'cflag' else 1)} rounds" in got.stdout
    assert first in got.stdout
