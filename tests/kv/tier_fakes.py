"""What tests of tiers share: a device whose blocks hold bytes that tell their tokens, and disks to put them on."""

import numpy as np

from core.api.config import CacheConfig, EngineConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.api.kv_load import KVLoad
from core.kv.connectors import KVConnectors
from core.kv.hashing import PrefixHasher
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.disk import DiskTier
from tests.kv.connector_rows import with_cache

HASHER = PrefixHasher()
PAGE_BYTES = 100
PRINT, OTHER_PRINT = "0a" * 16, "0b" * 16


def key(number):
    return HASHER.key(b"root", [number])


def page(number, nbytes=PAGE_BYTES):
    return np.full(nbytes, number % 251, np.uint8)


def look_up(kv, sequence):
    """A hit, once the pages that it needs have been read."""
    found = kv.lookup(sequence)
    while isinstance(found, KVLoad):
        while not kv.loads.is_over(sequence.load):
            kv.loads.wait(1.0)
        found = kv.lookup(sequence)
    return found


def byte_of(chunk, tenant="", weights=0):
    """What all bytes of a computed block are, for its tokens, tenant and weights; its group is added."""
    return (sum(chunk) + sum(tenant.encode()) + weights) % 251


class Device:
    """A worker's cache, as far as copies go: one array of bytes a block."""

    def __init__(self, num_blocks):
        self.blocks = np.zeros((num_blocks, PAGE_BYTES), np.uint8)

    def copy(self, transfers):
        pages = [self.blocks[block_id].copy() for block_id in transfers.saves]
        for block_id, values in transfers.loads:
            self.blocks[block_id] = values
        return pages


class Engine:
    """A manager and a device: every computed block holds bytes that tell its tokens, their tenant and the engine's weights.

    place: one connector, or several. weights: a number; engines with others compute other bytes.
    """

    def __init__(self, place, num_blocks=9, weights=0, **options):
        self.weights = weights
        connectors = place if isinstance(place, KVConnectors) else KVConnectors([place])
        self.kv = KVManager(num_blocks, 4, connectors=connectors, max_step_tokens=64, **options)
        self.device = Device(num_blocks)

    def run(self, tokens, fails=False, answer=(), tenant=""):
        """Compute a prompt and its answer and let them go; returns how many tokens came from the cache."""
        sequence = KVSequence(list(tokens), tenant=tenant)
        hit = look_up(self.kv, sequence)
        assert self.kv.blocks_missing(hit, len(sequence.token_ids)) <= self.kv.pool.num_free
        self.kv.attach(sequence, hit)
        sequence.token_ids += answer
        assert self.kv.allocate_slots(sequence, len(sequence.token_ids) - hit.num_tokens) is not None
        self.kv.check_integrity([sequence])
        transfers = self.kv.take_transfers()
        pages = None if transfers is None or fails else self.device.copy(transfers)
        if transfers is not None:
            self.kv.settle_transfers(transfers, pages)
        for group, ids in enumerate(sequence.block_ids):
            for index, block_id in enumerate(ids):
                value = byte_of(sequence.token_ids[index * 4 : index * 4 + 4], tenant, self.weights) + group
                if index * 4 >= hit.num_tokens:
                    self.device.blocks[block_id] = value
                elif block_id and not fails:
                    assert (self.device.blocks[block_id] == value).all(), "the block has its bytes"
        sequence.num_computed_tokens = len(sequence.token_ids)
        self.kv.free(sequence, keep_cached=not fails)
        self.kv.check_integrity([])
        return hit.num_tokens


FIRST, OTHER = range(33), range(100, 133)


def disk_of(path, print_=PRINT, capacity=1 << 20, page_bytes=PAGE_BYTES):
    return DiskTier(path, print_, capacity, page_bytes)


def config_of(path, **cache):
    bare = EngineConfig(
        model=ModelConfig(model=str(path), served_names=("m",)),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
        plugins=PluginChoices(loader="safetensors", platform="cpu"),
    )
    return with_cache(bare, **cache)
