"""Membership by chosen models: a server that picks models near a candidate row asks a node for their figures.

With exact figures three losses tell members from others; with the default rules they tell almost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.contract import pytree
from medley.deploy.node.app import ClientSide
from medley.deploy.node.coarse import Coarse
from support.pairs import quick

ROWS, FEATURES, CANDIDATES = 400, 20, 40

RECIPE = """
[problem]
kind = "Logistic"
mu = 0.01
intercept = true
[run]
rounds = 2000
dtype = "float64"
[[methods]]
kind = "FedAvg"
"""


def auc(members: list[float], others: list[float]) -> float:
    """The area under the ROC curve of a score, whichever side the members are on."""
    a, b = np.array(members)[:, None], np.array(others)[None]
    area = float((a > b).mean() + (a == b).mean() / 2)
    return max(area, 1 - area)


class Site:
    """A node with rows of its own, and candidates of which half are among them."""

    def __init__(self, folder: Path, rules: str) -> None:
        g = np.random.default_rng(3)
        X = g.normal(size=(ROWS + CANDIDATES, FEATURES))
        y = g.integers(0, 2, len(X))
        rows = slice(0, ROWS)
        self.members, self.others = X[:CANDIDATES], X[ROWS:]
        (path := folder / "recipe.toml").write_text(RECIPE + rules, encoding="utf-8")
        data = md.datasets.Dataset(
            torch.tensor(X[rows]), torch.tensor(y[rows]), torch.tensor(X[rows]), torch.tensor(y[rows]), classes=2
        )
        self.side = ClientSide(path, lambda _: data, md.FedAvg())
        (folder / "memory").mkdir()
        (folder / "memory" / "rows.key").write_bytes(bytes(range(32)))  # the node's secret, drawn once for all time
        node = {"partition-id": 0, "memory": str(folder / "memory")}
        self.context: Any = SimpleNamespace(run_id=1, run_config={"clients": 2}, node_config=node)

    def ask(self, x: np.ndarray, sample: tuple[int, ...] = (), **also: Any) -> dict[str, Any]:
        asked = {
            "x": torch.tensor(x),
            "buffers": None,
            "round": 1,
            "tests": [0],
            "loss": True,
            "grad": False,
            "run": "",
        }
        asked |= {"known": {"classes": 2, "labels": [[0, 1]]}, **also}
        own = json.dumps({"sample": [*sample], "acked": []}).encode()
        said: dict[str, Any] = json.loads(
            self.side.evaluate({"common": pytree.to_bytes(asked), "own": own}, self.context)
        )
        return said


def models(row: np.ndarray, scale: float) -> list[np.ndarray]:
    """Three models whose boundary passes before, at and behind a row."""
    w = row / (row @ row)
    return [scale * np.append(w, -1.0 - shift) for shift in (-1e-3, 0.0, 1e-3)]


ATTACKS: dict[str, Callable[[Site, np.ndarray], float]] = {
    "three losses": lambda s, row: float(np.dot([1, -2, 1], [s.ask(x)["loss"] for x in models(row, 1e4)])),
    "two accuracies": lambda s, row: np.ptp([s.ask(x)["tests"][0]["accuracy"] for x in models(row, 1e4)]),
    "three losses at a larger scale": lambda s, row: float(
        np.dot([1, -2, 1], [s.ask(x)["loss"] for x in models(row, 1e7)])
    ),
    "a loss that overflows": lambda s, row: s.ask(models(row, 1e4)[1] * 1e300)["loss"],
    "three test losses": lambda s, row: float(
        np.dot([1, -2, 1], [s.ask(x)["tests"][0]["test_loss"] for x in models(row, 1e4)])
    ),
    "errors of test losses": lambda s, row: float(
        np.dot([1, -2, 1], [s.ask(x)["tests"][0]["test_loss_error"] for x in models(row, 1e4)])
    ),
    "a sample of the rows": lambda s, row: float(
        np.dot([1, -2, 1], [s.ask(x, (0, ROWS, ROWS - 1))["loss"] for x in models(row, 1e4)])
    ),
    "the spread of a sample": lambda s, row: float(
        np.dot([1, -2, 1], [s.ask(x, (0, ROWS, ROWS - 1))["sample"][1] for x in models(row, 1e4)])
    ),
}


@pytest.mark.parametrize("attack", quick(1, ATTACKS))
def test_chosen_models_tell_members_from_others_only_if_figures_are_exact(attack: str, tmp_path: Path) -> None:
    found = {}
    for rules in ("[rules]\nexact = true\n", ""):
        (folder := tmp_path / str(len(found))).mkdir()
        site = Site(folder, rules)

        def score(row: np.ndarray, site: Site = site) -> float:
            try:
                return float(ATTACKS[attack](site, row))
            except md.MedleyError:
                return 1e300

        few = 10 if rules else CANDIDATES
        found[rules or "default"] = auc([score(r) for r in site.members[:few]], [score(r) for r in site.others[:few]])
    exact, coarse = found.values()
    print(f"{attack}: AUC {exact:.3f} with exact figures, {coarse:.3f} by default")
    assert coarse < 0.75  # by chance it is 0.5, with a deviation of 0.065
    assert exact > 0.95 or "overflows" in attack


def test_gradients_do_not_leave_by_default_and_models_are_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, "")
    with pytest.raises(
        md.WireError, match=r"client 0 refuses: its owner's \[rules\] keep the gradient .* exact = true"
    ):
        site.ask(np.zeros(FEATURES + 1), grad=True)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("rounds = 2000", "rounds = 1"), encoding="utf-8")
    site.side = ClientSide(recipe, site.side.data, md.FedAvg())
    for k in range(30):
        site.ask(np.full(FEATURES + 1, k / 10))
    with pytest.raises(
        md.WireError, match="it has sent the loss of its rows for 30 models, as many as its recipe allows"
    ):
        site.ask(np.full(FEATURES + 1, 4.0))
    assert site.ask(np.full(FEATURES + 1, 2.9))  # the last model, again


def test_a_rounded_figure_says_by_how_much_it_may_be_off(tmp_path: Path) -> None:
    sides = {}
    for name, rules in (("exact", "[rules]\nexact = true\n"), ("rounded", "")):
        (folder := tmp_path / name).mkdir()
        sides[name] = Site(folder, rules)
    g = np.random.default_rng(1)
    within, off = [], []
    for _ in range(20):
        x = g.normal(size=FEATURES + 1)
        exact, rounded = (sides[name].ask(x)["tests"][0] for name in ("exact", "rounded"))
        assert "accuracy_within" not in exact
        within.append(abs(rounded["accuracy"] - exact["accuracy"]) / rounded["accuracy_within"])
        off.append(abs(rounded["test_loss"] - exact["test_loss"]) / rounded["test_loss_error"])
    assert 0 < max(within) <= 1
    assert 0 < max(off) < 2  # the error of the loss includes the step


def test_a_model_has_one_figure_and_its_mean_over_secrets_is_right() -> None:
    """Else a server would ask for one model often, and take the mean."""
    g = np.random.default_rng(0)
    values = torch.tensor(g.exponential(size=500))
    at = lambda k: Coarse(k.to_bytes(4, "big"), [b"x"], 5)
    assert len({at(1).mean("loss", values) for _ in range(5)}) == 1
    found = np.array([at(k).mean("loss", values) for k in range(2000)])
    step = np.diff(np.unique(found)).min()
    assert len(np.unique(found)) == 2
    assert 16 * float(values.max()) / 500 / 2 <= step * 2
    exact = float(at(1).clipped(values).mean())
    assert abs(found.mean() - exact) < 4 * found.std() / np.sqrt(2000)
    assert exact == pytest.approx(float(values.mean()), rel=0.02)
    few = torch.tensor([1.0, 2.0, float("nan"), float("inf")])
    assert np.isfinite(at(0).mean("loss", torch.cat([values, few])))
