"""Where a sequence ends, and what comes with its tokens."""

import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, reference, run

PROMPT = [3, 1, 4, 1, 5]
FREE = reference(make_request("free", PROMPT, 30))[0]

pytestmark = pytest.mark.usefixtures("also_wired")


def finish(request, **limits):
    scheduler = make_scheduler(**limits)
    scheduler.add(request)
    return run(scheduler, FakeExecutor())


@pytest.mark.parametrize("num_speculative_tokens", [0, 5])
def test_a_stop_token_ends_it_and_is_the_reason(num_speculative_tokens):
    stop = FREE[6]
    client = finish(make_request("a", PROMPT, 30, stop=[stop]), num_speculative_tokens=num_speculative_tokens)
    assert client.tokens["a", 0] == FREE[: FREE.index(stop) + 1]
    assert client.last["a", 0].finish_reason == "stop"
    assert client.last["a", 0].stop_reason == stop


def test_end_of_sequence_has_no_reason():
    client = finish(make_request("a", PROMPT, 30, eos=[FREE[4]]))
    assert client.tokens["a", 0] == FREE[: FREE.index(FREE[4]) + 1]
    assert client.last["a", 0].finish_reason == "stop"
    assert client.last["a", 0].stop_reason is None


def test_stop_tokens_wait_for_min_tokens():
    first = FREE.index(FREE[2])
    assert len(finish(make_request("a", PROMPT, 10, stop=[FREE[2]], min_tokens=first)).tokens["a", 0]) == first + 1
    later = finish(make_request("a", PROMPT, 10, stop=[FREE[2]], min_tokens=first + 1)).tokens["a", 0]
    assert len(later) > first + 1


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(max_tokens):
    client = finish(make_request("a", PROMPT, max_tokens), num_speculative_tokens=4)
    assert client.tokens["a", 0] == FREE[:max_tokens]
    assert client.last["a", 0].finish_reason == "length"
    assert client.last["a", 0].stop_reason is None


def test_the_context_is_filled_to_the_last_token():
    client = finish(make_request("a", PROMPT, 30), max_model_len=16, num_speculative_tokens=4)
    assert client.tokens["a", 0] == FREE[: 16 - len(PROMPT)]
    assert client.last["a", 0].finish_reason == "length"


def test_stop_wins_over_length_at_the_same_token():
    position = next(i for i, token in enumerate(FREE) if FREE.index(token) == i and i > 2)
    client = finish(make_request("a", PROMPT, position + 1, stop=[FREE[position]]))
    assert client.last["a", 0].finish_reason == "stop"


@pytest.mark.parametrize("num_speculative_tokens", [0, 5])
def test_logprobs_are_cut_with_the_tokens(num_speculative_tokens):
    request = make_request("a", PROMPT, 30, stop=[FREE[6]], logprobs=0)
    client = finish(request, num_speculative_tokens=num_speculative_tokens)
    assert [entry.token_ids[0] for entry in client.logprobs["a", 0]] == client.tokens["a", 0]
    assert [-entry.logprobs[0] for entry in client.logprobs["a", 0]] == [
        float(len(PROMPT) + index) for index in range(len(client.tokens["a", 0]))
    ]


@pytest.mark.parametrize("max_num_batched_tokens", [3, 64])
@pytest.mark.parametrize("max_tokens", [1, 6])
def test_prompt_logprobs_arrive_once_and_whole(max_num_batched_tokens, max_tokens):
    scheduler, executor = make_scheduler(max_num_batched_tokens=max_num_batched_tokens), FakeExecutor()
    prompt = list(range(18))
    scheduler.add(make_request("warm", prompt, 1))
    client = run(scheduler, executor)
    scheduler.add(make_request("a", prompt, max_tokens, prompt_logprobs=0))
    run(scheduler, executor, client)
    assert [entry.token_ids for entry in client.prompt_logprobs["a", 0]] == [[token] for token in prompt[1:]]
    assert client.num_cached["a", 0] == 0


def test_prompt_logprobs_survive_preemption_in_the_middle():
    scheduler, executor = make_scheduler(num_blocks=8, max_num_batched_tokens=4), FakeExecutor(8)
    scheduler.add(make_request("a", [1] * 7, 18))
    scheduler.add(make_request("b", list(range(18)), 3, prompt_logprobs=0))
    client = run(scheduler, executor)
    assert scheduler.stats().num_preemptions > 0
    assert [entry.token_ids[0] for entry in client.prompt_logprobs["b", 0]] == list(range(1, 18))
