"""Peers of an older and a newer minor version understand each other: every message, in both directions."""

import inspect
from typing import Any

import msgspec
import pytest

from core.api import messages, stats
from core.api.messages import (
    AbortChoices,
    AbortRequests,
    AddRequest,
    Begun,
    EngineFailed,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    EngineRequest,
    Leave,
    MediaItem,
    Resume,
    Shutdown,
    TokenColumns,
    TokenLogprobs,
    Utility,
    UtilityResult,
)
from core.api.sampling_params import SamplingParams
from core.api.sequence_record import CacheMiss, SequenceRecord
from core.api.stats import HaltHolder, SchedulerStats
from core.engine import wire
from core.engine.hello import MAJOR

FIRST_FIELDS: dict[str, str] = {
    "Resume": "output_token_ids num_cached_tokens",
    "EngineRequest": "request_id choice prompt_token_ids params seed stop_token_ids eos_token_ids bad_words_ids allowed_ids "
    "arrival_time priority cache_salt user deadline handle resume",
    "MediaItem": "start stop digest token_id features rows",
    "TokenLogprobs": "token_ids logprobs ranks",
    "EngineOutput": "request_id choice start token_ids logprobs prompt_logprobs finish_reason stop_reason num_cached_tokens "
    "handle",
    "HaltHolder": "reason since",
    "SchedulerStats": "num_running num_waiting kv_cache_usage prefix_queries prefix_hits num_preemptions spec_num_drafts "
    "spec_num_draft_tokens spec_num_accepted_tokens num_timeouts num_failed_steps num_violations tier_hits tier_saved "
    "kv_residency",
    "TokenColumns": "handles starts token_ids",
    "Begun": "handle time",
    "EngineOutputs": "epoch outputs stats tokens",
    "EngineReady": "epoch num_blocks block_size max_model_len numerics phases client",
    "EngineFailed": "epoch message user_error details plugin",
    "UtilityResult": "call_id ok value",
    "AddRequest": "request handles",
    "AbortRequests": "request_ids",
    "AbortChoices": "keys",
    "Utility": "call_id method arguments",
    "Leave": "client",
    "Shutdown": "",
}
"""The fields of each message in version 2.0 of the protocol, in their order on the wire. Never edited without a new major
version."""

REQUEST = EngineRequest(
    "a", 1, [1, 2], SamplingParams(max_tokens=3), 5, [9], handle=4, resume=Resume([7], 1), explain=True
)
RECORD = SequenceRecord(1.0, 2.0, 3.0, 4.0, 16, CacheMiss(32, "history_changed", 35), num_steps=7)
SAMPLES: list[msgspec.Struct] = [
    Resume([1, 2], 3),
    MediaItem(0, 2, "d", 5, b"f", b"r"),
    REQUEST,
    TokenLogprobs([1], [-0.5], [1]),
    EngineOutput("a", 0, 2, [3], finish_reason="stop", stop_reason=9, handle=1, record=RECORD),
    HaltHolder("pause", 2.5),
    SchedulerStats(num_running=2, kv_residency=[[1.0]]),
    TokenColumns(b"12345678", b"1234", b"1234"),
    Begun(1, 2.5),
    EngineOutputs(1, [EngineOutput("a", 0, 2, [3])], SchedulerStats(), TokenColumns(b"12345678", b"1234", b"1234")),
    EngineReady(1, 2, 3, 4, "n", [("import", 0.5)], 1),
    EngineFailed(1, "m", True, "d"),
    UtilityResult(1, True, {"answer": [1, None]}),
    AddRequest(REQUEST, [4, 5]),
    AbortRequests(["a"]),
    AbortChoices([("a", 1)]),
    Utility(1, "ping", {"loudly": True}),
    Leave(3),
    Shutdown(),
]
NAMES = [type(sample).__name__ for sample in SAMPLES]


def message_types() -> dict[str, type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {}
    for module in (messages, stats):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
                found[name] = kind
    return found


def fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """(name, type, default) as `msgspec.defstruct` takes them; the default of a required field is NODEFAULT."""
    fields: list[tuple[str, Any, Any]] = []
    for item in msgspec.structs.fields(kind):
        default = item.default
        if item.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=item.default_factory)
        fields.append((item.name, item.type, default))
    return fields


def rebuilt(kind: type[msgspec.Struct], fields: list[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """The same message as another version has it."""
    config = kind.__struct_config__
    items = [field[:2] if field[2] is msgspec.NODEFAULT else field for field in fields]
    return msgspec.defstruct(
        kind.__name__, items, tag=config.tag, array_like=config.array_like, omit_defaults=config.omit_defaults
    )


def newer(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    later = [("harbour", str | None, None), ("cargo", list[list[int]], msgspec.field(default_factory=list))]
    return rebuilt(kind, [*fields_of(kind), *later])


def as_version(sample: msgspec.Struct, kind: type[msgspec.Struct], **more: Any) -> msgspec.Struct:
    return kind(**{name: getattr(sample, name) for name in kind.__struct_fields__ if hasattr(sample, name)}, **more)


def decode(data: bytes, kind: type[msgspec.Struct]) -> Any:
    """As the process does that gets it: tagged messages come out of a union."""
    if kind in (AddRequest, AbortRequests, AbortChoices, Utility, Leave, Shutdown):
        return wire.client_message_decoder().decode(data)
    if kind in (EngineOutputs, EngineReady, EngineFailed, UtilityResult):
        return wire.engine_message_decoder().decode(data)
    return msgspec.msgpack.decode(data, type=kind)


def test_every_message_is_tried_here() -> None:
    assert sorted(NAMES) == sorted(message_types()) == sorted(FIRST_FIELDS)


@pytest.mark.parametrize("name", NAMES)
def test_new_fields_are_at_the_end_and_have_defaults(name: str) -> None:
    kind = message_types()[name]
    assert MAJOR == 2
    assert kind.__struct_config__.array_like
    assert not kind.__struct_config__.forbid_unknown_fields
    first = FIRST_FIELDS[name].split()
    assert list(kind.__struct_fields__[: len(first)]) == first
    for _, _, default in fields_of(kind)[len(first) :]:
        assert default is not msgspec.NODEFAULT


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_what_a_newer_peer_adds_is_ignored(sample: msgspec.Struct) -> None:
    kind = newer(type(sample))
    for more in ({}, {"harbour": "north", "cargo": [[1, 2]]}):
        assert decode(wire.encode(as_version(sample, kind, **more)), type(sample)) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_what_an_older_peer_lacks_has_its_default(sample: msgspec.Struct) -> None:
    kind = newer(type(sample))
    got: Any = msgspec.msgpack.decode(wire.encode(sample), type=kind)
    assert (got.harbour, got.cargo) == (None, [])
    assert as_version(got, type(sample)) == sample
    fields = fields_of(type(sample))
    while fields and fields[-1][2] is not msgspec.NODEFAULT:
        fields.pop()
        older = as_version(sample, rebuilt(type(sample), fields))
        expected = as_version(older, type(sample))
        assert decode(wire.encode(older), type(sample)) == expected


def test_newer_parts_inside_of_messages() -> None:
    request = newer(EngineRequest)(**msgspec.structs.asdict(REQUEST), harbour="north")
    assert decode(msgspec.msgpack.encode(["add", request, [4]]), AddRequest) == AddRequest(REQUEST, [4])
    stats = newer(SchedulerStats)(num_running=2, harbour="north")
    output = newer(EngineOutput)(request_id="a", choice=0, start=1, token_ids=[2], harbour="north")
    columns = newer(TokenColumns)(handles=b"12345678", harbour="north")
    data = msgspec.msgpack.encode(["outputs", 1, [output], stats, columns, [], "something else"])
    whole = EngineOutputs(1, [EngineOutput("a", 0, 1, [2])], SchedulerStats(2), TokenColumns(b"12345678"))
    assert decode(data, EngineOutputs) == whole


def test_a_parameter_that_the_engine_does_not_know_is_not_ignored() -> None:
    data = msgspec.msgpack.encode(["add", ["a", 0, [1], {"max_tokens": 2, "new_penalty": 1.5}, 1], [0]])
    with pytest.raises(msgspec.ValidationError, match="new_penalty"):
        decode(data, AddRequest)


def test_choices_of_a_resumed_request_keep_their_numbers() -> None:
    [alone] = AddRequest(REQUEST, [8]).choices()
    assert (alone.choice, alone.handle, alone.resume) == (1, 8, REQUEST.resume)
    fresh = EngineRequest("a", 0, [1], SamplingParams(), 5)
    assert [(item.choice, item.handle) for item in AddRequest(fresh, [3, 4]).choices()] == [(0, 3), (1, 4)]
