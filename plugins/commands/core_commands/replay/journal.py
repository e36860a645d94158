"""Requests of a journal (`--request-journal`), as two engines can be asked for them.

Owns: reading them, and the body that asks for the same answer again. Never does: lock or change a journal, or ask an engine.
Called by: `core diff`.

A journal keeps each prompt as token ids with its sampling parameters, and forgets the tokens of an answer that has ended. So
both sides compute, as completions of these ids; what a chat's template or format would make of the answer is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from core.api.errors import UNREADABLE
from core.api.sampling_params import SamplingParams
from core_apis.journal.browsing import Budget, browse
from core_apis.journal.records import Accepted, Begun, Frame, Kind
from core_commands.replay.comparison import Recorded
from core_commands.replay.computed import UNLIMITED
from core_frontend.api.sampling_fields import field_names

T = TypeVar("T")

PATH: Final = "/v1/completions"
PASSED_ON: Final = field_names(lambda field: field.in_bodies)


class KeptPrompt(msgspec.Struct):
    """The part of a kept prompt that is asked again."""

    token_ids: list[int]
    second: int = 0
    embeds: Any = None
    pictures: list[Any] = []
    media: list[Any] = []


class KeptRequest(msgspec.Struct):
    """The part of a kept chat or completion that is asked again."""

    model: str
    params: SamplingParams
    prompts: list[KeptPrompt]


class Wrapped(msgspec.Struct):
    """A kept body of another API: the chat or completion that it became."""

    chat: KeptRequest | None = None
    completion: KeptRequest | None = None


def is_journal(directory: str) -> bool:
    """Whether a directory holds a journal of requests, and no recorded traffic. Raises UserError."""
    has_requests = False
    for frame in browse(directory):
        if frame.kind is Kind.TRAFFIC:
            return False
        has_requests = has_requests or frame.kind is Kind.ACCEPTED
    return has_requests


def read_requests(directory: str) -> Iterator[tuple[bytes, Recorded | None]]:
    """Yield the tenant's digest and the request, oldest first; None for one that cannot be asked again as token ids.

    Raises UserError for a directory that cannot be read, or is too large.
    """
    accepted: dict[int, Accepted | None] = {}
    seeds: dict[int, dict[int, int]] = {}
    budget = Budget(directory)
    for frame in browse(directory):
        if frame.kind is Kind.ACCEPTED:
            budget.take(len(frame.data))
            accepted[frame.entry] = _decoded(frame, Accepted)
        elif frame.kind is Kind.BEGUN and (begun := _decoded(frame, Begun)) is not None:
            budget.take(len(frame.data))
            seeds.setdefault(frame.entry, {})[begun.prompt] = begun.seed
    for entry in sorted(accepted):
        request = accepted.pop(entry)
        if request is None:
            yield b"", None
        else:
            yield request.tenant, _recorded(entry, request, seeds.get(entry, {}))


def _decoded(frame: Frame, kind: type[T]) -> T | None:
    """Return the payload; None if it is of another version."""
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)
    except UNREADABLE:
        return None


def _recorded(entry: int, accepted: Accepted, seeds: dict[int, int]) -> Recorded | None:
    """Return a request as it is compared; None where token ids and parameters do not say all of it."""
    try:
        kept = _kept(accepted.body)
    except (*UNREADABLE, ValueError):  # of another version, pooling, or parameters that are out of range
        return None
    if kept is None or not kept.prompts or not all(_is_plain(prompt) for prompt in kept.prompts):
        return None
    params = kept.params
    if params.extra_args or params.trace_decode_token_ids:
        return None
    prompts = [prompt.token_ids for prompt in kept.prompts]
    drawn = [seeds.get(index, params.seed or 0) for index in range(len(prompts))]
    body = {"model": kept.model, "prompt": prompts} | _fields_of(params)
    return Recorded(entry, PATH, body, prompts, [], drawn, adapter=accepted.adapter)


def _fields_of(params: SamplingParams) -> dict[str, Any]:
    """Return the fields of a completion's body that ask for these parameters."""
    fields: dict[str, Any] = {"max_tokens": UNLIMITED if params.max_tokens is None else params.max_tokens}
    given = {name: getattr(params, name) for name in PASSED_ON if name != "truncate_prompt_tokens"}  # it has been cut
    fields |= {name: value for name, value in given.items() if value is not None}
    if params.structured_outputs is not None:
        fields["structured_outputs"] = msgspec.to_builtins(params.structured_outputs)
    return fields


def _kept(body: bytes) -> KeptRequest | None:
    """Return the request of a kept body. Raises one of `UNREADABLE` where it is none."""
    found = msgspec.msgpack.decode(body, type=dict[str, Any])
    if "params" in found:
        return msgspec.msgpack.decode(body, type=KeptRequest)
    wrapped = msgspec.msgpack.decode(body, type=Wrapped)
    return wrapped.chat or wrapped.completion


def _is_plain(prompt: KeptPrompt) -> bool:
    """Whether a prompt is its token ids alone."""
    return bool(prompt.token_ids) and not (prompt.second or prompt.embeds or prompt.pictures or prompt.media)
