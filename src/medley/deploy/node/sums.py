"""A client's part in secure sums on its node. It keeps its secrets in a file and answers each step once.

Messages of one sum may reach different processes, and a process may be killed. So the client writes its `Party` to disk
before it sends an answer. It answers a repeated request as before, and refuses one that differs, because two masked
replies, or shares of both kinds, would reveal a reply.

A node signs its public keys with the key by which Flower knows it. Clients check each other's keys with a keyring: a
text file with a line for each client, with its number and its public key as ``ssh-keygen -t ecdsa -b 384`` writes it.
Owners must not get it through the server.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch

from ...contract import Algorithm, RecipeError, WireError, pytree
from ...contract.annotation import in_range
from ...contract.place import name_of
from ...privacy import Private
from ...secure import SecureSum, tables
from ...secure.ring import Ring, Rounding
from ...secure.settings import check_installed
from ...storage.atomic import private, write
from ...wire.clip import Clip
from ...wire.connection import Host
from ..protocol import calls
from ..protocol.checked_json import Line, declared, line, parsed
from ..protocol.flwr_api import Letter, release
from ..protocol.secure_steps import KEYS, SEALED, SIZE, STEPS, form, session_name
from . import serve
from .keys import ecdsa, private_key

if TYPE_CHECKING:
    from ...secure.party import Party

FILE = "session.json"
"""The file with the client's secrets, in the folder "secure" next to its memory."""


@dataclass(frozen=True)
class About:
    """What every step's request states: the run, the secure sum and its number of clients."""

    run: Line
    session: Annotated[str, line(500)]
    cohort: Annotated[int, in_range(1, 1 << 20)]


def signature(path: Path, session: str, i: int, keys: bytes) -> bytes:
    """Client i's signature of its public keys of one secure sum; ``path`` is the file of the private key, as in
    `FleetNode`.

    Raises RecipeError for a file that cannot be used.
    """
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    pair = decode_dss_signature(private_key(path).sign(_text(session, i, keys), ecdsa()))
    return b"".join(number.to_bytes(SIZE // 2, "big") for number in pair)


def check(keyring: Path, i: int, session: str, keys: dict[int, bytes], signatures: dict[int, bytes]) -> None:
    """Check, for client i, the public keys that the server sends as other clients'.

    Raises WireError for keys that are not signed by the client's key in the keyring, and RecipeError for a file that is
    not a keyring.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    public_keys = read_keyring(keyring)
    for j, key in sorted(keys.items()):
        raw = signatures.get(j, bytes(SIZE))
        pair = (int.from_bytes(raw[: SIZE // 2], "big"), int.from_bytes(raw[SIZE // 2 :], "big"))
        try:
            if j not in public_keys:
                raise WireError(f"{name_of(i)} refuses: {name_of(j)} is not in its keyring {keyring.name}")
            public_keys[j].verify(encode_dss_signature(*pair), _text(session, j, key), ecdsa())
        except (InvalidSignature, ValueError):
            raise WireError(
                f"{name_of(i)} refuses: the public keys that the server gives for {name_of(j)} are not signed by that "
                f"client's key in the keyring {keyring.name}; they may be the server's own"
            ) from None


def read_keyring(keyring: Path) -> dict[int, Any]:
    """Public keys by client. Raises RecipeError for a file that is not a keyring."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    out = dict[int, Any]()
    try:
        for line in keyring.read_text(encoding="utf-8").splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            number, _, text = line.partition(" ")
            key = load_ssh_public_key(text.encode())
            if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP384R1):
                raise ValueError(f"the key of client {number} is not ECDSA on P-384")
            if out.setdefault(int(number), key) is not key:
                raise ValueError(f"client {number} appears twice")
    except Exception as e:  # cryptography raises errors of many classes
        raise RecipeError(
            f"{keyring} is not a keyring: write a line for each client, with its number and its public key, for "
            f"example '0 ecdsa-sha2-nistp384 AAAA...': {e}",
            "keyring",
        ) from None
    return out


def _text(session: str, i: int, keys: bytes) -> bytes:
    return f"medley secure keys of client {i} for {session}: ".encode() + keys


@dataclass
class SavedSum:
    """A secure sum as the client stores it.

    Attributes:
        party: plain values of the client's `Party`; None once the sum is open
        asked: by step, a digest of the request
    """

    session: str
    cohort: int
    party: dict[str, Any] | None
    asked: dict[str, str]


@dataclass(frozen=True)
class Sums:
    """One client's secure sums.

    Attributes:
        settings: the settings of its owner's recipe, not the server's
        key: the file of the node's private key, with which it signs its public keys; None for no signature
        keyring: the file with all clients' public keys; None to trust the server about which client has which keys
        terms: the digest of the run's `Terms`, as the node has them
    """

    client: int
    folder: Path
    settings: SecureSum
    key: Path | None = None
    keyring: Path | None = None
    terms: str = ""

    def answer(self, step: str, letter: Letter, host: Callable[[calls.CallRequest], Host]) -> bytes:
        """The answer to one step.

        Raises WireError for a request that does not belong to the client's sum, and for a second one that differs.
        """
        check_installed()
        from ...secure.party import Party

        i = self.client
        digest = serve.digest(letter)
        words = {k: bytes(v) for k, v in letter.items()}
        release(letter)
        who = "the server's words on a secure sum"
        about = declared(About, who, parsed(who, words.get("about", b"")))
        calls.check_run(about.run)
        place = self.folder / about.run / str(i) / "secure"
        saved = self._load(place)
        if step == STEPS[0] and (saved is None or saved.session != about.session):
            shutil.rmtree(place, ignore_errors=True)
            party = Party(i, about.session.encode(), self.settings.least(about.cohort))
            saved = SavedSum(about.session, about.cohort, party.plain(), {})
        if saved is None or (saved.session, saved.cohort) != (about.session, about.cohort):
            raise WireError(
                f"{name_of(i)} is not in the secure sum {about.session!r}: it sent no keys for it, or a later sum has "
                "begun"
            )
        if step in saved.asked:
            if saved.asked[step] != digest:
                raise WireError(
                    f"{name_of(i)} refuses: the server asks twice for {step} of one secure sum, with different "
                    "requests. Two masked replies, or both kinds of shares of one client, would reveal a "
                    "single reply"
                )
            return (place / step).read_bytes()
        if list(saved.asked) != list(STEPS[: STEPS.index(step)]) or saved.party is None:
            raise WireError(f"{name_of(i)} was asked for {step} after {list(saved.asked)}: the steps are {list(STEPS)}")
        party = Party.read(saved.party)
        if step == STEPS[2]:
            answer = self._masked(party, words, about.run, about.cohort, host)
        else:
            answer = self._protocol(step, party, words, about.cohort)
        saved.party = None if step == STEPS[-1] else party.plain()
        saved.asked[step] = digest
        self._save(place, saved, step, answer)
        return answer

    def _protocol(self, step: str, party: Party, letter: dict[str, bytes], cohort: int) -> bytes:
        """The answer to a step other than the masked reply."""
        session = party.session.decode()
        if step == STEPS[0]:
            return party.keys + (b"" if self.key is None else signature(self.key, session, self.client, party.keys))
        if step == STEPS[1]:
            roster = _table(letter, "roster", KEYS)
            if self.keyring is not None:
                check(self.keyring, self.client, session, roster, _table(letter, "signatures", SIZE))
                listed = len(read_keyring(self.keyring))
                if cohort > listed:
                    raise WireError(
                        f"{name_of(self.client)} refuses: the server says that {cohort} clients are in the secure sum, "
                        f"but its keyring {self.keyring.name} has {listed}"
                    )
            # The threshold says how many clients may be missing; the client uses its own, not the server's.
            return tables.packed(party.shares(roster, party.least))
        opening = party.opening(list(_table(letter, "alive", 0)), list(_table(letter, "left", 0)))
        return tables.packed({**opening.seeds, **opening.keys})

    def _masked(
        self, party: Party, letter: dict[str, bytes], run: str, cohort: int, host: Callable[[calls.CallRequest], Host]
    ) -> bytes:
        """Run the client method, and mask its reply. The name of the sum is computed from the request, so the two must
        match.
        """
        i = self.client
        request = calls.CallRequest.read(letter)
        e = request.exchange
        nonce = ["", *party.session.decode().split(" ")][-2]
        name = session_name(e, run, nonce, letter["common"], [self.terms, request.values])
        if e.blocks != ((i,),) or party.session != name or request.run != run:
            raise WireError(
                f"{name_of(i)} refuses: its request or its settings do not match the name of the secure sum; "
                "if clients trained on different models, the server could tell them apart"
            )
        weights = e.weights
        if weights is None or len(weights) != cohort or i not in weights or e.p.keys() != weights.keys():
            raise WireError(f"{name_of(i)} did not get the weights and p of the {cohort} clients in the secure sum")
        self.settings.check_weights(i, "weights", weights, party.least)
        self.settings.check_weights(i, "p", e.p, party.least)
        client_host = host(request)
        self._check_noise(client_host.algorithm, e.clip)
        fold = serve.serve(client_host, request, self.folder)
        (receipt,), packed = fold.receipts, fold.replies[i]
        # The server states the cohort, but the client computes its own threshold: that many shares give the full noise.
        judge = Rounding() if client_host.algorithm.fixed_scale else None
        about = party.least, judge, e.round == 1
        ring = Ring(self.settings.bits, self.settings.bound, weights, e.clip, *about)
        layout = ring.layout(packed)
        values = ring.encoded(i, packed, layout)
        if ring.noise:  # from the operating system, because the server knows the run's seed
            values += ring.share_of_noise(layout, np.random.Generator(np.random.PCG64DXSM(randbits(128))))
        masked = party.masked(values, _table(letter, "sealed", SEALED)).view(f"int{ring.bits}")
        how = {"fields": form(packed), "rows": receipt.work, "engines": fold.engines}
        return pytree.to_bytes({"masked": torch.from_numpy(masked), **how})

    def _check_noise(self, method: Algorithm[Any, Any], clip: Clip | None) -> None:
        """Raise WireError if the server asks for less noise than the method in the owner's recipe has."""
        if not isinstance(method, Private) or method.noise_at == "server":
            return
        if clip is None or clip.noise < float(method.noise or 0.0):
            raise WireError(
                f"{name_of(self.client)} refuses: its recipe adds noise={method.noise} to its share of a sum, but the "
                f"server asks for {0.0 if clip is None else clip.noise:g}"
            )

    def _load(self, place: Path) -> SavedSum | None:
        try:
            return SavedSum(**json.loads((place / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _save(self, place: Path, saved: SavedSum, step: str, answer: bytes) -> None:
        """Write the answer and then the state. Once the sum is open, delete secrets and earlier answers."""
        private(place)
        write(place / step, answer, owner_only=True)
        write(place / FILE, json.dumps(asdict(saved)), owner_only=True)
        if step == STEPS[-1]:
            for earlier in STEPS[:-1]:
                (place / earlier).unlink(missing_ok=True)


def _table(letter: dict[str, bytes], part: str, size: int) -> dict[int, bytes]:
    return tables.unpacked(letter.get(part, b""), size, f"the server's table of {part}")
