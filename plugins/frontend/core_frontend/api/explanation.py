"""How an answer came about, as users read it.

Owns: `Explanation` with its parts. Never does: measure or judge. Called by: the output processor (makes explanations from
the engine's records, `core.api.sequence_record`), the answer writers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["request", "generation_config", "server", "default", "context", "drawn"]
"""Where a sampling value comes from: the request, the generation configuration, the server's override of that, the default,
the room that the prompt leaves in the context, or chance (a seed)."""


class Times(msgspec.Struct):
    """Seconds of one clock. None: that phase was not reached, or is not known.

    preparation: from arrival until the engine had the request: template, tokens, checks, grammar.
    queue:       until its first choice started.
    prefill:     until its first token.
    decode:      until its last choice ended.
    grammar:     the part of the preparation that the grammar took; None without one.
    total:       from arrival until the answer was complete.
    """

    preparation: float | None
    queue: float | None
    prefill: float | None
    decode: float | None
    grammar: float | None
    total: float


class Miss(msgspec.Struct):
    """The first prompt token that was computed although a cached prefix might have held it.

    token:      its index in the prompt.
    block:      the index of its block.
    before:     the prompt's text before it.
    after:      the prompt's text from it on. Both are the request's own.
    cause:      a name in `MISS_CAUSES`.
    differs_at: see `CacheMiss`.
    """

    token: int
    block: int
    before: str
    after: str
    cause: str
    differs_at: int | None = None


class CacheUse(msgspec.Struct):
    """Where the prompt tokens of the first choice came from.

    prompt_tokens: all of them.
    cached_tokens: from the prefix cache.
    from_memory:   those of them that came back from host memory.
    from_disk:     those that came back from disk.
    block_size:    tokens that are cached together; None when the engine told nothing.
    first_miss:    None when the engine did not start the request.
    """

    prompt_tokens: int
    cached_tokens: int
    from_memory: int = 0
    from_disk: int = 0
    block_size: int | None = None
    first_miss: Miss | None = None


class SamplingValue(msgspec.Struct):
    """A value as it was used.

    value:  of a list the number of its entries.
    source: who said so.
    """

    value: bool | int | float | None
    source: Source


class Limit(msgspec.Struct):
    """Something that was cut.

    name:   the field or argument that did it, or `kv_cache`: the cache was full.
    value:  its number; tokens, or seconds for a timeout. None where there is none.
    effect: what it did, as a sentence.
    """

    name: str
    value: float | None
    effect: str


class Drafts(msgspec.Struct):
    """Speculative decoding.

    proposed: tokens that were verified.
    accepted: those that were right.
    off: why there were none at the end of the request, as a sentence; None when there might be some.
    """

    proposed: int
    accepted: int
    off: str | None = None


class ControlText(msgspec.Struct):
    """A control token spelled out in the contents of messages.

    text:  its spelling.
    count: how often it is there.
    kept_as: `text`, or `control` with --allow-control-tokens-in-content.
    """

    text: str
    count: int
    kept_as: Literal["text", "control"]


class Explanation(msgspec.Struct):
    """How one request was answered. Counts are those of all its choices.

    times:       its phases.
    cache:       where its prompt came from.
    sampling:    values by the names of `SamplingParams`.
    limits:      all that cut something.
    preemptions: how often a choice lost its blocks to other requests.
    recomputed_tokens: tokens that were computed again.
    drafts:      tokens of speculative decoding.
    steps:       steps of the engine in which a choice had a part.
    restarts:    how often another engine went on with it because the one before had died.
    tools:       how the model learned of the tools, where its chat template shows none; else None.
    control_text: control tokens spelled out in contents, at most 16 of them.
    """

    times: Times
    cache: CacheUse
    sampling: dict[str, SamplingValue]
    limits: list[Limit]
    preemptions: int
    recomputed_tokens: int
    drafts: Drafts
    steps: int
    restarts: int = 0
    tools: str | None = None
    control_text: list[ControlText] = []
