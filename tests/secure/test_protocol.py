"""The protocol: exact sums under any dropouts that the threshold bears, and refusals beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import medley as md
from medley.secure import SecureSum
from medley.secure.party import Opening, Party
from medley.secure.session import Session

D = 7


class Clients:
    """Real parties with vectors of whole numbers; some leave before their shares, their vector, or the opening."""

    def __init__(self, values: Mapping[int, np.ndarray], gone: Sequence[Sequence[int]] = ((), (), ())) -> None:
        self.values, self.gone = values, [set(g) for g in gone]
        self.parties = {i: Party(i, b"test") for i in values}
        self.seen: list[Any] = []
        self.opened = False

    def keys(self, ids: Sequence[int]) -> dict[int, bytes]:
        return {i: self.parties[i].keys for i in ids}

    def shares(
        self, rosters: Mapping[int, Mapping[int, bytes]], least: Mapping[int, int]
    ) -> dict[int, dict[int, bytes]]:
        return {i: self.parties[i].shares(r, least[i]) for i, r in rosters.items() if i not in self.gone[0]}

    def masked(self, sealed: Mapping[int, Mapping[int, bytes]]) -> Iterator[tuple[int, np.ndarray]]:
        for i, texts in sealed.items():
            if i not in self.gone[1]:
                vector = self.parties[i].masked(self.values[i].copy(), texts)
                self.seen.append(vector)
                yield i, vector

    def opening(self, asked: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> dict[int, Opening]:
        self.opened = True
        return {i: self.parties[i].opening(*those) for i, those in asked.items() if i not in self.gone[2]}


def values(n: int, bits: int = 32, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {i: rng.integers(0, 2**bits, D, dtype=np.dtype(f"uint{bits}")) for i in range(n)}


def summed(clients: Clients, settings: SecureSum, circle: Sequence[int] | None = None) -> np.ndarray:
    session = Session(settings, b"test", list(clients.values) if circle is None else circle)
    total = session.run(clients)
    there = [v for i, v in clients.values.items() if i in session.came]
    assert len(there) == len(session.came)
    assert (total == np.sum(there, axis=0, dtype=total.dtype)).all()  # in the ring, to the last bit
    return total


@st.composite
def cohorts(draw: Any) -> tuple[int, float, list[list[int]], int]:
    n = draw(st.integers(2, 9))
    threshold = draw(st.sampled_from([0.51, 0.6, 0.75, 1.0]))
    order, spare = draw(st.permutations(range(n))), n - max(2, math.ceil(threshold * n))
    leave = draw(st.integers(0, spare))
    cuts = sorted(draw(st.lists(st.integers(0, leave), min_size=2, max_size=2)))
    gone = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] : leave]]
    return n, threshold, [list(g) for g in gone], draw(st.sampled_from([16, 32, 64]))


@settings(max_examples=25, deadline=None)
@given(cohorts())
def test_the_sum_is_exact_whoever_leaves_up_to_the_threshold(cohort: tuple[int, float, list[list[int]], int]) -> None:
    n, threshold, gone, bits = cohort
    clients = Clients(values(n, bits), gone)
    session = Session(SecureSum(threshold=threshold, bits=bits), b"test", list(range(n)))
    total = session.run(clients)
    came = [i for i in range(n) if i not in gone[0] and i not in gone[1]]
    assert list(session.came) == came
    assert (total == np.sum([clients.values[i] for i in came], axis=0, dtype=total.dtype)).all()


@settings(max_examples=15, deadline=None)
@given(cohorts(), st.integers(0, 2))
def test_one_more_that_leaves_and_nothing_is_opened(cohort: tuple[int, float, list[list[int]], int], step: int) -> None:
    n, threshold, gone, bits = cohort
    stay = [i for i in range(n) if not any(i in g for g in gone)]
    needed = SecureSum(threshold=threshold).needed(n)
    gone = [list(g) for g in gone]
    gone[step] += stay[: len(stay) - needed + 1]
    clients = Clients(values(n, bits), gone)
    with pytest.raises(md.TooFewReplies, match="stays closed"):
        Session(SecureSum(threshold=threshold, bits=bits), b"test", list(range(n))).run(clients)
    # Only where clients leave after they have been asked for shares has anybody given one.
    assert clients.opened == (not (len(gone[0]) + len(gone[1]) > n - needed))


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 500))])
def test_a_sparse_graph_gives_the_exact_sum_of_large_cohorts(n: int) -> None:
    secure, rng = SecureSum(), np.random.default_rng(n)
    assert secure.degree(n) < n - 1
    lost = rng.permutation(n)[: n // 5].tolist()
    summed(
        Clients(values(n), (lost[: n // 20], lost[n // 20 : n // 6], lost[n // 6 :])),
        secure,
        rng.permutation(n).tolist(),
    )


def test_the_graph_is_symmetric_of_one_degree_and_in_one_piece() -> None:
    for n in (2, 3, 9, 50, 100, 301, 500):
        secure = SecureSum()
        graph = secure.neighbourhoods(np.random.default_rng(n).permutation(n).tolist())
        assert {len(them) for them in graph.values()} == {secure.degree(n)}
        assert all(i in graph[j] and i not in graph[i] for i, them in graph.items() for j in them)
        reached, at = {0}, [0]
        while at:
            new = set(graph[at.pop()]) - reached
            reached |= new
            at += new
        assert len(reached) == n


def test_a_neighbourhood_that_is_gone_is_refused_with_its_client() -> None:
    gone = [1, 2, 3, 57, 58]  # five of the eight neighbours of client 0 in a circle
    clients = Clients(values(60), ((), gone, ()))
    with pytest.raises(md.TooFewReplies, match=r"neighbourhood of client \d+ are left, but it needs 5"):
        Session(SecureSum(neighbours=8), b"test", list(range(60))).run(clients)
    assert not clients.opened


@pytest.mark.parametrize("data", [0, 2**32 - 1])
def test_a_masked_vector_is_uniform_and_tells_nothing_of_the_data(data: int) -> None:
    class Vectors(Clients):
        pass

    n, d = 3, 20_000
    clients = Vectors({i: np.full(d, data, np.uint32) for i in range(n)})
    Session(SecureSum(), b"test", list(range(n))).run(clients)
    for vector in clients.seen:
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-6
        tops = np.bincount(vector >> 28, minlength=16)
        assert chisquare(tops).pvalue > 1e-6
    again = Vectors({i: np.full(d, data, np.uint32) for i in range(n)})
    Session(SecureSum(), b"test", list(range(n))).run(again)
    assert abs(np.corrcoef(clients.seen[0].astype(float), again.seen[0].astype(float))[0, 1]) < 0.05


def test_the_server_cannot_open_one_vector_with_all_but_its_own_mask() -> None:
    """With pairwise masks taken away, the client's own mask still covers its vector."""
    clients = Clients({i: np.zeros(4000, np.uint32) for i in range(3)})
    keys = clients.keys([0, 1, 2])
    shares = clients.shares({i: {j: keys[j] for j in keys if j != i} for i in keys}, dict.fromkeys(keys, 2))
    sealed = {i: {j: shares[j][i] for j in keys if j != i} for i in keys}
    vectors = dict(clients.masked(sealed))
    both = vectors[0] + vectors[1] + vectors[2]  # pairwise masks cancel, the data are zeros: three own masks stay
    assert chisquare(np.bincount(both.view(np.uint8), minlength=256)).pvalue > 1e-6


def ready(n: int = 4, threshold: int = 3) -> Clients:
    clients = Clients(values(n))
    keys = clients.keys(range(n))
    shares = clients.shares({i: {j: keys[j] for j in keys if j != i} for i in keys}, dict.fromkeys(keys, threshold))
    list(clients.masked({i: {j: shares[j][i] for j in keys if j != i} for i in keys}))
    return clients


def test_a_client_refuses_to_give_shares_of_both_kinds() -> None:
    client = ready().parties[1]
    with pytest.raises(md.WireError, match="client 1 refuses: the server asks for both kinds of shares of client 2"):
        client.opening([0, 1, 2, 3], [2])
    client = ready().parties[1]
    client.opening([0, 1, 2], [3])
    client.opening([0, 1, 2], [3])  # the same again is no news
    with pytest.raises(md.WireError, match="both kinds of shares of client 3"):
        client.opening([0, 1, 3], [])
    with pytest.raises(md.WireError, match="both kinds of shares of client 2"):
        client.opening([0, 1], [2])
    with pytest.raises(md.WireError, match="both kinds of shares of client 1"):
        ready().parties[1].opening([0, 2, 3], [1])


def test_a_client_refuses_a_sum_of_too_few_and_what_it_does_not_hold() -> None:
    with pytest.raises(
        md.TooFewReplies,
        match="client 1 refuses to open a sum with 2 clients of its neighbourhood, because it must have 3",
    ):
        ready().parties[1].opening([0, 1], [2, 3])
    with pytest.raises(md.WireError, match="client 1 holds no shares of client 9"):
        ready().parties[1].opening([0, 1, 2], [9])


def test_a_client_refuses_a_threshold_that_is_no_majority_and_keys_that_are_repeated() -> None:
    clients = Clients(values(5))
    keys = clients.keys(range(5))
    others = {j: keys[j] for j in range(1, 5)}
    for threshold in (1, 2, 6):
        with pytest.raises(md.WireError, match=f"client 0 was asked .* with a threshold of {threshold}"):
            clients.parties[0].shares(others, threshold)
    with pytest.raises(md.WireError, match="wrong or repeated"):
        clients.parties[0].shares(others | {2: keys[1]}, 3)
    with pytest.raises(md.WireError, match="wrong or repeated"):
        clients.parties[0].shares(others | {2: keys[0]}, 3)
    with pytest.raises(md.WireError, match="wrong or repeated"):
        clients.parties[0].shares(others | {2: keys[2][:63]}, 3)


def test_shares_that_were_changed_or_sent_to_another_client_do_not_open() -> None:
    clients = Clients(values(3))
    keys = clients.keys(range(3))
    shares = clients.shares({i: {j: keys[j] for j in keys if j != i} for i in keys}, dict.fromkeys(keys, 2))
    raw = shares[1][0]
    for wrong in (raw[:-1] + bytes([raw[-1] ^ 1]), shares[1][2], raw[:20]):
        with pytest.raises(md.WireError, match="shares that client 1 sealed do not open"):
            clients.parties[0].masked(np.zeros(3, np.uint32), {1: wrong, 2: shares[2][0]})
    with pytest.raises(md.TooFewReplies, match="client 0: 0 of its 2 neighbours"):
        clients.parties[0].masked(np.zeros(3, np.uint32), {})


def test_a_wrong_share_of_a_key_is_noticed() -> None:
    class Liar(Clients):
        def opening(self, asked: Any) -> dict[int, Opening]:
            out = super().opening(asked)
            out[0] = Opening(out[0].seeds, {j: bytes(16) for j in out[0].keys})
            return out

    with pytest.raises(md.MedleyError, match="shares of client 2's key give another key"):
        Session(SecureSum(threshold=0.6), b"test", [0, 1, 2]).run(Liar(values(3), ((), [2], ())))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: SecureSum(threshold=0.5), r"threshold=0.5\): must be a share above 0.5"),
        (lambda: SecureSum(threshold=1.5), r"threshold=1.5\): must be a share above 0.5"),
        (lambda: SecureSum(bound=0.0), "bound"),
        (lambda: SecureSum(bound={"delta": -1.0}), "bounds must be finite numbers above 0"),
        (lambda: SecureSum(neighbours=7), "must be even"),
        (lambda: SecureSum(threshold=5).needed(3), "5 clients must stay, but the cohort has 3"),
        (lambda: SecureSum(threshold=5).needed(10), "5 of 10 are not a majority"),
        (lambda: SecureSum().needed(1), "2 clients must stay, but the cohort has 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(md.RecipeError, match=sentence):
        wrong()


def test_the_secrets_of_a_client_are_its_own_and_of_one_sum() -> None:
    """Seed, mask key and channel: 16 bytes each, and no two alike among 40 parties, of one client and one session too.

    Their bits are even, so that none is a number, a name or a constant."""
    made = [Party(i, session) for session in (b"test", b"other") for i in (*range(10), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)]
    secrets = [bytes.fromhex(s) for party in made for s in party.plain()["seeds"]]
    assert {len(s) for s in secrets} == {16}
    assert len({*secrets}) == 3 * len(made)
    bits = np.unpackbits(np.frombuffer(b"".join(secrets), np.uint8).reshape(-1, 16), axis=1)
    for kind in range(3):  # each bit is 1 in about half of 40 secrets
        ones = bits[kind::3].mean(0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / math.sqrt(len(made))


def test_no_two_texts_of_a_sum_have_one_key_and_one_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AES-GCM, two texts under one key and nonce give away their difference, and the key of their seals."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    used = list[tuple[bytes, bytes]]()

    class Watched:
        def __init__(self, key: bytes) -> None:
            self.key, self.cipher = key, AESGCM(key)

        def encrypt(self, nonce: bytes, *rest: Any) -> bytes:
            used.append((self.key, nonce))
            return self.cipher.encrypt(nonce, *rest)

        def decrypt(self, *rest: Any) -> bytes:
            return self.cipher.decrypt(*rest)

    monkeypatch.setattr("medley.secure.crypto.AESGCM", Watched)
    for session in (b"one", b"two"):
        clients = Clients(values(5))
        clients.parties = {i: Party(i, session) for i in range(5)}
        Session(SecureSum(), session, list(range(5))).run(clients)
    assert len(used) == len({*used}) == 2 * 5 * 4


def test_each_pair_of_clients_has_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in another sum: a mask that two pairs or two sums share would show the difference of two replies."""
    from medley.secure import party

    right, seeds = party.add_mask, list[bytes]()
    monkeypatch.setattr(
        party, "add_mask", lambda v, i, j, seed, sign=1: (seeds.append(seed), right(v, i, j, seed, sign))[1]
    )
    keys = [bytes([k]) * 16 for k in range(15)]
    for session, clients in [(name, Clients(values(5))) for name in (b"one", b"two")]:
        drawn = iter(keys)
        # The same secrets in both sums, so that only the name of the sum differs.
        monkeypatch.setattr(party, "secret", lambda drawn=drawn: next(drawn))
        clients.parties = {i: Party(i, session) for i in range(5)}
        Session(SecureSum(), session, list(range(5))).run(clients)
    assert len(seeds) == 2 * 5 * 4
    assert len({*seeds}) == 2 * 5 * 4 / 2
