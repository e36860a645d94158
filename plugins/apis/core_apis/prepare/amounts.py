"""Limits on the size of one request: prompts, choices, tokens and log probabilities in total.

Owns: these checks. Never does: decode or tokenize. Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import RequestError
from core.api.pooling import Pooling
from core.api.sampling_params import SamplingParams
from core_apis.prepare.prepared import PreparationSettings

MAX_CHOICES = 4096
NUMBERS_A_TOKEN = 4
"""Numbers of a vector that are charged as one token of an answer: each is written with about 20 bytes."""


def check_choices(settings: PreparationSettings, prompts: Sequence[object], n: int) -> None:
    """Refuse, before anything is tokenized, a request with more choices than could ever run at once."""
    for argument, most in settings.most_prompts.items():
        if len(prompts) <= most:
            continue
        raise RequestError(
            f"The request has {len(prompts)} prompts, but at most {most} may come at once ({argument}); send fewer.",
            param="prompt",
        )
    if len(prompts) * n > MAX_CHOICES:
        raise RequestError(
            f"{len(prompts)} prompts with n={n} make {len(prompts) * n} choices; at most {MAX_CHOICES} fit one request.",
            param="prompt",
        )


def check_numbers(settings: PreparationSettings, pooling: Pooling, prompt_lens: Sequence[int]) -> None:
    """Refuse texts whose vectors or classes would not fit in memory: all numbers of all texts, or of all their tokens.

    pooling: the requested task. prompt_lens: number of tokens of each text.
    """
    config = settings.pooling
    if config is None:
        return
    width = (pooling.dimensions or config.size) * len(pooling.kinds)
    numbers = sum(width * (pooling.num_rows(length) or 1) for length in prompt_lens)
    most = settings.limits.max_request_tokens * NUMBERS_A_TOKEN
    if numbers > most:
        raise RequestError(
            f"The request asks for {numbers} numbers in all, {width} for each vector; at most {most} fit one request "
            f"({NUMBERS_A_TOKEN} for each of --max-request-tokens). Send fewer texts at once, or ask for fewer dimensions.",
            param="input",
            status=413,
            code="too_large",
        )


def check_amount(settings: PreparationSettings, params: SamplingParams, prompt_lens: Sequence[int]) -> None:
    """Refuse a request whose answer would not fit in memory: the tokens of all choices, with their log probabilities."""
    room = [settings.max_model_len - length for length in prompt_lens]
    wanted = room if params.max_tokens is None else [min(params.max_tokens, most) for most in room]
    listed = len(params.logprob_token_ids or ())
    tokens = params.n * sum(wanted) * (1 + listed + _num_entries(settings, params.logprobs))
    scored = sum(prompt_lens) * _num_entries(settings, params.prompt_logprobs)
    most = settings.limits.max_request_tokens
    if tokens + scored > most:
        raise RequestError(
            f"The request asks for up to {tokens + scored} tokens and log probabilities in all its choices; at most "
            f"{most} fit one request (--max-request-tokens). Lower max_tokens, n or logprobs, or send fewer prompts.",
            param="max_tokens",
        )
    most_queued = settings.max_num_queued_tokens
    if len(prompt_lens) > 1 and 0 < most_queued < sum(prompt_lens):
        raise RequestError(
            f"The prompts have {sum(prompt_lens)} tokens, but at most {most_queued} may wait "
            "(--max-num-queued-tokens); send fewer at once.",
            param="prompt",
        )


def _num_entries(settings: PreparationSettings, logprobs: int | None) -> int:
    """Return the number of log probabilities at one position; -1 stands for the whole vocabulary."""
    return settings.vocab_size if logprobs == -1 else logprobs or 0
