"""Token counts as OpenAI reports them. Owns: the `Usage` body. Called by: completions, chat."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """cached_tokens: prompt tokens that came from the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, omit_defaults=True):
    """Counts in tokens; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
