"""The KV cache of an engine: a part of the resolved configuration.

Owns: `CacheConfig`, and `KVEventsConfig` for the publication of cache changes. Never does: resolve or validate. Called by:
`core.api.config`, from which all others import them.
"""

from __future__ import annotations

import msgspec

from core.api.sequence_record import Scope
from core.api.specs import STATE_DTYPE, KVGroup


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The publication of prefix-cache changes over ZMQ.

    endpoint:        ZMQ address that is bound for subscribers.
    replay_endpoint: ZMQ address that is bound for requests for past batches; None: there is no replay.
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
    """Sizes and features of an engine's KV cache.

    block_size:            tokens in one block.
    dtype:                 storage type, a name of `core.api.specs.KV_TYPES`.
    layer_dtypes:          storage type of each layer, in the numbers of `groups`; empty: all have `dtype`.
    state_dtype:           storage type of states, see `core.api.specs.STATE_TYPES`.
    num_blocks:            number of blocks; None: as many as fit into `memory_bytes`.
    memory_bytes:          bytes of all blocks on the device.
    enable_prefix_caching: reuse blocks of equal prefixes.
    snapshot_interval:     minimum number of tokens between two cached states of a sequence; None: 64.
    snapshot_every:        states after multiples of this number of tokens are kept as well; 0: none.
    hash_algorithm:        hash function of prefix blocks.
    groups:                groups of layers that share a block table; empty: all layers share one.
    eviction:              rule by which blocks and pages in host memory give way: lru, arc or cost.
    share_per_key:         fraction of the blocks that one tenant may have cached while others need room.
    host_bytes:            host memory for blocks that leave the device; 0: none.
    disk_path:             directory for blocks that leave the device; None: there is none.
    disk_bytes:            maximum size of the blocks in `disk_path`.
    events:                publication of cache changes; None: they are not published.
    metrics_sample:        fraction of blocks whose residency is measured; 0: none.
    explains:              what explained answers may reveal about earlier requests.
    """

    block_size: int = 16
    dtype: str = "bfloat16"
    layer_dtypes: tuple[str, ...] = ()
    state_dtype: str = STATE_DTYPE
    num_blocks: int | None = None
    memory_bytes: int = 0
    enable_prefix_caching: bool = True
    snapshot_interval: int | None = None
    snapshot_every: int = 0
    hash_algorithm: str = "sha256"
    groups: tuple[KVGroup, ...] = ()
    eviction: str = "lru"
    share_per_key: float = 1.0
    host_bytes: int = 0
    disk_path: str | None = None
    disk_bytes: int = 0
    events: KVEventsConfig | None = None
    metrics_sample: float = 0.0
    explains: Scope = "own"
