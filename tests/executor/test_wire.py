"""Plans and results arrive as they were sent, whatever they hold, and plans of steady decode are small."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.api.kv_transfer import KVTransfers
from core.api.messages import EngineRequest, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core.api.step_plan import NewSequence, StateCopy, StepPlan, StepResult
from core_kv_connectors.shared_pages import PagePart, PlacedTransfers, SharedPages, place_of
from core_runtime.executor.steps.columns import ColumnWriter, WireError
from core_runtime.executor.steps.plan_wire import PlanDecoder, PlanEncoder, PlanFacts
from core_runtime.executor.steps.result_wire import decode_result, encode_result
from core_supervision.link.anonymous_file import anonymous_file

ROOT = Path(__file__).parents[2]
quickly = settings(max_examples=50, deadline=None, derandomize=True, database=None)

int32 = st.integers(-(2**31), 2**31 - 1)
token_lists = st.lists(st.integers(0, 300_000), max_size=6)
slots = st.integers(0, 255)
PAGE_BYTES = 9
pages = st.binary(min_size=PAGE_BYTES, max_size=PAGE_BYTES).map(lambda data: np.frombuffer(data, np.uint8))


@contextlib.contextmanager
def shared_pages() -> Iterator[tuple[SharedPages, PagePart]]:
    """Both ends of the memory of pages."""
    descriptor = anonymous_file("test-pages", 0)
    try:
        yield SharedPages(descriptor, PAGE_BYTES), PagePart(descriptor, PAGE_BYTES, 0, PAGE_BYTES)
    finally:
        os.close(descriptor)


def int32_column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_p=draw(st.floats(0.01, 1.0)),
        top_k=draw(st.integers(-1, 50)),
        max_tokens=draw(st.integers(1, 50)),
        logprobs=draw(st.none() | st.integers(-1, 5)),
        logit_bias=draw(st.none() | st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3)),
        extra_args=draw(st.none() | st.just({"plugin": [1, "two", {"three": None}]})),
    )


@st.composite
def requests(draw: st.DrawFn) -> EngineRequest:
    return EngineRequest(
        draw(st.text(st.characters(codec="utf-8"), max_size=8)),
        draw(st.integers(0, 9)),
        draw(st.lists(st.integers(0, 300_000), min_size=1, max_size=9)),
        draw(sampling_params()),
        draw(st.integers(0, 2**64 - 1)),
        stop_token_ids=draw(token_lists),
        bad_words_ids=draw(st.lists(token_lists, max_size=2)),
        allowed_ids=np.array(draw(token_lists), np.int64).tobytes(),
    )


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    rows = draw(st.lists(slots, unique=True, max_size=7))
    columns = [int32_column(draw(st.lists(int32, min_size=len(rows), max_size=len(rows)))) for _ in range(2)]
    tables = st.lists(token_lists, max_size=3)
    plan = StepPlan(int32_column(rows), *columns)
    plan.total_num_tokens = draw(st.integers(0, 2**31))
    plan.removed = draw(st.lists(slots, max_size=5))
    plan.new_block_ids = draw(st.dictionaries(slots, tables, max_size=4))
    plan.moved_states = draw(st.dictionaries(slots, tables, max_size=4))
    plan.num_drafts = draw(st.dictionaries(slots, st.integers(0, 9), max_size=4))
    plan.draft_budget = draw(st.dictionaries(slots, st.integers(0, 9), max_size=4))
    new = st.builds(NewSequence, slots, requests(), token_lists, st.integers(0, 99), tables, st.integers(1, 99))
    plan.new = draw(st.lists(new, max_size=3))
    loads = st.lists(st.tuples(st.integers(1, 99), pages), max_size=3)
    transfers = st.builds(KVTransfers, st.integers(1, 2**40), token_lists, loads)
    plan.transfers = draw(st.none() | transfers)
    plan.copies = draw(st.lists(st.builds(StateCopy, token_lists, token_lists), max_size=3))
    return plan


def described(value: Any) -> Any:
    """A plan or a result as plain values, with the types of their columns."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, StepPlan | StepResult | NewSequence | PlacedTransfers):
        return {field.name: described(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return [(key, described(item)) for key, item in value.items()]
    return value


@quickly
@given(st.lists(plans(), min_size=1, max_size=2))
def test_plans_arrive_as_they_were_sent(sent: list[StepPlan]) -> None:
    with shared_pages() as (pages, part):
        encoder, decoder = PlanEncoder(), PlanDecoder(part)
        for plan in sent:
            if plan.transfers is not None:
                plan.transfers = pages.placed(plan.transfers)
            assert described(decoder.decode(encoder.encode(plan))) == described(plan)


@st.composite
def logprobs(draw: st.DrawFn) -> TokenLogprobs:
    size = draw(st.integers(0, 4))
    floats = st.lists(st.floats(allow_nan=False), min_size=size, max_size=size)
    numbers = st.lists(st.integers(0, 300_000), min_size=size, max_size=size)
    return TokenLogprobs(draw(numbers), draw(floats), draw(numbers))


@st.composite
def results(draw: st.DrawFn) -> StepResult:
    rows = draw(st.lists(slots, unique=True, max_size=7))
    token_ids = draw(st.lists(st.integers(0, 300_000), min_size=len(rows), max_size=len(rows)))
    scored = st.dictionaries(slots, st.lists(logprobs(), max_size=3), max_size=3)
    counts = st.dictionaries(slots, st.integers(1, 9), max_size=3)
    return StepResult(
        int32_column(rows),
        int32_column(token_ids),
        draw(st.dictionaries(slots, token_lists, max_size=3)),
        draw(scored),
        draw(scored),
        draw(counts),
        draw(counts),
        draw(st.dictionaries(slots, st.text(st.characters(codec="utf-8"), max_size=9), max_size=3)),
        pooled=draw(st.dictionaries(slots, st.binary(min_size=4, max_size=12), max_size=3)),
        facts=draw(st.dictionaries(slots, st.binary(max_size=12), max_size=3)),
    )


@quickly
@given(results(), st.lists(slots, unique=True, max_size=7), st.booleans())
def test_results_arrive_as_they_were_sent(result: StepResult, planned: list[int], same: bool) -> None:
    plan = StepPlan(slots=result.slots.copy() if same else int32_column(planned))
    arrived = decode_result(encode_result(result, plan), plan)
    assert arrived.same_slots == np.array_equal(result.slots, plan.slots)
    arrived.same_slots = result.same_slots
    assert described(arrived) == described(result)


def decode_step(length: int, count: int = 256, **more: Any) -> StepPlan:
    """A step of steady decode, of sequences that know `length` tokens and more."""
    columns = np.arange(count, dtype=np.int32), np.ones(count, np.int32), np.arange(count, dtype=np.int32) + length - 1
    return StepPlan(*columns, total_num_tokens=count, **more)


def test_a_plan_that_repeats_its_batch_has_a_few_bytes() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    decoder.decode(encoder.encode(decode_step(100)))
    for length in (101, 102, 103):
        plan = decode_step(length, same_batch=True)
        message = encoder.encode(plan)
        assert len(message) < 40
        assert described(decoder.decode(message)) == described(plan)
    growing = decode_step(104, same_batch=True, new_block_ids={3: [[17]], 200: [[18]]})
    message = encoder.encode(growing)
    assert len(message) < 240
    assert described(decoder.decode(message)) == described(growing)


def test_lengths_that_do_not_go_on_are_sent() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    decoder.decode(encoder.encode(decode_step(100)))
    for length in (101, 99, 120):
        plan = decode_step(length, same_batch=True)
        assert described(decoder.decode(encoder.encode(plan))) == described(plan)


def test_copies_between_steps_leave_the_batch_as_it_was() -> None:
    with shared_pages() as (pages, part):
        encoder, decoder = PlanEncoder(), PlanDecoder(part)
        decoder.decode(encoder.encode(decode_step(100)))
        decoder.decode(encoder.encode(StepPlan(transfers=pages.placed(KVTransfers(1, [5], [])))))
        plan = decode_step(101, same_batch=True)
        assert described(decoder.decode(encoder.encode(plan))) == described(plan)


def test_a_worker_that_missed_a_plan_says_so() -> None:
    encoder = PlanEncoder()
    encoder.encode(decode_step(100))
    with pytest.raises(WireError, match=r"repeats the 256 sequences of the one before it, which had 0 here"):
        PlanDecoder().decode(encoder.encode(decode_step(101, same_batch=True)))


def test_a_message_that_is_cut_off_is_refused() -> None:
    message = PlanEncoder().encode(decode_step(100))
    with pytest.raises(WireError, match=r"The column 'num_computed' has 1024 bytes from \d+ on; the message has"):
        PlanDecoder().decode(message[:-8])


def test_who_asked_is_not_told_to_workers() -> None:
    request = EngineRequest("a", 0, [1], SamplingParams(), 1, user="a-secret-key", cache_salt="a-secret-salt")
    message = PlanEncoder().encode(StepPlan(new=[NewSequence(0, request, [], 0, [[1]], 9)]))
    assert b"secret" not in message
    assert request.user == "a-secret-key"


def test_a_plan_has_no_bytes_of_pages_and_its_worker_reads_and_writes_them_in_place() -> None:
    page = np.full(PAGE_BYTES, 7, np.uint8)
    with shared_pages() as (pages, part):
        sent = StepPlan(transfers=pages.placed(KVTransfers(1, [5], [(6, page)])))
        message = PlanEncoder().encode(sent)
        assert page.tobytes() not in message
        there = PlanDecoder(part).decode(message).transfers
        assert isinstance(there, PlacedTransfers) and isinstance(sent.transfers, PlacedTransfers)
        assert (there.loads[0][1] == page).all()
        there.into[0][:] = 9
        result = StepResult(pages=there.into)
        assert decode_result(encode_result(result, sent), sent).pages == sent.transfers.into
        assert (sent.transfers.into[0] == 9).all()


def test_a_worker_that_sees_no_pages_and_places_that_are_none_are_refused() -> None:
    with shared_pages() as (pages, part):
        plan = StepPlan(transfers=pages.placed(KVTransfers(1, [5], [])))
        message = PlanEncoder().encode(plan)
        with pytest.raises(WireError, match="this worker sees none"):
            PlanDecoder().decode(message)
        assert isinstance(plan.transfers, PlacedTransfers)
        place = place_of(plan.transfers.into[0])
        for wrong in (-1, 10_000_000):
            columns = ColumnWriter()
            for name, number in (("saves", 5), ("into", place + wrong)):
                columns.put(name, [number])
            with pytest.raises(WireError, match="a page that does not exist"):
                PlanDecoder(part).decode(columns.message(PlanFacts(transfers=1)))
    with pytest.raises(WireError, match="no places"):
        PlanEncoder().encode(StepPlan(transfers=KVTransfers(1, [5], [])))
    answered = StepPlan()
    with pytest.raises(WireError, match="did not ask for"):
        decode_result(encode_result(StepResult(pages=[]), answered), answered)


def test_nothing_is_pickled() -> None:
    forbidden = re.compile(r"\b(pickle|cloudpickle|dill|marshal|allow_pickle)\b")
    for folder in ("executor", "engine"):
        for path in (ROOT / "core" / folder).rglob("*.py"):
            assert not forbidden.search(path.read_text(encoding="utf-8")), path
