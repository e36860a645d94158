"""The explanation of how an answer came about, as users read it.

Owns: `Explanation` with its parts. Never does: measure or judge. Called by: the output processor (makes explanations
from the engine's records, `core.api.sequence_record`), the answer writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Source = Literal["request", "generation_config", "server", "default", "context", "drawn"]
"""The source of a sampling value: the request, the generation configuration, the server's override of that, the
default, the room that the prompt leaves in the context, or chance (a seed).
"""


class Times(msgspec.Struct):
    """Durations in seconds, measured with one clock. None: that phase was not reached, or is not known.

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


CHANGE_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "template_rewrote": "The messages are those of an earlier request, but the chat template writes them otherwise.",
        "retokenized": "The text is that of an earlier request and its answer, but other tokens spell it.",
        "tools_changed": "The tools differ from those of the earlier request with the same messages, or their order does.",
    }
)
"""Causes in the place of `history_changed`, which a server finds out that remembers earlier conversations."""


class Change(msgspec.Struct):
    """What differs from an earlier conversation of the same tenant.

    cause:     `history_changed`, or a name in `CHANGE_CAUSES`.
    message:   index of the message, as the chat template gets them; None: none of them, as with tools.
    role:      its role; None without a message.
    field:     `content`, `reasoning_content`, `tool_calls`, or `template`: words of the template itself.
    character: index in the field of the first character that differs; None where it lies outside.
    before, after: the rendered text around it, which is the request's own.
    advice:    what to change, as a sentence.
    """

    cause: str
    message: int | None
    role: str | None
    field: str
    character: int | None
    before: str
    after: str
    advice: str


class Miss(msgspec.Struct):
    """The first prompt token that was computed although a cached prefix might have held it.

    token:      its index in the prompt.
    block:      the index of its block.
    before:     the prompt's text before it.
    after:      the prompt's text from it on. Both are the request's own.
    cause:      a name in `MISS_CAUSES` or `CHANGE_CAUSES`.
    differs_at: see `CacheMiss`.
    change:     what differs there, where the server remembers the earlier conversation; else None.
    """

    token: int
    block: int
    before: str
    after: str
    cause: str
    differs_at: int | None = None
    change: Change | None = None


class CacheUse(msgspec.Struct):
    """The sources of the prompt tokens of the first choice.

    prompt_tokens: number of all prompt tokens.
    cached_tokens: from the prefix cache.
    from_memory:   of those, the ones loaded back from host memory.
    from_disk:     of those, the ones loaded back from disk.
    block_size:    tokens that are cached together; None if the engine did not report it.
    first_miss:    None if the engine did not start the request.
    """

    prompt_tokens: int
    cached_tokens: int
    from_memory: int = 0
    from_disk: int = 0
    block_size: int | None = None
    first_miss: Miss | None = None


class SamplingValue(msgspec.Struct):
    """The effective value of a sampling parameter.

    value:  for a list, the number of its entries.
    source: where the value comes from.
    """

    value: bool | int | float | None
    source: Source


class Limit(msgspec.Struct):
    """A limit that cut something.

    name:   the field or argument that set it, or `kv_cache`: the cache was full.
    value:  its number; tokens, or seconds for a timeout. None if there is none.
    effect: what it did, as a sentence.
    """

    name: str
    value: float | None
    effect: str


class Drafts(msgspec.Struct):
    """The drafts of speculative decoding.

    proposed: number of draft tokens that were verified.
    accepted: number of those that were accepted.
    off: why there were none at the end of the request, as a sentence; None if there might be some.
    """

    proposed: int
    accepted: int
    off: str | None = None


class AuditUse(msgspec.Struct):
    """What the live audit did with the steps of the request.

    rows:      rows of it that were computed again alone and were the same.
    discarded: steps of it that an audit discarded, by what differed: `token`, `cache`, `logprobs` or `error`.
    """

    rows: int
    discarded: dict[str, int]


class ControlText(msgspec.Struct):
    """A control token spelled out in the contents of messages.

    text:  its spelling.
    count: number of its occurrences.
    kept_as: `text`, or `control` with --allow-control-tokens-in-content.
    """

    text: str
    count: int
    kept_as: Literal["text", "control"]


class SessionUse(msgspec.Struct):
    """What a session gave to a prompt.

    name:        of the session.
    turns:       number of its turns before the request.
    kept_tokens: the prompt's first tokens that are those of an earlier turn as they were sampled.
    note:        why there are none, as a sentence; None if there are some.
    """

    name: str
    turns: int
    kept_tokens: int
    note: str | None = None


class PrefillUse(msgspec.Struct):
    """Where the prompt was computed, of a server that may send prompts to others (`--prefill-servers`).

    where:    `here`, or `there`: by one of these servers.
    why:      the reason, as a sentence.
    here:     seconds that were foretold until its first token if it was computed here; None: nothing was foretold.
    there:    the same at the best of these servers, with the transfer of its pages; None: none was asked, or could.
    transfer: the part of them that the transfer would take.
    server:   place of that server in the list; None where it was computed here.
    """

    where: Literal["here", "there"]
    why: str
    here: float | None = None
    there: float | None = None
    transfer: float | None = None
    server: int | None = None


class MoveUse(msgspec.Struct):
    """One move of a running request to another engine of its group (`/drain_engine`).

    source, target: places of the engines in the group.
    tokens:    tokens of its choices that had been generated.
    how:       `moved`: the pages of its keys and values went along; `computed`: the other engine computed them again.
    why:       the reason, as a sentence.
    computing: seconds that were foretold until it would go on if it was computed again; None: nothing was foretold.
    moving:    the same if its pages went along, with their transfer; None likewise.
    """

    source: int
    target: int
    tokens: int
    how: Literal["moved", "computed"]
    why: str
    computing: float | None = None
    moving: float | None = None


class Explanation(msgspec.Struct):
    """The explanation of one request. Counts include all its choices.

    times:       its phases.
    cache:       the sources of its prompt tokens.
    sampling:    values by the names of `SamplingParams`.
    limits:      all limits that cut something.
    preemptions: how often a choice lost its blocks to other requests.
    recomputed_tokens: tokens that were computed again.
    drafts:      tokens of speculative decoding.
    steps:       engine steps that computed one of its choices.
    restarts:    how often another engine continued it after the previous one had died.
    tools:       how the model learned of the tools, if its chat template renders none; else None.
    control_text: control tokens spelled out in contents, at most 16 of them.
    session:     what the request's session gave to its prompt; None without one.
    audit:       what the live audit did with its steps; None: none was computed again.
    prefill:     where its prompt was computed; None: the server sends none away.
    moves:       how often another engine continued it because its engine was drained.
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
    session: SessionUse | None = None
    audit: AuditUse | None = None
    prefill: PrefillUse | None = None
    moves: list[MoveUse] = []
