"""Signatures of thinking blocks: a checksum of the text.

Owns: making and checking them. Never does: keep a secret. Called by: the writer of /v1/messages and the translation of
its bodies.

A checksum is enough: clients may write anything into a prompt, reasoning included, so there is nothing to protect. It
distinguishes our text from that of other providers, and changed text from unchanged text. It needs no key, so it
remains valid after a restart and on every replica.
"""

from __future__ import annotations

import hashlib

from core.api.errors import RequestError

OURS = "core-sha256-"
DIGEST_CHARACTERS = 32


def signature(thinking: str) -> str:
    """Return the signature of a text: the prefix `OURS`, and a checksum."""
    data = thinking.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    return OURS + digest[:DIGEST_CHARACTERS]


def is_ours(thinking: str, given: str, place: str) -> bool:
    """Whether this server, or one like it, wrote `thinking`. Raises RequestError if the text has been changed since.

    place: of the block in the request, for the error.
    """
    if not given.startswith(OURS):
        return False
    if thinking and given != signature(thinking):
        raise RequestError(
            f"{place} is thinking that was changed: its signature does not fit its text. Send it as it was answered, "
            "or leave it out.",
            param="messages",
        )
    return True
