"""Prompts as dictionaries with declared keys.

Owns: `TextPrompt`, `TokensPrompt`, `EmbedsPrompt` and `PromptType`. Never does: check them
(`core_frontend.prompts.prompt_parser` does). Called by: users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt of text.

    prompt:     the text.
    cache_salt: only prompts with the same salt share cached prefixes.
    multi_modal_data: {"image": a picture or a list of them}, "audio" or "video", one for each placeholder in the
        text (`core_media.reading.given`).
    mm_processor_kwargs: arguments of the image processor that replace its own, for these pictures.
    multi_modal_uuids: {"image": an id or a list of them, None for an item without}: an id stands for the item that was first
        sent with it as long as that is kept, and `multi_modal_data` may then have None in its place.
    """

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]
    multi_modal_uuids: NotRequired[Mapping[str, Any]]
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]


class TokensPrompt(TypedDict):
    """A prompt of token ids.

    prompt_token_ids: the ids.
    prompt:           the text that they came from, to be shown in outputs.
    cache_salt: see `TextPrompt`.
    multi_modal_data: see `TextPrompt`; one token stands for each item, that of the placeholder, and its rows replace it.
    multi_modal_uuids, mm_processor_kwargs: see `TextPrompt`.
    """

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]
    multi_modal_uuids: NotRequired[Mapping[str, Any]]
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]


class EmbedsPrompt(TypedDict):
    """A prompt of embeddings, for an engine with `enable_prompt_embeds`.

    prompt_embeds:       a tensor or an array of floats [tokens, hidden size], in the form of the model's own embedding
                         rows.
    prompt_token_ids:    the tokens that they stand for, if those are known: penalties and drafts use them.
    prompt_is_token_ids: False for every token.
    prompt:              the text, to be shown in outputs.
    cache_salt:          see `TextPrompt`.
    """

    prompt_embeds: Any
    prompt_token_ids: NotRequired[Sequence[int]]
    prompt_is_token_ids: NotRequired[Sequence[bool]]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | EmbedsPrompt | dict[str, Any]
"""A prompt in any form."""
