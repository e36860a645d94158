"""The bytes of a single token, by decoder kind.

Owns: the two byte spellings of vocabularies (GPT-2's printable characters, sentencepiece's `▁` and `<0x0A>`).
Never does: join tokens. Called by: `core_tokens.tokenizer`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import tokenizers

Spelling = Literal["byte_level", "sentencepiece", "plugged", "other"]
SENTENCEPIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip"}
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _printable_bytes() -> dict[str, int]:
    """Return GPT-2's table: printable Latin-1 characters stand for themselves, the others are numbered from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    shifted = [byte for byte in range(256) if byte not in plain]
    for count, byte in enumerate(shifted):
        table[chr(0x100 + count)] = byte
    return table


PRINTABLE_BYTES = _printable_bytes()
BYTE_CHARACTERS = {byte: character for character, byte in PRINTABLE_BYTES.items()}


def spelling_of(tokenizer: tokenizers.Tokenizer) -> tuple[Spelling, bool]:
    """Return how tokens spell bytes, and whether one space is dropped at the start of a text."""
    if tokenizer.decoder is None:
        return "other", False
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "byte_level", False
    if kinds == ["Metaspace"] and steps[0].get("replacement") == "▁":
        return "sentencepiece", steps[0].get("prepend_scheme", "always") != "never"
    if _replaces_spaces(steps):
        strips = [step for step in steps if step["type"] == "Strip"]
        return "sentencepiece", any(step["start"] == 1 for step in strips)
    return "other", False


def _replaces_spaces(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder's steps are those of a converted sentencepiece model: `▁` to a space, `<0x0A>` to its byte."""
    kinds = {step["type"] for step in steps}
    if "ByteFallback" not in kinds or not kinds <= SENTENCEPIECE_STEPS:
        return False
    replaced = [(step["pattern"], step["content"]) for step in steps if step["type"] == "Replace"]
    return replaced == [({"String": "▁"}, " ")]


def piece_bytes(token: str, spelling: Spelling) -> bytes:
    """Return the bytes of one token. A token with a character outside GPT-2's table is plain text."""
    if spelling == "byte_level":
        if all(character in PRINTABLE_BYTES for character in token):
            return bytes(PRINTABLE_BYTES[character] for character in token)
        return token.encode()
    if spelling == "sentencepiece":
        match = BYTE_TOKEN.fullmatch(token)
        if match:
            return bytes.fromhex(match[1])
        return token.replace("▁", " ").encode()
    return token.encode()
