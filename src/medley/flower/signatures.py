"""Signatures of public keys of secure sums, and the keyring of nodes by which clients check each other's.

A node signs with the key by which Flower knows it. The keyring is a text file with a line for each client: its number,
and its public key as ``ssh-keygen -t ecdsa -b 384`` writes it. An owner must get it on another way than through the
server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..contract.errors import RecipeError, WireError

SIZE = 96
"""Bytes of a signature: two numbers of 384 bits."""


def signature(path: Path, session: str, i: int, keys: bytes) -> bytes:
    """Client i's signature of its public keys of one secure sum; ``path`` is as `FleetNode` has its key.

    Raises RecipeError for a file that cannot be used.
    """
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key: Any = load_ssh_private_key(path.read_bytes(), None)
        pair = decode_dss_signature(key.sign(_text(session, i, keys), _ecdsa()))
        return b"".join(number.to_bytes(SIZE // 2, "big") for number in pair)
    except Exception as e:  # cryptography raises errors of many classes
        raise RecipeError(f"{path} is no private key as ssh-keygen -t ecdsa -b 384 writes it: {e}", "key") from None


def check(keyring: Path, i: int, session: str, keys: dict[int, bytes], signatures: dict[int, bytes]) -> None:
    """Client i checks the public keys that the server says are other clients'.

    Raises WireError for keys that are not signed by the client's key in the keyring, and RecipeError for a file that is
    no keyring.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    known = read(keyring)
    for j, said in sorted(keys.items()):
        raw = signatures.get(j, bytes(SIZE))
        pair = (int.from_bytes(raw[: SIZE // 2], "big"), int.from_bytes(raw[SIZE // 2 :], "big"))
        try:
            if j not in known:
                raise WireError(f"client {i} refuses: client {j} is not in its keyring {keyring.name}")
            known[j].verify(encode_dss_signature(*pair), _text(session, j, said), _ecdsa())
        except (InvalidSignature, ValueError):
            raise WireError(
                f"client {i} refuses: the public keys that the server gives for client {j} are not signed by that "
                f"client's key in the keyring {keyring.name}; they may be the server's own"
            ) from None


def read(keyring: Path) -> dict[int, Any]:
    """Public keys by client. Raises RecipeError for a file that is no keyring."""
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
                raise ValueError(f"client {number} comes twice")
    except Exception as e:  # cryptography raises errors of many classes
        raise RecipeError(
            f"{keyring} is no keyring: a line for each client, its number and its public key, as in "
            f"'0 ecdsa-sha2-nistp384 AAAA...': {e}",
            "keyring",
        ) from None
    return out


def _text(session: str, i: int, keys: bytes) -> bytes:
    return f"medley secure keys of client {i} for {session}: ".encode() + keys


def _ecdsa() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())
