"""Where the last question of a rendered conversation begins.

Owns: `question_edges`. Never does: render, or decide what is kept there. Called by: the preparation of chats, `LLM.chat`.

Templates often show an answer otherwise once the next question has come, such as without its reasoning. The next prompt then
leaves the earlier one after the last question, so that the state of layers with one is worth keeping before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core_tokens.tokenizer import Tokenizer


def question_edges(
    text: str, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> list[int]:
    """Return the number of tokens before the content of the last user message; empty where it is not found.

    text: the rendered conversation; ids: its tokens. It is only a good place: a token more or less makes no difference. The
    shorter part of the text is read by the tokenizer again.
    """
    start = _question(text, messages)
    if not start:
        return []
    if start <= len(text) // 2:
        return [min(len(tokenizer.encode(text[:start], add_special_tokens=False)), len(ids))]
    return [max(0, len(ids) - len(tokenizer.encode(text[start:], add_special_tokens=False)))]


def _question(text: str, messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the character at which the last user message's content begins; 0 where it is not found."""
    end = len(text)
    for message in reversed(messages):
        shown = _content(message)
        found = text.rfind(shown, 0, end) if shown else -1
        if message.get("role") == "user":
            return max(found, 0)
        if found >= 0:
            end = found
    return 0


def _content(message: Mapping[str, Any]) -> str:
    """Return the first text of a message's content, as templates show it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return next((text.strip() for text in texts if isinstance(text, str)), "")
