"""Content blocks in Anthropic's shape: their checks, and their text.

Owns: which blocks may appear where, and how documents and search results read. Never does: make messages
(`core_apis.anthropic.conversation` does). Called by: that module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.protocol.anthropic import (
    RESULT_BLOCKS,
    Citations,
    DocumentBlock,
    ImageBlock,
    SearchResultBlock,
    TextBlock,
)
from core_media.reading.parts import PlacedPart, placed_picture

BlockTypes = Mapping[str, type[msgspec.Struct]]

ONLY_TEXT: BlockTypes = {"text": TextBlock}


def blocks(content: str | Sequence[dict[str, Any]], known: BlockTypes, place: str) -> list[tuple[str, Any]]:
    """Return `(place, block)` for each block, the block as one of the Structs `known`. place: of `content` in the
    request.

    Raises RequestError for an unknown type and for a block that does not have its type's form.
    """
    if isinstance(content, str):
        return [(place, TextBlock(content))]
    found: list[tuple[str, Any]] = []
    for number, given in enumerate(content):
        where = f"{place}[{number}]"
        kind = given.get("type")
        struct = known.get(kind) if isinstance(kind, str) else None
        if struct is None:
            names = ", ".join(known)
            raise RequestError(
                f"{where} is a block of type {kind!r}; expected one of: {names}. Leave it out, or send it as text.",
                param=_field(place),
            )
        try:
            block = msgspec.convert(given, struct)
        except msgspec.ValidationError as error:
            raise RequestError(f"{where} is no {kind} block: {error}.", param=_field(place)) from None
        found.append((where, block))
    return found


def text_of(content: str | Sequence[dict[str, Any]], known: BlockTypes, place: str) -> str:
    """Return the text of all blocks, each on lines of its own."""
    return "\n".join(block_text(block, where) for where, block in blocks(content, known, place))


def block_text(block: TextBlock | DocumentBlock | SearchResultBlock, place: str) -> str:
    """Return the text of one block, as the model reads it.

    Raises RequestError for documents that are not text, and citations.
    """
    if isinstance(block, TextBlock):
        return block.text
    _check_citations(block.citations, place)
    if isinstance(block, SearchResultBlock):
        text = text_of(block.content, ONLY_TEXT, f"{place}.content")
        return "\n".join((block.title, block.source, text))
    text = _document_text(block, place)
    return "\n".join(part for part in (block.title, block.context, text) if part)


def image_url(block: ImageBlock, place: str) -> str:
    """Return the URL of a picture; base64 becomes a data URL. Raises RequestError."""
    source = block.source
    if source.type == "base64" and source.data is not None:
        return f"data:{source.media_type};base64,{source.data}"
    if source.type == "url" and source.url is not None:
        return source.url
    raise RequestError(
        f"{place}.source is of type {source.type!r}; expected 'base64' with data and media_type, or 'url' with url.",
        param=_field(place),
    )


def result_parts(
    content: str | Sequence[dict[str, Any]] | None, *, is_error: bool, place: str
) -> tuple[str, list[PlacedPart]]:
    """Return the text of a tool's result, and its pictures; the text of an error says that it is one."""
    texts: list[str] = []
    pictures: list[PlacedPart] = []
    for where, block in blocks(content or "", RESULT_BLOCKS, place):
        if isinstance(block, ImageBlock):
            pictures.append(placed_picture(image_url(block, where), where, "image"))
        else:
            texts.append(block_text(block, where))
    text = "\n".join(texts)
    return (f"Error: {text}" if is_error else text), pictures


def _document_text(block: DocumentBlock, place: str) -> str:
    source = block.source
    if source.type == "text" and source.data is not None:
        return source.data
    if source.type == "content" and source.content is not None:
        return text_of(source.content, ONLY_TEXT, f"{place}.source.content")
    raise RequestError(
        f"{place}.source is of type {source.type!r}; this model takes documents of plain text only: expected 'text' with "
        "data, or 'content' with text blocks.",
        param=_field(place),
    )


def _check_citations(citations: Citations | None, place: str) -> None:
    if citations is not None and citations.enabled:
        raise RequestError(
            f"{place}.citations is enabled, but citations are not served; leave it out.", param=_field(place)
        )


def _field(place: str) -> str:
    """Return the top-level field of the request that contains a place."""
    head, _, _ = place.partition("[")
    return head.partition(".")[0]
