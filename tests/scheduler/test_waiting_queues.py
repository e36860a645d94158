"""All queues behave alike but for their order; cancelled sequences leave nothing behind."""

import random

import pytest
from scheduler.fake_model import POLICIES, make_request

from core.scheduler.sequence import SequenceState


def sequence(number, priority=0):
    return SequenceState(make_request(f"r{number}", [1]), (priority, number), 100)


def make_queue(policy):
    return POLICIES[policy]().make_queue()


def drain(queue):
    return [queue.pop().order[1] for _ in range(len(queue))]


def test_fcfs_is_arrival_order():
    queue = make_queue("fcfs")
    for number in range(5):
        queue.push(sequence(number, priority=-number))
    assert drain(queue) == [0, 1, 2, 3, 4]


def test_priority_is_lowest_first_then_arrival():
    queue = make_queue("priority")
    for number, priority in enumerate([3, 1, 3, 0, 1]):
        queue.push(sequence(number, priority))
    assert drain(queue) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("back", [(6, 5, 4), (4, 5, 6), (5, 4, 6), (6, 4, 5)])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_sequences_that_come_back_go_before_later_arrivals(policy, back):
    queue = make_queue(policy)
    queue.push(sequence(9))
    for number in back:
        queue.restore(sequence(number))
    assert drain(queue) == [4, 5, 6, 9]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_any_sequence_can_be_removed(policy):
    queue = make_queue(policy)
    sequences = [sequence(number, random.Random(number).randint(0, 3)) for number in range(50)]
    for item in sequences:
        queue.push(item)
    for item in sequences[::2]:
        queue.remove(item)
    assert set(queue) == set(sequences[1::2])
    key = (lambda item: item.order) if policy == "priority" else (lambda item: item.order[1])
    assert [queue.pop() for _ in range(25)] == sorted(sequences[1::2], key=key)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_next_one_is_right_after_the_first_is_removed(policy):
    queue = make_queue(policy)
    first, *others = (sequence(number) for number in range(10))
    for item in (first, *others):
        queue.push(item)
    queue.remove(first)
    assert queue.peek() is others[0]
    assert len(queue) == 9
