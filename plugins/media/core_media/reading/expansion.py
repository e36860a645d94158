"""Prompts with pictures: the processor's text in place of their placeholders, and the positions of their rows.

Owns: both. Never does: tokenize, or process a picture. Called by: what prepares requests, `LLM`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import RequestError
from core.api.messages import MediaItem
from core_media.config import MediaConfig
from core_media.processing.pool import Processed
from core_tokens.chat.written_text import WrittenText, joined, spans_of, written


def expanded(
    text: str, config: MediaConfig, processed: Sequence[Processed], param: str, *, opening: str = "", ending: str = ""
) -> str:
    """Return a prompt in which the processor's text stands for each picture. Raises RequestError.

    Of a rendered template's text, placeholders count that the template wrote; those in contents stay text. Of any other text,
    all count.

    opening: what the processor puts behind the last picture. ending: what it puts behind the whole text.
    """
    mark = written if isinstance(text, WrittenText) else str
    placeholder = config.placeholder
    spans = spans_of(text) if isinstance(text, WrittenText) else ((0, len(text)),)
    pieces: list[str] = []
    end = 0
    found = 0
    for start, stop in spans:
        at = text.find(placeholder, start, stop)
        while at >= 0:
            pieces.append(text[end:at])
            if found < len(processed):
                is_last = found == len(processed) - 1
                pieces.append(mark(processed[found].text + (opening if is_last else "")))
            found += 1
            end = at + len(placeholder)
            at = text.find(placeholder, end, stop)
    if found != len(processed):
        raise RequestError(
            f"The prompt has {found} placeholders {placeholder} for {len(processed)} pictures; expected one for each.",
            param=param,
        )
    return joined([*pieces, text[end:], mark(ending)])


def items_of(
    token_ids: Sequence[int], config: MediaConfig, row_text: str, processed: Sequence[Processed], param: str
) -> list[MediaItem]:
    """Return the pictures with the positions of their rows. Raises RequestError when rows and placeholders differ.

    row_text: the spelling of the token whose embeddings rows replace.
    """
    places = [index for index, token in enumerate(token_ids) if token == config.token_id]
    counts = [each.text.count(row_text) for each in processed]
    if len(places) != sum(counts) or not all(counts):
        raise RequestError(
            f"The prompt has {len(places)} tokens {row_text} for {sum(counts)} rows of {len(processed)} pictures; leave such "
            "tokens out of texts.",
            param=param,
        )
    items: list[MediaItem] = []
    first = 0
    for each, count in zip(processed, counts, strict=True):
        last = first + count
        items.append(MediaItem(places[first], places[last - 1] + 1, each.digest, config.token_id, each.features))
        first = last
    return items
