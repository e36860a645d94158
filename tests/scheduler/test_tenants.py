"""Tenants share no cached prefix but public ones: by tokens, by time, by explanation."""

import random

import msgspec
import pytest
from scheduler.fake_model import FakeExecutor, make_request, make_scheduler, run

from core.api.messages import EngineRequest
from core.scheduler.scheduler import Scheduler

BLOCK = 4


def request(name: str, prompt: list[int], tenant: str, num_public: int = 0, **fields: object) -> EngineRequest:
    made = make_request(name, prompt, 1, **fields)
    return msgspec.structs.replace(made, tenant=tenant, num_public_tokens=num_public)


class House:
    """One scheduler and its executor. `ask` runs a request alone."""

    def __init__(self, **settings: object) -> None:
        self.scheduler: Scheduler = make_scheduler(512, BLOCK, **settings)
        self.executor = FakeExecutor(512, BLOCK)
        self._number = 0

    def ask(self, prompt: list[int], tenant: str, num_public: int = 0, **fields: object) -> int:
        """Prompt tokens that came from the cache."""
        self._number += 1
        name = f"r{self._number}"
        self.scheduler.add(request(name, prompt, tenant, num_public, **fields))
        client = run(self.scheduler, self.executor)
        return client.num_cached[name, 0]

    def time(self, prompt: list[int], tenant: str) -> int:
        """What an attacker measures: the time until the first token, on a machine that takes one unit a token."""
        before = self.executor.num_computed_tokens
        self.ask(prompt, tenant)
        return self.executor.num_computed_tokens - before


PROMPT = list(range(1, 34))


def test_a_tenant_finds_its_own_prefixes_and_nobody_elses() -> None:
    house = House()
    assert house.ask(PROMPT, "ann") == 0
    assert house.ask(PROMPT, "bob") == 0
    assert house.ask(PROMPT, "") == 0
    assert house.ask(PROMPT, "ann") == 32
    assert house.ask(PROMPT, "bob") == 32
    assert house.ask(PROMPT, "") == 32


def test_tenants_that_come_together_share_nothing_either() -> None:
    house = House()
    for tenant in ("ann", "bob"):
        house.scheduler.add(request(tenant, PROMPT, tenant))
    client = run(house.scheduler, house.executor)
    assert client.num_cached == {("ann", 0): 0, ("bob", 0): 0}


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("num_public", [0, 3, 4, 15, 16, 33])
def test_whole_blocks_of_public_tokens_are_shared_and_no_more(num_public: int, states: bool) -> None:
    house = House(states=states)
    house.ask(PROMPT, "ann", num_public)
    shared = min(num_public // BLOCK * BLOCK, 32)
    found = house.ask(PROMPT, "bob", num_public)
    assert found <= shared
    if not states:  # of states only some are kept
        assert found == shared
    assert house.ask(PROMPT, "bob", num_public) == 32


def test_what_follows_a_public_prefix_is_private() -> None:
    house = House()
    public = PROMPT[:16]
    secret = [*public, *range(200, 230)]
    house.ask(secret, "ann", 16)
    assert house.ask(secret, "bob", 16) == 16
    assert house.ask([*public, 7, 7, 7], "bob", 16) == 16
    assert house.ask(secret, "ann", 16) == 44


def test_claiming_a_prefix_public_makes_nobody_elses_so() -> None:
    house = House()
    house.ask(PROMPT, "ann")
    assert house.ask(PROMPT, "bob", 32) == 0


def test_salts_keep_apart_as_before() -> None:
    house = House()
    assert house.ask(PROMPT, "ann", salt="s") == 0
    assert house.ask(PROMPT, "ann") == 0
    assert house.ask(PROMPT, "ann", salt="s") == 32
    assert house.ask(PROMPT, "bob", salt="s") == 0


def test_a_name_cannot_be_forged_by_a_salt_or_another_name() -> None:
    house = House()
    house.ask(PROMPT, "ann")
    for salt in ("ann", "tenant:ann", "salted:ann"):
        assert house.ask(PROMPT, "", salt=salt) == 0
    assert house.ask(PROMPT, "ann ", salt=None) == 0


def auc(hits: list[int], misses: list[int]) -> float:
    """How well times tell the one from the other: the chance that a miss takes longer than a hit, ties half."""
    wins = sum((miss > hit) + 0.5 * (miss == hit) for hit in hits for miss in misses)
    return wins / (len(hits) * len(misses))


@pytest.mark.parametrize(("attacker", "expected"), [("bob", 0.5), ("ann", 1.0)])
def test_time_tells_a_stranger_nothing(attacker: str, expected: float) -> None:
    house = House()
    draw = random.Random(1)
    times: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(60):
        prompt = [draw.randrange(1, 40) for _ in range(33)]
        was_sent = draw.random() < 0.5
        if was_sent:
            house.ask(prompt, "ann")
        times[was_sent].append(house.time(prompt, attacker))
    assert auc(times[True], times[False]) == expected
