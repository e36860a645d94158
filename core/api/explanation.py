"""How an answer came about: what an engine keeps of one sequence, and what users are told of a request.

Owns: `SequenceRecord` (engine to client) and `Explanation` with its parts (told to users). Never does: measure or judge.
Called by: the scheduler and the KV cache (they fill records), the output processor (makes explanations), the answer writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

MISS_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "caching_off": "Prefix caching is switched off.",
        "prompt_logprobs": "Log-probabilities of the prompt were asked for, which need all of it computed.",
        "last_block": "Everything that can be cached was: what is left is no whole block, or the prompt's last token.",
        "collision": "Other tokens with the same hash are cached. They are not taken for these.",
        "evicted": "The same tenant had these tokens computed before; since then their blocks were evicted or reset.",
        "state_not_kept": "The tokens are known, but of the layers with a state none was kept at this place.",
        "other_tenant": "Another tenant had the same tokens computed, and tenants do not share.",
        "history_changed": "An earlier request of the same tenant has the same beginning and went on with other tokens.",
        "first_seen": "No earlier request of the same tenant came this far with these tokens.",
    }
)
"""Why a prompt's token did not come from the prefix cache. On the wire causes are any text: a new one is no new version."""

NO_DRAFTS_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "cost": "By the measured times of steps and the drafts that were right, the batch is quicker without drafts.",
        "measure": "Now and then a step has no drafts, so that it stays known how long that takes.",
        "batch_size": "Too many requests ran or waited for drafts, by speculative_config.",
        "max_model_len": "The sequence is longer than those that the draft model sees.",
        "failed": "The proposer failed and is not asked any more.",
    }
)
"""Why a step, or a sequence, has no drafts although there is speculation."""

Scope = Literal["off", "own", "all"]
"""What explained answers may tell of earlier requests: `off`: nothing is explained; `own`: of the same tenant's; `all`: also
that another tenant had the same tokens."""

Source = Literal["request", "generation_config", "server", "default", "context", "drawn"]
"""Where a sampling value comes from: the request, the generation configuration, the server's override of that, the default,
the room that the prompt leaves in the context, or chance (a seed)."""


class CacheMiss(msgspec.Struct, array_like=True, frozen=True):
    """The first prompt token that did not come from the prefix cache.

    index:      of the token in the prompt.
    cause:      why; a name in `MISS_CAUSES`.
    differs_at: index of the first token that differs from the newest earlier request of the same tenant with the same
                beginning; None but with `history_changed`.
    """

    index: int
    cause: str
    differs_at: int | None = None


class SequenceRecord(msgspec.Struct, array_like=True, omit_defaults=True):
    """What an engine keeps of a sequence whose request asks for it. Times are `time.monotonic()`, 0.0 before they come.

    entered:               when it came.
    started:               when it first got blocks.
    first_token:           when it got its first token.
    ended:                 when it ended.
    block_size:            tokens of a block.
    miss:                  None until it has started.
    num_memory_tokens:     those cached prompt tokens that came from host memory.
    num_disk_tokens:       those that came from disk.
    num_preemptions:       how often it lost its blocks to others.
    num_recomputed_tokens: tokens computed again, for that reason or because a step failed.
    num_drafts:            draft tokens that were verified.
    num_accepted:          those among them that were right.
    num_steps:             steps that computed something for it.
    waited_for:            the argument whose limit kept it waiting last; empty when it started in the next step.
    drafts_off:            why there were no drafts for it at its last step, as a sentence; empty when there might be some.
    """

    entered: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    block_size: int = 0
    miss: CacheMiss | None = None
    num_memory_tokens: int = 0
    num_disk_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    waited_for: str = ""
    drafts_off: str = ""


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
