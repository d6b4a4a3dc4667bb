"""Secure sums for real: three nodes in processes of their own, over TLS; one is killed, and a server lies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import medley as md
from medley import recipe
from medley.storage import events
from medley.testing.faults import Rewired, losing
from medley.transports import InProcess

pytest.importorskip("flwr")

from support.deployed import LAST_CLIENT, Deployment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("deployed"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]

SECURE = recipe.Recipe(
    {
        "problem": {"kind": "Logistic", "mu": 0.01},
        "data": {"name": "breast_cancer", "standardise": True},
        "partition": {"kind": "IID", "clients": 3},
        "pace": {"lr": 0.1, "batch": "full"},
        "secure": {"bits": 64, "bound": 50.0},
        "run": {"rounds": 2, "eval_every": 2},
        "methods": [{"kind": "SCAFFOLD"}],
    }
)

MORTAL = f"""{LAST_CLIENT}
import os, signal
from pathlib import Path
from medley.clients.host import ClientHost

serve = ClientHost.serve_block

def serve_block(self, exchange, block, memories):
    kill = Path("kill")
    if exchange.round == 2 and kill.exists():
        how = kill.read_text()
        kill.unlink()
        if how == "for good":
            os.kill(os.getppid(), signal.SIGKILL)  # which would start it again
        os.kill(os.getpid(), signal.SIGKILL)  # it has shared its secrets, and trains
    return serve(self, exchange, block, memories)

ClientHost.serve_block = serve_block

def data(context):
    return last_client()
"""

GREEDY = """
from pathlib import Path
from medley.flower import server_app
from medley.deploy.server.sums import RemoteParties

honest = RemoteParties.opening

def opening(self, asked):
    return honest(self, {i: (alive, [*left, 1]) for i, (alive, left) in asked.items()})

RemoteParties.opening = opening
app = server_app(Path(__file__).with_name("recipe.toml"))
"""


def here(lost: set[tuple[int, int, int]]) -> md.Result:
    """The recipe in one process, without these replies."""
    transport = Rewired(InProcess(), losing(lost, requests_arrive=True))
    return SECURE.federation().run(SECURE.methods()[0], 2, seed=0, **{**SECURE.options(), "transport": transport})


def same(there: md.Result, lost: set[tuple[int, int, int]]) -> None:
    """The result is that of one process. A node that is gone gives no keys either; a lost reply's client does."""
    assert there.status.ok, there.status
    one = here(lost)
    assert float((one.x - there.x).abs().max()) < 1e-10
    mine, theirs = (
        [e._replace(overhead=0) for e in r.ledger if e.up and (not lost or e.method == "train")] for r in (one, there)
    )
    assert mine == theirs


def forget(there: Deployment) -> None:
    """Nodes start with new ledgers: a key notes where its ledgers are, and does not start with others."""
    for note in (there.folder / "keys").glob("*.ledgers"):
        note.unlink()


@pytest.fixture(autouse=True)
def own_ledgers(there: Deployment) -> Iterator[None]:
    yield
    forget(there)  # the next test's nodes have another folder of memories


def test_a_node_that_is_killed_in_mid_round_comes_back_or_is_unmasked(there: Deployment) -> None:
    """Killed while it trains. It starts again and masks from its file, or its masks are opened from shares.

    The first run is the one in one process to the last byte; in the second the node's last reply is lost.
    """
    there.app(SECURE)
    (there.folder / "mortal.py").write_text(MORTAL)
    kill = there.folder / "kill"
    for how, options, lost in (("once", {}, set[tuple[int, int, int]]()), ("for good", {"timeout": 30}, {(2, 0, 2)})):
        kill.write_text(how)
        # keys.sh writes the keyring, so that nodes sign their keys; each run has nodes that told no loss before it
        own = "--keyring=keys/keyring", f"--memory=memory {how}"
        forget(there)
        with there.node(0, *own), there.node(1, *own), there.node(2, *own, "--data=mortal.py", again=True):
            same(there.result(f"secure {how}", **options), lost)
        assert not kill.exists()


def test_a_node_refuses_a_server_that_asks_for_shares_of_both_kinds(there: Deployment) -> None:
    there.app(SECURE)
    server = there.folder / "app" / "server_app.py"
    honest = server.read_text()
    server.write_text(GREEDY)
    try:
        with there.nodes(), there.begun("greedy") as (p, _):
            there.wait(p, 600)
    finally:
        server.write_text(honest)
    said = [e["message"] for e in events.read(Path(there.folder / "greedy")) if e.get("event") == "end"]
    assert len(said) == 1
    assert "client 0 refuses: the server asks for both kinds of shares of client 1" in said[0]
