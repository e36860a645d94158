"""Spans of prompts whose tokens see each other: no step ends within one, and none waits for ever."""

import msgspec
import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, planned_step, reference, run

pytestmark = pytest.mark.usefixtures("also_wired")


def spanned(name, length, *spans, max_tokens=4, first=0):
    request = make_request(name, [first + token for token in range(length)], max_tokens)
    return msgspec.structs.replace(request, spans=list(spans))


def step(scheduler, executor):
    return planned_step(scheduler, executor)[1]


def test_chunks_end_before_a_span_or_with_it():
    scheduler, executor = make_scheduler(max_num_batched_tokens=10), FakeExecutor()
    scheduler.add(spanned("a", 30, (3, 12), (12, 20)))
    assert [step(scheduler, executor)["a"] for _ in range(4)] == [3, 9, 10, 8]


def test_a_span_passes_the_limits_of_prompts():
    settings = {"long_prefill_token_threshold": 4, "max_num_mixed_batched_tokens": 5}
    scheduler, executor = make_scheduler(**settings), FakeExecutor()
    scheduler.add(make_request("stream", [1] * 4, 20))
    assert step(scheduler, executor) == {"stream": 4}
    scheduler.add(spanned("a", 24, (2, 22)))
    assert [step(scheduler, executor) for _ in range(3)] == [
        {"stream": 1, "a": 2},
        {"stream": 1, "a": 20},
        {"stream": 1, "a": 2},
    ]


def test_a_span_without_room_waits_for_the_next_step():
    scheduler, executor = make_scheduler(max_num_batched_tokens=16), FakeExecutor()
    scheduler.add(make_request("a", [1] * 10, 1))
    scheduler.add(spanned("b", 14, (0, 9)))
    scheduler.add(make_request("c", [2] * 4, 1))
    assert step(scheduler, executor) == {"a": 10}  # nobody overtakes the one that waits
    assert step(scheduler, executor) == {"b": 14, "c": 2}


def test_drafts_leave_room_for_a_span():
    scheduler = make_scheduler(max_num_batched_tokens=16, num_speculative_tokens=7, max_num_seqs=4)
    executor = FakeExecutor()
    for name in "xyz":
        scheduler.add(make_request(name, [ord(name)] * 3, 60))
    for _ in range(3):
        step(scheduler, executor)
    scheduler.add(spanned("a", 14, (0, 13), max_tokens=2))
    taken = [step(scheduler, executor).get("a", 0) for _ in range(3)]
    assert 13 in taken or 14 in taken


def test_few_blocks_divide_no_span():
    scheduler, executor = make_scheduler(num_blocks=14, max_num_batched_tokens=20, max_num_seqs=3), FakeExecutor()
    requests = [spanned(name, 24, (4, 21), max_tokens=9, first=40 * number) for number, name in enumerate("abc")]
    for request in requests:
        scheduler.add(request)
    client = run(scheduler, executor)  # the executor checks where steps end
    assert scheduler.stats().num_preemptions
    for request in requests:
        assert client.tokens[request.key] == reference(request)[0]


def test_a_prefix_with_a_part_of_a_span_is_shared_by_equal_spans_only():
    scheduler, executor = make_scheduler(), FakeExecutor()
    scheduler.add(spanned("a", 20, (2, 18), max_tokens=1))
    assert step(scheduler, executor) == {"a": 20}
    same = spanned("b", 20, (2, 18), max_tokens=1)
    longer = spanned("c", 20, (2, 19), max_tokens=1)
    for request, cached in ((same, 16), (longer, 0)):
        scheduler.add(request)
        assert step(scheduler, executor) == {request.request_id: 20 - cached}
