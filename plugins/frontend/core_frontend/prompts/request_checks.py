"""Checks of a request that need no model: its values against one another, and against its prompt.

Owns: what cannot go together. Never does: change a value. Called by: the input processor.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core_frontend.prompts.prompt_parser import Prompt

MOST_PRIORITY = 1 << 31


def check_priority(priority: object) -> None:
    """Raise RequestError for a value that cannot be compared with other priorities."""
    if type(priority) is not int or not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise RequestError(
            f"priority is {priority!r}; expected an integer of at most {MOST_PRIORITY}, lower ones first.",
            param="priority",
        )


def check_compiled(params: SamplingParams, grammar: CompiledGrammar | None) -> None:
    """Raise RequestError for an output with a structure where nothing compiles its grammar."""
    if params.structured_outputs is not None and grammar is None:
        raise RequestError(
            "structured_outputs cannot be used here: nothing compiles grammars; leave it out.",
            param="structured_outputs",
        )


def check_continued(prompt: Prompt, params: SamplingParams) -> None:
    """Raise RequestError for a prompt that no text can follow."""
    if prompt.second:
        raise RequestError("token_type_ids are of pairs of texts to pool; leave them out.", param="token_type_ids")
    if prompt.embeds is not None:
        _check_embedded(prompt, params)
    if prompt.media and params.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens cuts a prompt, and this one has pictures; leave it out.",
            param="truncate_prompt_tokens",
        )


def _check_embedded(prompt: Prompt, params: SamplingParams) -> None:
    """Raise RequestError for parameters that need a prompt of tokens."""
    for name, is_given in (
        ("truncate_prompt_tokens", params.truncate_prompt_tokens is not None),
        ("prompt_logprobs", params.prompt_logprobs is not None),
    ):
        if is_given:
            raise RequestError(
                f"{name} is of a prompt of tokens, and this one has prompt_embeds; leave it out.", param=name
            )
    if params.repetition_penalty != 1.0 and not prompt.knows_tokens:
        raise RequestError(
            "repetition_penalty looks at the tokens of the prompt, which has prompt_embeds alone; set it to 1, or in a script "
            "give prompt_token_ids beside them.",
            param="repetition_penalty",
        )


def check_possible(
    params: SamplingParams, allowed: Sequence[int], stops: Sequence[int], bad_words: Sequence[Sequence[int]]
) -> None:
    """Raise RequestError if the request itself excludes every token at its first position."""
    if not allowed:
        return
    ruled_out = {word[0] for word in bad_words if len(word) == 1}
    names = "bad_words"
    if params.min_tokens:
        ruled_out.update(stops)
        names = "stop tokens before min_tokens, and bad_words,"
    if ruled_out.issuperset(allowed):
        raise RequestError(
            f"allowed_token_ids leaves nothing to sample: {names} rule out every token in it; allow others.",
            param="allowed_token_ids",
        )
