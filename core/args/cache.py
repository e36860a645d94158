"""Arguments about the KV cache and other state that lives between steps. Owns: declarations only. Called by: schema."""

from typing import Annotated

import msgspec

from core.args.arg import Arg

_RECURRENT = "states are kept in float32, and prefixes of models with a state are not cached"


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
        float, Arg("Share of a device's memory that this instance may use.", gt=0, le=1)
    ] = 0.9
    kv_cache_dtype: Annotated[
        str,
        Arg(
            "Storage type of the KV cache; auto follows --dtype.",
            choices=(
                *("auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
                *("fp8_per_token_head", "int8_per_token_head"),
            ),
            served=(
                *("auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"),
                *("fp8_per_token_head", "int8_per_token_head"),
            ),
            unserved="fp8_inc and fp8_ds_mla are layouts of other devices",
        ),
    ] = "auto"
    kv_cache_dtype_skip_layers: Annotated[
        list[str] | None,
        Arg(
            "Layers, by index or kind, whose KV cache keeps the model's precision.",
            commas=True,
            unserved="every layer has the same precision",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, Arg("Reuse KV blocks of equal prefixes. Unset: on where the model supports it.")
    ] = None
    prefix_caching_hash_algo: Annotated[
        str,
        Arg(
            "Hash of prefix blocks; hits are checked against the token ids in any case.",
            choices=("sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor", "builtin"),
            served=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"),
            unserved="shortened hashes and those of Python objects are not used",
        ),
    ] = "sha256"
    kv_offloading_size: Annotated[
        float | None,
        Arg(
            "GiB of host memory for KV blocks that leave the KV cache, over all ranks. Unset: none.",
            gt=0,
            le=1e9,
        ),
    ] = None
    kv_offloading_backend: Annotated[
        str,
        Arg(
            "Who moves those blocks.",
            choices=("native", "lmcache"),
            served=("native",),
            unserved="blocks are moved by the engine itself",
        ),
    ] = "native"
    kv_offloading_disk_path: Annotated[
        str | None,
        Arg(
            "Directory for KV blocks; they are found again after a restart or a crash, and by the same user's other "
            "processes with the same model. Nobody else may be able to write there. Unset: none.",
        ),
    ] = None
    kv_offloading_disk_size: Annotated[
        float, Arg("GiB of that directory; blocks unused for longest are deleted first.", gt=0, le=1e9)
    ] = 10.0
    kv_sharing_fast_prefill: Annotated[
        bool,
        Arg(
            "Where layers share a KV cache, skip those that a prefill does not need.",
            unserved="every layer runs in a prefill",
        ),
    ] = False
    mamba_block_size: Annotated[
        int | None,
        Arg("Tokens in one block of recurrent state; a multiple of 8.", ge=8, unserved=_RECURRENT),
    ] = None
    mamba_cache_dtype: Annotated[
        str,
        Arg(
            "Storage type of convolution and recurrent state.",
            choices=("auto", "float16", "float32"),
            unserved=_RECURRENT,
        ),
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        str,
        Arg("Storage type of the recurrent part.", choices=("auto", "float16", "float32"), unserved=_RECURRENT),
    ] = "auto"
    mamba_cache_mode: Annotated[
        str,
        Arg(
            "Which recurrent states the prefix cache keeps: none, all block ends, or the one at which a step ends.",
            choices=("none", "all", "align"),
            unserved=_RECURRENT,
        ),
    ] = "none"
    enable_mamba_cache_stochastic_rounding: Annotated[
        bool, Arg("Round at random when 16-bit state is written.", unserved=_RECURRENT)
    ] = False
    mamba_cache_philox_rounds: Annotated[
        int, Arg("Rounds of the generator behind that rounding; 0: the kernel's own.", ge=0, unserved=_RECURRENT)
    ] = 0
