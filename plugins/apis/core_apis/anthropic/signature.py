"""The signatures of thinking blocks: a checksum of the text.

Owns: making and judging them. Never does: keep a secret. Called by: the writer of /v1/messages and the translation of its
bodies.

A checksum is enough: clients may write whatever they like into a prompt, reasoning included, so there is nothing to protect.
It tells text of ours from that of other providers, and changed text from unchanged. It needs no key, so it holds after a
restart and on every replica.
"""

from __future__ import annotations

import hashlib

from core.api.errors import RequestError

OURS = "core-sha256-"
DIGEST_CHARACTERS = 32


def signature(thinking: str) -> str:
    """The signature of a text."""
    data = thinking.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    return OURS + digest[:DIGEST_CHARACTERS]


def is_ours(thinking: str, given: str, place: str) -> bool:
    """Whether this server, or one like it, wrote `thinking`. Raises RequestError when the text was changed since.

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
