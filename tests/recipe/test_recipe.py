"""Recipes: what is written is what is built, and what is wrong is named with its path."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley import recipe
from medley.codecs import Cast, Delta, Quantise, TopK, TwoWay
from medley.contract.errors import RecipeError
from medley.distributions import Integers, Uniform
from medley.experiments.compare import names
from medley.participation import Fraction
from medley.partitions import Dirichlet
from medley.recipe import schema
from medley.rows.sparse import Sparse
from medley.scenarios import Pace, cosine
from support.pairs import quick

TEXT = """
[problem]
kind = "network"
model = "mlp"
hidden = [16, 8]
start = "module"

[data]
name = "digits"
validation = 0.2

[partition]
kind = "dirichlet"
clients = 10
alpha = 0.3

[pace]
lr = { kind = "Uniform", low = 0.01, high = 0.1 }
epochs = { kind = "Integers", low = 1, high = 3 }
batch = "full"
schedule = { kind = "cosine", rounds = 4 }

[participation]
fraction = 0.2

[devices]
preset = "phones"

[federation]
weights = "uniform"

[run]
rounds = 4
seed = 9
seeds = [1, 5]
eval_every = 2
target = { accuracy = 0.99 }

[[methods]]
kind = "FedProx"
mu = 0.5
lr = 2.0

[[methods]]
kind = "fedavg"
server_lr = 1.2

[tune]
rounds = 3
metric = "test_loss"
grid = { lr = [1, 3], FedProx = { mu = [0.1, 1] }, FedAvg = { server_lr = [1, 1.5] } }
"""


def test_what_is_written_is_what_is_built():
    r = recipe.loads(TEXT)
    fed = r.federation()
    assert fed.partition == Dirichlet(clients=10, alpha=0.3)
    assert fed.pace == Pace(lr=Uniform(0.01, 0.1), epochs=Integers(1, 3), batch=None, schedule=cosine(4))
    assert fed.participation == Fraction(0.2)
    assert fed.devices == md.devices.phones()
    assert (fed.weights, fed.validation) == ("uniform", 0.2)
    module = fed.problem.module
    assert [tuple(p.shape) for p in module.parameters() if p.ndim == 2] == [(16, 64), (8, 16), (10, 8)]
    assert fed.problem.start == "module"
    assert r.methods() == [md.Tuned(md.FedProx(mu=0.5), lr=2.0), md.FedAvg(server_lr=1.2)]
    assert (r.rounds, r.seed, r.seeds) == (4, 9, [1, 5])
    assert r.options() == {"eval_every": 2, "target": {"accuracy": 0.99}}
    assert r.tuning() == {"rounds": 3, "seeds": 1, "metric": "test_loss", "eval_every": 2}
    assert r.grid(r.methods()[0]) == {"lr": [1, 3], "mu": [0.1, 1]}
    assert r.grid(r.methods()[1]) == {"lr": [1, 3], "server_lr": [1, 1.5]}
    assert r.methods(["FEDAVG", "fednova"]) == [md.FedAvg(server_lr=1.2), md.FedNova()]
    assert r.only("fednova").methods() == [md.FedNova()]
    assert r.only().methods() == [md.Tuned(md.FedProx(mu=0.5), lr=2.0)]


def test_a_recipe_runs_as_the_same_thing_in_python():
    r = recipe.loads(TEXT).with_settings(["problem.start=draw", "run.target={}"])
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, (16, 8))),
        data=md.datasets.digits(),
        partition=Dirichlet(10, 0.3),
        pace=Pace(Uniform(0.01, 0.1), Integers(1, 3), batch=None, schedule=cosine(4)),
        participation=0.2,
        weights="uniform",
        validation=0.2,
    )
    ours = r.federation().run(r.methods()[0], r.rounds, seed=r.seed, **r.options())
    assert torch.equal(ours.x, fed.run(md.Tuned(md.FedProx(mu=0.5), lr=2.0), 4, seed=9, eval_every=2).x)


def test_images_are_pooled_flattened_and_cut(tmp_path, monkeypatch):
    X = torch.arange(40 * 16, dtype=torch.float32).reshape(40, 1, 4, 4)
    y = torch.arange(40) % 4
    data = md.datasets.Dataset(X, y, X[:20], y[:20], classes=4, name="squares")

    def squares() -> md.datasets.Dataset:
        return data

    monkeypatch.setattr(schema, "readers", lambda *_: {"squares": squares})
    text = """
    [problem]
    kind = "Softmax"
    [data]
    name = "squares"
    train = 24
    test = 8
    pool = 2
    flatten = true
    [partition]
    kind = "IID"
    clients = 4
    """
    fed = recipe.loads(text).federation()
    want = data.take(24, 8).pool(2).flatten()
    assert torch.equal(fed.data.X, want.X)
    assert fed.data.X.shape == (24, 4)
    assert len(fed.data.X_test) == 8
    cnn = recipe.loads(text).with_settings(
        ["data.flatten=false", "data.pool=1", "problem={kind='Network', model='cnn', channels=[3], kernel=3, hidden=5}"]
    )
    assert cnn.federation().problem.module[0].weight.shape == (3, 1, 3, 3)


def visits(folder: Path) -> recipe.Recipe:
    """The recipe of a CSV file of 40 rows, which has no test set."""
    lines = [f"{i % 7},{i % 5},{i % 2},{'abcd'[i % 4]}" for i in range(40)]
    (folder / "visits.csv").write_text("\n".join(["age,dose,cured,clinic", *lines]))
    return recipe.loads(f"""
    [problem]
    kind = "Softmax"
    [data]
    name = "csv"
    path = "{(folder / "visits.csv").as_posix()}"
    target = "cured"
    keys = ["clinic"]
    [partition]
    kind = "ByKey"
    key = "clinic"
    """)


def test_a_test_set_is_split_off_before_all_other_steps(tmp_path: Path) -> None:
    r = visits(tmp_path)
    data = r.federation().data
    assert data.X_test is None
    some = r.with_settings(["data.split=0.25", "data.test=8", "data.standardise=true"]).federation().data
    want = data.split(0.25).take(None, 8).standardise()
    assert torch.equal(some.X, want.X)
    assert torch.equal(some.X_test, want.X_test)
    each = r.with_settings(["data.split={ test = 0.2, by = 'clinic', seed = 3 }"]).federation().data
    assert torch.equal(each.X_test, data.split(0.2, by="clinic", seed=3).X_test)


def test_files_are_looked_for_beside_the_recipe_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project := tmp_path / "project").mkdir()
    file = visits(project).with_settings(["data.path=visits.csv", "run.rounds=1"]).save(project / "recipe.toml")
    monkeypatch.chdir(tmp_path)
    data = recipe.load(file).federation().data
    md.partitions.save([np.arange(30), np.arange(30, 40)], project / "parts.npz")
    parts = recipe.load("project/recipe.toml").with_settings(["partition={ kind = 'Saved', path = 'parts.npz' }"])
    assert parts.federation().draw(0).sizes.tolist() == [30, 10]
    shorter = Path("visits.csv")
    shorter.write_text("age,dose,cured,clinic\n1,2,0,a\n2,3,1,b\n")
    assert len(recipe.load("project/recipe.toml").federation().data.X) == len(data.X) == 40
    (project / "visits.csv").unlink()
    assert len(recipe.load("project/recipe.toml").federation().data.X) == 2


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("test=0.2", "data.test = 0.2 should be a number of test rows to keep; split = 0.2 draws a test set"),
        ("split='a'", 'data.split = "a" should be a finite number, or a table'),
        ("split={ share = 0.2 }", "data.split has no 'share'"),
    ],
)
def test_a_wrong_share_of_test_rows_is_refused(tmp_path: Path, setting: str, says: str) -> None:
    with pytest.raises(md.RecipeError, match=re.escape(says)):
        visits(tmp_path).with_settings([f"data.{setting}"]).federation()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("pace.lr.hi=1", "pace.lr has no 'hi'. Did you mean 'high'?"),
        ("pace.epoch=1", "pace has no 'epoch'. Did you mean 'epochs'?"),
        (
            "pace.lr=true",
            "pace.lr = true should be a finite number, a list, each a finite number, or a table",
        ),
        ("pace.epochs=1.5", "epochs must be a whole number"),
        ("pace.lr.kind='Unifrm'", "pace.lr.kind: this version has no 'Unifrm'. Did you mean 'Uniform'?"),
        ("data.nam=3", "data has no 'nam'. Did you mean 'name'?"),
        ("data.name='digit'", "data.name: this version has no 'digit'. Did you mean 'digits'?"),
        ("data.split=0.2", "data.split: digits has a test set already; leave split out"),
        ("data.validation='a'", 'data.validation = "a" should be a finite number'),
        ("problem.hiden=[3]", "problem has no 'hiden'. Did you mean 'hidden'?"),
        ("problem.hidden=3", "problem.hidden = 3 should be a list"),
        ("problem.hidden=[3.5]", "problem.hidden = [3.5] should be a list, each a whole number"),
        ("problem.model='bert'", "problem.model: this version has no 'bert'. It knows: char_lstm, cnn"),
        ("problem.start='fresh'", "problem.start = \"fresh\" should be 'draw' or 'module'"),
        ("problem.kind='Softmax'", "problem has no 'model'"),
        ("partition.alpha='a'", 'partition.alpha = "a" should be a finite number'),
        ("partition.kind=3", "partition.kind = 3 should be one of ByKey, Dirichlet"),
        (
            "run.precision=bf16",
            "run.precision = 'bf16': there is no mixed precision. On the CPU a step of ResNet-18 in bfloat16 took",
        ),
        ("run.eval_evry=3", "run has no 'eval_evry'. Did you mean 'eval_every'?"),
        ("run.seeds='a'", 'run.seeds = "a" should be a whole number, or a list'),
        ("run.rounds=2.5", "run.rounds = 2.5 should be a whole number"),
        ("run.dtype='float3'", "run.dtype has no 'float3'. Did you mean 'float32'?"),
        ("run.target=3", "run.target = 3 should be a table"),
        ("methods.0.nu=3", "methods.0 has no 'nu'. Did you mean 'mu'?"),
        ("methods.fedavg.server_lr='x'", 'methods.1.server_lr = "x" should be a finite number'),
        ("methods.0.lr='x'", 'methods.0.lr = "x" should be a finite number'),
        ("methods.0.kind='FedProxx'", "methods.0.kind: this version has no 'FedProxx'. Did you mean 'FedProx'?"),
        ("methods.0.kind='fednortonn'", "this version has no 'fednortonn'. Did you mean 'FedNorton'?"),
        ("participation.fraction=2", "participation: Fraction(fraction=2): fraction must be in (0, 1]"),
        ("participation.p=0.5", "participation has no 'p'"),
        ("devices.preset='phone'", "devices.preset: this version has no 'phone'. Did you mean 'phones'?"),
        ("federation.weights='sizes'", "federation.weights = \"sizes\" should be 'size' or 'uniform'"),
        ("tune.grid.FedProx.nu=[1]", "tune.grid.FedProx has no 'nu'. Did you mean 'mu'?"),
        ("tune.grid.FedAvgg.lr=[1]", "tune.grid has no 'FedAvgg'. Did you mean 'FedAvg'?"),
        ("tune.metrics='loss'", "tune has no 'metrics'. Did you mean 'metric'?"),
        ("tables.x=1", "my.toml has no 'tables'"),
        ("problem=3", "problem = 3 should be a table, [problem]"),
        ("methods=3", "methods = 3 should be tables, each under [[methods]]"),
        ("methods.7.lr=3", "methods has no table '7'"),
        ("pace.batch.size=3", "pace.batch is not a table"),
        ("membership.join.3=2", "membership has no 'join'. Did you mean 'joins'?"),
        ("membership.joins.3=1", "membership: Membership(joins={3: 1}): give a client's id, from 0, and a round"),
        ("membership.joins=2", "membership.joins = 2 should be a table"),
        ("nonsense", "write key=value"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(setting, says):
    r = recipe.loads(TEXT, "my.toml")
    with pytest.raises(md.RecipeError) as e:
        _build(r, setting)
    assert says in str(e.value)
    assert str(e.value).startswith(("my.toml", "--set"))


def _build(r, setting):
    r = r.with_settings([setting])
    for m in r.methods():
        r.grid(m)
    r.options(), r.tuning(), r.rounds, r.seeds, r.federation()


def test_missing_tables_and_files_are_named(tmp_path):
    with pytest.raises(md.RecipeError, match=r"there is no \[partition\]"):
        recipe.loads('[problem]\nkind="Softmax"\n[data]\nname="digits"').federation()
    with pytest.raises(md.RecipeError, match="partition lacks 'alpha', which Dirichlet needs"):
        recipe.loads(TEXT.replace("alpha = 0.3", "")).federation()
    with pytest.raises(md.RecipeError, match="cannot read the recipe"):
        recipe.load(tmp_path / "none.toml")
    with pytest.raises(md.RecipeError, match=r"recipe is not TOML: .*line 2"):
        recipe.loads("[run]\nrounds = = 3")
    with pytest.raises(md.RecipeError, match=r"there are no \[\[methods\]\]"):
        recipe.loads("").methods()


def test_set_takes_toml_values_text_and_new_tables():
    r = recipe.loads("").with_settings(
        ["pace.lr.kind=Uniform", "pace.lr.low=1e-3", "run.seeds=[1, 2]", "run.device = cpu"]
    )
    assert r.tables == {"pace": {"lr": {"kind": "Uniform", "low": 1e-3}}, "run": {"seeds": [1, 2], "device": "cpu"}}


def test_tuned_methods_are_written_as_they_are_read():
    r = recipe.loads(TEXT)
    methods = [md.Tuned(md.FedProx(mu=0.25), lr=3.0), md.Tuned(md.FedAvg(server_lr=0.5), lr=0.1)]
    assert recipe.loads(recipe.tuned(r, methods).dumps()).methods() == methods


def test_dumps_and_loads_are_inverse(tmp_path):
    r = recipe.loads(TEXT)
    assert recipe.loads(r.dumps()) == r
    assert recipe.load(r.save(tmp_path / "deep" / "recipe.toml")).tables == r.tables


def test_values_that_toml_does_not_have_are_refused():
    with pytest.raises(RecipeError, match=r"a recipe cannot hold this value: .*NoneType"):
        recipe.Recipe({"run": {"rounds": None}}).dumps()


words = st.text(st.characters(codec="utf-8"), max_size=5)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | words
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(words, v, max_size=3), max_leaves=6)
tables = st.dictionaries(words, values, max_size=4)


@settings(max_examples=10, deadline=None)
@given(st.fixed_dictionaries({"name": words}, optional={"run": tables, "pace": tables, "methods": st.lists(tables)}))
def test_any_tables_survive_the_round_trip(tables):
    assert recipe.loads(recipe.Recipe(tables).dumps()).tables == tables


PAPERS = sorted((Path(__file__).parents[2] / "papers").glob("*/*.toml"))


@pytest.mark.parametrize("path", PAPERS, ids=[f"{p.parent.name}/{p.stem}" for p in PAPERS])
def test_the_recipes_of_the_papers_are_in_order(path):
    r = recipe.load(path)
    methods = r.methods()
    assert len(names(methods)) == len(methods) > 1
    for method in methods:
        grid = r.grid(method)
        knobs = {"L", "delta"} if isinstance(method, md.FedECADO) else set()
        assert grid.keys() <= {"lr"} | knobs
        assert all(len(values) <= 4 for values in grid.values())
    rounds = {"table3": 200, "table4": 60, "table5": 10, "table7": 200}.get(path.stem, 100)
    if path.parent.name == "cflag":  # a task
        rounds = {"split_mnist": 5, "split_cifar10": 8}.get(path.stem, 20)
    assert (r.rounds, r.tuning()["rounds"]) == (rounds, rounds)


def test_reply_policy_and_faults_are_options_of_the_run():
    options = recipe.loads(
        "[reply_policy]\ndeadline = 9\nretries = 2\n[faults]\nloss = 0.2\nclients = [0, 3]"
    ).options()
    assert options["reply_policy"] == md.ReplyPolicy(deadline=9, retries=2)
    assert (options["transport"].loss, list(options["transport"].clients)) == (0.2, [0, 3])
    with pytest.raises(md.RecipeError, match=r"faults has no 'los'\. Did you mean 'loss'"):
        recipe.loads("[faults]\nlos = 0.2").options()
    with pytest.raises(md.RecipeError, match="quorum=2"):
        recipe.loads("[reply_policy]\nquorum = 2").options()


def test_clients_that_join_and_leave():
    text = TEXT + "\n[membership]\njoins = { 3 = 10, 0 = 2 }\nleaves = { 1 = 5 }\n"
    membership = md.scenarios.Membership(joins={0: 2, 3: 10}, leaves={1: 5})
    for r in (recipe.loads(text), recipe.loads(recipe.loads(text).dumps())):
        assert r.federation().membership == membership
    with pytest.raises(
        md.RecipeError, match="on other machines do so by themselves: leave it out, and start the run w"
    ):
        recipe.loads(text).scenario((64,), 10)


def test_a_codec_is_an_option_of_the_run_whatever_it_holds():
    text = '[codec]\nkind = "delta"\ninner = { kind = "Quantise", bits = 4 }'
    assert recipe.loads(text).options()["codec"] == Delta(Quantise(bits=4))
    assert recipe.loads("").with_settings(["codec.kind=TopK", "codec.fraction=0.2"]).options()["codec"] == TopK(0.2)
    both = 'kind = "TwoWay"\nup = { kind = "Delta", inner = { kind = "Quantise", bits = 4 } }\ndown = { kind = "Cast" }'
    assert recipe.loads(f"[codec]\n{both}").options()["codec"] == TwoWay(Delta(Quantise(bits=4)), Cast())
    for wrong, says in (
        ('kind = "Quantize"', "codec.kind: this version has no 'Quantize'. Did you mean 'Quantise'"),
        ('kind = "Delta"\ninner = { kind = "Uniform" }', "codec.inner.kind: this version has no 'Uniform'"),
        ('kind = "Delta"\ninner = 8', "codec.inner = 8 should be a table with a kind"),
        ('kind = "Quantise"\nbits = 9', r"codec.bits = 9 should be a whole number in \[2, 8\]"),
        ("bits = 8", "codec lacks 'kind': one of Cast, Delta, Quantise, TopK, TwoWay"),
    ):
        with pytest.raises(md.RecipeError, match=says):
            recipe.loads(f"[codec]\n{wrong}").options()


@pytest.mark.slow
def test_a_recipe_trains_on_sparse_rows_which_stay_sparse_through_a_codec(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        columns = np.sort(rng.choice(5000, 4, replace=False)) + 1
        row = (f"{c}:{v:.3f}" for c, v in zip(columns, rng.normal(size=4), strict=True))
        lines.append(f"{rng.integers(2) * 2 - 1} {' '.join(row)}")
    (tmp_path / "words").write_text("\n".join(lines))
    r = recipe.loads(
        f"""
        problem = {{ kind = "Logistic", mu = 1e-2 }}
        data = {{ name = "svmlight", path = {str(tmp_path / "words")!r}, sparse = true }}
        partition = {{ kind = "IID", clients = 4 }}
        methods = [{{ kind = "LBFGS" }}, {{ kind = "SHED", pairs = 3 }}]
        codec = {{ kind = "Delta", inner = {{ kind = "Quantise" }} }}
        """
    )
    fed = r.federation()
    sim = fed.draw(0)
    assert isinstance(sim.rows.X, Sparse)
    assert sim.rows.X.matrix.nnz == 240
    lbfgs, shed = (fed.run(m, 30, target={"grad_norm": 1e-6}, progress=False, **r.options()) for m in r.methods())
    assert {lbfgs.status.outcome, shed.status.outcome} == {"target"}
    assert lbfgs.history[-1]["loss"] == pytest.approx(shed.history[-1]["loss"], abs=1e-9)


def test_the_fading_channel_and_the_fast_preset_have_names():
    r = recipe.loads('pace = { pairs = { kind = "Rayleigh", d0 = 3 } }\n[[methods]]\nkind = "SHED.fast"\npairs = 2')
    assert r.methods() == [md.SHED.fast(pairs=2)]
    assert r.methods(["shed.fast"]) == [md.SHED.fast(pairs=2)]
    assert recipe.loads("").methods(["shed.fast"]) == [md.SHED.fast()]
    text = 'problem.kind = "Logistic"\ndata.name = "breast_cancer"\npartition = { kind = "IID", clients = 3 }\n'
    fed = recipe.loads(text + 'pace.pairs = { kind = "Rayleigh", d0 = 3 }').federation()
    assert fed.pace.pairs == md.distributions.Rayleigh(d0=3)


@pytest.mark.parametrize(
    "sizes",
    quick(2, ["hidden = [999999999]", "hidden = [40000, 40000]", f"hidden = [{', '.join(['1'] * 6000)}]"]),
    ids=["a layer", "two together", "many layers"],
)
def test_a_network_that_no_message_carries_is_refused_before_it_is_made(sizes: str) -> None:
    """The first took 256 GB before anything was said."""
    resource = pytest.importorskip("resource")
    text = f'[problem]\nkind = "Network"\nmodel = "mlp"\n{sizes}\n[data]\nname = "digits"\nflatten = true\n'
    begun = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        md.RecipeError, match=r"recipe: problem: this network is too large to send: .*Choose smaller sizes"
    ):
        recipe.loads(f'{text}[partition]\nkind = "IID"\nclients = 2\n').federation()
    assert time.process_time() - begun < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kB


@pytest.mark.parametrize("digits", ["1" * 5000, "0x" + "f" * 5000], ids=["decimal", "hexadecimal"])
def test_a_whole_number_of_thousands_of_digits_is_refused_in_a_sentence(digits: str) -> None:
    with pytest.raises(md.RecipeError, match=r"recipe is not TOML: .*4300 digits"):
        recipe.loads(f"[run]\nrounds = {digits}")
    with pytest.raises(md.RecipeError, match=r"--set \.\.\.=.*4300 digits"):
        recipe.loads("[run]\nrounds = 3").with_settings([f"run.rounds={digits}"])


@pytest.mark.parametrize("text", ["a=" + "[" * 3000 + "]" * 3000, "a=" + "{b=" * 3000 + "1" + "}" * 3000])
def test_tables_thousands_deep_are_refused(text):
    with pytest.raises(md.RecipeError, match="thousands deep"):
        recipe.loads(text)
    with pytest.raises(md.RecipeError, match="thousands deep"):
        recipe.loads("[problem]").with_settings([text])
    with pytest.raises(md.RecipeError, match="no recipe nests tables 3000 deep"):
        recipe.loads("[problem]").with_settings(["a." * 3000 + "a=1"])


def test_a_digit_that_is_no_number_is_no_place_in_a_list():
    with pytest.raises(md.RecipeError, match="methods is not a table"):
        recipe.loads("[[methods]]").with_settings(["methods.²=1"])
