"""Every command: what it prints, what it writes, and its exit code."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
import typer.testing
from typer.testing import CliRunner

import medley as md
from medley import cli, recipe
from medley.cli.arguments import complete, complete_listed, complete_method
from medley.cli.cards import STATUSES, bibtex, card, status
from medley.cli.docs import complete_page
from medley.cli.information import listed
from medley.cli.train import PLACES
from medley.contract.errors import MedleyError
from medley.experiments import compare as comparison
from medley.storage.environment import environment

RECIPE = """
participation = 0.3
[problem]
kind = "Network"
model = "mlp"
hidden = [8]
[data]
name = "digits"
validation = 0.2
[partition]
kind = "Dirichlet"
clients = 8
alpha = 0.5
[pace]
lr = 0.1
[run]
rounds = 3
seeds = 2
[[methods]]
kind = "FedAvg"
[[methods]]
kind = "FedProx"
mu = 0.5
[tune]
rounds = 2
grid = { lr = [0.1, 1.0, 1e30], FedProx = { mu = [0.1, 1.0] } }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(RECIPE)
    return str(path)


# Typer makes its commands anew in every call, which takes longer than most of them.
typer.testing._get_command = functools.cache(typer.testing._get_command)


def medley(*args):
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def test_run_prints_saves_and_resumes_to_the_same_bits(file, tmp_path):
    result = medley("run", file, "--save", tmp_path / "a", "--seed", 4)
    assert result.exit_code == 0, result.output
    assert "FedAvg" in result.stdout
    assert "finished" in result.stdout
    longer = medley("run", "--resume", tmp_path / "a", "--rounds", 5)
    assert longer.exit_code == 0, longer.output
    resumed = md.Result.load(tmp_path / "a")
    r = recipe.loads(RECIPE)
    straight = r.federation().run(md.FedAvg(), rounds=5, seed=4)
    assert resumed.x.tolist() == straight.x.tolist()
    assert recipe.load(tmp_path / "a" / "recipe.toml").tables["run"] == {"rounds": 5, "seeds": 2, "seed": 4}


@pytest.mark.slow
def test_a_profile_says_where_the_time_went(file):
    result = medley("run", file, "--profile")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    lines = lines[1 : 1 + next(k for k, line in enumerate(lines) if line.startswith("all "))]
    shares = {line[:28].strip(): float(line[37:45].strip(" %")) for line in lines}
    assert shares.pop("all") == 100
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert min(shares["local steps"], shares["evaluation"]) > 0
    assert "GFLOP/s of a matrix product" in result.stdout


def test_run_takes_settings_and_a_method_that_the_recipe_lacks(file, tmp_path):
    args = ("--method", "fednova", "--set", "pace.lr=0.02", "--rounds", 1, "--save", tmp_path / "a")
    assert medley("run", file, *args).exit_code == 0
    result = md.Result.load(tmp_path / "a")
    assert (result.method, result.history[-1]["round"]) == ("FedNova", 1)
    assert "lr=0.02" in result.settings["pace"]


def test_a_diverged_run_is_saved_and_exits_with_1(file, tmp_path):
    result = medley("run", file, "--set", "pace.lr=1e30", "--save", tmp_path / "a")
    assert result.exit_code == 1
    assert "try a smaller lr" in result.stdout
    assert md.Result.load(tmp_path / "a").status.outcome == "diverged"


def test_a_comparison_exits_with_1_where_no_run_ended_well(file):
    args = ("compare", file, "--seeds", 1, "--jobs", 1, "--rounds", 1, "--set")
    assert medley(*args, "pace.lr=1e30").exit_code == 1
    assert medley(*args, "methods.fedprox.lr=1e30").exit_code == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "{file}", "--set", "pace.lrr=2"], "my.toml: pace has no 'lrr'. Did you mean 'lr'?"),
        (
            ["run", "nowhere.toml"],
            "cannot read the recipe nowhere.toml: no such file or directory. Its folder has my.toml. medley new NAME",
        ),
        (["run", "."], "cannot read the recipe .: is a directory"),
        (["compare", "{file}", "--methods", "scafold"], "my.toml: --methods: this version has no 'scafold'. Did you"),
        (["docs", "howtoo"], "medley docs has no 'howtoo'. Did you mean 'howto'?\n"),
        (["run"], "give a recipe, or --resume"),
        (
            ["run", "--resume", "nowhere"],
            "medley run --resume nowhere: there is no such folder; give the folder of an earlier",
        ),
        (
            ["run", "{file}", "--set", "run.device=cuda:77"],
            "; leave device= out, or take 'cpu'",
        ),
        (
            ["tune", "{file}", "--set", "tune={{}}"],
            "has no settings to try; give some, [tune] grid = { lr = [0.3, 1, 3] }",
        ),
        (["run", "{file}", "--on", "procesess"], "Did you mean 'processes'?"),
        (["run", "{file}", "--on", "inprocess", "--workers", "2"], "inprocess has no workers; use --on processes"),
        (["run", "{file}", "--resume", "nowhere"], "there is no checkpoint in nowhere"),
        (["run", "{file}", "--method", "fedavgg"], "Did you mean 'FedAvg'?"),
        (["compare", "{file}", "--seeds", "x"], "--seeds x: write a number"),
        (["compare", "{file}", "--seeds", ""], "--seeds : write a number"),
        (["compare", "{file}", "--base", "Fed"], "--base has no 'Fed'"),
        (["compare", "{file}", "--save", "a.doc"], "save a board as .html"),
        (["tune", "{file}", "--metric", "accurcy", "--methods", "fedavg"], "Did you mean 'accuracy'?"),
        (["tune", "{file}", "--set", "data.validation=0"], "pass data.validation = 0.1"),
        (["report", "nowhere"], "there is no run in nowhere"),
        (["list", "model"], "Did you mean 'models'?"),
        (["cite", "fedavgg"], "Did you mean 'FedAvg'?"),
        (["run", "{file}", "--set", "methods.²=1"], "methods is not a table"),
        (["run", "{file}", "--set", "run.device=meta"], "torch finds no such device here"),
        (["run", "{file}", "--save", "/dev/null/x"], "cannot make the folder /dev/null/x"),
        (["compare", "{file}", "--rounds", "0", "--save", "/dev/null/x.html"], "cannot make the folder /dev/null"),
        (["compare", "{file}", "--save", "/dev/null/x"], "cannot make the folder /dev/null/x"),
        (
            ["tune", "{file}", "--methods", "fedavg", "--save", "/dev/null/x.toml"],
            "cannot make the folder /dev/null",
        ),
    ],
)
def test_errors_are_one_message_and_exit_with_2(file, args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = medley(*(a.format(file=file) for a in args))
    assert result.exit_code == 2
    assert says in result.stderr
    assert "\nError: " in f"\n{result.stderr}"
    assert "[Errno" not in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("args", [["--debug", "run", "nowhere.toml"], ["run", "nowhere.toml", "--debug"]])
def test_debug_lets_the_error_through(args):
    result = medley(*args)
    assert isinstance(result.exception, md.RecipeError)


def test_ctrl_c_exits_with_130(file, tmp_path, monkeypatch):
    def stop(self, round):
        if round == 3:
            raise KeyboardInterrupt
        return cohort(self, round)

    cohort = md.federation.simulation.Simulation.cohort
    monkeypatch.setattr(md.federation.simulation.Simulation, "cohort", stop)
    result = medley("run", file, "--save", tmp_path / "a")
    assert result.exit_code == 130
    assert "stopped by Ctrl-C after round 2 of 3" in result.stdout
    assert md.Result.load(tmp_path / "a").history[-1]["round"] == 2
    result = medley("compare", file, "--jobs", 1)
    assert result.exit_code == 130
    assert "0 of 4 runs are done" in result.stderr
    assert medley("tune", file, "--jobs", 1, "--rounds", 3).exit_code == 130
    monkeypatch.undo()
    assert medley("run", "--resume", tmp_path / "a").exit_code == 0
    assert md.Result.load(tmp_path / "a").history[-1]["round"] == 3


@pytest.mark.slow
def test_compare_prints_the_table_and_writes_what_it_is_asked_for(file, tmp_path):
    page = tmp_path / "report.html"
    figures = tmp_path / "figures.json"
    result = medley("compare", file, "--methods", "FEDPROX,fedavg,fednova", "--base", "fednova", "--save", page)
    assert result.exit_code == 0, result.output
    assert [w for w in result.stdout.split() if w.startswith("Fed")][:4] == ["FedNova", "FedProx", "FedAvg", "FedNova"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    result = medley("compare", file, "--seeds", "7,9", "--rounds", 1, "--jobs", 1, "--save", figures)
    assert result.exit_code == 0, result.output
    runs = json.loads(figures.read_text())["runs"]
    assert [(r["method"], r["seed"]) for r in runs] == [("FedAvg", 7), ("FedAvg", 9), ("FedProx", 7), ("FedProx", 9)]
    assert runs[2]["settings"]["method.mu"] == 0.5


@pytest.mark.slow
def test_compare_into_a_folder_can_be_reported(file, tmp_path):
    board = tmp_path / "runs"
    assert medley("compare", file, "--jobs", 1, "--save", board).exit_code == 0
    assert (board / "report.html").exists()
    assert recipe.load(board / "recipe.toml").tables == recipe.loads(RECIPE).tables
    result = medley("report", board / "FedAvg", board / "FedProx", "-o", tmp_path / "p.html", "--base", "FedProx")
    assert result.exit_code == 0, result.output
    assert "against FedProx" in result.stdout
    assert "FedAvg" in (tmp_path / "p.html").read_text()
    assert medley("report", board, "-o", tmp_path / "p.txt").exit_code == 2


@pytest.mark.slow
def test_tune_prints_the_grid_and_writes_a_recipe_that_runs(file, tmp_path):
    result = medley("tune", file, "--jobs", 1, "--save", tmp_path / "tuned.toml")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("chosen") == 2
    assert "diverged" in result.stdout
    methods = recipe.load(tmp_path / "tuned.toml").methods()
    assert [m.name for m in methods] == ["FedAvg", "FedProx"]
    assert all(getattr(m, "lr", 1.0) in (0.1, 1.0) for m in methods)
    assert medley("run", tmp_path / "tuned.toml", "--rounds", 1).exit_code == 0


def test_list_has_every_method_with_its_sentence():
    result = medley("list")
    assert result.exit_code == 0
    for name in (*recipe.constructors(), "Dirichlet", "digits", "mlp", "Softmax", "LogUniform", "phones"):
        assert f" {name} " in result.stdout
    only = medley("list", "methods").stdout
    assert "clients descend on their own data, and the server averages their models." in only
    assert "digits" not in only


def test_list_says_where_data_sets_are_expected(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path / "sets"))
    place = tmp_path / "sets" / "femnist" / "data" / "train"
    place.mkdir(parents=True)
    (place / "all_data_0.json").write_text("{}")
    output = medley("list", "datasets").stdout
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert rows["femnist"][-2:] == ["femnist/data/train/*.json", "yes"]
    assert rows["cifar10"][-2:] == ["cifar-10-batches-bin/data_batch_1.bin", "no"]
    assert rows["digits"][-1] not in ("yes", "no")
    assert f"{tmp_path / 'sets'} or {tmp_path / '.cache' / 'medley'}" in output


def test_cite_has_the_reference_and_bibtex():
    result = medley("cite", "FEDAVG", "scaffold")
    assert result.exit_code == 0
    assert "Communication-Efficient Learning of Deep Networks" in result.stdout
    assert "@inproceedings{mcmahan2017communication," in result.stdout
    assert "booktitle = {International Conference on Artificial Intelligence and Statistics}" in result.stdout
    assert "author = {McMahan and Moore and Ramage and Hampson and {Agüera y Arcas}}" in result.stdout
    assert "year = {2020}" in result.stdout


@pytest.mark.parametrize(
    ("after", "kind", "fields"),
    [
        ("ICML 2020, Algorithm 1.", "inproceedings", {"booktitle": "International Conference on Machine Learning"}),
        ("JMLR 25, 2024.", "article", {"journal": "Journal of Machine Learning Research", "volume": "25"}),
        ("Mathematical Programming 45 (1989).", "article", {"journal": "Mathematical Programming", "volume": "45"}),
        ("2021, arXiv:2106.10874, Algorithm 1.", "misc", {"eprint": "2106.10874", "archivePrefix": "arXiv"}),
        ("arXiv 2511.19066, 2025.", "misc", {"eprint": "2511.19066", "archivePrefix": "arXiv"}),
        ("1964.", "misc", {}),
    ],
)
def test_an_entry_has_the_type_of_its_venue(after, kind, fields):
    text = bibtex(f'Liu & Nocedal, "On R&D", {after} It follows "Another", arXiv:1111.22222, 2001.')
    entry = dict(re.findall(r"^  (\w+) = \{(.*)\},$", text, re.MULTILINE))
    assert text.startswith(f"@{kind}{{liu")
    assert {k: v for k, v in entry.items() if k not in ("author", "title", "year")} == fields
    assert entry["title"] == r"{On R\&D}"


@pytest.mark.parametrize("name", sorted(recipe.methods()))
def test_every_card_says_what_becomes_of_missing_replies(name):
    assert card(recipe.methods()[name], "Missing replies").endswith(".")


@pytest.mark.parametrize("name", sorted(recipe.constructors()))
def test_every_method_can_be_cited_and_says_whether_it_is_as_published(name):
    state = status(recipe.constructors()[name])
    assert state in STATUSES, f"{name}: its card, or its constructor's docstring, needs a line **Status**"
    assert ("." in name) <= (state == "this library's own")  # a form with a constructor of its own
    result = medley("cite", name)
    assert result.exit_code == 0
    assert bool(re.search(r"^@(misc|article|inproceedings)\{", result.stdout, re.MULTILINE)) == (name != "FedNorton")
    assert f"{name} is {state}: " in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", sorted(recipe.constructors()))
def test_an_entrys_author_title_and_year_are_one_papers_of_the_card(name):
    reference = card(recipe.constructors()[name], "Reference")
    if name.partition(".")[0] == "FedNorton" or not reference:
        return
    entry = dict(re.findall(r"^  (\w+) = \{(.*)\},$", bibtex(reference), re.MULTILINE))
    people = re.sub(r"[{}]", "", entry["author"]).split(" and ")
    assert all(p == "others" or p[0].isupper() for p in people)
    names = people[0] if len(people) == 1 else f"{', '.join(people[:-1])} & {people[-1]}"
    names = names.replace(" & others", " et al.")
    title = entry["title"][1:-1]
    year = int(entry["year"])
    kinds = {"booktitle": "inproceedings", "journal": "article", "eprint": "misc"}
    assert [k for key, k in kinds.items() if key in entry] in ([bibtex(reference)[1:].split("{")[0]], [])
    assert f'{names}, "{title}"' in reference
    after = reference.partition(f'"{title}"')[2]
    assert year == int(re.search(r"(?<![.:\d])(?:18|19|20)\d\d\b", after)[0])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GradientDescent", "cauchy1847methode"),
        ("FineTune", "keshri2025convergence"),
        ("LocalOnly", "li2021ditto"),
        ("Newton", "wang2018giant"),
        ("AGD", "polyak1964some"),
        ("SHED", "dalfabbro2024shed"),
    ],
)
def test_the_paper_is_the_first_with_authors(name, key):
    assert f"{{{key},\n" in bibtex(card(recipe.constructors()[name], "Reference"))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("C-FLAG", "CFLAG"),
        ("c-flag", "CFLAG"),
        ("fedavg", "FedAvg"),
        ("FedAvg-FT", "FedAvgFT"),
        ("AFedPD", "AFedPD"),
        ("A-FedPD", "AFedPD"),
        ("A-GEM", "AGEM"),
        ("Fed-A-GEM", "FedAGEM"),
        ("L-BFGS", "LBFGS"),
        ("CA²FL", "CA2FL"),
        ("C-FLAG.joint", "CFLAG.joint"),
        ("Gradient Descent", "GradientDescent"),
        ("iCaRL", "ICaRL"),
    ],
)
def test_a_method_is_found_by_the_papers_spelling(written, name):
    result = medley("cite", written)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: ")


def test_citing_a_method_tells_its_published_form_from_this_librarys():
    for name, state in (("SHED", "published"), ("CFLAG", "published with corrections")):
        output = " ".join(medley("cite", name).stdout.split())
        form = next(n for n in recipe.constructors() if n.startswith(f"{name}."))
        assert f"{name} is {state}: " in output
        assert f"{form} is this library's own: no paper has it" in output


def test_the_list_has_the_status_of_every_method():
    text = medley("list", "methods").stdout
    count = Counter(status(kind) for kind in recipe.constructors().values())
    assert count["published"] > 40
    for state in ("published with corrections", "this library's own"):
        assert text.count(f" {state}  ") == count[state]  # a column, not a word of a card


def test_references_that_are_not_written_that_way_give_no_entry():
    assert bibtex("someone's web page, 2020") == ""
    entry = bibtex('Šmídl et al., "On Things" (draft), 2021, section 3')
    assert entry.splitlines()[:3] == [
        "@misc{smidl2021things,",
        "  author = {Šmídl and others},",
        "  title = {{On Things}},",
    ]
    assert "howpublished" not in entry
    entry = bibtex('Schwarz & Luo, "Progress & Compress", ICML 2018')
    assert "title = {{Progress \\& Compress}}" in entry
    assert "author = {Schwarz and Luo}" in entry


@pytest.mark.slow
def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "medley", "cite", "fedavgg"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Did you mean 'FedAvg'?" in done.stderr
    done = subprocess.run([sys.executable, "-m", "medley", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Usage: medley [OPTIONS] COMMAND" in done.stdout


def test_a_name_is_listed_with_its_settings():
    output = medley("list", "fedprox").stdout
    assert "FedProx: FedAvg whose clients are pulled back" in output
    (mu,) = (line for line in output.splitlines() if line.startswith(" mu "))
    assert "a finite number, at least 0" in mu
    assert "0.01" in mu
    assert " poisoned " in medley("list", "sign flip").stdout
    assert {"TopK", "Quantise"} <= {*medley("list", "codecs").stdout.split()}


def test_methods_complete_by_name_before_anything_is_imported():
    every = recipe.constructors()
    assert sorted(complete("")) == sorted(every)
    assert complete("fedavg,fedpro") == ["fedavg,fedproto", "fedavg,fedprox"]
    assert complete("CFLAG.") == ["CFLAG.joint"]
    assert complete_method("FedPro") == ["FedProto", "FedProx"]
    assert complete_method("FEDPRO") == ["FEDPROto", "FEDPROx"]
    assert {"howto", "tutorials/data"} <= {*complete_page("")}
    assert complete_page("HOWT") == ["HOWTo"]
    assert medley("docs", "HOWTo").output == medley("docs", "howto").output


def test_all_that_is_listed_completes_by_name():
    kinds = listed()
    names = {*complete_listed("")}
    assert [name for entries in kinds.values() for name in entries if name not in names] == []
    assert kinds.keys() <= names
    assert complete_listed("diri") == ["dirichlet"]
    assert medley("list", "dirichlet").output == medley("list", "Dirichlet").output


def test_the_help_of_run_names_every_transport():
    assert sorted(recipe.transport_kinds()) == PLACES.split(", ")


def test_version_and_help():
    assert medley("--version").stdout.startswith("medley 0.")
    for command in ("run", "compare", "tune", "report", "list", "cite"):
        result = medley(command, "--help")
        assert result.exit_code == 0
        assert "--debug" in result.stdout


def test_a_page_that_cannot_be_saved_is_refused_before_anything_runs(file, monkeypatch):
    monkeypatch.setattr(comparison, "compare", lambda *a, **k: pytest.fail("it ran"))
    result = medley("compare", file, "--save", "page.htm")
    assert result.exit_code == 2
    assert "page.htm: save a board as .html (report), .csv (table)" in result.stderr


@pytest.mark.parametrize(
    ("command", "place", "says"),
    [
        ("compare", "taken/report.html", "cannot make the folder"),
        ("compare", "folder.html", "medley compare --save: {} cannot be written: it is a folder"),
        ("tune", "folder.html", "medley tune --save: {} cannot be written: it is a folder"),
        ("tune", "taken/tuned.toml", "cannot make the folder"),
        ("compare", "taken/runs", "cannot make the folder"),
        ("run", "taken/run", "cannot make the folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(
    file, tmp_path, monkeypatch, command, place, says
):
    (tmp_path / "taken").write_text("a file in the place of a folder")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr("medley.server.loop.Loop._run", lambda *a: pytest.fail("it ran"))
    result = medley(command, file, "--save", tmp_path / place)
    assert result.exit_code == 2, result.output
    assert says.format(tmp_path / place) in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize(("command", "place"), [("compare", "page.html"), ("run", "run")])
def test_the_table_is_printed_where_saving_fails_at_the_end(file, tmp_path, monkeypatch, command, place):
    def full(self, path, *_):
        raise MedleyError(f"cannot write {path}: No space left on device")

    saves = {"compare": "experiments.board.Board.save", "run": "storage.result.Result.write"}
    monkeypatch.setattr(f"medley.{saves[command]}", full)
    result = medley(command, file, "--save", tmp_path / place)
    assert result.exit_code == 2
    assert "FedAvg" in result.stdout
    assert "No space left" in result.stderr


def test_deploy_init_wants_to_know_how_many_nodes_there_will_be(file, tmp_path):
    bare = tmp_path / "bare.toml"
    bare.write_text('[problem]\nkind = "Logistic"\n[[methods]]\nkind = "SHED"\n')
    result = medley("deploy", "init", tmp_path / "a", "--recipe", bare)
    assert result.exit_code == 2
    assert "the number of nodes, from --clients or partition.clients" in result.output
    for folder, words in (tmp_path / "b", bare), (tmp_path / "c", file):
        assert medley("deploy", "init", folder, "--recipe", words, "--clients", 2).exit_code == 0
        assert "clients = 2 " in (folder / "app" / "pyproject.toml").read_text()
        assert 'nodes="2"' in (folder / "trial.sh").read_text()
    assert recipe.load(tmp_path / "c" / "app" / "recipe.toml").tables["partition"]["clients"] == 2
    again = medley("deploy", "init", tmp_path / "c", "--recipe", file)
    assert again.exit_code == 2
    assert "is not empty" in again.output


@pytest.mark.slow
def test_a_refused_comparison_changes_nothing_and_folders_of_one_kind_stay_so(file, tmp_path):
    board = tmp_path / "board"
    single = tmp_path / "single"
    args = ("compare", file, "--jobs", 1, "--seeds", 1, "--rounds", 1, "--methods", "fedavg", "--save")
    assert medley(*args, board).exit_code == 0

    def content(folder):
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name[0] != "."}

    before = content(board)
    result = medley(*args, board, "--set", "federation.classes=40", "--set", "problem.classes=40")
    assert result.exit_code == 2
    assert "holds another run" in result.stderr
    result = medley("run", file, "--rounds", 1, "--save", board)
    assert result.exit_code == 2
    assert "holds a comparison" in result.stderr
    result = medley("run", "--rounds", 2, "--resume", board)
    assert result.exit_code == 2
    assert f"{board} holds a comparison: medley compare RECIPE.toml --save {board} goes on with it" in result.stderr
    assert content(board) == before
    assert medley("run", file, "--rounds", 1, "--save", single).exit_code == 0
    before = content(single)
    result = medley(*args, single)
    assert result.exit_code == 2
    assert "holds a single run" in result.stderr
    assert content(single) == before
    result = medley("report", single, board, "-o", tmp_path / "p.html")
    assert result.exit_code == 2
    assert f"{single} and {board / 'FedAvg' / 'seed-0'} both hold 'FedAvg' with seed 0: report" in result.stderr


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_cut_on_a_terminal(columns, file, tmp_path):
    def on_terminal(*args):
        ours, theirs = os.openpty()
        env = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
        program = subprocess.Popen([sys.executable, "-m", "medley", *map(str, args)], stdout=theirs, stderr=-3, env=env)
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # the terminal has gone with the program
            while part := os.read(ours, 1 << 16):
                printed += part
        os.close(ours)
        assert program.wait() == 0
        return printed.decode()

    short = ("--rounds", 1)
    run_output = on_terminal("run", file, *short, "--save", tmp_path / "run")
    shown = on_terminal("show", tmp_path / "run")
    for name in ("torch", "platform"):
        assert json.loads((tmp_path / "run" / "run.json").read_text())["starts"][0][name] in shown
    outputs = on_terminal("plan", file, *short), on_terminal("compare", file, *short, "--seeds", 2, "--jobs", 1)
    for text in (run_output, shown, *outputs, on_terminal("status", tmp_path / "run"), on_terminal("report", "--help")):
        assert "…" not in text, text


def test_a_run_says_what_its_data_are_taken_for(file, tmp_path):
    (tmp_path / "ward.csv").write_text("age,ill,site\n" + "3,no,a\n5,yes,b\n" * 20)
    ward = "data={name='csv',path='%s',target='ill',keys=['site']}" % (tmp_path / "ward.csv")
    of = ("--set", ward, "--set", "partition={kind='ByKey',key='site'}", "--rounds", 1)
    result = medley("run", file, "--set", "problem={kind='Softmax'}", *of)
    line = "Dataset(ward: 40 rows [1], 2 classes (no, yes), site as keys) with age; no test rows, so figures are for"
    assert line in result.stderr, result.output
    assert "no test rows" not in medley("run", file, "--rounds", 0).stderr


def test_show_prints_runs_settings_identity_and_versions(file, tmp_path):
    for command in ("run", "compare"):
        more = ("--jobs", 1, "--seeds", 2) if command == "compare" else ()
        assert medley(command, file, "--rounds", 1, *more, "--save", tmp_path / command).exit_code == 0
    single, board = (medley("show", tmp_path / command) for command in ("run", "compare"))
    assert (single.exit_code, board.exit_code) == (0, 0), (single.output, board.output)
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    for part in ("data", "partition", "problem", "method", "metrics"):
        assert saved["settings"][f"identity.{part}"] in single.stdout
    assert saved["starts"][0]["torch"] in single.stdout
    assert saved["starts"][0]["numpy"] in board.stdout
    assert board.stdout.count("seed-1") == 4  # a row of the table and its own settings, for two methods
    assert board.stdout.count("finished") == 4
    assert saved["settings"]["identity.data"] in board.stdout
    assert medley("show", tmp_path).exit_code == 0
    (tmp_path / "none").mkdir()
    result = medley("show", tmp_path / "none")
    assert result.exit_code == 2
    assert "there is no run in" in result.stderr


@pytest.mark.slow
def test_a_comparison_of_other_versions_is_told_of(file, tmp_path, caplog):
    args = (
        "compare",
        file,
        "--jobs",
        1,
        "--seeds",
        1,
        "--rounds",
        1,
        "--methods",
        "fedavg",
        "--save",
        tmp_path / "a",
    )
    assert medley(*args).exit_code == 0
    (path,) = (tmp_path / "a").glob("*/seed-0/result.json")
    raw = json.loads(path.read_text()) | {"environment": {**environment(), "torch": "1.0"}}
    path.write_text(json.dumps({k: v for k, v in raw.items() if k != "checksum"}))
    assert medley(*args).exit_code == 0
    assert "was written with torch 1.0 and resumes with" in caplog.text


@pytest.mark.parametrize(("terminal", "longest", "most"), [(True, 1, 500), (False, 70, 35)])
def test_plan_repeats_what_it_does_each_second_and_after_ten_on_a_terminal_alone(terminal, longest, most, monkeypatch):
    plan = importlib.import_module("medley.cli.plan")
    now, words = [0.0], list[float]()
    monkeypatch.setattr(plan, "on_terminal", lambda stream: terminal)
    monkeypatch.setattr(plan, "say", lambda text: words.append(now[0]))
    monkeypatch.setattr(plan.time, "monotonic", lambda: now[0])
    progress = plan.Progress()

    def wait(seconds):
        now[0] += seconds
        if 10 <= now[0] < 10 + seconds:
            progress.next("another part")  # amid a pause
        return now[0] > 200

    progress._over.wait = wait
    progress._speak()
    gaps = [b - a for a, b in itertools.pairwise([0.0, *words])]
    assert max(gaps[:10]) < 1
    assert 0.7 * longest < max(gaps) <= longest
    assert len(words) < most


def test_plan_prints_the_cost_of_every_method(file):
    result = medley("plan", file, "--seeds", 3)
    assert result.exit_code == 0, result.output
    assert "610 parameters; 2 clients a round with " in result.stdout
    assert "3 rounds and 4 evaluations of " in result.stdout
    assert "3 seeds, 2 methods" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("Fed")]
    assert [row[0] for row in rows] == ["FedAvg", "FedProx"]
    assert all(row[1] == "fused" for row in rows)
    assert medley("plan", file, "--set", "problem.model=mlpp").exit_code == 2
    on_nodes = ("--set", "reply_policy.clock=wall", "--set", "reply_policy.deadline=9", "--methods", "FedAvg")
    assert medley("plan", file, *on_nodes).exit_code == 0  # as nodes run it, by the virtual clock


def test_a_folder_that_is_resumed_runs_none_of_its_files(file, tmp_path, monkeypatch):
    """Neither a run's folder nor one that only looks like it; also from within, by --resume . ."""
    medley("run", file, "--rounds", 1, "--save", foreign := tmp_path / "foreign")
    (foreign / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nNet = None\n")
    recipe_file = foreign / "recipe.toml"
    recipe_file.write_text(recipe_file.read_text().replace("[pace]\n", "[pace]\noptimizer = 'evil:Net'\n"))
    (bare := tmp_path / "bare").mkdir()
    for name in ("evil.py", "recipe.toml"):
        (bare / name).write_text((foreign / name).read_text())
    for folder in (foreign, bare):
        result = medley("run", "--resume", folder)
        assert result.exit_code == 2
        assert "there is no module 'evil'" in " ".join(result.output.split())
    monkeypatch.chdir(foreign)
    assert medley("run", "--resume", ".").exit_code == 2
    assert not (tmp_path / "ran").exists()


def test_names_in_a_folder_move_no_cursor(file, tmp_path):
    medley("run", file, "--rounds", 1, "--save", tmp_path / "a")
    (tmp_path / "a" / "result.json").unlink()
    described = json.loads((tmp_path / "a" / "run.json").read_text())
    described["settings"]["method"] = "Fed\x1b]0;pwned\x07\x9b2J\u202eAvg"
    (tmp_path / "a" / "run.json").write_text(json.dumps(described))
    result = medley("show", tmp_path / "a")
    assert "Fed\ufffd]0;pwned\ufffd2J\ufffd" in result.stdout
    assert not set(result.stdout) & set("\x1b\x07\x9b\u202e")


@pytest.mark.slow
def test_the_seed_of_a_private_run_is_shown_nowhere_and_its_folder_is_its_owners(tmp_path, caplog):
    pytest.importorskip("dp_accounting")
    q = md.problems.synthetic_quadratics(clients=3, d=2)
    fed = md.Federation(q.problem, clients=q.clients, weights="uniform")
    folder = tmp_path / "a"
    seed = 7654321
    method = md.Private(md.FedAvg(), noise=1.0)
    with caplog.at_level("INFO", "medley"):
        r = md.run(method, fed, 2, seed=seed, checkpoint=folder, progress=False)
    texts = [caplog.text, repr(r), *(str(vars(record)) for record in caplog.records)]
    for words in (["show", folder], ["status", folder], ["status", folder, "--prometheus"]):
        result = medley(*words)
        assert result.exit_code == 0, result.output
        texts.append(result.output)
    assert not [text for text in texts if str(seed) in text]
    assert "seed hidden" in repr(r)
    assert folder.stat().st_mode & 0o077 == 0
    assert r.seed == seed
    plain = md.run(md.FedAvg(), fed, 2, seed=seed, checkpoint=tmp_path / "b", progress=False)
    assert f"seed {seed}" in repr(plain)
