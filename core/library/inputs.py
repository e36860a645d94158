"""Prompts as dictionaries with declared keys.

Owns: `TextPrompt`, `TokensPrompt` and `PromptType`. Never does: check them (`core.engine.prompt_parser` does).
Called by: users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A text.

    prompt:     the text.
    cache_salt: only prompts with the same salt share cached prefixes.
    multi_modal_data, multi_modal_uuids, mm_processor_kwargs: None: prompts are text.
    """

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[None]
    multi_modal_uuids: NotRequired[None]
    mm_processor_kwargs: NotRequired[None]


class TokensPrompt(TypedDict):
    """Token ids.

    prompt_token_ids: the ids.
    prompt:           the text that they came from, to be shown in outputs.
    cache_salt, multi_modal_data, multi_modal_uuids, mm_processor_kwargs: see `TextPrompt`.
    """

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[None]
    multi_modal_uuids: NotRequired[None]
    mm_processor_kwargs: NotRequired[None]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | dict[str, Any]
"""A prompt in any form."""
