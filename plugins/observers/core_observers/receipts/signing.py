"""Signatures of receipts: HMAC-SHA256 with a shared secret, or Ed25519 with a key pair.

Owns: reading keys, signing, checking. Never does: decide what is signed. Called by: the issuer (signs), `core verify` (checks).

A key file is a PEM file of an Ed25519 key (the public one is enough to check), which needs core-engine-observers[sign], or any
other file of 32 to 4096 bytes, which is the secret of an HMAC.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any, Final

from core.api.errors import UserError

HMAC: Final = "hmac-sha256:"
ED25519: Final = "ed25519:"
SMALLEST, LARGEST = 32, 4096


class SigningKey:
    """A key that was read from a file. secret: of the HMAC, or None. pair: a key of `cryptography`, or None."""

    def __init__(self, secret: bytes | None, pair: Any = None) -> None:
        self._secret = secret
        self._pair = pair

    def sign(self, plain: bytes) -> str:
        """Return a signature. Raises UserError for a key that can only check."""
        if self._secret is not None:
            return HMAC + hmac.new(self._secret, plain, hashlib.sha256).hexdigest()
        if not hasattr(self._pair, "sign"):
            raise UserError("--receipt-key: a public key cannot sign; give the file of the private key.")
        signature: bytes = self._pair.sign(plain)
        return ED25519 + signature.hex()

    def check(self, plain: bytes, signature: str) -> str:
        """Return why a signature is not that of `plain` under this key; empty if it is."""
        if not signature:
            return "the receipt is not signed"
        method = HMAC if self._secret is not None else ED25519
        if not signature.startswith(method):
            return f"it is signed with {signature.partition(':')[0]:.20}, the key is one of {method[:-1]}"
        if self._secret is not None:
            return "" if hmac.compare_digest(signature, self.sign(plain)) else "the signature is of another text or key"
        return _check_pair(self._pair, plain, signature.removeprefix(ED25519))


def read_key(path: str) -> SigningKey:
    """Read a key file. Raises UserError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"--receipt-key {path}: {error.strerror or error}.") from None
    if data.lstrip().startswith(b"-----BEGIN"):
        return SigningKey(None, _pair(path, data))
    if not SMALLEST <= len(data) <= LARGEST:
        raise UserError(f"--receipt-key {path}: {len(data)} bytes; expected {SMALLEST} to {LARGEST}, or a PEM file.")
    return SigningKey(data)


def _pair(path: str, data: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UserError(
            f"--receipt-key {path}: a PEM file needs the package cryptography; run: pip install 'core-engine-observers[sign]'"
        ) from None
    try:
        if b"PRIVATE KEY" in data:
            found: Any = serialization.load_pem_private_key(data, password=None)
        else:
            found = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise UserError(f"--receipt-key {path}: no readable PEM file: {error}.") from None
    if not isinstance(found, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise UserError(f"--receipt-key {path}: it holds another key than one of Ed25519.")
    return found


def _check_pair(pair: Any, plain: bytes, digits: str) -> str:
    from cryptography.exceptions import InvalidSignature

    public = pair.public_key() if hasattr(pair, "public_key") else pair
    try:
        public.verify(bytes.fromhex(digits), plain)
    except (ValueError, InvalidSignature):
        return "the signature is of another text or key"
    return ""
