"""The sentence in an answer that is an error, as OpenAI's API and others write it.

Owns: its forms. Never does: raise. Called by: whoever got another status than 200.
"""

from __future__ import annotations

import msgspec

from core_commands.client.endpoint import Answer, whole

LONGEST_SENTENCE = 2000


class ErrorObject(msgspec.Struct):
    """OpenAI's error object, as far as it is shown."""

    message: str = ""


class _Body(msgspec.Struct):
    """detail: where FastAPI's own errors have their sentence."""

    error: ErrorObject | str | None = None
    detail: str | None = None


async def refusal(answer: Answer) -> str:
    """The sentence of an answer that is an error. Raises EndpointError when it breaks off."""
    text = await whole(answer)
    shown = text.decode(errors="replace")
    sentence = sentence_in(text) or f"The server answered with status {answer.status}: {shown}"
    return sentence[:LONGEST_SENTENCE]


def sentence_in(text: bytes) -> str:
    """Of the body of an error; empty where it has none."""
    try:
        body = msgspec.json.decode(text, type=_Body)
    except msgspec.DecodeError:
        return ""
    return sentence_of(body.error) or body.detail or ""


def sentence_of(error: ErrorObject | str | None) -> str:
    """Of an error in any of its forms; empty for none."""
    return error.message if isinstance(error, ErrorObject) else error or ""
