"""The KV cache of an engine: a part of the resolved configuration.

Owns: `CacheConfig`, and where changes of the cache are published. Never does: resolve or validate. Called by:
`core.api.config`, where everybody takes them from.
"""

from __future__ import annotations

import msgspec

from core.api.sequence_record import Scope
from core.api.specs import KVGroup


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where changes of the prefix cache are published.

    endpoint:        ZMQ address that is bound for subscribers.
    replay_endpoint: ZMQ address that is bound for questions about past batches; None: there is none.
    buffer_steps:    batches kept for replay.
    hwm:             messages that ZMQ keeps for a slow subscriber.
    max_queue_size:  batches that may wait for the publisher's thread; more are dropped.
    topic:           first frame of every message.
    """

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache.

    block_size:            tokens in one block.
    dtype:                 storage type, a name of `core.api.specs.KV_TYPES`.
    num_blocks:            None: as many as `memory_bytes` holds.
    memory_bytes:          bytes of all blocks on the device.
    enable_prefix_caching: reuse blocks of equal prefixes.
    snapshot_interval:     tokens from one cached state of a sequence to the next, at least; None: 64.
    hash_algorithm:        of prefix blocks.
    groups:                layers that share a block table; none: all of them do.
    host_bytes:            memory for blocks that leave the device; 0: none.
    disk_path:             directory for such blocks; None: there is none.
    disk_bytes:            its size.
    events:                None: changes are not published.
    metrics_sample:        share of blocks whose residency is measured; 0: none.
    explains:              what explained answers may tell of earlier requests.
    """

    block_size: int = 16
    dtype: str = "bfloat16"
    num_blocks: int | None = None
    memory_bytes: int = 0
    enable_prefix_caching: bool = True
    snapshot_interval: int | None = None
    hash_algorithm: str = "sha256"
    groups: tuple[KVGroup, ...] = ()
    host_bytes: int = 0
    disk_path: str | None = None
    disk_bytes: int = 0
    events: KVEventsConfig | None = None
    metrics_sample: float = 0.0
    explains: Scope = "own"
