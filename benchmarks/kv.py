"""Time of the KV manager's operations alone, for pools of different sizes, and of the hash algorithms.

Run: `python benchmarks/kv.py`. Prints the minimum of many repetitions; look-ups count a block, hashes included or kept.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

from core.api.specs import KVGroup
from core.kv.block_pool import BlockPool
from core.kv.hashing import HASH_ALGORITHMS, PrefixHasher
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence

BLOCK_SIZE = 16
POOLS = (10**3, 10**4, 10**5, 10**6, 10**7)
GEMMA3 = (KVGroup("full", (0,)), *(KVGroup("sliding", (1,), window=512),) * 5)


def best(run: Callable[[int], object], count: int, repetitions: int = 200) -> float:
    """Least nanoseconds of one of `count` operations that `run(count)` does."""
    least = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter_ns()
        run(count)
        least = min(least, time.perf_counter_ns() - start)
    return least / count


def creation(num_blocks: int) -> tuple[float, float]:
    """Milliseconds and megabytes of a new pool."""
    milliseconds = best(lambda _: BlockPool(num_blocks), 1, 20) / 1e6
    tracemalloc.start()
    BlockPool(num_blocks)
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return milliseconds, megabytes


def pool_operations(num_blocks: int) -> list[float]:
    """Nanoseconds a block: allocate and free in bulk, and allocate and free one."""
    pool = BlockPool(num_blocks)

    def bulk(count: int) -> None:
        pool.free(pool.allocate(count))

    def one(count: int) -> None:
        for _ in range(count):
            pool.free(pool.allocate(1))

    return [best(bulk, 512), best(one, 512)]


def decode_blocks(num_blocks: int, groups: tuple[KVGroup, ...] = ()) -> float:
    """Nanoseconds to give a decoding sequence its next block (in each group)."""
    kv = KVManager(num_blocks, BLOCK_SIZE, groups=groups, max_step_tokens=64)
    least = float("inf")
    for _ in range(200):
        sequence = KVSequence([1])
        kv.attach(sequence, kv.lookup(sequence))
        steps = min(64, kv.pool.capacity // (4 * len(kv.groups)))
        start = time.perf_counter_ns()
        for _ in range(steps):
            kv.allocate_slots(sequence, BLOCK_SIZE)
            sequence.num_computed_tokens += BLOCK_SIZE
        least = min(least, (time.perf_counter_ns() - start) / steps)
        kv.free(sequence, keep_cached=False)
    return least


def lookups(num_blocks: int, hit_blocks: int, algorithm: str = "sha256") -> tuple[float, float]:
    """Nanoseconds a hit block of a first look-up, which hashes, and of one more."""
    kv = KVManager(num_blocks, BLOCK_SIZE, hash_algorithm=algorithm)
    tokens = list(range(hit_blocks * BLOCK_SIZE + 1))
    first = KVSequence(tokens)
    kv.attach(first, kv.lookup(first))
    kv.allocate_slots(first, len(tokens))
    first.num_computed_tokens = len(tokens)
    kv.free(first)
    fresh = best(lambda _: kv.lookup(KVSequence(tokens)), 1, 100) / hit_blocks
    known = KVSequence(tokens)
    return fresh, best(lambda _: kv.lookup(known), 1, 100) / hit_blocks


def hashing(algorithm: str) -> float:
    """Nanoseconds of one key."""
    hasher = PrefixHasher(algorithm)
    parent, tokens = hasher.root(None), list(range(40_000, 40_000 + BLOCK_SIZE))
    return best(lambda count: [hasher.key(parent, tokens) for _ in range(count)], 256)


def main() -> None:
    """Print all tables."""
    print(
        f"{'blocks':>9} {'create ms':>10} {'MB':>6} {'bulk ns':>8} {'one ns':>8} {'decode ns':>10} {'look-up ns':>11}"
    )
    for num_blocks in POOLS:
        made, size = creation(num_blocks)
        bulk, one = pool_operations(num_blocks)
        decode, (_, known) = decode_blocks(num_blocks), lookups(num_blocks, 64)
        print(f"{num_blocks:>9} {made:>10.3f} {size:>6.2f} {bulk:>8.0f} {one:>8.0f} {decode:>10.0f} {known:>11.0f}")
    print(f"\nnext block of six groups, five of them sliding: {decode_blocks(10**5, GEMMA3):.0f} ns")
    print(f"\n{'look-up':>9} {'ns a block, hashing':>20} {'hashes known':>13}")
    for hit_blocks in (1, 16, 256, 4096):
        fresh, known = lookups(10**5, hit_blocks)
        print(f"{hit_blocks:>9} {fresh:>20.0f} {known:>13.0f}")
    print(f"\n{'algorithm':>12} {'ns a block of 16':>17}")
    for algorithm in HASH_ALGORITHMS:
        print(f"{algorithm:>12} {hashing(algorithm):>17.0f}")


if __name__ == "__main__":
    main()
