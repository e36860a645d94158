"""Arguments about the KV cache. Owns: declarations only. Called by: schema."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.args.arg import Arg


class CacheArgs(msgspec.Struct, frozen=True, kw_only=True):
    """KV cache."""

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
        float, Arg("Share of an accelerator's memory that this instance may use.", gt=0, le=1)
    ] = 0.9
    kv_cache_dtype: Annotated[
        str,
        Arg(
            "Storage type of the KV cache; auto follows --dtype.",
            choices=("auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"),
            served=("auto", "bfloat16", "float16", "float32"),
            unserved="8-bit KV caches are not available",
        ),
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool | None, Arg("Reuse KV blocks of equal prefixes. Unset: on where the model supports it.")
    ] = None
    prefix_caching_hash_algo: Annotated[
        str,
        Arg(
            "Hash of prefix blocks; hits are checked against the token ids in any case.",
            choices=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "builtin"),
            served=("sha256",),
            unserved="only sha256 is available",
        ),
    ] = "sha256"
