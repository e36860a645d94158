"""Prompts with media: the processor's text in place of their placeholders, and the positions of their rows.

Owns: both. Never does: tokenize, or process an item. Called by: what prepares requests, `LLM`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from core.api.errors import RequestError
from core.api.messages import MediaItem
from core_media.config import NOUNS, MediaConfig
from core_media.processing.processed import Processed
from core_tokens.chat.written_text import WrittenText, joined, spans_of, written


def expanded(
    text: str,
    config: MediaConfig,
    processed: Sequence[Processed],
    param: str,
    *,
    opening: str = "",
    ending: str = "",
) -> tuple[str, list[Processed]]:
    """Return a prompt in which the processor's text stands for each item, and the items in its order. Raises RequestError.

    Of a rendered template's text, placeholders count that the template wrote; those in contents stay text. Of any other text,
    all count. Items of one modality are in the order of their placeholders.

    opening: what the processor puts behind the last item. ending: what it puts behind the whole text.
    """
    mark = written if isinstance(text, WrittenText) else str
    modalities = {place.placeholder: name for name, place in config.places.items()}
    waiting = {name: [each for each in processed if each.modality == name] for name in config.places}
    found = dict.fromkeys(waiting, 0)
    pieces: list[str] = []
    order: list[Processed] = []
    end = 0
    for at, placeholder in _placeholders(text, modalities):
        modality = modalities[placeholder]
        pieces.append(text[end:at])
        if found[modality] < len(waiting[modality]):
            item = waiting[modality][found[modality]]
            order.append(item)
            pieces.append(mark(item.text + (opening if len(order) == len(processed) else "")))
        found[modality] += 1
        end = at + len(placeholder)
    for name, items in waiting.items():
        if found[name] != len(items):
            raise RequestError(
                f"The prompt has {found[name]} placeholders {config.places[name].placeholder} for {len(items)} "
                f"{NOUNS[name]}s; expected one for each.",
                param=param,
            )
    return joined([*pieces, text[end:], mark(ending)]), order


def expanded_ids(
    token_ids: Sequence[int],
    marks: Mapping[int, str],
    processed: Sequence[Processed],
    encode: Callable[[str], list[int]],
    param: str,
    *,
    opening: str = "",
    ending: str = "",
) -> tuple[list[int], list[Processed]]:
    """Do what `expanded` does, for a prompt of token ids. Raises RequestError.

    marks: token of a placeholder → its modality. encode: tokenizes what is put in, without a tokenizer's first token.
    """
    names = dict.fromkeys([*marks.values(), *(each.modality for each in processed)])
    waiting = {name: [each for each in processed if each.modality == name] for name in names}
    found = dict.fromkeys(waiting, 0)
    ids: list[int] = []
    order: list[Processed] = []
    for token in token_ids:
        modality = marks.get(token)
        if modality is None:
            ids.append(token)
            continue
        if found[modality] < len(waiting[modality]):
            order.append(waiting[modality][found[modality]])
            ids += encode(order[-1].text + (opening if len(order) == len(processed) else ""))
        found[modality] += 1
    for name, items in waiting.items():
        if found[name] != len(items):
            raise RequestError(
                f"The prompt has {found[name]} tokens that stand for a {NOUNS[name]}, and {len(items)} {NOUNS[name]}s; "
                "expected one for each, which its rows replace.",
                param=param,
            )
    return ids + (encode(ending) if ending else []), order


def _placeholders(text: str, known: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield where placeholders stand that count, in order, and which."""
    pattern = re.compile("|".join(map(re.escape, known)))
    spans = spans_of(text) if isinstance(text, WrittenText) else ((0, len(text)),)
    for start, stop in spans:
        for match in pattern.finditer(text, start, stop):
            yield match.start(), str.__str__(match.group())


def items_of(
    token_ids: Sequence[int],
    config: MediaConfig,
    row_texts: Mapping[str, str],
    processed: Sequence[Processed],
    param: str,
) -> list[MediaItem]:
    """Return the items with the positions of their rows. Raises RequestError when rows and placeholders differ.

    row_texts: by modality, the spelling of the token whose embeddings rows replace. processed: in the prompt's order.
    """
    places = {
        name: [index for index, token in enumerate(token_ids) if token == place.token_id]
        for name, place in config.places.items()
    }
    items: list[MediaItem] = []
    for name, at in places.items():
        row_text = row_texts[name]
        given = [each for each in processed if each.modality == name]
        counts = [each.text.count(row_text) for each in given]
        if len(at) != sum(counts) or not all(counts):
            raise RequestError(
                f"The prompt has {len(at)} tokens {row_text} for {sum(counts)} rows of {len(given)} {NOUNS[name]}s; leave "
                "such tokens out of texts.",
                param=param,
            )
        first = 0
        for each, count in zip(given, counts, strict=True):
            last = first + count
            token_id = config.places[name].token_id
            start, stop = at[first], at[last - 1] + 1
            levels = config.levels if each.rows else 0
            items.append(MediaItem(start, stop, each.digest, token_id, each.features, each.rows, levels, each.grid))
            first = last
    return sorted(items, key=lambda item: item.start)
