"""The manager against a model that remembers what every block holds: random growth, windows, ends, tiers and resets.

The model stands for a worker: each computed position writes its prefix' name into its block, and before each step every
position that a query may see must still hold the name of its own prefix. A state holds the name of all computed tokens,
drafts included.
"""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.api.specs import KVGroup
from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.tiers import KVTiers
from core_observers.engine.pinned_prefix import blocks_in_pool
from tests.kv.tier_fakes import look_up

FULL = KVGroup("full", (0,))
GROUPS = (
    (FULL,),
    (FULL, KVGroup("sliding", (1,), window=6), KVGroup("sliding", (2,), window=6)),
    (FULL, KVGroup("full", (1,)), KVGroup("sliding", (2,), window=3)),
    (KVGroup("sliding", (0,), window=7),),
    (FULL, KVGroup("sliding", (1,), window=5), KVGroup("sliding", (2,), window=11)),
    (FULL, KVGroup("state", (1,), num_state_blocks=1)),
    (FULL, KVGroup("sliding", (1,), window=3), KVGroup("state", (2,), num_state_blocks=2, num_spare_blocks=2)),
    (FULL, *(KVGroup("state", (n,), num_state_blocks=n, num_spare_blocks=n) for n in (1, 2))),
    (KVGroup("state", (0,), num_state_blocks=1),),
)
MAX_STEP = 6


def names(sequence, tokens, size):
    """One number for each prefix of its tokens. Tenants have others from the first block on that is not all public."""
    found, value = [], hash(sequence.cache_salt)
    first_private = sequence.num_public_tokens // size * size
    for position, token in enumerate(tokens):
        if sequence.tenant and position == first_private:
            value = hash((value, sequence.tenant))
        value = hash((value, token))
        found.append(value)
    return found


class MemoryDisk(HostTier):
    """A disk without files or a thread."""

    is_ready, may_be_read, num_dropped = True, True, 0

    def find(self, group, key):
        """No page is on its way: it is there at once."""


class ManagerMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        size=st.sampled_from([1, 2, 4]),
        blocks=st.integers(20, 60),
        host=st.booleans(),
        disk=st.booleans(),
        interval=st.sampled_from([1, 5]),
        eviction=st.sampled_from(["lru", "arc", "cost"]),
        share=st.sampled_from([1.0, 0.3]),
    )
    def build(self, groups, size, blocks, host, disk, interval, eviction, share):
        self.groups, self.size = groups, size
        room = size * 8 * 30
        made = KVTiers(HostTier(room, eviction=eviction) if host else None, MemoryDisk(2 * room) if disk else None)
        self.tiers = made if host or disk else None
        connectors = KVConnectors([made] if host or disk else [])
        options = {
            "groups": groups,
            "max_step_tokens": MAX_STEP,
            "connectors": connectors,
            "snapshot_interval": interval,
            "eviction": eviction,
            "share": share,
        }
        self.kv = KVManager(blocks, size, **options)
        self.memory = np.zeros((blocks, size), np.int64)
        self.running = []
        self.pins = []
        self.sure = True

    @rule(
        num_known=st.integers(0, 30),
        tail=st.lists(st.integers(0, 1), min_size=1, max_size=8),
        whose=st.sampled_from([(None, ""), ("a", ""), (None, "ann"), (None, "bob")]),
        num_public=st.sampled_from([0, 4]),
        edges=st.lists(st.integers(0, 40), max_size=2),
    )
    def admit(self, num_known, tail, whose, num_public, edges):
        prompt = [0, 1, 1] * (num_known // 3) + tail
        salt, tenant = whose
        sequence = KVSequence(prompt, salt, tenant=tenant, num_public_tokens=min(num_public, len(prompt)), edges=edges)
        hit = look_up(self.kv, sequence)
        assert hit.num_tokens < len(prompt) and hit.num_tokens % self.size == 0
        missing = self.kv.blocks_missing(hit, len(prompt))
        if missing > self.kv.pool.num_free:
            return
        free = self.kv.pool.num_free
        self.kv.attach(sequence, hit)
        assert self.kv.allocate_slots(sequence, len(prompt) - hit.num_tokens) is not None
        assert free - self.kv.pool.num_free == missing
        self.copy()
        self.running.append(sequence)
        self.look(sequence)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 100), count=st.integers(1, MAX_STEP), fresh=st.integers(0, 1), wrong=st.integers(0, 2))
    def step(self, index, count, fresh, wrong):
        """wrong: how many drafts behind the known tokens are verified and rejected."""
        sequence = self.running[index % len(self.running)]
        known = len(sequence.token_ids) - sequence.num_computed_tokens
        if known == 0:
            sequence.token_ids.append(fresh)
            known = 1
        count = min(count, known)
        if count < known or not self.kv.states.can_roll_back:
            wrong = 0
        if self.kv.allocate_slots(sequence, count + wrong) is None:
            self.end(index, True)
            return
        self.kv.states.begin_step(sequence, wrong)
        if self.kv.snapshots is not None:
            self.kv.snapshots.keep(sequence, sequence.num_computed_tokens)
        self.copy()
        self.look(sequence)
        begin = sequence.num_computed_tokens
        wanted = names(sequence, sequence.token_ids, self.size)
        for position in range(begin, begin + count):
            for group, ids in enumerate(sequence.block_ids):
                if self.groups[group].kind != "state":
                    block_id = ids[position // self.size]
                    assert block_id, "the null block is never written"
                    self.memory[block_id, position % self.size] = wanted[position] + group
        known = sequence.token_ids[: begin + count] + [-1] * wrong
        for block_id in self.kv.states.blocks(sequence):
            self.memory[block_id] = names(sequence, known, self.size)[-1]
        if wrong:
            sequence.is_rolled_back = True
        else:
            sequence.num_computed_tokens += count

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 100), good=st.booleans())
    def end(self, index, good):
        sequence = self.running.pop(index % len(self.running))
        if not good:
            keyed = sequence.block_ids[: self.kv.num_growing]
            own = {block_id for ids in keyed for block_id in ids[sequence.num_shared_blocks :] if block_id}
            self.memory[[block_id for block_id in own if self.kv.pool._references[block_id] == 1]] = -1
        self.kv.free(sequence, keep_cached=good, at_rest=True)
        self.sure = self.sure and good
        assert sequence.block_ids == []

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 100), length=st.integers(1, 40))
    def pin(self, index, length):
        """Pin what is cached of a sequence's tokens."""
        if len(self.pins) < 3:
            like = self.running[index % len(self.running)]
            options = {"tenant": like.tenant, "num_public_tokens": like.num_public_tokens}
            pinned = KVSequence(like.token_ids[:length], like.cache_salt, **options)
            self.pins.append(blocks_in_pool(self.kv, pinned, [length]))
            self.kv.pool.pin(self.pins[-1])
            self.sure = self.sure or len(self.pins) == 1

    @precondition(lambda self: self.pins)
    @rule(index=st.integers(0, 100))
    def unpin(self, index):
        self.kv.pool.unpin(self.pins.pop(index % len(self.pins)))

    @invariant()
    def pinned(self):
        """Nothing evicts what is pinned; only wrong values are taken out of the cache."""
        if hasattr(self, "kv") and self.sure:
            assert all(block_id in self.kv.pool.prefixes for pin in self.pins for block_id in pin)

    @rule()
    def reset(self):
        assert self.kv.reset() == (self.kv.usage == 0.0)

    @precondition(lambda self: self.tiers is not None)
    @rule(most=st.integers(1, 5))
    def save(self, most):
        """Between steps: cached blocks are to be saved with the next one."""
        self.kv.register_starting()
        self.tiers.save_some(self.kv, most)

    @rule()
    def fail_copies(self):
        """Copies that wait are lost with the step that should have made them; nobody runs on their blocks."""
        if self.tiers is not None and not self.running:
            self.sure = False
            transfers = self.kv.take_transfers()
            if transfers is not None:
                self.kv.settle_transfers(transfers, None)

    @invariant()
    def consistent(self):
        if hasattr(self, "kv"):
            self.kv.check_integrity(self.running)

    def copy(self):
        transfers = self.kv.take_transfers()
        saves = [] if transfers is None else transfers.saves
        pages = [self.memory[block_id].view(np.uint8).copy() for block_id in saves]
        for sources, targets in self.kv.take_copies():
            self.memory[targets] = self.memory[sources]
        if transfers is None:
            return
        for block_id, page in transfers.loads:
            self.memory[block_id] = page.view(np.int64)
        self.kv.settle_transfers(transfers, pages)

    def look(self, sequence):
        """Everything that the next query sees is there."""
        wanted = names(sequence, sequence.token_ids, self.size)
        for group, ids in enumerate(sequence.block_ids):
            spec = self.groups[group]
            begin = sequence.num_computed_tokens
            if spec.kind == "state":
                held = self.memory[ids[: spec.num_state_blocks]]
                assert not begin or (held == wanted[begin - 1]).all(), f"the state is not that behind {begin} tokens"
                continue
            first = 0 if spec.window is None else max(0, begin - spec.window + 1)
            for position in range(first, begin):
                block_id = ids[position // self.size]
                assert block_id, f"position {position} of group {group} is gone"
                assert self.memory[block_id, position % self.size] == wanted[position] + group

    def teardown(self):
        if hasattr(self, "kv"):
            for sequence in self.running:
                self.kv.free(sequence)
            for pin in self.pins:
                self.kv.pool.unpin(pin)
            self.kv.check_integrity([])
            assert self.kv.usage == 0.0 and self.kv.pool.num_free == self.kv.pool.capacity
            if self.tiers is not None:
                self.tiers.pages.close(1.0)


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
