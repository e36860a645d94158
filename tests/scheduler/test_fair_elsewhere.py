"""The fair policy where engines of several models share their accounts."""

from dataclasses import dataclass
from typing import Any

from scheduler.fake_model import make_request

from core_policies.fair.arguments import FairArguments
from core_policies.fair.policy import FairPolicy


@dataclass(eq=False)
class Waiting:
    request: Any
    order: int


def engines(folder):
    return [FairPolicy(FairArguments(shared_limits=str(folder / "shared"))) for _ in range(2)]


def queued(queue, user, count, *, flex=False):
    for number in range(count):
        request = make_request(f"{user}{number}{flex}", [1], 1, user=user)
        request.flex = flex
        queue.push(Waiting(request, number))


def served(policy, queue, count, amount=10):
    """Return whose requests are admitted, each of which is charged `amount` prompt tokens."""
    users = []
    for _ in range(count):
        request = queue.pop().request
        policy.charge(request, amount, 0)
        users.append(request.user)
    return users


def test_what_another_engine_gives_a_user_meanwhile_counts_here(tmp_path):
    first, second = engines(tmp_path)
    queue = second.make_queue()
    before = make_request("x", [1], 1, user="u")
    first.charge(before, 10_000, 0)  # alone, before it had anything here
    queued(queue, "u", 20)
    queued(queue, "v", 20)
    assert served(second, queue, 4) == ["u", "v", "u", "v"]
    first.charge(before, 50, 0)
    assert served(second, queue, 6) == ["v"] * 5 + ["u"], "both have had as much again"
    assert served(second, queue, 4).count("u") == 2


def test_the_batch_class_has_accounts_of_its_own(tmp_path):
    first, second = engines(tmp_path)
    queue = second.make_queue()
    queued(queue, "u", 4)
    queued(queue, "v", 4)
    other = make_request("x", [1], 1, user="u")
    other.flex = True
    first.charge(other, 1000, 0)
    assert served(second, queue, 4) == ["u", "v", "u", "v"]


def test_an_engine_that_ends_takes_nothing_back(tmp_path):
    first, second = engines(tmp_path)
    queue = second.make_queue()
    queued(queue, "u", 9)
    queued(queue, "v", 9)
    first.charge(make_request("x", [1], 1, user="u"), 30, 0)
    assert served(second, queue, 2) == ["v", "v"]
    [path] = [
        each for each in (tmp_path / "shared").iterdir() if each.name == first.counters._elsewhere._files._path.name
    ]
    path.unlink()
    assert served(second, queue, 6) == ["v", "u", "v", "u", "v", "u"]
