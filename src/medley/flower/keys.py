"""The keys of nodes, as ``ssh-keygen -t ecdsa -b 384`` writes them, and how they sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..contract.errors import RecipeError


def private_key(path: Path) -> Any:
    """A node's private key, of `cryptography`'s class. Raises RecipeError for any other file."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP384R1):
            raise ValueError("it is not ECDSA on P-384")
    except Exception as e:  # cryptography raises errors of many classes
        raise RecipeError(f"{path} is not a private key as ssh-keygen -t ecdsa -b 384 writes it: {e}", "key") from None
    return key


def public_key(path: Path) -> Any:
    """A node's public key, from a file of the public or the private key. Raises RecipeError for any other file."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        if (raw := path.read_bytes()).startswith(b"ecdsa-sha2-nistp384 "):
            return load_ssh_public_key(raw)
    except (OSError, ValueError) as e:
        raise RecipeError(f"{path} is not a public key as ssh-keygen -t ecdsa -b 384 writes it: {e}", "key") from None
    return private_key(path).public_key()


def ecdsa() -> Any:
    """The signatures of these keys: ECDSA with SHA-384."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())
