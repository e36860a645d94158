"""The tokens of an answer that a client kept.

Owns: finding token ids or texts in an answer of any API. Never does: decide anything: a wrong guess costs only time. Called by:
`core verify`, `core diff`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from core_tokens.tokenizer import Tokenizer

TEXTS: Final = ("reasoning", "reasoning_content", "thinking", "text", "content", "name", "arguments")
"""Fields with text of the model, in the order in which models write them."""


def given_tokens(answer: Mapping[str, Any], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the probable token ids of each choice: those in the answer, else its texts as the tokenizer divides them."""
    choices = answer.get("choices")
    rows = choices if isinstance(choices, list) else [answer]
    found: list[list[int]] = []
    for row in rows:
        ids = row.get("token_ids") if isinstance(row, Mapping) else None
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            found.append(ids)
        else:
            text = "".join(_texts(row))
            found.append(tokenizer.encode(text, add_special_tokens=False) if text else [])
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for row in value:
            yield from _texts(row)
    elif isinstance(value, Mapping):
        for name in TEXTS:
            inner = value.get(name)
            if isinstance(inner, str):
                yield inner
            elif inner is not None:
                yield from _texts(inner)
        for name in ("message", "tool_calls", "function", "output"):
            if value.get(name) is not None:
                yield from _texts(value[name])
