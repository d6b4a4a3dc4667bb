"""A study over Flower's own objects, without a network, is the study in one process, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import medley as md
from medley import recipe
from medley.cli import app as cli
from medley.flower import client_app, server_app, study_client_app, study_server_app

pytest.importorskip("flwr")
pytest.importorskip("formulaic")

from flwr.app import Context, RecordDict

from medley.statistics import Rules, Study, Weights
from medley.storage import events
from support.bench import Bench
from support.hospitals import NAMES, patients, sites

RECIPE = """
[[study]]
kind = "describe"
columns = ["age", "ward", "C(died)"]
by = "sex"

[[study]]
kind = "glm"
formula = "died ~ age + C(sex) + C(ward)"
family = "binomial"

[rules]
rows = 5
"""


def frames(count: int = 2) -> dict[str, Any]:
    return dict([*sites(patients()).items()][:count])


def deployed(
    folder: Path, text: str = RECIPE, count: int = 2, theirs: str | None = None, names: Any = NAMES, silent: str = "",
    swapped: bool = False, **run: Any,
) -> list[Any]:  # fmt: skip
    """The results of a study on nodes; the second does not answer the message of the kind ``silent``."""
    path, own = folder / "recipe.toml", folder / "own.toml"
    folder.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    own.write_text(theirs or text, encoding="utf-8")
    rows, found = [*frames(count).values()], list[Any]()
    rows = rows[::-1] if swapped else rows
    data = lambda context: rows[context.node_config["partition-id"]]
    config = {"clients": count, "save": str(folder / "study"), "timeout": 5, **run}
    apps = [study_client_app(own, data) for _ in range(count)]
    grid = Bench(apps, config, memory=str(folder / "memory"), name="Bern")
    named = {100 + k: name for k, name in enumerate(names)}
    push = grid.push_messages

    def by_name(messages: Any) -> list[str]:
        out = []
        for m in messages:
            grid.node["name"] = named[m.metadata.dst_node_id]
            grid.silent = [101] if m.metadata.message_type == silent else []
            out += push([m])
        return out

    grid.push_messages = by_name  # type: ignore[method-assign]
    study_server_app(path, found.extend)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return found


def test_two_nodes_are_two_frames_here_to_the_bit(tmp_path: Path) -> None:
    table, fit = deployed(tmp_path)
    study = Study(frames())
    mine = study.describe(["age", "ward", "C(died)"], by="sex")
    assert table.cells == mine.cells
    here = study.glm("died ~ age + C(sex) + C(ward)", "binomial")
    assert [*fit.params] == [*here.params]
    assert [*fit.bse] == [*here.bse]
    assert (fit.llf, fit.exchanges, fit.bytes_up) == (here.llf, here.exchanges, here.bytes_up)
    assert fit.rows_by_site.equals(here.rows_by_site)
    assert (tmp_path / "study" / "2.txt").read_text(encoding="utf-8") == f"{here.summary()}\n\n{here.pooling}\n"
    said = [e["message"] for e in events.read(tmp_path / "study") if e["event"] == "log"]
    assert said[0] == "2 clients are connected; 2 analyses begin"
    assert (tmp_path / "study" / "1.tex").read_text(encoding="utf-8") == mine.latex() + "\n"
    assert (tmp_path / "study" / "2.tex").read_text(encoding="utf-8") == here.latex(exp=True) + "\n"


def test_curves_on_nodes_have_their_log_rank_test(tmp_path: Path) -> None:
    text = '[[study]]\nkind = "kaplan_meier"\ntime = "months"\nevent = "event"\nunit = 0.1\nuntil = 20.0\nby = "sex"\n'
    deployed(tmp_path, text)
    here = Study(frames()).kaplan_meier("months", "event", 0.1, 20.0, by="sex").logrank()
    said = (tmp_path / "study" / "1.txt").read_text(encoding="utf-8")
    assert f"\nlog-rank of these times: {here.statistic:.2f}, df = 1, p = {here.pvalue:.3f}\n" in said
    assert not (tmp_path / "study" / "1.tex").exists()


def test_cox_with_one_baseline_is_on_nodes_as_here_to_the_bit(tmp_path: Path) -> None:
    text = '[[study]]\nkind = "cox"\nformula = "months ~ age"\nevent = "event"\ncuts = [6.0, 20.0]\n'
    (fit,) = deployed(tmp_path, text)
    here = Study(frames()).cox("months ~ age", "event", cuts=[6.0, 20.0])
    assert [*fit.params, *fit.bse] == [*here.params, *here.bse]
    assert fit.baseline_hazard.equals(here.baseline_hazard)


def test_own_fits_of_nodes_are_those_here_to_the_bit(tmp_path: Path) -> None:
    (found,) = deployed(tmp_path, '[[study]]\nkind = "meta"\nformula = "months ~ age + C(sex)"\nevent = "event"\n')
    here = Study(frames()).meta("months ~ age + C(sex)", event="event")
    assert found.by_site.equals(here.by_site)
    assert found.pools == here.pools
    assert (tmp_path / "study" / "1.txt").read_text(encoding="utf-8") == f"{here.summary()}\n\n{here.pooling}\n"


PREPARE = """
[[study]]
kind = "prepare"
columns = ["age: standardise", "stay: median, standardise", "ward: mode, encode"]
"""

MODEL = """
[problem]
kind = "Network"
model = "mlp"
hidden = []
[pace]
lr = 0.05
[run]
rounds = 2
[clients]
prepared = "prepared.json"
[[methods]]
kind = "FedAvg"
"""


def test_rows_are_prepared_on_nodes_as_here_and_the_model_keeps_it(tmp_path: Path) -> None:
    (found,) = deployed(tmp_path, PREPARE)
    here = Study(frames()).prepare(("age: standardise", "stay: median, standardise", "ward: mode, encode"))
    assert found.scaling.same(here.scaling)
    (tmp_path / "prepared.json").write_bytes((tmp_path / "study" / "prepared.json").read_bytes())
    (tmp_path / "model.toml").write_text(MODEL, encoding="utf-8")
    own, prepared = [*frames().values()], tmp_path / "prepared.json"

    def trained(*preparations: Any) -> md.Result:
        data = lambda context: md.datasets.frame(
            own[(k := context.node_config["partition-id"])], "died", prepared=preparations[k]
        )
        config = {"clients": 2, "save": str(tmp_path / "run")}
        grid = Bench([client_app(tmp_path / "model.toml", data)] * 2, config, memory=str(tmp_path / "m"))
        server_app(tmp_path / "model.toml")(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
        return md.Result.load(tmp_path / "run")

    other = Study({"Bern": own[0]}).prepare(("age: standardise", "stay: median, standardise", "ward: mode, encode"))
    with pytest.raises(md.MedleyError, match=r"client 1 has rows scaled by the numbers .*, client 0 scaled by"):
        trained(prepared, other)
    with pytest.raises(md.MedleyError, match=r"has rows scaled by the numbers .*, the recipe's \[clients\] scaled"):
        trained(other, other)
    result = trained(prepared, prepared)
    assert result.features == ("age", "stay", "ward=a", "ward=b", "ward=c")
    assert (result.outputs(own[0]) == result.outputs(here.frame(own[0]).to_numpy().astype("float32"))).all()


def test_secure_sums_on_nodes(tmp_path: Path) -> None:
    fit = deployed(tmp_path, RECIPE + SECURE)[1]
    here = Study(frames()).glm("died ~ age + C(sex) + C(ward)", "binomial")
    assert [*fit.params] == pytest.approx([*here.params], rel=1e-6, abs=1e-7)


ORDINAL = """
[[study]]
kind = "ordinal"
formula = "ward ~ age + C(sex)"
levels = ["c", "a", "b"]
"""


@pytest.mark.slow
def test_a_mixed_model_is_on_nodes_as_here(tmp_path: Path) -> None:
    text = '[[study]]\nkind = "mixed"\nformula = "age ~ C(sex) + C(ward) + (1 | site)"\n[rules]\nexact = true\n'
    (there,) = deployed(tmp_path, text, count=3, names=("Bern", "Genf", "Chur"))
    here = Study(frames(3), rules=Rules(exact=True)).mixed("age ~ C(sex) + C(ward) + (1 | site)")
    assert [*there.params, *there.bse] == [*here.params, *here.bse]
    assert (there.llf, there.scale) == (here.llf, here.scale)


@pytest.mark.slow
def test_an_ordinal_logit_is_on_nodes_as_here(tmp_path: Path) -> None:
    here = Study(frames()).ordinal("ward ~ age + C(sex)", levels=["c", "a", "b"])
    (fit,) = deployed(tmp_path, ORDINAL)
    assert [*fit.params, *fit.bse, fit.llf] == [*here.params, *here.bse, here.llf]
    assert "C(sex)" in (tmp_path / "study" / "1.tex").read_text(encoding="utf-8")
    (masked,) = deployed(tmp_path / "masked", ORDINAL + SECURE)
    assert [*masked.params] == pytest.approx([*here.params], rel=1e-3)  # grids are of other combinations of columns


WEIGHTED = """
[[study]]
kind = "glm"
formula = "pressure ~ event"
weights = { kind = "weights", formula = "event ~ age + C(ward)" }

[[study]]
kind = "balance"
weights = { kind = "weights", formula = "event ~ age + C(ward)", estimand = "ATT" }
"""


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_weights_by_treatment_are_on_nodes_as_here(tmp_path: Path, secure: bool) -> None:
    fit, table = deployed(tmp_path, WEIGHTED + SECURE * secure)
    study = Study(frames())
    here = study.glm("pressure ~ event", weights=Weights("event ~ age + C(ward)"))
    balance = study.balance(Weights("event ~ age + C(ward)", "ATT"))
    if secure:
        assert [*fit.params, *fit.bse] == pytest.approx([*here.params, *here.bse], rel=1e-6)
        assert table.smd.to_numpy() == pytest.approx(balance.smd.to_numpy(), abs=2e-3)  # sums of other units' grids
    else:
        assert [*fit.params, *fit.bse] == [*here.params, *here.bse]
        assert table.frame().equals(balance.frame())
    assert "rows, as good as" in (tmp_path / "study" / "2.txt").read_text(encoding="utf-8")
    assert "SMD" in (tmp_path / "study" / "2.tex").read_text(encoding="utf-8")


def test_a_site_keeps_what_has_left_over_studies(tmp_path: Path) -> None:
    deployed(tmp_path)
    few = RECIPE.replace('family = "binomial"', 'family = "binomial"\nwhere = "age != 47"')
    with pytest.raises(md.MedleyError, match="Bern withholds: where='age != 47', together with what has left before"):
        deployed(tmp_path, few)
    with pytest.raises(md.MedleyError, match=r"most of its rows have their ledgers in .*client\d, .* the number"):
        deployed(tmp_path, few, swapped=True)  # the sites under each other's number


def test_a_site_has_rules_of_its_own_and_analyses_are_agreed(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"Bern withholds: its rows.* fewer than 200 rows"):
        deployed(tmp_path, theirs=RECIPE.replace("rows = 5", "rows = 200"))
    with pytest.raises(md.RecipeError, match=r"the recipe of digest .* give both sides the same recipe.toml"):
        deployed(tmp_path, theirs=RECIPE.replace("C(ward)", "C(sex)"))


SECURE = "\n[secure]\nbits = 64\nbound = 1.1e12\n"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["secure_keys", "secure_reply"])
def test_a_site_that_is_not_in_a_secure_sum_is_named(tmp_path: Path, step: str) -> None:
    with pytest.raises(md.TooFewReplies, match=r"^Basel did not answer \(agree\)"):
        deployed(tmp_path, RECIPE + SECURE, count=4, silent=f"query.{step}", timeout=1)


@pytest.mark.parametrize("kind", ["query.count", "query.score"])
def test_a_site_that_does_not_answer_is_named(tmp_path: Path, kind: str) -> None:
    """And the same study once more, with the node there, has the whole result."""
    with pytest.raises(md.TooFewReplies, match=rf"^Basel did not answer \({kind[6:]}\)"):
        deployed(tmp_path, silent=kind, timeout=1)
    last = events.read(tmp_path / "study")[-1]
    assert (last["outcome"], last["final"]) == ("failed", False)
    again = deployed(tmp_path, save="", resume=str(tmp_path / "study"))[1]
    assert again.nobs == 300
    assert (tmp_path / "study" / "2.txt").read_text(encoding="utf-8") == f"{again.summary()}\n\n{again.pooling}\n"


def test_a_server_does_not_change_the_analyses(tmp_path: Path) -> None:
    """Not by its run config: formulas and conditions are those of the site's own copy."""
    change: dict[str, Any] = {"set": """'study.1.formula="died ~ age"'"""}
    with pytest.raises(
        md.MedleyError,
        match=r"client '(Basel|Bern)' answers only the \[\[study\]\] of its own recipe, but set= changes it",
    ):
        deployed(tmp_path, **change)


def test_a_recipe_of_a_study() -> None:
    r = recipe.loads(RECIPE)
    assert r.rules() == Rules()
    assert [type(a).__name__ for a in r.analyses()] == ["Describe", "GLM"]
    assert recipe.loads(r.dumps()).analyses() == r.analyses()
    with pytest.raises(md.RecipeError, match=r"study.1 .*has no 'formul'"):
        recipe.loads(RECIPE.replace("formula", "formul")).analyses()
    with pytest.raises(md.RecipeError, match=r"there is no \[\[study\]\]"):
        recipe.loads("[rules]\nrows = 3").analyses()
    assert json.dumps(r.tables)


@pytest.mark.parametrize(
    ("names", "said"),
    [(("Bern", "Bern"), "clients 0 and 1 are both called 'Bern'"), (("Bern", "a\x1b[2J"), "client 1")],
)
def test_sites_have_names_of_their_own_that_can_be_printed(tmp_path: Path, names: Any, said: str) -> None:
    with pytest.raises(md.MedleyError, match=said):
        deployed(tmp_path, names=names)


def test_a_study_is_deployed_as_a_training_is(tmp_path: Path) -> None:
    source = tmp_path / "study.toml"
    source.write_text(RECIPE, encoding="utf-8")
    ask = lambda *words: CliRunner().invoke(cli, [*map(str, words)])
    told = ask("deploy", "init", tmp_path / "app", "--recipe", source, "--clients", 2)
    assert told.exit_code == 0, told.output
    assert "study_server_app" in (tmp_path / "app/app/server_app.py").read_text(encoding="utf-8")
    assert "--data node/mydata.py" in (tmp_path / "app/trial.sh").read_text(encoding="utf-8")
    frames()["Bern"].to_csv(tmp_path / "app/node/patients.csv", index=False)
    check = ("node", "--check", "--client", 1, "--recipe", tmp_path / "app/node/recipe.toml")
    told = ask(*check, "--data", tmp_path / "app/node/mydata.py")
    assert told.exit_code == 0, told.output
    assert f"client 1: {len(frames()['Bern'])} rows" in told.output
    assert "asks for Describe, GLM; Rules(rows=5" in told.output
    source = tmp_path / "app/node/recipe.toml"
    source.write_text(RECIPE.replace('"age", ', '"aeg", '), encoding="utf-8")
    told = ask(*check, "--data", tmp_path / "app/node/mydata.py")
    assert (told.exit_code, "client 1 has no column 'aeg'. Did you mean 'age'?" in told.output) == (2, True)
    told = ask(*check)
    assert told.exit_code != 0
    assert "medley node: give --data (a study uses your rows" in told.output


def test_a_studys_folder_says_how_it_went(tmp_path: Path) -> None:
    deployed(tmp_path)
    found = events.read(tmp_path / "study")
    said = [e["event"] for e in found if e["event"] not in ("visits", "awaited")]
    assert said == ["app", "log", "log", "log", "end"]
    assert found[-1]["outcome"] == "finished"
    with pytest.raises(md.RecipeError):
        deployed(tmp_path, set="study.0.by=ward")
    last = events.read(tmp_path / "study")[-1]
    assert (last["event"], last["outcome"], last["final"]) == ("end", "failed", True)
    assert "answers only the [[study]] of its own recipe" in last["message"]
