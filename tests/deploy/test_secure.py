"""Secure sums over Flower's own objects, without a network: nodes take part in the protocol with files of their own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley import recipe
from medley.contract import pytree
from medley.deploy.node import sums
from medley.deploy.node.app import ClientSide
from medley.deploy.node.cleaning import clean
from medley.deploy.node.serve import client_app as made_up
from medley.deploy.node.sums import Sums
from medley.deploy.protocol.agreement import refuse_weaker
from medley.deploy.protocol.secure_steps import KEYS, STEPS
from medley.deploy.server.sums import RemoteParties
from medley.deploy.server.transport import FlowerConnection
from medley.flower import client_app, server_app
from medley.secure import tables
from medley.secure.connection import SecureConnection
from medley.secure.party import Party
from medley.secure.ring import Ring
from medley.testing.faults import Rewired, losing
from medley.transports import InProcess
from medley.wire.exchange import Exchange

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Context, RecordDict

from support.bench import Bench

N = 4

RECIPE = """
[problem]
kind = "Softmax"
mu = 0.01

[data]
name = "digits"
train = 300
flatten = true

[partition]
kind = "Dirichlet"
clients = 4
alpha = 0.5

[pace]
lr = [0.1, 0.05, 0.2, 0.1]
batch = 32

[secure]
bound = 50.0

[run]
rounds = 3
dtype = "float64"

[[methods]]
kind = "SCAFFOLD"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def deploy(path: Path, apps: Mapping[int, Any] | None = None, save: str = "run", **config: Any) -> Bench:
    """Run the recipe as a Flower app; ``apps`` take the place of some clients'."""
    config = {"clients": N, "save": str(path.parent / save), "timeout": 3, **config}
    every = [(apps or {}).get(i) or client_app(path) for i in range(N)]
    for place in path.parent.glob("keys/*.ledgers"):  # here each folder has its own ledgers
        place.unlink()
    grid = Bench(every, config, memory=str(path.parent / "memory" / save))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


def silent_at(path: Path, i: int, step: str, count: int = 1) -> Any:
    """Client i's app, which fails in the place of the ``count``-th answer to ``step``, and from then on."""
    side, times = ClientSide(path, None, None), 0

    def dead(handler: Callable[..., bytes], kind: str) -> Callable[..., bytes]:
        def reply(letter: Any, context: Any) -> bytes:
            nonlocal times
            times += kind == step
            if times >= count and kind != "query":
                raise md.ClientFailed(client=i, round=0, method=kind, traceback="gone")
            return handler(letter, context)

        return reply

    kinds = {"query": side.report, "evaluate": side.evaluate, **{f"query.{s}": side.secure(s) for s in STEPS}}
    return made_up({kind: dead(handler, kind.removeprefix("query.")) for kind, handler in kinds.items()})


@pytest.mark.parametrize("method", ["SCAFFOLD", "FedAvg", "FedDyn"])
@pytest.mark.parametrize("bits", [32, 64])
def test_nodes_find_the_sum_of_one_process(method: str, bits: int, app: Path, tmp_path: Path) -> None:
    app.write_text(RECIPE.replace("SCAFFOLD", method).replace("[secure]", f"[secure]\nbits = {bits}"))
    r = recipe.load(app)
    here = r.federation().run(r.methods()[0], 3, **r.options())
    grid = deploy(app)
    there = md.Result.load(tmp_path / "run")
    # The same whole numbers, but for an entry that two engines round to either side.
    assert float((here.x - there.x).abs().max()) < (1e-6 if bits == 32 else 1e-10)
    assert [e._replace(overhead=0) for e in here.ledger] == [e._replace(overhead=0) for e in there.ledger]
    assert min(e.overhead for e in there.ledger if e.method == "train") > 0
    asked = [m.metadata.message_type for m in grid.sent]
    assert [asked.count(f"query.{s}") for s in STEPS] == [12] * 4
    assert "query.train" not in asked


def test_private_bounds_are_taken_at_the_nodes(app: Path, tmp_path: Path) -> None:
    """A `Clip` travels with the weights; the node bounds its reply before it masks it."""
    method = "[methods.private]\nclip = 0.5\nnoise = 0.5\n"
    app.write_text(
        RECIPE.replace("SCAFFOLD", "FedAvg").replace("[run]", "[run]\nseed = 0")
        + method
        + '[federation]\nweights = "uniform"\n'
    )
    r = recipe.load(app)
    here = r.federation().run(r.methods()[0], 3, **r.options())
    deploy(app)
    there = md.Result.load(tmp_path / "run")
    assert float((here.x - there.x).abs().max()) < 1e-6
    assert there.history[-1]["epsilon"] == here.history[-1]["epsilon"]


IN_SHARES = """
[methods.private]
clip = 0.5
noise = 0.8
noise_at = "clients"

[federation]
weights = "uniform"
"""


def test_nodes_add_noise_of_their_own(app: Path, tmp_path: Path) -> None:
    """ε is that of one process; the noise is not, since the server knows the run's seed."""
    app.write_text(RECIPE.replace("SCAFFOLD", "FedAvg") + IN_SHARES)
    r = recipe.load(app)
    here = r.federation().run(r.methods()[0], 3, **r.options())
    for save in ("a", "b"):
        deploy(app, save=save)
    a, b = (md.Result.load(tmp_path / k) for k in ("a", "b"))
    assert a.history[-1]["epsilon"] == b.history[-1]["epsilon"] == here.history[-1]["epsilon"]
    noise = float((a.x - b.x).std()) / math.sqrt(2 * 3)  # of three rounds, and of two runs
    assert noise == pytest.approx(0.8 * 0.5 / N * math.sqrt(4 / 3), rel=0.15)  # 3 of 4 must stay


def test_a_node_draws_its_share_of_the_noise_from_128_bits(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 bits are tried in minutes; each share has a seed of its own, and none is the run's."""
    right, seeds = np.random.PCG64DXSM, list[int]()
    monkeypatch.setattr(np.random, "PCG64DXSM", lambda seed: seeds.append(seed) or right(seed))
    app.write_text(RECIPE.replace("SCAFFOLD", "FedAvg") + IN_SHARES)
    deploy(app)
    assert len(seeds) == len({*seeds}) == 3 * 4
    assert min(seeds) > 2**80
    assert max(seeds) > 2**120


def test_a_node_adds_the_noise_of_its_owners_recipe(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app.write_text(RECIPE.replace("SCAFFOLD", "FedAvg") + IN_SHARES)
    honest = FlowerConnection.clients

    def less(self: FlowerConnection, exchange: Exchange, ring: Ring) -> Any:
        assert exchange.clip is not None
        return honest(self, replace(exchange, clip=replace(exchange.clip, noise=0.1)), ring)

    monkeypatch.setattr(FlowerConnection, "clients", less)
    with pytest.raises(md.WireError, match=r"client 0 refuses: its recipe adds noise=0.8 .* the server asks for 0.1"):
        deploy(app)


def test_the_server_sees_no_reply(app: Path) -> None:
    """No message to the server holds the displacement of a client, and no file of a node outlives its sum."""
    plain = recipe.load(app).federation()
    grid = deploy(app, set="run.rounds=1")
    step = plain.run(md.SCAFFOLD(), 1, dtype="float64").x
    replies = [m for m in grid.replies.values() if m.has_content()]
    vectors = [m for m, sent in zip(replies, grid.sent, strict=True) if "reply" in sent.metadata.message_type]
    assert len(vectors) == N
    assert not any(step.numpy().tobytes()[:64] in json.dumps(str(m.content)).encode() for m in replies)
    for folder in (app.parent / "memory" / "run").rglob("secure"):
        assert sorted(p.name for p in folder.iterdir()) == ["secure_opening", "session.json"]
        assert json.loads((folder / "session.json").read_text())["party"] is None
        assert all(p.stat().st_mode & 0o077 == 0 for p in folder.iterdir())
    assert [p.name for p in clean(app.parent / "memory" / "run")] == [f"{7:020d}"]


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_node_that_goes_in_mid_round_is_unmasked_from_shares(step: str, app: Path, tmp_path: Path) -> None:
    """The run goes on without it, and is the run in one process in which its replies are lost from then on."""
    app.write_text(RECIPE + '[reply_policy]\nfaulty = "drop"\n')
    deploy(app, {2: silent_at(app, 2, step, 2)})
    there, r = md.Result.load(tmp_path / "run"), recipe.load(app)
    assert there.status.ok
    gone = {(t, 0, 2) for t in ((3,) if step == STEPS[3] else (2, 3))}
    options = {**r.options(), "transport": Rewired(InProcess(), losing(gone, requests_arrive=True))}
    here = r.federation().run(r.methods()[0], 3, **options)
    assert float((here.x - there.x).abs().max()) < 1e-6
    assert {e.round for e in there.ledger if e.method == "train" and e.client == 2 and e.up} == {
        t for t in (1, 2, 3) if (t, 0, 2) not in gone
    }


def test_below_the_threshold_the_round_is_refused_and_the_run_can_be_resumed(app: Path, tmp_path: Path) -> None:
    app.write_text(RECIPE.replace("[secure]", "[secure]\nthreshold = 1.0") + '[reply_policy]\nfaulty = "drop"\n')
    with pytest.raises(md.TooFewReplies, match=r"3 of 4 clients sent a reply, but SecureSum\(threshold=1.0\) needs 4"):
        deploy(app, {2: silent_at(app, 2, "secure_reply", 2)})
    deploy(app, resume=str(tmp_path / "run"))  # the nodes begin the round's sum anew
    deploy(app, save="whole")
    a, b = (md.Result.load(tmp_path / k) for k in ("run", "whole"))
    assert float((a.x - b.x).abs().max()) < 1e-6


def test_a_client_refuses_to_open_its_own_reply(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks for shares of both kinds of client 1, at once or in two requests."""
    honest = RemoteParties.opening

    def both(self: RemoteParties, asked: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Any:
        return honest(self, {i: (alive, [*left, 1]) for i, (alive, left) in asked.items()})

    monkeypatch.setattr(RemoteParties, "opening", both)
    with pytest.raises(md.WireError, match="client 0 refuses: the server asks for both kinds of shares of client 1"):
        deploy(app)

    def twice(self: RemoteParties, asked: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Any:
        honest(self, asked)
        return honest(self, {i: ([j for j in alive if j != 1], [1]) for i, (alive, _) in asked.items()})

    monkeypatch.setattr(RemoteParties, "opening", twice)
    with pytest.raises(md.WireError, match="client 0 refuses: the server asks twice for secure_opening"):
        deploy(app, save="second")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with a key for every node, and the keyring."""
    (folder := tmp_path / "keys").mkdir()
    lines = []
    for i in range(N):
        key = generate_private_key(SECP384R1())
        openssh = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (folder / f"node{i}").write_bytes(key.private_bytes(*openssh))
        lines.append(f"{i} {key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}")
    (folder / "keyring").write_text("# number, key\n" + "\n".join(lines) + "\n")
    return folder


def signing(path: Path, key: Path, keyring: Path | None) -> Any:
    app = client_app(path)

    def serve(message: Any, context: Any) -> Any:
        context.node_config |= {"key": str(key)} | ({} if keyring is None else {"keyring": str(keyring)})
        return app(message, context)

    return serve


def test_keys_that_are_not_signed_by_nodes_of_the_keyring_are_refused(
    app: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that puts keys of its own in the place of client 1's reads all that is sealed for it."""
    every = {i: signing(app, keys / f"node{i}", keys / "keyring") for i in range(N)}
    deploy(app, every, save="signed")
    deploy(app, save="unsigned")
    a, b = (md.Result.load(tmp_path / k) for k in ("signed", "unsigned"))
    assert torch.equal(a.x, b.x)
    assert [e._replace(overhead=0) for e in a.ledger] == [e._replace(overhead=0) for e in b.ledger]

    with pytest.raises(md.WireError, match=r"client 0 refuses: the public keys .* for client 2 are not signed"):
        deploy(app, {i: every[i] for i in (0, 1, 3)}, save="one_without")
    with pytest.raises(md.WireError, match=r"client 0 refuses: the public keys .* for client 3 are not signed"):
        deploy(app, {**every, 3: signing(app, keys / "node2", keys / "keyring")}, save="another")
    (few := keys / "few").write_text("\n".join((keys / "keyring").read_text().splitlines()[:3]))
    with pytest.raises(md.WireError, match="client 0 refuses: client 2 is not in its keyring few"):
        deploy(app, {**every, 0: signing(app, keys / "node0", few)}, save="few")

    honest = RemoteParties.shares

    def between(self: RemoteParties, rosters: Mapping[int, Mapping[int, bytes]], least: Mapping[int, int]) -> Any:
        mine = Party(1, self.session).keys
        return honest(self, {i: {**r, **({1: mine} if 1 in r else {})} for i, r in rosters.items()}, least)

    monkeypatch.setattr(RemoteParties, "shares", between)
    with pytest.raises(md.WireError, match=r"client 0 refuses: the public keys .* for client 1 are not signed"):
        deploy(app, every, save="between")


def test_a_cohort_beyond_the_keyring_is_refused(keys: Path, tmp_path: Path) -> None:
    """A larger cohort would have a larger share of the noise, and its clients would be the server's own."""
    every = {
        i: Sums(i, tmp_path / str(i), md.SecureSum(), keys / f"node{i}", keys / "keyring").answer for i in range(N)
    }
    about = json.dumps({"run": "r", "session": "s", "cohort": N + 1}).encode()
    signed = {i: answer(STEPS[0], {"about": about}, lambda request: None) for i, answer in every.items()}
    roster, signatures = ({i: part(s) for i, s in signed.items()} for part in (lambda s: s[:KEYS], lambda s: s[KEYS:]))
    letter = {"about": about, "roster": tables.packed(roster), "signatures": tables.packed(signatures)}
    with pytest.raises(md.WireError, match=r"client 0 refuses: the server says that 5 clients .* keyring has 4"):
        every[0](STEPS[1], letter, lambda request: None)


@pytest.mark.parametrize("text", ["x", "0 ssh-rsa AAAA", "0", "one ecdsa-sha2-nistp384 AAAA"])
def test_a_file_that_is_no_keyring_is_refused(text: str, tmp_path: Path, keys: Path) -> None:
    (path := tmp_path / "keyring").write_text(text)
    with pytest.raises(md.RecipeError, match="is not a keyring: write a line for each client"):
        sums.read_keyring(path)
    path.write_text((keys / "keyring").read_text() * 2)
    with pytest.raises(md.RecipeError, match="client 0 appears twice"):
        sums.read_keyring(path)
    with pytest.raises(md.RecipeError, match="is not a private key as ssh-keygen"):
        sums.signature(path, "s", 0, b"")


def test_a_server_changes_no_privacy_that_the_owner_did_not_name(app: Path, tmp_path: Path) -> None:
    app.write_text(RECIPE.replace("SCAFFOLD", "FedAvg") + IN_SHARES)
    mine = recipe.load(app)
    for said in ("methods.0.private.noise=0.1", "secure.threshold=2"):
        asked = mine.with_settings([said])
        with pytest.raises(md.RecipeError, match=r"client 2 does not let the server change (private|secure)"):
            refuse_weaker({"allow": "run.* methods.*"}, mine, asked, 2)
        refuse_weaker({"allow": "run.* methods.*.private.* secure.*"}, mine, asked, 2)
        refuse_weaker({}, mine, asked, 2)
    refuse_weaker({"allow": "run.*"}, mine, mine.with_settings(["run.rounds=1"]), 2)
    apps = {i: allowing(app, "run.* methods.*") for i in range(N)}
    with pytest.raises(md.RecipeError, match=r"client \d does not let the server change private"):
        deploy(app, apps, set="methods.0.private.noise=0.1")


def allowing(path: Path, patterns: str) -> Any:
    app = client_app(path)

    def serve(message: Any, context: Any) -> Any:
        context.node_config["allow"] = patterns
        return app(message, context)

    return serve


def test_a_client_trains_once_a_sum_on_the_model_that_all_are_sent(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second masked reply of one sum would tell of a difference; a model of its own, of a client."""
    honest = RemoteParties.masked

    def other(self: RemoteParties, sealed: Any) -> Any:
        shared = pytree.from_bytes(self.common, {})
        shared["common"]["x"] = shared["common"]["x"] + 1
        self.common = pytree.to_bytes(shared)
        return honest(self, sealed)

    monkeypatch.setattr(RemoteParties, "masked", other)
    with pytest.raises(md.WireError, match="client 0 refuses: its request or its settings do not match the"):
        deploy(app)

    def again(self: RemoteParties, sealed: Any) -> Any:
        list(honest(self, sealed))
        return honest(self, {i: {j: s for j, s in texts.items() if j != 3} for i, texts in sealed.items()})

    monkeypatch.setattr(RemoteParties, "masked", again)
    with pytest.raises(md.WireError, match="client 0 refuses: the server asks twice for secure_reply"):
        deploy(app, save="second")


ALONE = (
    "weights client 2 may have a share of 0.998 in a sum of 3 clients, so .* its reply; .* share = 0.9: set a larger"
)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({0: 0.0, 1: 0.0, 2: 1.0, 3: 0.0}, "in the server's weights client 0 has 0, but each must be above 0"),
        ({0: 1e-3, 1: 1e-3, 2: 1.0, 3: 5.0}, "client 3 may have a share of 0.9996 in a sum of 3"),
        ({0: 1e-3, 1: 1e-3, 2: 1.0, 3: 1e-3}, ALONE),
        ({0: -1.0, 1: 1.0, 2: 1.0, 3: 1.0}, r"weights is \[\(0, -1.0\), .* a number in \[0"),
    ],
)
def test_weights_that_single_out_a_client_are_refused(
    weights: dict[int, float], said: str, app: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes are sent the same weights, by which the sum is one client's reply; keys are signed."""
    honest = SecureConnection._sum
    monkeypatch.setattr(SecureConnection, "_sum", lambda self, e: honest(self, replace(e, weights=weights)))
    with pytest.raises(md.WireError, match=said):
        deploy(app, {i: signing(app, keys / f"node{i}", keys / "keyring") for i in range(N)})


def test_a_clients_p_singles_out_nobody_either(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some methods scale a reply by p_i: the p_i of all travel in the part that the sum's name has a digest of."""
    honest = FlowerConnection.clients
    p = {0: 1e-9, 1: 1e-9, 2: 1.0, 3: 1e-9}
    with monkeypatch.context() as patch:
        patch.setattr(FlowerConnection, "clients", lambda self, e, ring: honest(self, replace(e, p=p), ring))
        with pytest.raises(
            md.WireError, match="client 0 refuses: with the server's p client 2 may have a share of 1 in"
        ):
            deploy(app)
    own = FlowerConnection._own
    patched = lambda self, e, i: own(self, replace(e, p={i: p[i]}), i)
    monkeypatch.setattr(FlowerConnection, "_own", patched)
    with pytest.raises(md.WireError, match="and this client's part repeats or lacks some"):
        deploy(app, save="second")


def test_clients_of_one_sum_have_the_same_settings(app: Path) -> None:
    """A server that has all but client 2 train with a learning rate of 0 would find its reply in the sum."""
    inner = client_app(app)

    def slow(message: Any, context: Any) -> Any:
        if "secure" in message.metadata.message_type:
            context.run_config = {**context.run_config, "set": "pace.lr=0.000001"}
        return inner(message, context)

    with pytest.raises(md.WireError, match=r"client 1 refuses: its request or its settings do not match"):
        deploy(app, {1: slow})


@pytest.mark.parametrize(("share", "fits"), [(0.9, False), (0.95, True), (1.0, True)])
def test_an_owner_says_how_large_a_share_may_be(share: float, fits: bool) -> None:
    """Of five clients three stay at least: the server may leave the largest with the two smallest."""
    weights = {0: 90.0, 1: 5.0, 2: 50.0, 3: 4.0, 4: 40.0}  # 90 / 99
    check = lambda: md.SecureSum(share=share).check_weights(1, "weights", weights, 3)
    if fits:
        return check()
    with pytest.raises(md.WireError, match=r"client 1 refuses: .* client 0 may have a share of 0.9091 in a sum of 3"):
        check()


def test_masks_of_clients_that_are_told_different_things_do_not_cancel(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that names the sum differently for client 1: the shares of others do not open there."""
    honest = RemoteParties._answers

    def split(self: RemoteParties, step: str, letters: Mapping[int, Any], read: Any) -> Any:
        about = json.loads(self._about)
        other, came = json.dumps({**about, "session": about["session"][:-1] + "_"}).encode(), {}
        for i in sorted(letters):
            kept, self._about = self._about, other if i == 1 else self._about
            came |= honest(self, step, {i: letters[i]}, read)
            self._about = kept
        return came

    monkeypatch.setattr(RemoteParties, "_answers", split)
    with pytest.raises(md.WireError, match="the shares that client 1 sealed do not open"):
        deploy(app)


def test_a_node_with_secure_sums_gives_no_reply_by_itself(app: Path, tmp_path: Path) -> None:
    """A server without [secure] is told apart by its recipe; one that pretends, by its request."""
    plain = tmp_path / "plain.toml"
    plain.write_text(RECIPE.replace("[secure]\nbound = 50.0\n", ""))
    config = {"clients": N, "save": str(tmp_path / "a"), "timeout": 3}
    grid = Bench([client_app(app)] * N, config, memory=str(tmp_path / "m"))
    with pytest.raises(md.RecipeError, match="give both sides the same recipe"):
        server_app(plain)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    asks = deploy(plain, save="b")
    request = next(m for m in asks.sent if m.metadata.message_type == "query.train")
    letter = {k: r["bytes"] for k, r in request.content.config_records.items()}
    node = {"partition-id": asks.ids[request.metadata.dst_node_id], "memory": str(tmp_path / "c")}
    side = ClientSide(app, None, None)
    with pytest.raises(md.WireError, match="but the server asks for its reply without the mask"):
        side.serve(letter, Context(1, 1, node, RecordDict(), config))
    with pytest.raises(md.WireError, match="the client's recipe has no"):
        ClientSide(plain, None, None).secure(STEPS[0])({}, Context(1, 1, node, RecordDict(), config))


def test_memories_of_a_secure_run_answer_no_run_without_secure_sums(app: Path, tmp_path: Path) -> None:
    """Both recipes are the owner's; a server that calls the second run by the first one's name asks for c_i."""
    plain = tmp_path / "plain.toml"
    plain.write_text(RECIPE.replace("[secure]\nbound = 50.0\n", ""))
    deploy(app, save="a")
    asks = deploy(plain, save="b")
    request = [m for m in asks.sent if m.metadata.message_type == "query.train"][-1]
    letter = {k: r["bytes"] for k, r in request.content.config_records.items()}
    for memory, refused in (("b", False), ("a", True)):
        node = {"partition-id": asks.ids[request.metadata.dst_node_id], "memory": str(tmp_path / "memory" / memory)}
        ask = lambda node=node: ClientSide(plain, None, None).serve(
            letter, Context(7, 1, node, RecordDict(), asks.config)
        )
        if refused:
            with pytest.raises(md.WireError, match=r"its memories of run \d+ were made under .* 50.0"):
                ask()
        else:
            assert ask()


@pytest.mark.parametrize("stream", ["", '[stream]\nkind = "Split"\ntasks = 2\nmode = "task"\n'])
def test_test_losses_count_as_losses_of_the_rows(stream: str, app: Path, tmp_path: Path) -> None:
    """An honest run has its own; their differences over many models would show single test rows."""
    app.write_text(RECIPE.replace("rounds = 3", "rounds = 2") + stream)
    asks = deploy(app)
    tasks = 2 if stream else 1
    side, node = ClientSide(app, None, None), {"partition-id": 0, "memory": str(tmp_path / "memory" / "run")}
    request = next(m for m in asks.sent if m.metadata.message_type == "evaluate")
    asked = pytree.from_bytes(request.content["common"]["bytes"], {})

    def ask(k: int, known: bool = False) -> bytes:
        other = {"known": asked["known"] | {"first": {"x": [float(k)]}}} if known else {"x": asked["x"] + k}
        letter = {"common": pytree.to_bytes(asked | other | {"loss": False}), "own": b"{}"}
        return side.evaluate(letter, Context(1, 1, node, RecordDict(), asks.config))

    assert "test_loss" in json.loads(ask(1))["tests"][0]
    with pytest.raises(md.WireError, match=f"it has sent the loss of its rows for {3 * tasks + 1} models"):
        [ask(k) for k in range(2, 6)]
    node["memory"] = str(tmp_path / "memory" / "other")  # a model's own part, in "known", is a part of the model
    with pytest.raises(md.WireError, match=f"it has sent the loss of its rows for {3 * tasks + 1} models"):
        [ask(k, known=True) for k in range(9)]


def test_repeated_requests_have_the_answer_that_was_given(app: Path, tmp_path: Path) -> None:
    """Every node's app crashes once in each step, after it has answered: its files bring the same bits."""
    deploy(app, save="once")
    honest, seen = Bench.push_messages, set[Any]()

    def crashing(self: Bench, messages: Any) -> list[str]:
        for m in (messages := list(messages)):
            kind, node = m.metadata.message_type, m.metadata.dst_node_id
            if kind.startswith("query.secure"):
                key = kind, node, m.content["about"]["bytes"]
                self.crashes[node] = key not in seen
                seen.add(key)
        return honest(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "push_messages", crashing)
        deploy(app, save="crashed")
    assert len(seen) == 3 * len(STEPS) * N
    a, b = (md.Result.load(tmp_path / k) for k in ("once", "crashed"))
    assert torch.equal(a.x, b.x)
