"""What Medley reads in texts of flwr, as its tested versions write them, and as the installed one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from medley.contract.errors import MedleyError
from medley.deploy.node.fleet import FleetNode, NotAdmitted, RunOver, Unreachable
from medley.deploy.protocol import flwr_texts

DOWN = "Connection to the SuperLink is unavailable. Please check your network connection and 'address' in the SuperLink"
USING = "Using SuperLink: medley (127.0.0.1:39992)\n"


def as_json(text: str) -> str:
    return json.dumps({"success": False, "error-message": text}, indent=2)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (as_json(f"{USING}\n{DOWN} connection configuration."), f"{DOWN} connection configuration."),
        (as_json(f"{USING} Displaying information for run ID 3...\n\n{DOWN}"), DOWN),
        (as_json("\nFailed to parse it. Invalid value\n for 'x'."), "Failed to parse it. Invalid value for 'x'."),
        (f"{USING}✋ Stopping run ID 4...\n╭─ Error ────╮\n│ {DOWN[:60]} │\n│ {DOWN[60:]} │\n╰────╯", None),
        ("Using SuperLink here:9093\nError: The string is\n  in a bad format.\n", "The string is in a bad format."),
        ("\x1b[31m╭─ Error ────╮\x1b[0m\n│ No such option: --x │\n╰─────────────╯", "No such option: --x"),
        ("Using SuperLink at 127.0.0.1:9093", "Using SuperLink at 127.0.0.1:9093"),
        ("", "no output"),
    ],
)  # fmt: skip
def test_flowers_error_is_found_behind_its_other_lines(output: str, reason: str | None) -> None:
    """As flwr 1.41 and 1.42 print them."""
    found = flwr_texts.reason(output)
    assert found.replace(" ", "") == (DOWN if reason is None else reason).replace(" ", "")
    assert flwr_texts.is_unavailable(found) == (DOWN in output or reason is None)


def test_runs_states_and_logs() -> None:
    assert flwr_texts.run_number('{"success": true, "run-id": "5641216633321024596"}') == "5641216633321024596"
    assert flwr_texts.run_number(as_json(DOWN)) == flwr_texts.run_state(as_json(DOWN)) == ""
    states = [flwr_texts.run_state(json.dumps({"runs": [{"status": s}]})) for s in ("running", "finished:stopped")]
    assert [flwr_texts.has_ended(s) for s in states] == [flwr_texts.was_stopped(s) for s in states] == [False, True]
    log = "INFO: x\nTraceback (most recent call last):\n  F\nValueError: no\nModuleNotFoundError: No module\nINFO: y\n"
    assert flwr_texts.last_error(log) == "ModuleNotFoundError: No module"
    assert flwr_texts.last_error("INFO: all is well\n") == ""


@pytest.mark.parametrize(
    ("call", "code", "kind", "text"),
    [
        ("ActivateNode", 412, NotAdmitted, "this node's key is in use: another process"),
        ("ActivateNode", 404, NotAdmitted, "does not accept this node's key: have it registered"),
        ("PullMessages", 401, NotAdmitted, "does not accept this node's key: have it registered"),
        ("PushMessages", 403, RunOver, "the run is over"),
        ("PullMessages", 502, Unreachable, "answers 502 to PullMessages: Bad Gateway"),
    ],
)
def test_refusals_of_the_fleet_api(call: str, code: int, kind: type[MedleyError], text: str) -> None:
    httpx = pytest.importorskip("httpx")

    def answer(_: object) -> None:
        response = httpx.Response(code, text="<html><h1>Bad Gateway</h1></html>")
        raise httpx.HTTPStatusError("", request=httpx.Request("POST", "http://x"), response=response)

    pytest.importorskip("flwr")
    node = object.__new__(FleetNode)
    node.superlink = "127.0.0.1:39391"
    node._client = type("Client", (), {call: staticmethod(answer)})()
    with pytest.raises(kind, match=text):
        node._call(call, None)


@pytest.mark.slow
def test_the_installed_flwr_says_the_same(tmp_path: Path) -> None:
    """Its commands, with nobody at the SuperLink's address, and with a run config that does not fit."""
    utils = pytest.importorskip("flwr.cli.utils")
    assert flwr_texts.is_unavailable(utils.SUPERLINK_UNAVAILABLE_MESSAGE)
    from medley.deploy.commands import init

    init(tmp_path / "p")
    config = '[superlink]\ndefault = "medley"\n[superlink.medley]\naddress = "127.0.0.1:9"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(config)
    env = {**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def output(*words: str) -> str:
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        done = subprocess.run(command, cwd=tmp_path / "p", env=env, capture_output=True, text=True)
        return done.stdout + done.stderr

    for words in (
        ("run", "app", "medley", "--format", "json"),
        ("list", "medley", "--run-id", "3", "--format", "json"),
        ("stop", "3", "medley"),
    ):
        assert flwr_texts.is_unavailable(flwr_texts.reason(output(*words))), words
    reason = flwr_texts.reason(output("run", "app", "other", "--format", "json"))
    assert "SuperLink connection 'other' not found" in reason
    assert not flwr_texts.is_unavailable(reason)
    errors = pytest.importorskip("flwr.supercore.error.catalog")
    activation = errors.API_ERROR_MAP[errors.ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED]
    assert flwr_texts.is_key_in_use("ActivateNode", activation.http_status_code)
