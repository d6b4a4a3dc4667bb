"""The page about a run: served on loopback, for this machine only, and drawn by a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import medley as md
from medley.cli import app
from medley.report import watching
from medley.transports import Lossy


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with watching.server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "<b>run</b>"
    q = md.problems.synthetic_quadratics(clients=5, d=4)
    policy = md.ReplyPolicy(faulty="drop")
    fed = md.Federation(q.problem, clients=q.clients, f_star=q.f_star)
    fed.run(md.FedAvg(), 12, checkpoint=folder, transport=Lossy(loss=0.2, corrupt=0.1), reply_policy=policy)
    return folder


def test_the_page_and_its_view(run: Path) -> None:
    with served(run) as address:
        with urllib.request.urlopen(f"{address}/") as answer:
            text = answer.read().decode()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert not re.search(r"""(src|href)=["']?http""", text)
        view = json.loads(urllib.request.urlopen(f"{address}/view.json").read())
        assert (view["round"], view["state"], len(view["history"]), len(view["clients"])) == (12, "finished", 13, 5)
        for path, host in (("/../run.json", None), ("/run.json", None), ("/", "evil.example")):
            request = urllib.request.Request(address + path, headers={"Host": host} if host else {})
            with pytest.raises(urllib.error.HTTPError, match="403" if host else "404"):
                urllib.request.urlopen(request)


@pytest.mark.slow
def test_watch_waits_for_a_run_that_has_not_begun(tmp_path: Path, run: Path) -> None:
    folder = tmp_path / "later"
    command = [sys.executable, "-c", "from medley.cli import app; app()", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        try:
            assert "there is no run in" in p.stdout.readline()
            shutil.copytree(run, folder)
            assert any("is shown at http://127.0.0.1" in line for line in p.stdout)
        finally:
            p.terminate()


def test_a_long_history_is_thinned_to_its_ends_and_a_thousand_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"round": k, "loss": math.nan if k == 0 else 1.0} for k in range(54_321)]
    monkeypatch.setattr(watching.run_view, "view", lambda _: SimpleNamespace(plain=lambda: {"history": rows}))
    few = json.loads(watching._view(Path())[2])["history"]
    assert len(few) == 1000
    assert (few[0], few[-1]) == ({"round": 0}, rows[-1])
    assert len({row["round"] for row in few}) == 1000


def test_status_prints_what_the_page_shows(run: Path) -> None:
    said = CliRunner().invoke(app, ["status", str(run)])
    assert said.exit_code == 0, said.output
    assert "FedAvg, seed 0: finished, round 12 of 12" in said.output
    assert "clients: " in said.output
    text = CliRunner().invoke(app, ["status", str(run), "--prometheus"]).output
    assert re.search(r'^medley_clients\{.*standing="alive"\} \d$', text, re.MULTILINE)
    plain = json.loads(CliRunner().invoke(app, ["status", str(run), "--json"]).output)
    assert (plain["state"], plain["method"]) == ("finished", "FedAvg")
    assert CliRunner().invoke(app, ["status", str(run.parent)]).exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_the_curves_the_clients_and_the_log(run: Path, tmp_path: Path) -> None:
    with served(run) as address:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=4000",
            f"--user-data-dir={tmp_path}",
        ]
        done = subprocess.run(
            ["chromium", *flags, "--dump-dom", address], capture_output=True, text=True, timeout=120, check=True
        )
    dom = done.stdout
    assert dom.count("<figure>") == 4  # loss, gap, lost answers, bytes
    assert dom.count('<path class="line"') == 4
    assert dom.count("<tr>") == 6
    assert "12 of 12" in dom
    assert "&lt;b&gt;run&lt;/b&gt;" in dom
    assert "12: " in dom[dom.index('id="log"') :]
