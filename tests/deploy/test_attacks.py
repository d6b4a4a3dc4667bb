"""Attacks on a deployment, for real: from outside, by a node, and by an app. All are refused, and a run goes on."""

from __future__ import annotations

import base64
import datetime
import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley import recipe

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from support.deployed import Deployment, started, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("attacks"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

RECIPE = recipe.Recipe(
    {
        "problem": {"kind": "Logistic", "mu": 0.01},
        "data": {"name": "breast_cancer", "standardise": True},
        "partition": {"kind": "IID", "clients": 3},
        "pace": {"lr": 0.1, "batch": "full"},
        "run": {"rounds": 40, "eval_every": 40},
        "methods": [{"kind": "SCAFFOLD"}],
    }
)

FLEET = [
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
]


@pytest.fixture(scope="module")
def victim(there: Deployment) -> Iterator[tuple[Deployment, subprocess.Popen[bytes]]]:
    """A run on three nodes, which goes on while it is attacked."""
    there.app(RECIPE)
    with there.nodes() as nodes, there.begun("attacked") as (p, log):
        until(lambda: "round 0" in log.read_text(), p, log)
        yield there, p
        assert all(node.poll() is None for node, _ in nodes)


class Attacker:
    """A client of the Fleet API, or of anything else on the proxy's port, with a key of its own or without."""

    def __init__(self, there: Deployment, key: Path | None = None) -> None:
        tls = ssl.create_default_context(cafile=str(there.folder / "keys" / "ca.crt"))
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{there.port}", verify=tls, timeout=120, trust_env=False)
        self.key: Any = None if key is None else load_ssh_private_key(key.read_bytes(), None)

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    @property
    def public(self) -> bytes:
        return public_key_to_bytes(self.key.public_key())

    def signed(self, age: float = 0.0) -> dict[str, str]:
        """Headers of a request that was signed ``age`` seconds ago."""
        at = (now() - datetime.timedelta(seconds=age)).isoformat()
        signature = sign_message(self.key, at.encode())
        coded = {
            k: base64.b64encode(v).decode() for k, v in {"public-key": self.public, "signature": signature}.items()
        }
        return {"flwr-timestamp": at, **{f"flwr-{k}": v for k, v in coded.items()}}

    def post(self, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> httpx.Response:
        body = body if isinstance(body, bytes) else body.SerializeToString()
        kind = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
        return self.http.post(path, content=body, headers={**kind, **(headers or {})})


@pytest.fixture(scope="module")
def nobody(there: Deployment) -> Iterator[Attacker]:
    with Attacker(there) as attacker:
        yield attacker


@pytest.fixture(scope="module")
def foreign(there: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    """Somebody with a key that is not registered."""
    key = tmp_path_factory.mktemp("foreign") / "node9"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    with Attacker(there, key) as attacker:
        yield attacker


@pytest.fixture(scope="module")
def member(victim: Any) -> Iterator[tuple[Attacker, int]]:
    """Client 2 as an attacker, and its node's id."""
    there, _ = victim
    with Attacker(there, there.folder / "keys" / "node2") as attacker:
        yield attacker, node_of(there, 2)


def node_of(there: Deployment, client: int) -> int:
    """The id that Flower gave the client's node."""
    (node,) = re.findall(r"as node (\d+)", (there.folder / f"node{client}.log").read_text())
    return int(node)


@pytest.mark.parametrize("name", ["push-object", "push-messages"])
def test_a_body_that_no_registered_key_signed_reaches_neither_disk_nor_superlink(
    name: str, victim: Any, nobody: Attacker, foreign: Attacker
) -> None:
    there, _ = victim
    before = loopback_log(there)
    for headers in ({"flwr-signature": "x"}, foreign.signed()):
        assert nobody.post(f"/v1/fleet/{name}", bytes(900_000), headers).status_code == 401
    arrived = loopback_log(there)[len(before) :].splitlines()
    theirs = re.compile("|".join(rf"node_id={node_of(there, client)}\b" for client in range(3)))
    assert [line for line in arrived if "Fleet." in line and not theirs.search(line)] == []


def raw(there: Deployment, path: str, headers: dict[str, str]) -> int:
    """The status of a request whose path goes out as it is, without a body."""
    head = {"host": "a", "content-type": PROTOBUF_MEDIA_TYPE, "connection": "close", **headers}
    text = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n"
    tls = ssl.create_default_context(cafile=str(there.folder / "keys" / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", there.port))
    with tls.wrap_socket(plain, server_hostname="127.0.0.1") as s:
        s.sendall(text.encode())
        return int(s.recv(4096).split()[1])


def loopback_log(there: Deployment) -> str:
    return (there.folder / "logs" / "superlink").read_text()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/runtime/get-nodes",
        "//v1/control/start-run",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/control/start-run/%2e%2e/%2e%2e/fleet/pull-messages",
        "/v1/control/start-run%00/v1/fleet/pull-messages",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/V1/CONTROL/start-run",
        "/flwr.proto.Control/StartRun",
        "/docs",
        "/openapi.json",
        "/health",
        "/",
    ],
)
def test_from_outside_nothing_but_the_fleet_api_is_there(path: str, victim: Any, foreign: Attacker) -> None:
    """A foreign Control request would register a key, or start an app on server and nodes. It never arrives."""
    there, _ = victim
    before = loopback_log(there)
    status = raw(there, path, {**foreign.signed(), "content-length": "0"})
    # The path that ends at Fleet is Fleet's, where the key is not known.
    assert status in ((401,) if path.endswith("%2e%2e/fleet/pull-messages") else (400, 404))
    arrived = loopback_log(there)[len(before) :]
    assert "/v1/control" not in arrived
    assert "register-node" not in arrived


def test_flowers_command_line_gets_nothing_from_outside(victim: Any, tmp_path: Path) -> None:
    """``flwr run`` with the address that nodes have, and with the certificate that nodes have."""
    there, _ = victim
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "theirs"\n[superlink.theirs]\naddress = "127.0.0.1:{there.port}"\n'
        f'root-certificates = "{there.folder}/keys/ca.crt"\n'
    )
    env = {**there.env, "FLWR_HOME": str(tmp_path)}
    got = subprocess.run(["flwr", "run", "app", "theirs"], cwd=there.folder, env=env, capture_output=True, timeout=300)
    assert got.returncode != 0
    assert b"Successfully started" not in got.stdout + got.stderr


def test_the_superlink_itself_listens_on_loopback_only(victim: Any) -> None:
    there, _ = victim
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    link = [at for _, at, _, state, *_ in rows if state == "0A" and int(at.split(":")[1], 16) == there.port + 1]
    assert link == [f"0100007F:{there.port + 1:04X}"]
    six = Path("/proc/net/tcp6")
    assert not six.exists() or f":{there.port + 1:04X} " not in "".join(
        line for line in six.read_text().splitlines() if " 0A " in line
    )


def test_the_proxys_workers_are_not_privileged(victim: Any) -> None:
    there, _ = victim
    master = int((there.folder / "logs" / "nginx.pid").read_text())
    status = [Path(f"/proc/{p}/status") for p in os.listdir("/proc") if p.isdigit()]
    texts = [s.read_text() for s in status if s.exists()]
    workers = [t for t in texts if f"PPid:\t{master}\n" in t]
    assert len(workers) == 1
    assert "Uid:\t0\t" not in workers[0]


@pytest.mark.parametrize("name", FLEET)
def test_a_request_without_a_key_is_refused_before_its_body_is_read(name: str, victim: Any, nobody: Attacker) -> None:
    assert nobody.post(f"/v1/fleet/{name}", b"x" * 100_000).status_code == 401
    assert nobody.http.get(f"/v1/fleet/{name}").status_code in (401, 403)


def test_a_foreign_key_is_refused(victim: Any, foreign: Attacker, member: tuple[Attacker, int]) -> None:
    _, node = member
    answers = [
        foreign.post("/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=foreign.public), foreign.signed()),
        foreign.post("/v1/fleet/activate-node", ActivateNodeRequest(public_key=foreign.public), foreign.signed()),
        foreign.post("/v1/fleet/pull-messages", PullMessagesRequest(node=Node(node_id=node)), foreign.signed()),
        foreign.post("/v1/control/register-node", RegisterNodeRequest(public_key=foreign.public), foreign.signed()),
        foreign.post("/v1/control/start-run", StartRunRequest(fab=Fab(content=b"x")), foreign.signed()),
    ]
    assert [a.status_code for a in answers] == [404, 401, 401, 404, 404]


def test_a_node_with_a_foreign_key_or_a_wrong_ca_says_so(victim: Any, tmp_path: Path) -> None:
    there, _ = victim
    key, ca = tmp_path / "node7", tmp_path / "ca.crt"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=Other", "-days", "2"]
    subprocess.run([*new, "-keyout", str(tmp_path / "k"), "-out", str(ca)], check=True, capture_output=True)
    where = f"--memory={tmp_path}"
    with there.node(7, where, key=str(key)) as (p, log):
        until(lambda: "does not accept this node's key" in log.read_text(), p, log)
        p.terminate()
        assert p.wait(60) == 0
    command = ["medley", "node", f"--superlink=127.0.0.1:{there.port}", f"--key={key}", f"--ca={ca}", where]
    with started([*command, "--recipe=app/recipe.toml"], there.folder, there.env, "wrong_ca") as (p, log):
        until(lambda: "the file given as --ca does not vouch for" in log.read_text(), p, log)
        assert p.poll() is None


def test_replayed_and_altered_requests_are_refused(
    victim: Any, foreign: Attacker, member: tuple[Attacker, int]
) -> None:
    """A signature holds for five minutes, for one key, and for the node that has this key."""
    attacker, node = member
    mine, other = PullMessagesRequest(node=Node(node_id=node)), PullMessagesRequest(node=Node(node_id=node ^ 1))
    pull = lambda body, headers: attacker.post("/v1/fleet/pull-messages", body, headers).status_code
    good = attacker.signed()
    assert pull(mine, attacker.signed(age=310)) == 401  # replayed later
    assert pull(mine, attacker.signed(age=-60)) == 401  # signed in the future
    assert pull(mine, {**good, "flwr-timestamp": now().isoformat()}) == 401  # a fresh time on an old signature
    assert pull(mine, {**good, "flwr-public-key": foreign.signed()["flwr-public-key"]}) == 401
    assert pull(mine, {**good, "flwr-signature": foreign.signed()["flwr-signature"]}) == 401
    assert pull(other, good) == 401  # another node's messages
    stolen = ActivateNodeRequest(public_key=foreign.public, heartbeat_interval=30)
    assert attacker.post("/v1/fleet/activate-node", stolen, good).status_code == 401


def test_oversized_bodies_are_refused(victim: Any, member: tuple[Attacker, int]) -> None:
    """By their announced length, and without one by the bytes that come."""
    attacker, _ = member
    assert attacker.post("/v1/fleet/pull-messages", bytes(2 << 20), attacker.signed()).status_code == 413
    endless = (bytes(1 << 16) for _ in range(64))
    got = attacker.http.post("/v1/fleet/push-messages", content=endless, headers=attacker.signed())
    assert got.status_code == 413
    assert raw(victim[0], "/v1/fleet/push-object", {**attacker.signed(), "content-length": str(3 << 30)}) == 413


@pytest.mark.parametrize("name", FLEET)
def test_malformed_bodies_are_refused(name: str, victim: Any, member: tuple[Attacker, int]) -> None:
    """Twenty bodies a path, signed by a registered key: random bytes, and a right message cut off with a bit turned."""
    attacker, node = member
    draw = random.Random(name)
    right = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
    for k in range(20):
        cut = bytearray(right[: draw.randrange(1, len(right))])
        cut[draw.randrange(len(cut))] ^= 1 << draw.randrange(8)
        body = bytes(cut) if k % 2 else draw.randbytes(draw.randrange(1, 2000))
        status = attacker.post(f"/v1/fleet/{name}", body, attacker.signed()).status_code
        assert 400 <= status < 500, (status, body)


SERVER_APP = """
import json
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    sent = {}
    for node in grid.get_node_ids():
        for kind in ("train", "query", "query.run", "query.__init__", "evaluate", "query.simulate"):
            for content in ({"code": b"import os"}, {"common": b"\\x80\\x04.", "own": b"x" * 1000}, {}):
                letter = RecordDict({k: ConfigRecord({"bytes": v}) for k, v in content.items()})
                (at,) = grid.push_messages([Message(letter, node, kind, ttl=600)])
                sent[at] = f"{kind} {sorted(content)}"
    got = {}
    while len(got) < len(sent):
        for m in grid.pull_messages([k for k in sent if k not in got]):
            text = "error: " + m.error.reason if m.has_error() else m.content["answer"]["bytes"][:300].decode("latin-1")
            got[m.metadata.reply_to_message_id] = text
    out = [[sent[k], v] for k, v in got.items()]
    Path(context.run_config["save"]).write_text(json.dumps(out))
"""


def test_a_foreign_app_runs_nothing_on_a_node(victim: Any, tmp_path: Path) -> None:
    """An app that reached the SuperLink: its client part is sent to the nodes, and would write a file if it ran."""
    there, _ = victim
    app, marker, out = tmp_path / "evil", tmp_path / "executed", tmp_path / "out"
    shutil.copytree(there.folder / "app", app)
    (app / "server_app.py").write_text(SERVER_APP)
    executes = f"open({str(marker)!r}, 'a').write(__file__)\n"
    (app / "client_app.py").write_text(
        f"{executes}from medley.flower import client_app\napp = client_app('recipe.toml')\n"
    )
    (app / "sitecustomize.py").write_text(executes)
    said = f'save="{out}"'
    got = subprocess.run(
        ["flwr", "run", str(app), "medley", "--stream", "--run-config", said],
        cwd=there.folder,
        env=there.env,
        capture_output=True,
        timeout=600,
    )
    assert out.exists(), got.stdout[-2000:] + got.stderr[-2000:]
    answers = json.loads(out.read_text())
    assert len(answers) == 3 * 6 * 3
    for kind, text in answers:
        hello = kind.startswith("query [")
        assert text.startswith("=" if hello else ("!", "error: ValueError")), (kind, text)
    assert not marker.exists()


def test_after_all_of_it_the_run_has_the_x_of_one_process(victim: Any) -> None:
    there, p = victim
    p.wait(900)
    got, here = md.Result.load(there.folder / "attacked"), RECIPE.federation().run(md.SCAFFOLD(), 40, seed=0)
    assert got.status.ok, got.status
    assert float((here.x - got.x).abs().max()) < 1e-10
    assert [e._replace(overhead=0) for e in got.ledger] == [e._replace(overhead=0) for e in here.ledger]
