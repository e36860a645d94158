"""Reasoning in an opaque form that clients send back.

Owns: `sealed` and `unsealed`. Never does: encrypt: the server has no secret, and the text is the client's own answer.
Called by: the writer and the translation of items.
"""

from __future__ import annotations

import base64
import binascii

from core.api.errors import RequestError

PREFIX = "core1:"
"""The prefix that distinguishes our own content from other servers', and this form from later ones."""


def sealed(text: str) -> str:
    """Return `text` as `encrypted_content`."""
    data = text.encode()
    return PREFIX + base64.b64encode(data).decode("ascii")


def unsealed(content: str, place: str) -> str:
    """Return the text again. place: of the item, for the RequestError if another server made it."""
    try:
        if not content.startswith(PREFIX):
            raise ValueError("no prefix of ours")
        data = base64.b64decode(content.removeprefix(PREFIX), validate=True)
        return data.decode()
    except (ValueError, binascii.Error):
        raise RequestError(
            f"{place}.encrypted_content was not made by this server, which cannot read it; leave the item out.",
            param="input",
            code="invalid_encrypted_content",
        ) from None
