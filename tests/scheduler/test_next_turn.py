"""The contract of the prefix cache: the next turn of a conversation computes at most its new tokens and one block.

Conversations of random lengths run several turns at once. A turn ends by a stop token, by its length, or by an abort, as at a
stop string, of which a client cuts the last tokens.
"""

import random

import pytest

from core.scheduler.sequence import SequenceStatus
from tests.scheduler.fake_model import VOCABULARY, Client, FakeExecutor, make_request, make_scheduler, reference

CASES = {
    "alone": {},
    "chunks": {"max_num_batched_tokens": 11},
    "drafts": {"num_speculative_tokens": 3},
    "drafts-chunks": {"num_speculative_tokens": 2, "max_num_batched_tokens": 9},
    "one-by-one": {"vectorized": False},
    "no-steps-ahead": {"max_in_flight": 1},
    "three-ahead": {"max_in_flight": 3},
    "large-blocks": {"block_size": 16},
}
NUM_BLOCKS = 900


def run_turn(scheduler, executor, client, requests, stops):
    """Run a turn of several conversations. stops: number of answered tokens after which a client aborts, by name.

    Returns (known tokens, tokens of the prompt that were cached) by name.
    """
    for request in requests:
        scheduler.add(request)
    sequences = {request.request_id: scheduler._state.roster.find(request.key) for request in requests}
    in_flight = []
    while scheduler.has_unfinished():
        while len(in_flight) < scheduler.max_in_flight and scheduler.wants_step():
            step = scheduler.schedule()
            if step.is_idle:
                break
            in_flight.append((step, executor.execute(step.plan)))
        if in_flight:
            client.receive(scheduler.finish(*in_flight.pop(0)))
        scheduler.check_integrity()
        for name, sequence in sequences.items():
            if sequence.num_output_tokens >= stops.get(name, 1000) and sequence.status is not SequenceStatus.FINISHED:
                scheduler.abort([name])
    return {name: (list(sequence.token_ids), sequence.num_cached_tokens) for name, sequence in sequences.items()}


@pytest.mark.parametrize("states", [False, True], ids=["attention", "states"])
@pytest.mark.parametrize("case", CASES)
def test_the_next_turn_computes_its_new_tokens_and_one_block(case, states):
    options = {"max_num_batched_tokens": 64, "max_model_len": 400, "block_size": 4} | CASES[case]
    size = options["block_size"]
    for seed in range(6):
        chance = random.Random(seed)
        scheduler = make_scheduler(NUM_BLOCKS, prefix_caching=True, states=states, **options)
        executor = FakeExecutor(NUM_BLOCKS, size, seed=seed)
        client = Client()
        history = {name: ([], 0) for name in "abc"}
        for turn in range(6):
            requests, stops = [], {}
            for name, (tokens, _) in history.items():
                prompt = tokens + chance.choices(range(1, VOCABULARY), k=chance.randint(1, 21))
                stop = chance.choices(range(VOCABULARY), k=chance.choice([0, 3]))
                requests.append(make_request(f"{name}{turn}", prompt, chance.randint(1, 29), stop=stop))
                if chance.random() < 0.4:
                    stops[f"{name}{turn}"] = chance.randint(1, 15)
            ended = run_turn(scheduler, executor, client, requests, stops)
            for request in requests:
                name = request.request_id[0]
                tokens, num_cached = ended[request.request_id]
                wanted, _, _ = reference(request, 400)
                answer = tokens[len(request.prompt_token_ids) :]
                assert answer == wanted[: len(answer)]
                num_known = len(history[name][0])
                if turn:
                    assert num_known - num_cached <= size, (seed, turn, name)
                # A client knows the text up to its stop string, of which the last token or two may be cut.
                num_cut = chance.randint(0, min(2, len(answer) - 1)) if request.request_id in stops else 0
                history[name] = (tokens[: len(tokens) - num_cut], 0)


@pytest.mark.parametrize("states", [False, True], ids=["attention", "states"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_what_was_preempted_computes_one_block_again(states, drafts):
    """A sequence that lost its blocks while others run goes on behind its last edge, as long as its blocks are cached."""
    options = {"num_speculative_tokens": drafts, "max_num_batched_tokens": 64, "max_model_len": 128, "states": states}
    scheduler = make_scheduler(200, 4, **options)
    executor, client = FakeExecutor(200, 4), Client()
    request = make_request("one", list(range(1, 22)), 60)
    scheduler.add(request)
    sequence = scheduler._state.roster.find(request.key)
    for _ in range(9):
        step = scheduler.schedule()
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
    step = scheduler.schedule()
    scheduler._state.suspend(sequence)
    scheduler._state.roster.queue_again(sequence)
    client.receive(scheduler.finish(step, executor.execute(step.plan)))
    num_known = len(sequence.token_ids)
    step = scheduler.schedule()
    assert num_known - int(step.plan.num_computed[0]) <= 4
    client.receive(scheduler.finish(step, executor.execute(step.plan)))
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        client.receive(scheduler.finish(step, executor.execute(step.plan)))
    assert client.tokens[request.key] == reference(request)[0]
