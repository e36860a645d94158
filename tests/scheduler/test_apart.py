"""Steps in flight that share no sequence whose next token is unknown."""

import random
from collections import deque

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, reference


class Late:
    """An executor that computes a step when its result is requested, as one does whose steps pass several stages."""

    def __init__(self, scheduler, executor):
        self.scheduler, self.executor, self.client = scheduler, executor, Client()
        self.pending = deque()
        self.seen = []

    def run(self, limit=2000):
        """Plan and compute until nothing is left."""
        for _ in range(limit):
            if not self.scheduler.has_unfinished():
                return
            self.turn()
        raise AssertionError("the scheduler makes no progress")

    def turn(self):
        planned = self.scheduler.schedule() if self.scheduler.wants_step() else None
        idle = planned is None or planned.is_idle
        if not idle:
            unknown = {slot for step in self.pending for slot in sampling(step)}
            begun = {new.slot for new in planned.plan.new}  # a sequence of its own, or one that starts again
            assert not unknown & set(planned.plan.slots.tolist()) - begun, "a token of the step is in flight"
            self.pending.append(planned)
            self.seen.append([len(step.plan.slots) for step in self.pending])
        if self.pending and (idle or len(self.pending) == self.scheduler.max_in_flight):
            oldest = self.pending.popleft()
            self.client.receive(self.scheduler.finish(oldest, self.executor.execute(oldest.plan)))
        if planned is not None and idle:
            self.client.receive(self.scheduler.finish(planned, self.executor.execute(planned.plan)))
        self.scheduler.check_integrity()


def sampling(step):
    """Slots whose next token the step draws."""
    chunks = step.plan.slots[step.num_decodes :].tolist()
    completing = [slot for slot, chunk in zip(chunks, step.chunks, strict=True) if chunk.completes]
    return step.plan.slots[: step.num_decodes].tolist() + completing


def test_sequences_are_divided_among_the_steps():
    scheduler = make_scheduler(max_in_flight=2, apart=2, max_num_seqs=8)
    side = Late(scheduler, FakeExecutor())
    requests = [make_request(f"r{number}", [number + 1, 2, 3], 12) for number in range(8)]
    for request in requests:
        scheduler.add(request)
    side.run()
    assert side.seen.count([4, 4]) >= 10
    for request in requests:
        assert side.client.tokens[request.key] == reference(request)[0]


def test_few_sequences_are_computed_together():
    scheduler = make_scheduler(max_in_flight=2, apart=8, max_num_seqs=8)
    side = Late(scheduler, FakeExecutor())
    for number in range(6):
        scheduler.add(make_request(f"r{number}", [number + 1, 2, 3], 12))
    side.run()
    assert side.seen.count([6]) >= 10 and all(len(sizes) == 1 for sizes in side.seen)


def test_a_long_prompt_is_computed_in_pieces_that_are_in_flight_together():
    scheduler = make_scheduler(300, max_in_flight=2, apart=1, max_model_len=1100, max_num_batched_tokens=2048)
    side = Late(scheduler, FakeExecutor(300))
    request = make_request("long", [1 + place % 30 for place in range(1000)], 2)
    scheduler.add(request)
    scheduler_steps = []
    schedule = scheduler.schedule
    scheduler.schedule = lambda: scheduler_steps.append(schedule()) or scheduler_steps[-1]
    side.run()
    pieces = [step.plan.total_num_tokens for step in scheduler_steps if step.chunks]
    assert pieces == [125] * 8 and [1, 1] in side.seen
    assert side.client.tokens[request.key] == reference(request, 1100)[0]


@pytest.mark.parametrize("seed", range(12))
def test_tokens_are_those_of_one_step_at_a_time(seed):
    rng = random.Random(seed)
    options = {
        "max_num_seqs": rng.choice([3, 8]),
        "max_num_batched_tokens": rng.choice([9, 64]),
        "max_model_len": 40,
        "num_speculative_tokens": rng.choice([0, 2]),
    }
    num_blocks = rng.choice([12, 40])
    scheduler = make_scheduler(num_blocks, max_in_flight=rng.choice([2, 3]), apart=rng.choice([1, 2]), **options)
    side = Late(scheduler, FakeExecutor(num_blocks))
    requests = [
        make_request(f"r{number}", [rng.randrange(30) for _ in range(rng.randint(1, 20))], rng.randint(1, 20))
        for number in range(12)
    ]
    for number, request in enumerate(requests):
        scheduler.add(request)
        for _ in range(rng.randint(0, 3)):
            side.turn()
        if number == 8:
            scheduler.abort([requests[6].request_id])
    side.run()
    for request in (*requests[:6], *requests[7:]):
        assert side.client.tokens[request.key] == reference(request, 40)[0]
