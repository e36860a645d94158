"""The messages between clients and an engine: one Struct each way, msgpack on the wire.

Owns: the wire types. Never does: send, decode text, or keep state.
Called by: the engine clients and the engine loop; in process the same objects are passed without encoding.

Each output carries (engine epoch, handle of the sequence, start index). An output with a stale epoch or with a handle that is
no longer live is dropped, a gap in the start index is fatal to that engine, and the finish reason travels with the last token.
The common case, one more token of a sequence without any other field, is a row of `TokenColumns`.

How messages may change: a new field is appended, with a default. All Structs here are arrays on the wire, so an older
peer ignores unknown fields at the end, and a newer one uses the default for missing fields. Such a change raises the
minor version of the protocol (`core.engine.hello`). Any other change (a field that is removed, moved or has another type, a
new value of a `Literal`, a message sent to a peer that did not request it) raises the major version, and peers of
different major versions refuse each other. `SamplingParams` is strict instead: it travels without its defaults, and
a parameter that the engine does not know ends the request that uses it, since ignoring it would change the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from core.api.plugin_choices import ResolvedPlugin
from core.api.pooling import Pooling
from core.api.sampling_params import SamplingParams
from core.api.sequence_record import SequenceRecord
from core.api.stats import SchedulerStats
from core.api.structured_outputs import CompiledGrammar

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]

NO_HANDLE = -1

Handle = Annotated[int, msgspec.Meta(ge=NO_HANDLE, le=2**63 - 1)]
Choice = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
"""Ranges that are checked when a message is decoded: a number outside of them makes the message invalid. The engine checks
token ids against the vocabulary."""

CLIENT_SHIFT = 40
"""A handle is `client << CLIENT_SHIFT | number`: the engine's number of the client, and the client's number of the sequence."""


class Resume(msgspec.Struct, array_like=True):
    """The past of a sequence that this or another engine has begun; it continues as if it had been preempted at that point.

    output_token_ids:  the output tokens so far. Outputs begin at start index `len(output_token_ids)`.
    num_cached_tokens: prompt tokens from the prefix cache, as reported when the sequence first began.
    """

    output_token_ids: list[TokenId]
    num_cached_tokens: int = 0


class MediaItem(msgspec.Struct, array_like=True):
    """One picture, or other item, that a part of a prompt represents.

    start, stop: positions [start, stop) of the prompt, of which those with `token_id` get the rows.
    digest:      of the item, and of all else that its rows depend on.
    features:    the item as its tower reads it; empty where the rows are known.
    rows:        float32 [rows, (1 + levels) * size] in the machine's byte order: first what is used instead of the
                 embedding of each token, then what each of the first `levels` blocks adds to its result.
    levels:      number of blocks that add rows (DeepStack, arXiv 2406.04334).
    grid:        rows in time, height, width; positions in time + 1, if uneven; indices + 1 of kept rows, if not all; or empty.
    """

    start: Annotated[int, msgspec.Meta(ge=0)]
    stop: int
    digest: str
    token_id: TokenId
    features: bytes = b""
    rows: bytes = b""
    levels: Annotated[int, msgspec.Meta(ge=0)] = 0
    grid: list[Annotated[int, msgspec.Meta(ge=1)]] = []


class EngineRequest(msgspec.Struct, array_like=True):
    """One sequence to generate. A request with n choices is n of these with the same `request_id`.

    A sequence to pool ends with its prompt: its parameters request one token, which is never sampled.

    request_id:       the client's id, unique among live requests; with `choice` it names the sequence.
    choice:           index of the completion, the fourth word of the noise counter.
    prompt_token_ids: the prompt; never empty.
    params:           sampling parameters; `max_tokens` is resolved to an integer that fits the context.
    seed:             64-bit key of the noise (drawn by the client when the user gave none).
    stop_token_ids:   all tokens that end the sequence: end-of-sequence (unless ignored) and the user's.
    eos_token_ids:    the end-of-sequence tokens among `stop_token_ids`, which finish without a `stop_reason`.
    bad_words_ids:    tokenized bad words, each a non-empty sequence.
    allowed_ids:      the only tokens that may be sampled, int64 in the machine's byte order; empty: all of them. They are
                      here instead of in `params`, as a column that every choice reads without a conversion.
    arrival_time:     seconds since the epoch.
    priority:         lower runs first under the priority policy.
    cache_salt:       requests share cached prefixes only when their salts are equal.
    user:             owner of the request for the fair policy: an API key, or the request's `user` field.
    deadline:         `time.monotonic()` at which it ends with `timeout`, the same clock at both ends; 0.0: never.
    handle:           identifies this sequence (see `CLIENT_SHIFT`), never used twice; with `NO_HANDLE`, every output is sent
                      as an `EngineOutput`.
    resume:           the tokens already generated, or None for a new sequence. Prompt log-probabilities were sent with the
                      first of them and are not sent again.
    grammar:          constraint on the output, or None. `stop_token_ids` then holds the end-of-sequence tokens even with
                      `ignore_eos`, and any of them ends the sequence: they are only sampled where the grammar may end.
    explain:          whether each output carries a record of how the sequence was computed.
    tenant:           requests share cached prefixes only when their tenants are equal; empty: no tenant.
    num_public_tokens: length of the prompt's beginning that is shared between tenants nevertheless.
    pooling:          how the prompt's hidden states become the answer; None: tokens are generated.
    prompt_embeds:    float32 [prompt tokens, size] in the machine's byte order, used instead of the embeddings of the prompt's
                      tokens; empty: the tokens' embeddings are used.
    adapter:          digest of the adapter to use (`core.api.adapters`); empty: the base model.
    adapter_from:     first position that the adapter computes; earlier ones are the base model's.
    edges:            positions at which a later prompt may leave this one, such as the start of the last user message.
    media:            pictures and other items in the prompt, in its order.
    spans:            parts [start, stop) of the prompt, in order, whose tokens see each other in both directions. A step
                      computes all of one, or all of it that no cache has. One with more tokens than a step has beside one of
                      each other sequence would wait for ever.
    flex:             whether it belongs to the batch class, which gets what all others leave of a step.
    """

    request_id: str
    choice: Choice
    prompt_token_ids: list[TokenId]
    params: SamplingParams
    seed: Seed
    stop_token_ids: list[TokenId] = []
    eos_token_ids: list[TokenId] = []
    bad_words_ids: list[list[TokenId]] = []
    allowed_ids: bytes = b""
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    user: str = ""
    deadline: float = 0.0
    handle: Handle = NO_HANDLE
    resume: Resume | None = None
    grammar: CompiledGrammar | None = None
    explain: bool = False
    tenant: str = ""
    num_public_tokens: int = 0
    pooling: Pooling | None = None
    prompt_embeds: bytes = b""
    adapter: str = ""
    adapter_from: int = 0
    edges: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    media: list[MediaItem] = []
    spans: list[tuple[Annotated[int, msgspec.Meta(ge=0)], int]] = []
    flex: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """(request_id, choice), which identifies the sequence inside the engine."""
        return self.request_id, self.choice


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Log-probabilities at one position.

    token_ids: the chosen (or prompt) token first, then the most likely ones in descending order.
    logprobs:  natural logarithms, one for each token id.
    ranks:     rank of each token id in the vocabulary; 1 is the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class EngineOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """New tokens of one sequence, and all that is reported with them.

    start:             number of output tokens of the sequence before these.
    token_ids:         the new tokens, stop token included.
    logprobs:          one entry for each new token, or None.
    prompt_logprobs:   sent once, with the first tokens: one entry for each prompt position from 1 on, or None.
    finish_reason:     None while the sequence runs.
    stop_reason:       the user's stop token id that ended it, or a sentence with `error` and `timeout`.
    num_cached_tokens: prompt tokens that came from the prefix cache.
    handle:            identifies the sequence; unlike a request id, it is never used again.
    record:            record of how the sequence was computed so far; None unless the request asks for it.
    begin_time:        seconds since the epoch at which the computation of its prompt began, with its first output; filled in
                       by the client (see `Begun`), 0.0 on the wire.
    pooled:            answer of a pooled sequence, at its end: float32 numbers in the machine's byte order.
    facts:             what `ModelConfig.tells` asks for, as `core_tokens.answer_facts` reads it.
    """

    request_id: str
    choice: int
    start: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    handle: int = NO_HANDLE
    record: SequenceRecord | None = None
    begin_time: float = 0.0
    pooled: bytes = b""
    facts: bytes = b""


class Begun(msgspec.Struct, array_like=True):
    """Notice that the computation of a sequence's prompt begins; sent again after a preemption or a death of the engine.

    time: seconds since the epoch.
    """

    handle: int
    time: float


class TokenColumns(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """One new token for each of several sequences, as columns in the machine's byte order (both ends share the machine).

    handles:   int64 [N], the sequences.
    starts:    int32 [N], number of output tokens of each sequence before this one.
    token_ids: int32 [N], the new tokens.
    """

    handles: bytes = b""
    starts: bytes = b""
    token_ids: bytes = b""

    def __len__(self) -> int:
        return len(self.token_ids) // 4

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield the rows as (handle, start, token id)."""
        columns = ((self.handles, "q"), (self.starts, "i"), (self.token_ids, "i"))
        return zip(*(memoryview(column).cast(kind).tolist() for column, kind in columns), strict=True)  # type: ignore[call-overload]


NO_TOKENS = TokenColumns()


class EngineOutputs(msgspec.Struct, array_like=True, tag="outputs"):
    """All outputs of one engine step. A sequence is either in `outputs` or in `tokens`.

    begun: sequences that entered the batch since the previous message, by steps that may still be running.
    """

    epoch: int
    outputs: list[EngineOutput]
    stats: SchedulerStats
    tokens: TokenColumns = NO_TOKENS
    begun: list[Begun] = []

    @property
    def num_tokens(self) -> int:
        """Number of new tokens of all sequences together."""
        return len(self.tokens) + sum(len(output.token_ids) for output in self.outputs)


class EngineReady(msgspec.Struct, array_like=True, tag="ready"):
    """The engine's answer to a client's hello, once the engine is up.

    epoch:         epoch of the engine; all its outputs carry it.
    num_blocks:    blocks of the KV cache.
    block_size:    tokens of one block.
    max_model_len: maximum tokens of a sequence.
    numerics:      name of everything that results depend on.
    phases:        phases of the start, as (name, seconds).
    client:        the engine's number of this client, the upper part of its handles; 0 is the one that owns the engine.
    """

    epoch: int
    num_blocks: int
    block_size: int
    max_model_len: int
    numerics: str
    phases: list[tuple[str, float]]
    client: int = 0


class EngineFailed(msgspec.Struct, array_like=True, tag="failed"):
    """The engine's last message: it stops because of a failure.

    message:    the cause.
    user_error: whether `message` is a sentence for the user.
    details:    text for the log.
    plugin:     row of the plugin at fault, or None.
    """

    epoch: int
    message: str
    user_error: bool
    details: str
    plugin: ResolvedPlugin | None = None


class UtilityResult(msgspec.Struct, array_like=True, tag="result"):
    """Answer to a `Utility` call.

    ok:    whether the call succeeded.
    value: its return value, of types that msgpack has; a sentence when it failed.
    """

    call_id: int
    ok: bool
    value: Any


EngineMessage = EngineOutputs | EngineReady | EngineFailed | UtilityResult


class AddRequest(msgspec.Struct, array_like=True, tag="add"):
    """Put a request with all its choices into the waiting queue; the fields that the choices share are sent once.

    request: the first choice. A resumed choice is sent alone.
    handles: handles of this choice and of the following ones, in order.
    """

    request: EngineRequest
    handles: Annotated[list[Handle], msgspec.Meta(min_length=1, max_length=2**20)]

    def choices(self) -> list[EngineRequest]:
        """Return one request per choice; they share the prompt and the parameters, which are not copied."""
        first = self.request.choice
        return [
            msgspec.structs.replace(self.request, choice=choice, handle=handle)
            for choice, handle in enumerate(self.handles, start=first)
        ]


class AbortRequests(msgspec.Struct, array_like=True, tag="abort"):
    """Drop all choices of these requests; unknown ids are ignored."""

    request_ids: list[str]


class AbortChoices(msgspec.Struct, array_like=True, tag="abort_choices"):
    """Drop single choices, (request_id, choice), whose stop string the client found."""

    keys: list[tuple[str, int]]


class Utility(msgspec.Struct, array_like=True, tag="call"):
    """Call a utility of the engine core, such as `ping` (see `EngineCore.call`).

    call_id:   the client's number for the call, which the answer repeats.
    method:    name of the utility.
    arguments: arguments by name, of types that msgpack has.
    """

    call_id: int
    method: str
    arguments: dict[str, Any] = {}


class Leave(msgspec.Struct, array_like=True, tag="leave"):
    """Notice that a client leaves; its requests are dropped.

    client: number of the client that the engine's owner declares gone; None: the sender itself.
    """

    client: int | None = None


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    """End the engine process. Only its owner may send this."""


ClientMessage = AddRequest | AbortRequests | AbortChoices | Utility | Leave | Shutdown
