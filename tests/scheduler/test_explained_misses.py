"""Why a prompt's first computed token was not cached: hundreds of injected causes against a complete history.

The oracle keeps every request that has ended, with all its tokens, and knows of the cache only how many tokens of a prompt
came from it.
"""

import random
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from scheduler.fake_model import Client, FakeExecutor, make_request, make_scheduler, run

from core.api.messages import EngineRequest
from core.api.sequence_record import CacheMiss
from core.api.specs import KVGroup
from core.kv.connectors import KVConnectors
from core.kv.hashing import PrefixHasher, PrefixKey
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kv_connectors.misses import Explanations
from core_kv_connectors.past import MIN_ENTRIES, Generations
from tests.inside import state_of

SIZE = 4
TENANTS = ((None, ""), (None, "ann"), ("salt", ""), ("salt", "bob"))
FLOOD = 1000


@dataclass
class Past:
    """A request that has ended. tokens: prompt and output."""

    tenant: tuple[str | None, str]
    tokens: list[int]

    @property
    def computed(self) -> list[int]:
        return self.tokens[:-1]


def expected(history: list[Past], now: Past, cached: int, scope: str) -> CacheMiss:
    """The cause of the miss behind `cached` tokens of the prompt `now.tokens`."""
    prompt = now.tokens
    end = cached + SIZE
    if end > len(prompt) - 1:
        return CacheMiss(cached, "last_block")
    had_all = [past for past in history if past.computed[:end] == prompt[:end]]
    if any(past.tenant == now.tenant for past in had_all):
        return CacheMiss(cached, "evicted")
    if had_all and scope == "all":
        return CacheMiss(cached, "other_tenant")
    for past in reversed(history):
        known = past.computed[:cached]
        if cached and past.tenant == now.tenant and known == prompt[:cached]:
            for index in range(cached, min(end, len(past.tokens))):
                if past.tokens[index] != prompt[index]:
                    return CacheMiss(cached, "history_changed", index)
            break
    return CacheMiss(cached, "first_seen")


class Workload:
    """Requests one after the other, over a cache of few blocks."""

    def __init__(self, seed: int, scope: str) -> None:
        self.random = random.Random(seed)
        self.scope = scope
        self.scheduler = make_scheduler(28, SIZE, max_model_len=80, max_num_batched_tokens=16, explains=scope)
        self.executor = FakeExecutor(28, SIZE)
        self.client = Client()
        self.history: list[Past] = []
        self.found: Counter[str] = Counter()
        self.num_sent = 0

    def ask(self, tenant: tuple[str | None, str], prompt: list[int]) -> None:
        salt, user = tenant
        self.num_sent += 1
        name = f"r{self.num_sent}"
        request = make_request(name, prompt, self.random.randint(1, 9), salt=salt, user=user)
        request.explain = True
        self.scheduler.add(request)
        run(self.scheduler, self.executor, self.client)
        output = self.client.last[name, 0]
        now = Past(tenant, prompt)
        wanted = expected(self.history, now, output.num_cached_tokens, self.scope)
        assert output.record is not None and output.record.miss == wanted, (name, wanted, output.record.miss)
        self.found[wanted.cause] += 1
        self.history.append(Past(tenant, prompt + self.client.tokens[name, 0]))

    def inject(self) -> None:
        """One request with something to find."""
        kinds = (self.new, self.go_on, self.change, self.repeat, self.lend, self.flood)
        self.random.choice(kinds if self.history else (self.new,))()

    def new(self) -> None:
        self.ask(self.random.choice(TENANTS), self.words(3, 40))

    def go_on(self) -> None:
        past = self.recent()
        self.ask(past.tenant, (past.tokens + self.words(1, 9))[:60])

    def change(self) -> None:
        past = self.recent()
        prompt = past.tokens[:60]
        place = self.random.randrange(len(prompt))
        prompt[place] = 99
        self.ask(past.tenant, prompt)

    def repeat(self) -> None:
        past = self.recent()
        self.ask(past.tenant, past.tokens[:60])

    def lend(self) -> None:
        past = self.recent()
        self.ask(self.random.choice(TENANTS), past.tokens[:60])

    def flood(self) -> None:
        """Others take the whole cache, and somebody comes back."""
        past = self.recent()
        for _ in range(3):
            self.num_sent += 1
            prompt = [FLOOD + self.num_sent, *self.words(30, 50)]
            self.scheduler.add(make_request(f"r{self.num_sent}", prompt, 2, user="flood"))
        run(self.scheduler, self.executor, self.client)
        self.ask(past.tenant, past.tokens[:60])

    def recent(self) -> Past:
        return self.random.choice(self.history[-8:])

    def words(self, low: int, high: int) -> list[int]:
        length = self.random.randint(low, high)
        return [self.random.randrange(40) for _ in range(length)]


@pytest.mark.parametrize("scope", ["own", "all"])
def test_injected_causes_are_attributed_like_a_complete_history_does(scope: str) -> None:
    work = Workload(7, scope)
    for _ in range(230):
        work.inject()
    assert work.found.total() == 230
    causes = {"first_seen", "history_changed", "evicted", "last_block"}
    if scope == "all":
        causes.add("other_tenant")
    assert work.found.keys() == causes
    assert min(work.found.values()) >= 8, work.found


def test_another_tenant_is_not_told_of_unless_the_operator_allows_it() -> None:
    prompt = list(range(1, 15))
    for scope, cause in (("own", "first_seen"), ("all", "other_tenant")):
        work = Workload(0, scope)
        work.ask((None, "ann"), prompt)
        work.scheduler.reset_prefix_cache()
        work.ask((None, "bob"), prompt)
        work.ask(("salt", "ann"), prompt)
        assert work.found[cause] >= 2


def test_another_adapter_is_named_to_its_own_tenant_only() -> None:
    prompt = list(range(1, 15))
    scheduler, executor = make_scheduler(), FakeExecutor()

    def cause(name: str, **fields: Any) -> str:
        scheduler.add(asking(make_request(name, prompt, **fields)))
        miss = run(scheduler, executor).last[name, 0].record.miss
        return str(miss.cause)

    assert cause("base") == "first_seen"
    assert cause("one", adapter="one") == "other_adapter"
    assert cause("again", adapter="one") == "last_block"
    assert cause("two", adapter="two") == "other_adapter"
    assert cause("bob", adapter="one", user="bob", salt="bob") == "first_seen"


@pytest.mark.parametrize(
    ("limits", "params", "cause"),
    [
        ({"prefix_caching": False}, {}, "caching_off"),
        ({"prefix_caching": False}, {"prompt_logprobs": 0}, "caching_off"),
        ({}, {"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_requests_that_do_not_use_the_cache_say_why(limits, params, cause) -> None:
    scheduler, executor = make_scheduler(**limits), FakeExecutor()
    for name in "ab":
        request = make_request(name, list(range(20)), **params)
        scheduler.add(asking(request))
        client = run(scheduler, executor)
        assert client.last[name, 0].record.miss == CacheMiss(0, cause)


def test_nothing_is_recorded_of_requests_that_do_not_ask() -> None:
    scheduler, executor = make_scheduler(), FakeExecutor()
    scheduler.add(make_request("plain", list(range(20)), handle=1))
    asks = make_request("asks", list(range(20)), 5, handle=2)
    scheduler.add(asking(asks))
    client = Client()
    client.keys = {1: ("plain", 0), 2: ("asks", 0)}
    run(scheduler, executor, client)
    assert client.last["plain", 0].record is None
    record = client.last["asks", 0].record
    assert (record.num_steps, record.num_preemptions, record.num_recomputed_tokens) == (5, 0, 0)
    assert 0 < record.entered <= record.started <= record.first_token <= record.ended
    assert not state_of(scheduler).recorder


def test_preemptions_and_drafts_are_counted() -> None:
    """Against the engine's own counters: every request asks."""
    scheduler = make_scheduler(num_blocks=16, max_num_seqs=4, num_speculative_tokens=3)
    executor = FakeExecutor(16, seed=3)
    for number in range(6):
        prompt = [number, *range(1, 12)]
        scheduler.add(asking(make_request(f"r{number}", prompt, 25)))
    client = run(scheduler, executor)
    records = [output.record for output in client.last.values()]
    stats = scheduler.stats()
    assert stats.num_preemptions == sum(record.num_preemptions for record in records) > 0
    assert stats.spec_num_draft_tokens == sum(record.num_drafts for record in records) > 0
    assert stats.spec_num_accepted_tokens == sum(record.num_accepted for record in records) > 0
    assert sum(record.num_recomputed_tokens for record in records) > 0
    assert {record.waited_for for record in records} == {"", "kv_cache"}


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"max_num_seqs": 1}, "max_num_seqs"),
        ({"num_blocks": 15}, "kv_cache"),
        ({"max_num_batched_tokens": 40, "max_num_partial_prefills": 8}, "max_num_batched_tokens"),
        ({"long_prefill_token_threshold": 9, "max_long_partial_prefills": 8}, "max_num_partial_prefills"),
        ({"long_prefill_token_threshold": 9, "max_num_partial_prefills": 8}, "max_long_partial_prefills"),
    ],
)
def test_a_request_says_what_it_waited_for(limits, limit) -> None:
    scheduler = make_scheduler(**{"max_num_batched_tokens": 128, **limits})
    for number, name in enumerate("ab"):
        prompt = [number, *range(39)]
        scheduler.add(asking(make_request(name, prompt, 2)))
    client = run(scheduler, FakeExecutor(limits.get("num_blocks", 64)))
    assert [client.last[name, 0].record.waited_for for name in "ab"] == ["", limit]


def explained(*args: Any, **options: Any) -> KVManager:
    """A manager whose misses are explained."""
    return KVManager(*args, connectors=KVConnectors([Explanations()]), **options)


def test_a_collision_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(hasher: PrefixHasher, parent: bytes, token_ids: list[int], extra: object = ()) -> PrefixKey:
        return PrefixKey(b"%d" % len(token_ids), bytes(token_ids))

    def weak_chain(hasher: PrefixHasher, parent: bytes, payloads: bytes, size: int) -> list[PrefixKey]:
        token_ids = array("I", payloads).tolist()
        return [weak(hasher, parent, token_ids[at : at + size]) for at in range(0, len(token_ids), size)]

    monkeypatch.setattr(PrefixHasher, "key", weak)
    monkeypatch.setattr(PrefixHasher, "chain", weak_chain)
    kv = explained(30, SIZE)
    first = KVSequence([1] * 9)
    kv.attach(first, kv.lookup(first))
    kv.allocate_slots(first, 9)
    first.num_computed_tokens = 9
    kv.free(first)
    other = KVSequence([2] * 9)
    assert kv.miss(other, kv.lookup(other)) == CacheMiss(0, "collision")


def test_a_window_whose_blocks_are_gone_was_evicted() -> None:
    """The group that keeps every token has the whole prefix, the sliding one has lost its last block."""
    kv = explained(60, SIZE, groups=(KVGroup("full", (0,)), KVGroup("sliding", (1,), window=2 * SIZE)))
    first = KVSequence(list(range(17)))
    kv.attach(first, kv.lookup(first))
    kv.allocate_slots(first, 17)
    first.num_computed_tokens = 17
    last_of_window = first.block_ids[1][3]
    kv.free(first)
    kv.forget([last_of_window])
    again = KVSequence(list(range(17)), owner="somebody who has sent nothing yet")
    hit = kv.lookup(again)
    assert (hit.num_tokens, hit.num_known_tokens) == (12, 16)
    assert kv.miss(again, hit) == CacheMiss(12, "evicted")


@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_blocks_of_a_tenant_over_its_share_are_told_apart(eviction: str) -> None:
    """One tenant reads a corpus; what it loses is due to its share, what the other one loses later is not."""

    def run(tenant: str, first: int) -> CacheMiss | None:
        sequence = KVSequence(list(range(first, first + 4 * SIZE + 1)), owner=tenant, tenant=tenant)
        hit = kv.lookup(sequence)
        miss = kv.miss(sequence, hit)
        kv.attach(sequence, hit)
        kv.allocate_slots(sequence, 4 * SIZE + 1 - hit.num_tokens)
        sequence.num_computed_tokens = 4 * SIZE + 1
        kv.free(sequence)
        return miss

    kv = explained(31, SIZE, share=0.5, eviction=eviction)
    run("ann", 1000)
    for number in range(8):
        run("bob", 2000 + 100 * number)
    assert run("ann", 1000) == CacheMiss(4 * SIZE, "last_block"), "ann is below her share"
    assert run("bob", 2000) == CacheMiss(0, "over_share")
    for number in range(20):
        run(f"tenant {number}", 5000 + 100 * number)
    assert run("ann", 1000) == CacheMiss(0, "evicted")


def test_a_state_that_was_not_kept() -> None:
    """The tokens are known, but the state behind them is not there."""
    full = KVGroup("full", (0,))
    state = KVGroup("state", (1,), num_state_blocks=1)
    kv = explained(60, SIZE, groups=(full, state), snapshot_interval=64)
    first = KVSequence(list(range(17)))
    kv.attach(first, kv.lookup(first))
    kv.allocate_slots(first, 17)
    first.num_computed_tokens = 17
    kv.free(first)
    again = KVSequence(list(range(17)))
    assert kv.miss(again, kv.lookup(again)) == CacheMiss(0, "state_not_kept")
    new = KVSequence(list(range(30, 47)))
    assert kv.miss(new, kv.lookup(new)) == CacheMiss(0, "first_seen")


def test_what_is_remembered_is_bounded_and_forgets_the_oldest() -> None:
    kv = explained(6, 1)
    for number in range(2 * MIN_ENTRIES):
        sequence = KVSequence([number, number])
        kv.attach(sequence, kv.lookup(sequence))
        kv.allocate_slots(sequence, 2)
        sequence.num_computed_tokens = 2
        kv.free(sequence)
    for number, cause in ((1, "first_seen"), (2 * MIN_ENTRIES - 100, "evicted")):
        again = KVSequence([number, number, 1])
        assert kv.miss(again, kv.lookup(again)) == CacheMiss(0, cause)


def test_a_table_of_the_past_keeps_the_newest_and_at_most_twice_as_many() -> None:
    table = Generations(4)
    for number in range(50):
        table.update([(bytes([number]), b"")])
        assert len(table) <= 8
        assert all(table.get(bytes([newest])) is not None for newest in range(max(number - 3, 0), number + 1))


def asking(request: EngineRequest) -> EngineRequest:
    request.explain = True
    return request
