"""Options of a comparison: refusals before the first run, options of single methods, rows as they come."""

from __future__ import annotations

import pytest
import torch

import medley as md
from medley.codecs import Cast
from medley.experiments.compare import names
from medley.report import page
from support import made_up_runs as made_up


def federation(**more: object) -> md.Federation:
    q = md.problems.synthetic_quadratics(clients=5, d=4, rows=(6, 10))
    return md.Federation(q.problem, clients=q.clients, **more)  # type: ignore[arg-type]


def test_a_method_that_will_be_refused_is_refused_before_any_run() -> None:
    rows: list[dict[str, float]] = []
    some = federation(participation=0.6)
    with pytest.raises(md.Unsupported, match=r"compare, before the first run: Newton: Newton needs every") as caught:
        md.compare([md.FedAvg(), md.Newton()], some, 5, 3, jobs=1, on_round=rows.append)
    assert caught.value.method == "Newton"
    assert rows == []
    with pytest.raises(md.RecipeError, match=r"before the first run: FedAvg: .*no test set to measure that on"):
        md.compare([md.FedAvg()], some, 5, target={"accuracy": 0.5})
    with pytest.raises(md.RecipeError, match=r"^compare\(\) has no 'evalevery'. Did you mean 'eval_every'"):
        md.compare([md.FedAvg()], some, 5, evalevery=2)


def test_a_device_may_be_torchs_own() -> None:
    rows = [md.run(md.FedAvg(), federation(), 2, device=d).digest for d in ("cpu", torch.device("cpu"))]
    assert rows[0] == rows[1]
    board = md.compare([md.FedAvg()], federation(), 2, 1, jobs=1, device=torch.device("cpu"))
    assert board.results[0].settings["device"] == "cpu"


def test_methods_have_options_of_their_own() -> None:
    devices = md.devices.Devices(speed=[100.0, 50.0, 400.0, 100.0, 20.0], up=1e4, down=1e5, latency=0.01)
    methods = {"FedAvg": md.FedAvg(), "half": md.FedAvg(), "FedBuff": md.FedBuff(), "waiting": md.FedBuff()}
    board = md.compare(
        methods,
        federation(devices=devices),
        4,
        1,
        jobs=1,
        codec={"half": Cast("float16")},
        reply_policy={"FedBuff": md.ReplyPolicy(replies=2)},
    )
    runs = {r.method: r for r in board.results}
    assert runs["half"].ledger.up < runs["FedAvg"].ledger.up
    assert runs["FedBuff"].history[-1]["seconds"] < runs["FedAvg"].history[-1]["seconds"]
    assert runs["waiting"].settings["waits as"] == "FedAvg"
    assert "waits as" not in runs["FedBuff"].settings
    assert "replies=2" in str(runs["FedBuff"].settings["reply_policy"])
    assert "waiting waited for every reply, which makes it FedAvg" in page(board.results)
    with pytest.raises(md.RecipeError, match=r"codec=.*no 'FedAvgg'. Did you mean 'FedAvg'"):
        md.compare(methods, federation(), 4, 1, codec={"FedAvgg": Cast("float16")})


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_rows_of_a_comparison_come_with_method_and_seed(jobs: int) -> None:
    rows: list[dict[str, object]] = []
    board = md.compare([md.FedAvg(), md.GradientDescent()], federation(), 3, 2, jobs=jobs, on_round=rows.append)
    for r in board.results:
        mine = [row for row in rows if (row["method"], row["seed"]) == (r.method, r.seed)]
        assert [{k: v for k, v in row.items() if k not in ("method", "seed")} for row in mine] == r.history


def test_presets_keep_their_short_name() -> None:
    assert names([md.SHED.fast(), md.SHED(), md.FedAvg()]) == ["SHED.fast", "SHED", "FedAvg"]
    assert names([md.Tuned(md.SHED.fast(), lr=2.0), md.FedProx(mu=0.5)])[0] == "SHED.fast"


def test_objects_show_themselves_in_a_line_and_in_a_notebook() -> None:
    fed = federation()
    board = md.compare([md.FedAvg(), md.GradientDescent()], fed, 2, 2, jobs=1)
    result = board.results[0]
    data = md.datasets.digits().split(0.2)
    assert repr(result).startswith("Result(FedAvg, seed 0: finished after round 2; ")
    assert repr(data) == "Dataset(digits: 1438 rows [64], 359 test rows, 10 classes)"
    partition = md.partitions.IID(clients=4)
    federation_ = md.Federation(md.problems.Softmax(), data=data, partition=partition)
    for thing in (result, data, fed, federation_, board, federation_.describe()):
        assert len(repr(thing)) < 400, thing
        assert "\n" not in repr(thing)
        html = thing._repr_html_()
        assert html.startswith(("<b>", "<table"))
        assert "<script" not in html
    assert "Dataset(digits" in repr(federation_)
    assert "IID(clients=4)" in repr(federation_)


def test_a_frame_has_method_and_seed_or_says_what_to_install() -> None:
    result = md.run(md.FedAvg(), federation(), 2, clients_every=2)
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(md.MedleyError, match="pip install pandas"):
            result.frame()
        return
    assert list(result.frame().columns[:3]) == ["method", "seed", "round"]
    assert len(result.frame("clients")) == 5


def test_the_table_fits_80_columns_and_keeps_an_own_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = made_up.board(3, noise=0.2)[:-1]
    for r in runs:
        r.settings["metrics"] = {"top2": "higher"}
        r.history[-1]["top2"] = 0.5 + 0.01 * r.seed
    text = str(md.Board(runs))
    assert max(map(len, text.splitlines())) <= 80
    assert "top2" in text
    assert "runs finished" not in text  # the caption says that all ended well
    died = str(md.Board(made_up.board(3)))
    assert max(map(len, died.splitlines())) <= 80
    assert "diverged" in died
