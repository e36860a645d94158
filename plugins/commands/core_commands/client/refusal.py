"""Error messages in answers, in the forms of OpenAI's API and others.

Owns: the forms. Never does: raise an error for the message itself. Called by: all clients that receive a status other
than 200.
"""

from __future__ import annotations

import msgspec

from core_commands.client.endpoint import Answer, whole

LONGEST_SENTENCE = 2000


class ErrorObject(msgspec.Struct):
    """OpenAI's error object; only the fields shown to users."""

    message: str = ""


class _Body(msgspec.Struct):
    """The body of an error answer. detail: the message in FastAPI's own errors."""

    error: ErrorObject | str | None = None
    detail: str | None = None


async def refusal(answer: Answer) -> str:
    """Return the message of an error answer. Raises EndpointError when it is interrupted."""
    text = await whole(answer)
    shown = text.decode(errors="replace")
    sentence = sentence_in(text) or f"The server answered with status {answer.status}: {shown}"
    return sentence[:LONGEST_SENTENCE]


def sentence_in(text: bytes) -> str:
    """Return the message in an error's body; empty if it has none."""
    try:
        body = msgspec.json.decode(text, type=_Body)
    except msgspec.DecodeError:
        return ""
    return sentence_of(body.error) or body.detail or ""


def sentence_of(error: ErrorObject | str | None) -> str:
    """Return the message of an error in any of its forms; empty for None."""
    return error.message if isinstance(error, ErrorObject) else error or ""
