"""What --kv-eviction and --kv-share-per-key are worth: hits of agents whose turns come again, on simulated traces.

A trace is a list of (tenant, prompt) in the order of arrival, as a server would record it. Each prompt is computed and leaves;
an agent's next prompt extends its last one.
"""

import random

import pytest

from core.api.specs import KVGroup
from core.kv.eviction import load_order
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.tiers import KVTiers
from tests.kv.tier_fakes import PAGE_BYTES, Engine

BLOCK = 4
Trace = list[tuple[str, list[int]]]


def agents(seed: int, num_agents: int, num_turns: int, *, tenant: str = "agent", popularity: float = 0.0) -> Trace:
    """Agents that take turns in random order; with `popularity` some do far more often than others.

    All begin with the same instructions; a turn adds 5 to 15 blocks. Some begin anew, and those with 250 blocks.
    """
    rng = random.Random(seed)
    weights = [1 / (1 + index) ** popularity for index in range(num_agents)]
    instructions = [rng.randrange(1000) for _ in range(10 * BLOCK)]
    histories = [list(instructions) for _ in range(num_agents)]
    trace: Trace = []
    for _ in range(num_agents * num_turns):
        [index] = rng.choices(range(num_agents), weights)
        if rng.random() < 0.05 or len(histories[index]) > 250 * BLOCK:
            histories[index] = list(instructions)
        histories[index] = histories[index] + [rng.randrange(1000) for _ in range(rng.randint(5, 15) * BLOCK)]
        trace.append((tenant, histories[index]))
    return trace


def with_scan(trace: Trace, seed: int, share: float, length: int = 60, *, tenant: str = "scan") -> Trace:
    """The trace with prompts of another client between its own, `share` of all, that never come again."""
    rng = random.Random(seed)
    mixed: Trace = []
    for entry in trace:
        while rng.random() < share:
            mixed.append((tenant, [rng.randrange(10_000, 1_000_000) for _ in range(length * BLOCK)]))
        mixed.append(entry)
    return mixed


def hits(trace: Trace, num_blocks: int, whose: str = "agent", **options: object) -> float:
    """The percentage of a tenant's prompt tokens that were cached."""
    kv = KVManager(num_blocks, BLOCK, **options)
    num_cached = num_tokens = 0
    for tenant, prompt in trace:
        sequence = KVSequence(prompt, tenant=tenant)
        hit = kv.lookup(sequence)
        kv.attach(sequence, hit)
        assert kv.allocate_slots(sequence, len(prompt) - hit.num_tokens) is not None
        sequence.num_computed_tokens = len(prompt)
        kv.free(sequence)
        if tenant == whose:
            num_cached += hit.num_tokens
            num_tokens += len(prompt)
    kv.check_integrity([])
    return 100 * num_cached / num_tokens


SCANS = [(1, 12, 1500, 0.5), (1, 12, 800, 0.5), (4, 20, 1500, 0.7), (3, 6, 1200, 0.8)]
PLAIN = [(1, 12, 800, 0.0), (5, 12, 500, 0.0), (3, 30, 600, 1.0), (3, 100, 1200, 0.5)]


@pytest.mark.parametrize(("seed", "num_agents", "num_blocks", "share"), SCANS)
def test_under_a_scan_arc_finds_ten_points_more_than_lru(seed, num_agents, num_blocks, share):
    trace = with_scan(agents(seed, num_agents, 12), 7, share)
    assert hits(trace, num_blocks, eviction="arc") >= hits(trace, num_blocks) + 10


@pytest.mark.parametrize(("seed", "num_agents", "num_blocks", "popularity"), PLAIN)
@pytest.mark.parametrize("eviction", ["arc", "cost"])
def test_without_a_scan_other_rules_find_at_most_a_point_less_than_lru(
    seed, num_agents, num_blocks, popularity, eviction
):
    trace = agents(seed, num_agents, 400 // num_agents, popularity=popularity)
    assert hits(trace, num_blocks, eviction=eviction) >= hits(trace, num_blocks) - 1


@pytest.mark.parametrize("eviction", ["lru", "arc", "cost"])
def test_a_scanning_tenant_with_a_share_costs_another_at_most_a_hundredth_of_its_hits(eviction):
    alone = agents(1, 6, 12)
    scanned = with_scan(alone, 7, 0.8)
    options = {"eviction": eviction, "share": 0.5}
    assert hits(scanned, 1200, **options) >= 0.99 * hits(alone, 1200, **options)
    assert hits(scanned, 1200) < 0.9 * hits(alone, 1200), "which would suffer without"


def test_public_blocks_count_in_no_share():
    kv = KVManager(21, BLOCK, share=0.5)
    public = KVSequence(list(range(10 * BLOCK)), tenant="ann", num_public_tokens=10 * BLOCK)
    run(kv, public)
    run(kv, KVSequence(list(range(100, 100 + 10 * BLOCK)), tenant="ann"))
    run(kv, KVSequence(list(range(200, 200 + BLOCK)), tenant="bob"))
    assert kv.lookup(KVSequence([*range(10 * BLOCK), 1], tenant="bob", num_public_tokens=10 * BLOCK)).num_tokens == 36


def run(kv: KVManager, sequence: KVSequence, *, at_rest: bool = False) -> None:
    """Compute a sequence that shares nothing and let it go."""
    assert kv.allocate_slots(sequence, len(sequence.token_ids)) is not None
    sequence.num_computed_tokens = len(sequence.token_ids)
    kv.free(sequence, at_rest=at_rest)


def test_host_memory_follows_the_same_rule():
    """An agent whose pages come back from host memory, beside prompts that never come again."""
    assert host_hits("arc") > 1.5 * host_hits("lru")


def host_hits(eviction: str) -> int:
    engine = Engine(KVTiers(HostTier(60 * PAGE_BYTES, eviction=eviction)), num_blocks=20)
    agent = list(range(12 * BLOCK))
    num_cached = 0
    for turn in range(12):
        num_cached += engine.run([*agent, 1])
        for place in range(3 if turn < 3 else 6):
            start = 1000 * (10 * turn + place + 1)
            engine.run(list(range(start, start + 12 * BLOCK)))
    engine.kv.check_integrity([])
    return num_cached


def test_cost_keeps_what_takes_longest_to_compute_again(monkeypatch):
    """Long prompts, whose tokens read many others, come again as often as short ones."""
    monkeypatch.setattr("core.kv.eviction.TOKEN_KEYS", 100)
    rng = random.Random(3)
    prompts = [[100 * number, *range(99)] for number in range(60)] + [[-number, *range(399)] for number in range(1, 16)]
    prompts = [[token % 100_000 for token in prompt] for prompt in prompts]
    trace = [("agent", rng.choice(prompts)) for _ in range(600)]
    assert seconds(trace, 1200, "cost") < 0.97 * seconds(trace, 1200, "lru")


def seconds(trace: Trace, num_blocks: int, eviction: str) -> float:
    """The time of computing what is not cached, where 100 earlier tokens take as long as one."""
    kv = KVManager(num_blocks, BLOCK, eviction=eviction)
    spent = 0.0
    for _, prompt in trace:
        sequence = KVSequence(prompt)
        hit = kv.lookup(sequence)
        kv.attach(sequence, hit)
        assert kv.allocate_slots(sequence, len(prompt) - hit.num_tokens) is not None
        sequence.num_computed_tokens = len(prompt)
        kv.free(sequence)
        spent += sum(1 + place / 100 for place in range(hit.num_tokens, len(prompt)))
    return spent


@pytest.mark.parametrize(("eviction", "survives"), [("lru", False), ("cost", True)])
def test_a_state_close_to_the_one_before_it_gives_way_before_what_it_saves_less_than(eviction, survives):
    """A state of ten blocks after one block of new tokens is worth a tenth of a block of keys."""
    groups = (KVGroup("full", (0,)), KVGroup("state", (1,), num_state_blocks=10))
    kv = KVManager(26, BLOCK, groups=groups, eviction=eviction)
    old, new = list(range(10)), list(range(100, 100 + BLOCK))
    run(kv, KVSequence(old))
    keys = [kv.key(KVSequence(old), index) for index in range(2)]
    run(kv, KVSequence(new), at_rest=True)
    assert kv.pool.prefixes.find(kv.key(KVSequence(new), 0), 2) is not None
    kv.pool.free(kv.pool.allocate(kv.pool.num_free - 3))
    assert all(kv.pool.prefixes.find(key) is not None for key in keys) is survives
    kv.check_integrity([])


def test_what_is_worth_much_gives_way_in_the_end():
    order = load_order("cost")
    for name, worth in (("dear", 4.0), *((number, 1.0) for number in range(30))):
        order.cached(name, name, worth)
        order.push(name)
        if name != "dear" and name >= 5:
            order.evict(order.oldest())
    assert "dear" not in order and len(list(order)) == 6
