"""The timings of an answer, under the names of llama.cpp's server.

Owns: the `Timings` body and its arithmetic. Never does: measure; the times are those of the outputs. Called by:
`core_apis.answers.extras`.
"""

from __future__ import annotations

import msgspec

from core_frontend.api.outputs import RequestOutput


class Timings(msgspec.Struct):
    """Times of one prompt, in milliseconds; None: not known, or there was nothing to divide by. Counts are in tokens.

    queue_ms:               from arrival until the computation of the prompt began.
    cache_n:                prompt tokens from the prefix cache.
    prompt_n:               prompt tokens that were computed.
    prompt_ms:              until the first token.
    prompt_per_token_ms:    the same per computed token.
    prompt_per_second:      computed prompt tokens per second.
    predicted_n:            generated tokens of all choices.
    predicted_ms:           from the first token to the last one.
    predicted_per_token_ms: the same per token of a choice after its first one.
    predicted_per_second:   tokens per second of all choices, without their first ones.
    """

    queue_ms: float | None
    cache_n: int
    prompt_n: int
    prompt_ms: float | None
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_token_ms: float | None
    predicted_per_second: float | None


def timings_of(output: RequestOutput, num_choices: int) -> Timings:
    """Return the timings of a prompt from its last output.

    num_choices: completions of the prompt; the last output of a stream need not hold them all.
    """
    times = output.metrics
    prompt_ms = _between(times.first_scheduled_time, times.first_token_time)
    predicted_ms = _between(times.first_token_time, times.last_token_time)
    num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
    num_later = max(times.num_generation_tokens - num_choices, 0)
    return Timings(
        queue_ms=_between(times.arrival_time, times.first_scheduled_time),
        cache_n=output.num_cached_tokens,
        prompt_n=num_computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_per(prompt_ms, num_computed),
        prompt_per_second=_rate(num_computed, prompt_ms),
        predicted_n=times.num_generation_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_per(predicted_ms, num_later / num_choices),
        predicted_per_second=_rate(num_later, predicted_ms),
    )


def _between(start: float, stop: float) -> float | None:
    """Return the milliseconds between two times in seconds; None if either is unknown."""
    if not start or not stop:
        return None
    return round(max(stop - start, 0.0) * 1000, 3)


def _per(ms: float | None, count: float) -> float | None:
    if ms is None or not count:
        return None
    return round(ms / count, 3)


def _rate(count: int, ms: float | None) -> float | None:
    if not ms or not count:
        return None
    return round(count / ms * 1000, 2)
