"""medley node before it connects: what its owner learns by --check."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from medley.cli import app
from medley.cli.node import ALLOWED
from medley.contract.errors import BadData, RecipeError
from medley.datasets import Dataset
from medley.deploy.node.app import ClientSide
from medley.deploy.node.fleet import FleetNode
from medley.deploy.node.poll import data_function
from medley.deploy.node.rows import own_lots, report
from medley.flower import client_app
from medley.recipe import loads

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict

from support.bench import Bench

RECIPE = """
[problem]
kind = "Network"
model = "mlp"
hidden = [4]

[[methods]]
kind = "FedAvg"
"""

SHARE = """
[problem]
kind = "Softmax"

[data]
name = "digits"
train = 60
flatten = true

[partition]
kind = "IID"
clients = 3

[[methods]]
kind = "FedAvg"
"""

DATA = """
import torch
from medley.datasets import Dataset

def data(context):
    n = 20 + context.node_config["partition-id"]
    y = torch.arange(n) % 3
    return Dataset(torch.randn(n, 5), y, torch.randn(6, 5), y[:6], classes=3)
"""


def test_a_node_checks_its_recipe_and_data_without_a_server(tmp_path: Path) -> None:
    (recipe := tmp_path / "recipe.toml").write_text(RECIPE)
    (data := tmp_path / "mydata.py").write_text(DATA)
    words = ["node", "--check", f"--recipe={recipe}", f"--data={data}", "--client=1"]
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 0, got.output
    assert "client 1: rows of shape (5,), 3 classes" in got.output
    assert "21 training rows, 6 test rows, labels [0, 1, 2]" in got.output
    for change, said in (
        (("torch.randn(n, 5)", "1 / 0"), "data(context) fails: ZeroDivisionError: division by zero"),
        (("torch.randn(n, 5)", "torch.full((n, 5), torch.nan)"), "row 0"),
        (("return Dataset", "return 5 #"), "client 1's data function returns a int; it must return one Dataset"),
        (("return Dataset", "return [] #"), "returns a list; it must return one Dataset"),
    ):
        data.write_text(DATA.replace(*change))
        got = CliRunner().invoke(app, words)
        assert got.exit_code == 2
        assert said in " ".join(got.output.split())
        assert not [word for word in ("Traceback", "the log of its node") if word in got.output]


NAMED = """
import pandas, torch
from medley.datasets import Dataset

def data(context):
    X = pandas.DataFrame({"age": [60.0, 70.0, 65.0], "sex": [0.0, 1.0, 1.0]})
    return Dataset(X, ["home", "dead", "home"])
"""


def test_a_node_says_its_columns_and_labels_and_holds_them_against_the_recipes(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (recipe := tmp_path / "recipe.toml").write_text(RECIPE)
    (data := tmp_path / "mydata.py").write_text(NAMED)

    def check() -> tuple[int, str]:
        words = ["node", "--check", f"--recipe={recipe}", f"--data={data}", "--client=1"]
        got = CliRunner().invoke(app, words)
        return got.exit_code, " ".join(got.output.split())

    code, said = check()
    assert code == 2
    assert "name all classes in the server's and the nodes' recipe, [clients] labels = ['dead', 'home']" in said
    recipe.write_text(RECIPE + '[clients]\nfeatures = ["age", "sex"]\nlabels = ["dead", "home"]\n')
    code, said = check()
    assert code == 0, said
    assert "columns: age, sex labels: 'dead', 'home'" in said
    data.write_text(NAMED.replace("home", "went home"))
    code, said = check()
    assert code == 2
    assert said.startswith(
        "Error: client 1, row 0, column 'y': the label 'went home' is not among [clients] labels = ['dead', 'home']"
    )
    data.write_text(NAMED.replace("pandas.DataFrame(", "pandas.DataFrame(columns=['sex', 'age'], data="))
    assert check()[1].startswith(
        "Error: client 1 has as column 0 sex, the recipe's [clients] age: give all clients the"
    )
    data.write_text(NAMED.replace('"home"])', '"home"]).standardise()'))
    code, said = check()
    assert code == 2
    assert "client 1's rows are standardised by their own mean and deviation" in said
    shared = "Dataset([[60.0, 0.0], [70.0, 1.0]], [0.0, 1.0], features=['age', 'sex']).standardise()"
    data.write_text(NAMED.replace('"home"])', f'"home"]).standardise(like={shared})'))
    code, said = check()
    assert code == 0, said
    assert "scaled by the numbers " in said
    # A node may lack a class that the recipe names.
    recipe.write_text(RECIPE + '[clients]\nlabels = ["dead", "moved", "home"]\n')
    for own, there in (("home", "[[0, 1], [2, 2]]"), ("dead", "[[0, 3]]")):
        data.write_text(f"{NAMED.replace('home', own)}  # {there}")  # of another size, or Python would read its cache
        code, said = check()
        assert code == 0, said
        assert "labels: 'dead', 'moved', 'home'" in said
        side = ClientSide(recipe, data_function(data), None)
        context: Any = SimpleNamespace(run_config={}, node_config={"partition-id": 1})
        assert json.loads(json.dumps(report(side.lots(context), 1).tasks[0].support)) == json.loads(there)


def test_a_label_after_a_split_says_that_its_row_is_not_the_files() -> None:
    rows = Dataset([[float(k)] for k in range(8)], ["dead", "home", "home", "moved"] * 2).split(0.25)
    with pytest.raises(BadData, match=r"the label 'moved' is not among .*; \d training rows have it .rows are counted"):
        own_lots(loads(RECIPE + '[clients]\nlabels = ["dead", "home"]\n'), 0, rows)


PREPARED = """
import pandas
from medley.datasets import frame

def data(context):
    table = pandas.DataFrame({"sex": ["f", "m", "f", "m"], "died": [0, 1, 1, 0]})
    return frame(table, "died", prepared="FILE")
"""


def test_a_node_counts_the_categories_that_its_preparation_knows(tmp_path: Path) -> None:
    pytest.importorskip("formulaic")
    import pandas

    from medley.statistics import Study

    site = pandas.DataFrame({"sex": ["F", "M"] * 20, "ward": ["a", "b"] * 20})
    file = Study({"A": site, "B": site}).prepare(["sex: mode, encode"]).save(tmp_path / "prepared.json")
    (recipe := tmp_path / "recipe.toml").write_text(RECIPE)
    (data := tmp_path / "mydata.py").write_text(text := PREPARED.replace("FILE", str(file)))
    words = ["node", "--check", f"--recipe={recipe}", f"--data={data}", "--client=1"]
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 2, got.output
    assert "4 are not ('f' in 2, 'm' in 2); known are 'F', 'M'; recode 'f' as 'F'" in " ".join(got.output.split())
    data.write_text(text.replace('"f", "m", "f", "m"', '"F", "M ", "F", "?"'))
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 0, got.output
    assert "column sex: 3 rows with a known category, 1 with another, 0 missing" in " ".join(got.output.split())
    data.write_text(
        text.replace('"f", "m", "f", "m"', '"F", None, "F", "?"').replace(f'{file}")', f'{file}").split(0.5)')
    )
    got = CliRunner().invoke(app, words)
    assert "column sex: 2 rows with a known category, 1 with another, 1 missing" in " ".join(got.output.split())


CALL = "subprocess:getoutput"


def test_a_recipe_runs_no_code_that_the_nodes_owner_has_not_named(tmp_path: Path) -> None:
    """Neither a method, nor a model, a law, an optimizer, a loss, a reader or a metric imports anything."""
    (data := tmp_path / "mydata.py").write_text(DATA)
    (tmp_path / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom torch import nn\nNet = nn.Identity\n"
    )
    file = tmp_path / "recipe.toml"
    touch = f"kind = '{CALL}', cmd = 'touch {tmp_path / 'ran'}; echo 1'"
    for old, new in (
        ("[[methods]]", f"[pace]\nlr = {{ {touch} }}\n[[methods]]"),
        ("[[methods]]", "[pace]\noptimizer = 'mine:Net'\n[[methods]]"),
        ('"mlp"\nhidden = [4]', "'mine:Net'"),
        ("hidden = [4]", f"hidden = {{ {touch} }}\nloss = 'mine:Net'"),
        ("hidden = [4]", "transform = 'mine:Net'"),
    ):
        file.write_text(RECIPE.replace(old, new))
        got = CliRunner().invoke(app, ["node", "--check", f"--recipe={file}", f"--data={data}", "--client=1"])
        assert got.exit_code == 2, new
        assert "is code that this node's owner has not allowed (allowed: none)" in " ".join(got.output.split())
        assert not (tmp_path / "ran").exists()


def asked(recipe: Path, folder: Path, settings: str, **node: str) -> bytes:
    """The answer of the node of client 0 to the server's first message, with these settings."""
    client = client_app(recipe, code=node.pop("code", "").split())
    node = {"allow": ALLOWED, "memory": str(folder), **node}
    bench = Bench([client], {"clients": 3, "set": settings}, **node)
    (sent,) = bench.push_messages([Message(RecordDict(), 100, "query")])
    (reply,) = bench.pull_messages([sent])
    answer = reply.content.config_records["answer"]["bytes"]
    assert isinstance(answer, bytes)
    return answer


def test_the_servers_settings_run_no_code_at_a_node(tmp_path: Path) -> None:
    (file := tmp_path / "recipe.toml").write_text(SHARE)
    code = f"{{kind='{CALL}',cmd='touch {tmp_path / 'ran'}; echo 1'}}"
    assert asked(file, tmp_path, "pace.lr=0.3")[:1] == b"="
    for key in ("pace.lr", "pace.optimizer", "methods.0.x", "participation", "methods.0.fold"):
        answer = asked(file, tmp_path, f'"{key}={code}"', allow="*")
        assert (
            f"{CALL!r} is code that this node's owner has not allowed (allowed: none)" in json.loads(answer[1:])["text"]
        ), key
    answer = asked(file, tmp_path, f"methods.0.kind={CALL}", serve="FedAvg")
    assert f"does not serve {CALL}".encode() in answer
    assert b"does not let the server set methods.0.x" in asked(file, tmp_path, f'"methods.0.x={code}"', allow="run.*")
    assert not (tmp_path / "ran").exists()
    assert b"(allowed: none)" in asked(file, tmp_path, "pace.optimizer=torch.optim:Adam")
    assert asked(file, tmp_path, "pace.optimizer=torch.optim:Adam", code="torch.optim:Adam")[:1] == b"="


@pytest.mark.parametrize("superlink", [":::", "foo", "127.0.0.1", "http://foo:9092", "foo:0", "foo:70000", "a b:9092"])
def test_a_server_that_is_no_address_is_refused_at_once(superlink: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"--superlink '{superlink}' is not an address: give HOST:PORT"):
        FleetNode(superlink, tmp_path / "key", tmp_path / "ca")


@pytest.mark.parametrize("superlink", ["fl.example.org:9092", "127.0.0.1:1", "[::1]:443"])
def test_an_address_leads_to_the_key(superlink: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the private key .*key can.t be read: no such file"):
        FleetNode(superlink, tmp_path / "key", tmp_path / "ca")


def test_a_check_refuses_what_a_run_would(tmp_path: Path) -> None:
    """A closed recipe, a method that is not served, settings of a run, a keyring without the key, a wrong file."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    (tmp_path / "mydata.py").write_text(DATA)
    key = tmp_path / "node0"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    (tmp_path / "keyring").write_text(f"1 {public}\n")
    (tmp_path / "ca.crt").write_text("none")
    base = ["node", f"--recipe={recipe}", f"--memory={tmp_path / 'memory'}", f"--key={key}"]

    def check(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*base, f"--data={tmp_path / 'mydata.py'}", "--check", *more])
        return done.exit_code, " ".join(done.output.split())

    code, text = check()
    assert (code, "not checked: --superlink, --ca; a node needs them" in text) == (0, True), text
    for more, reason in (
        (["--serve=SCAFFOLD"], "FedAvg"),
        ([f"--keyring={tmp_path / 'keyring'}"], "has no key of client 0: add its line"),
        (["--superlink=server.example:39391", f"--ca={tmp_path / 'ca.crt'}"], "ca.crt holds no certificates"),
        (["--superlink=https://server.example", f"--ca={tmp_path / 'ca.crt'}"], "is not an address: give HOST:PORT"),
    ):
        code, text = check(*more)
        assert (code, reason in text) == (2, True), text
    assert not key.with_name("node0.ledgers").exists()
    recipe.write_text(RECIPE + '[run]\npatience = "no"\n')
    code, text = check()
    assert (code, "patience" in text) == (2, True), text
    recipe.write_text(RECIPE)
    assert CliRunner().invoke(app, [*base, "--close"]).exit_code == 0
    code, text = check()
    assert (code, "its owner closed this study" in text) == (2, True), text
