"""The keys of nodes, as ``ssh-keygen -t ecdsa -b 384`` writes them, and how they sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...contract.errors import RecipeError, reason

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
"""The order n of the group of P-384 (FIPS 186-4, D.1.2.4)."""


def private_key(path: Path) -> Any:
    """A node's private key, of `cryptography`'s class. Raises RecipeError for any other file."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP384R1):
            raise ValueError("it is not ECDSA on P-384")
    except OSError as e:
        raise RecipeError(f"the private key {path} can't be read: {reason(e)}; give ssh-keygen's file", "key") from None
    except Exception as e:  # cryptography raises errors of many classes
        hint = f"; give {path.with_suffix('')}" if path.suffix == ".pub" else ""
        raise RecipeError(
            f"{path} is not a private key as ssh-keygen -t ecdsa -b 384 writes it: {e}{hint}", "key"
        ) from None
    return key


def public_key(path: Path) -> Any:
    """A node's public key, from a file of the public or the private key. Raises RecipeError for any other file."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        raw = path.read_bytes()
        if raw.startswith(b"ecdsa-sha2-nistp384 "):
            return load_ssh_public_key(raw)
    except FileNotFoundError:
        pass  # the error of the private key
    except (OSError, ValueError) as e:
        raise RecipeError(f"{path} is not a public key as ssh-keygen -t ecdsa -b 384 writes it: {e}", "key") from None
    return private_key(path).public_key()


def ecdsa() -> Any:
    """The signatures of these keys: ECDSA with SHA-384."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())


def signed(path: Path, what: bytes) -> bytes:
    """Sign bytes with a private key. Of the two equivalent signatures, with s or with n - s, it returns the smaller."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    r, s = decode_dss_signature(private_key(path).sign(what, ecdsa()))
    return bytes(encode_dss_signature(r, min(s, ORDER - s)))


def is_low(signature: bytes) -> bool:
    """Whether a signature has the form of `signed`. Somebody without the key can write the other form."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    r, s = decode_dss_signature(signature)
    return bool(2 * s < ORDER and encode_dss_signature(r, s) == signature)
