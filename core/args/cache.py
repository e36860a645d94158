"""Arguments about the KV cache and other state that lives between steps. Owns: declarations only. Called by: schema."""

from typing import Annotated, Any, ClassVar

import msgspec

from core.api.specs import KV_TYPES
from core.args.arg import Arg, ArgumentGroup


class KVEventsKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --kv-events-config."""

    enable_kv_cache_events: Annotated[bool, Arg("Tell of stored, removed and cleared blocks.")] = False
    publisher: Annotated[str, Arg("Who tells.", choices=("zmq", "null"))] = "zmq"
    endpoint: Annotated[str, Arg("ZMQ address that subscribers connect to.")] = "tcp://127.0.0.1:5557"
    replay_endpoint: Annotated[str | None, Arg("ZMQ address that answers with past batches. Unset: none.")] = None
    buffer_steps: Annotated[int, Arg("Batches kept for that.", ge=1)] = 10_000
    hwm: Annotated[int, Arg("Messages kept for a slow subscriber; more are dropped.", ge=1)] = 100_000
    max_queue_size: Annotated[int, Arg("Batches that may wait for the publisher; more are dropped.", ge=1)] = 100_000
    topic: Annotated[str, Arg("First frame of every message.")] = ""


class CacheArgs(ArgumentGroup, frozen=True, kw_only=True):
    """KV cache."""

    place: ClassVar[int] = 40

    block_size: Annotated[
        int | None, Arg("Tokens in one KV block. Unset: the platform and attention backend decide.", ge=1, le=1024)
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None, Arg("Bytes for the KV cache on each device. Unset: the platform decides.", human=True, gt=0)
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, Arg("Exactly this number of KV blocks, whatever the memory says.", ge=1)
    ] = None
    gpu_memory_utilization: Annotated[
        float, Arg("Share of a device's memory that this instance may use.", gt=0, le=1)
    ] = 0.9
    kv_cache_dtype: Annotated[
        str, Arg("Storage type of the KV cache; auto follows --dtype.", choices=("auto", "fp8", "int4", *KV_TYPES))
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool | None, Arg("Reuse KV blocks of equal prefixes. Unset: on where the model supports it.")
    ] = None
    mamba_block_size: Annotated[
        int | None,
        Arg(
            "Tokens from one cached state to the next, at least, inside a prompt, in models whose layers have a state (any "
            "recurrent kind, not Mamba alone). Unset: 64.",
            ge=1,
        ),
    ] = None
    prefix_caching_hash_algo: Annotated[
        str,
        Arg(
            "Hash of prefix blocks; hits are checked against the token ids in any case.",
            choices=("sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor"),
        ),
    ] = "sha256"
    kv_eviction: Annotated[
        str,
        Arg(
            "Which cached blocks give way first, in the KV cache and in host memory: lru: unused for longest; arc: those used "
            "once before those used again, as it pays; cost: those computed again soonest, for their bytes.",
            choices=("lru", "arc", "cost"),
        ),
    ] = "lru"
    kv_share_per_key: Annotated[
        float,
        Arg(
            "Share of the KV cache beyond which a key's own cached blocks give way before those of others.", gt=0, le=1
        ),
    ] = 1.0
    kv_offloading_size: Annotated[
        float | None,
        Arg("GiB of host memory for KV blocks that leave the KV cache, over all ranks. Unset: none.", gt=0, le=1e9),
    ] = None
    kv_offloading_disk_path: Annotated[
        str | None,
        Arg(
            "Directory for KV blocks; they are found again after a restart or a crash, and by the same user's other "
            "processes with the same model. Nobody else may be able to write there. Unset: none."
        ),
    ] = None
    kv_offloading_disk_size: Annotated[
        float, Arg("GiB of that directory; blocks unused for longest are deleted first.", gt=0, le=1e9)
    ] = 10.0
    explain_answers: Annotated[
        str,
        Arg(
            "What answers to requests with `explain` may tell of earlier requests: off: such requests are refused; own: of "
            "the same tenant's (equal API key or user, and cache_salt); all: also that another tenant had the same tokens.",
            choices=("off", "own", "all"),
        ),
    ] = "own"
    kv_events_config: Annotated[
        dict[str, Any] | None, Arg("Tell others over ZMQ which blocks are cached.", keys=KVEventsKeys)
    ] = None
