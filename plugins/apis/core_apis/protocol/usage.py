"""Token counts in OpenAI's form.

Owns: the `Usage` body and `UsageCounter`. Called by: the answer writers and routes.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from core_frontend.api.outputs import RequestOutput


class PromptTokensDetails(msgspec.Struct):
    """The split of the prompt tokens. cached_tokens: those from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """The split of the completion tokens. reasoning_tokens: those of reasoning, over all choices."""

    reasoning_tokens: int


class Usage(msgspec.Struct, omit_defaults=True):
    """Counts in tokens; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class UsageCounter:
    """Counter of the tokens of outputs, whether deltas or final ones.

    details: also report cached prompt tokens.
    reasoning_tokens: set by the writer of an answer that may hold some, else None.
    """

    def __init__(self, details: bool) -> None:
        self.details = details
        self.prompt_tokens: dict[int, int] = {}
        self.cached_tokens: dict[int, int] = {}
        self.completion_tokens = 0
        self.reasoning_tokens: int | None = None

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count `output`, the next one of its prompt."""
        self.prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self.cached_tokens[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)

    def usage(self) -> Usage:
        """Return the counts so far."""
        prompt = sum(self.prompt_tokens.values())
        usage = Usage(prompt, self.completion_tokens, prompt + self.completion_tokens)
        if self.details:
            usage.prompt_tokens_details = PromptTokensDetails(sum(self.cached_tokens.values()))
        if self.reasoning_tokens is not None:
            usage.completion_tokens_details = CompletionTokensDetails(self.reasoning_tokens)
        return usage
