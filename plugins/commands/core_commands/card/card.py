"""The card: shares of the machine's limits, and what would help, with the gain that the figures predict.

Owns: `Row`, `Advice` and the arithmetic from times and work to both. Never does: send requests, measure limits, or print.
Called by: the command `core bench card`.

Shares and predictions are of one round each, with the limits measured right before it; the medians over rounds count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core_commands.card.limits import Limits
from core_commands.card.timings import HEAD_TOKENS, SHORT, STREAMS, Lengths, Times
from core_config.token_work import TokenWork

if TYPE_CHECKING:
    from core_config.resolve import Resolution

LEAST_GAIN = 0.02
"""Gains below this share are not worth advice."""


@dataclass(frozen=True, slots=True)
class Row:
    """One part of the work. what: it computes. ms: it takes. limit: of the machine it is compared with. share: it reaches.

    note: why there is no share.
    """

    what: str
    ms: float | None
    limit: str = ""
    share: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """An argument that would help. gain: predicted, as a share. of: what becomes faster. note: what else changes."""

    argument: str
    value: Any
    gain: float
    of: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One round with the limits before it."""

    limits: Limits
    times: Times


def rows(work: TokenWork, lengths: Lengths, rounds: Sequence[Round]) -> list[Row]:
    """Return the parts of the card. lengths: of prompts and answers that were timed."""
    context = (lengths.answer // 2) + SHORT
    near = work.key_bytes(context)
    found = [
        _row(
            f"prefill of {lengths.prompt} tokens",
            rounds,
            lambda times: times.prefill,
            "matmul peak",
            lambda one: work.prompt_numbers(lengths.prompt) / one.limits.products,
        ),
        _row(
            "a token of one stream",
            rounds,
            lambda times: times.decode,
            "bandwidth",
            lambda one: (work.weights.nbytes + near) / one.limits.bandwidth,
        ),
        _row(
            f"logits of {HEAD_TOKENS} rows (with their log-probabilities)",
            rounds,
            lambda times: times.head,
            "matmul peak",
            lambda one: work.head.numbers * (HEAD_TOKENS - 1) / one.limits.products,
        ),
    ]
    if lengths.context:
        more = work.key_bytes(lengths.context) - near
        found.append(
            _row(
                f"attention of a token behind {lengths.context}",
                rounds,
                lambda times: (times.decode_far or 0.0) - times.decode,
                "bandwidth",
                lambda one: more / one.limits.bandwidth,
            )
        )
    else:
        found.append(Row("attention far behind", None, note="the longest request is below 1,024 tokens and an answer"))
    found.append(_experts_row(work, rounds))
    found += [
        _row("a token of each of 8 streams", rounds, lambda times: times.decode_many),
        _row(
            "sampling of a token (temperature, top-p and top-k, beyond greedy)", rounds, lambda t: t.sampled - t.decode
        ),
        _row("HTTP, JSON and tokens of a request, outside of the engine", rounds, lambda times: times.outside),
    ]
    return found


def _experts_row(work: TokenWork, rounds: Sequence[Round]) -> Row:
    """Return the row of experts, which needs several streams: one alone reads them together with all other weights."""
    if not work.num_experts:
        return Row("experts", None, note="the model has none")
    others = work.one_expert.nbytes * (distinct(work.num_experts, work.num_choices, STREAMS) - work.num_choices)
    return _row(
        f"experts that {STREAMS} streams take beyond those of one (and their other rows)",
        rounds,
        lambda times: times.decode_many - times.decode,
        "bandwidth",
        lambda one: others / one.limits.bandwidth,
    )


def _row(
    what: str,
    rounds: Sequence[Round],
    seconds: Callable[[Times], float],
    limit: str = "",
    least: Callable[[Round], float] | None = None,
) -> Row:
    """Return a row. least: the seconds that a round would take at the machine's limit."""
    took = statistics.median(seconds(one.times) for one in rounds)
    if took <= 0:
        return Row(what, 1e3 * took, limit, note="less than what rounds differ by")
    share = None
    if least is not None:
        share = statistics.median(least(one) / seconds(one.times) for one in rounds if seconds(one.times) > 0)
    return Row(what, 1e3 * took, limit, share)


def distinct(count: int, choices: int, tokens: int) -> float:
    """Return the experts that several tokens take in all, if each takes any with equal chance."""
    return count * (1.0 - (1.0 - choices / count) ** tokens)


def advice(
    base: Resolution, lengths: Lengths, rounds: Sequence[Round], again: Callable[[Mapping[str, Any]], Resolution | None]
) -> list[Advice]:
    """Return what would help, the largest gain first. again: resolves with further arguments; None: it cannot."""
    work = base.work()
    assert work is not None, "the command has looked"
    found = [*_lighter_weights(base, work, rounds, again), *_lighter_keys(base, work, lengths, rounds, again)]
    found += _longer_chunks(base, lengths, rounds)
    return sorted((each for each in found if each.gain >= LEAST_GAIN), key=lambda each: -each.gain)


def _lighter_weights(
    base: Resolution, work: TokenWork, rounds: Sequence[Round], again: Callable[[Mapping[str, Any]], Resolution | None]
) -> Iterator[Advice]:
    """Yield 8-bit weights, if the checkpoint is not quantized.

    At least the time of reading at the full bandwidth shrinks with the bytes, at most all of a step's time does.
    """
    if base.arguments["quantization"][0] is not None:
        return
    lighter = _work_of(again({"quantization": "int8"}))
    if lighter is not None:
        left = lighter.weights.nbytes / work.weights.nbytes
        gains = []
        for one in rounds:
            reading = min(1.0, work.weights.nbytes / one.limits.bandwidth / one.times.decode)
            gains.append(1 / (1 - (1 - left) * reading) - 1)
        note = f"up to {1 / left - 1:+.0%} where reading takes all of a step; answers have other bits"
        yield Advice("quantization", "int8", statistics.median(gains), "tokens of one stream", note)


def _lighter_keys(
    base: Resolution,
    work: TokenWork,
    lengths: Lengths,
    rounds: Sequence[Round],
    again: Callable[[Mapping[str, Any]], Resolution | None],
) -> Iterator[Advice]:
    """Yield 8-bit keys and values, by the time that attention takes behind many tokens."""
    if not lengths.context or base.arguments["kv_cache_dtype"][0] not in ("bfloat16", "float16", "float32"):
        return
    lighter = _work_of(again({"kv_cache_dtype": "int8_per_token_head"}))
    if lighter is None:
        return
    left = lighter.key_bytes(lengths.context) / max(work.key_bytes(lengths.context), 1)
    gains = []
    for one in rounds:
        assert one.times.decode_far is not None
        attention = max(0.0, one.times.decode_far - one.times.decode)
        gains.append(one.times.decode_far / (one.times.decode_far - attention * (1 - left)) - 1)
    yield Advice(
        "kv_cache_dtype",
        "int8_per_token_head",
        statistics.median(gains),
        f"tokens behind {lengths.context} others",
        "answers have other bits",
    )


def _longer_chunks(base: Resolution, lengths: Lengths, rounds: Sequence[Round]) -> Iterator[Advice]:
    """Yield larger chunks of prompts beside streams: fewer steps, each of which a stream waits for."""
    present = base.arguments["max_num_mixed_batched_tokens"][0]
    if not isinstance(present, int) or present >= lengths.prompt:
        return

    def until_first(one: Round, chunk: int) -> float:
        steps = math.ceil(lengths.prompt / chunk)
        return steps * one.times.decode + one.times.prefill

    value = 2 * present
    gain = statistics.median(until_first(one, present) / until_first(one, value) - 1 for one in rounds)
    waits = [
        1e3 * statistics.median(one.times.decode + chunk * one.times.prefill / lengths.prompt for one in rounds)
        for chunk in (present, value)
    ]
    yield Advice(
        "max_num_mixed_batched_tokens",
        value,
        gain,
        f"the first token of a prompt of {lengths.prompt} beside a stream",
        f"streams wait {waits[1]:.0f} instead of {waits[0]:.0f} ms for a step with a chunk",
    )


def _work_of(resolution: Resolution | None) -> TokenWork | None:
    return None if resolution is None else resolution.work()
