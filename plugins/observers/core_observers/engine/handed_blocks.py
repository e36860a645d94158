"""The blocks of sequences that change engines: those that an engine has, and those that another one may need.

Owns: under which keys a sequence's blocks are handed over. Never does: lease, fetch, or change a block. Called by: the observer
of handoffs, on the thread that plans steps, and the threads of claims (`keyed_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.api.kv_transfer import PrefixKey
from core.api.messages import EngineRequest
from core.engine.observer import Engine
from core.kv.manager import KVManager
from core.kv.prefix_needs import PrefixNeeds
from core.kv.sequence import KVSequence
from core.scheduler.sequence import SequenceState
from core_kv_connectors.handoff.connector import LeasedBlock


def sequence_of(request: EngineRequest) -> SequenceState:
    """Return the prompt of a request, with the tokens that it resumes with, under the keys that the scheduler gives it."""
    return SequenceState(request, (0, 0), len(request.prompt_token_ids))


def keyed_blocks(kv: KVManager, sequences: Iterable[KVSequence]) -> list[tuple[int, PrefixKey]]:
    """Return group and key, each once, of every block and page of a state with which these sequences may begin.

    Any thread may call it.
    """
    keyed = [group for group, rule in enumerate(kv.growth) if rule.holds_slots]
    states = range(len(kv.groups), len(kv.groups) + kv.states.num_blocks)
    found: dict[tuple[int, bytes], PrefixKey] = {}
    for sequence in sequences:
        keys = [kv.key(sequence, index) for index in range((len(sequence.token_ids) - 1) // kv.block_size)]
        found |= {(group, key.digest): key for group in (*keyed, *states) for key in keys}
    return [(group, key) for (group, _), key in found.items()]


def blocks_of(kv: KVManager, engine: Engine, sequence: KVSequence, num_blocks: int) -> list[LeasedBlock]:
    """Return the blocks that a prefix of `num_blocks` needs, each in the pool or as a page of a connector."""
    needs = PrefixNeeds(kv.growth, kv.block_size, kv.states.num_blocks)
    num_groups = len(kv.groups)
    found: list[LeasedBlock] = []
    for group, index in needs.entries(num_blocks):
        key = kv.key(sequence, index)
        block_id = kv.pool.prefixes.find(key, min(group, num_groups))
        if block_id is not None:
            found.append((kv.pool.parts(block_id)[max(group - num_groups, 0)], group, key, None))
        else:
            page = engine.kv_services.get(group, key)
            if page is not None:
                found.append((None, group, key, page))
    return found


def is_cached(kv: KVManager, group: int, key: PrefixKey) -> bool:
    """Whether the KV cache has a block."""
    return kv.pool.prefixes.find(key, min(group, len(kv.groups))) is not None


def cached_blocks(
    kv: KVManager, engine: Engine, sequences: Sequence[KVSequence]
) -> tuple[list[LeasedBlock], bytes, int]:
    """Return the cached blocks with which sequences begin, each once, the last key of the longest one, and its blocks.

    Sequences that share a prefix share its blocks.
    """
    found: dict[tuple[int, bytes], LeasedBlock] = {}
    last, longest = b"", 0
    for sequence in sequences:
        num_blocks = kv.lookup_now(sequence).num_tokens // kv.block_size
        if num_blocks:
            found |= {(block[1], block[2].digest): block for block in blocks_of(kv, engine, sequence, num_blocks)}
        if num_blocks > longest:
            last, longest = kv.key(sequence, num_blocks - 1).digest, num_blocks
    return list(found.values()), last, longest
