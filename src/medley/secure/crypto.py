"""Primitives of secure aggregation: X25519, HKDF, AES, and Shamir's secret sharing, all from established packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..contract.errors import WireError
from ..contract.place import name_of

SECRET = 16
"""Bytes of a shared secret, as Shamir's scheme over GF(2¹²⁸) needs."""

KEY = 32
"""Bytes of a public key."""


class KeyPair(NamedTuple):
    """A key pair on Curve25519; the public key has 32 bytes."""

    private: X25519PrivateKey
    public: bytes


def secret() -> bytes:
    """A fresh secret of 16 bytes, from the operating system."""
    return os.urandom(SECRET)


def key_pair(seed: bytes) -> KeyPair:
    """The key pair that a secret of 16 bytes determines, so that sharing the secret shares the key."""
    private = X25519PrivateKey.from_private_bytes(derived(seed, b"key"))
    return KeyPair(private, private.public_key().public_bytes_raw())


def agreed(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """The 32 bytes that two key pairs agree on for ``purpose``. Raises WireError for an invalid key."""
    try:
        return derived(private.exchange(X25519PublicKey.from_public_bytes(public)), purpose)
    except ValueError as e:
        raise WireError(f"a public key of secure aggregation cannot be used: {e}") from None


def check_public(who: str, keys: bytes) -> None:
    """Raise WireError, which begins with ``who``, unless each of these public keys can be used."""
    private = key_pair(secret()).private
    for start in range(0, len(keys), KEY):
        try:
            agreed(private, keys[start : start + KEY], b"test")
        except WireError as e:
            raise WireError(f"{who}: {e}") from None


def derived(material: bytes, purpose: bytes) -> bytes:
    """32 bytes by HKDF-SHA256."""
    return bytes(HKDF(SHA256(), 32, None, b"medley secure aggregation " + purpose).derive(material))


def stream(seed: bytes, count: int, dtype: np.dtype[np.unsignedinteger]) -> np.ndarray:
    """``count`` pseudorandom whole numbers: AES-256 in counter mode under a key derived from ``seed``."""
    size = count * dtype.itemsize
    out = np.empty(size + 15, np.uint8)  # room that update_into asks for
    counter = Cipher(algorithms.AES(derived(seed, b"mask")), modes.CTR(bytes(16))).encryptor()
    counter.update_into(memoryview(bytes(size)), out.data)
    return out[:size].view(dtype)


def sealed(key: bytes, sender: int, text: bytes, purpose: bytes) -> bytes:
    """AES-GCM. A key serves one exchange and one pair; the sender makes the nonce differ in the two directions."""
    return bytes(AESGCM(key).encrypt(sender.to_bytes(12, "big"), text, purpose))


def unsealed(key: bytes, sender: int, raw: bytes, purpose: bytes) -> bytes:
    """Inverse of `sealed`. Raises WireError for a text that was changed, or sealed for somebody else."""
    try:
        return bytes(AESGCM(key).decrypt(sender.to_bytes(12, "big"), raw, purpose))
    except InvalidTag:
        raise WireError(f"the shares that {name_of(sender)} sealed do not open: they were changed on the way") from None


def split(value: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir's shares of a secret of 16 bytes; any ``threshold`` of the ``count`` restore it."""
    return [share for _, share in Shamir.split(threshold, count, value, ssss=False)]


def combined(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as the threshold; shares are numbered from 1."""
    return bytes(Shamir.combine(sorted(shares.items()), ssss=False))
