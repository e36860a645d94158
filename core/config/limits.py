"""Context length, batch limits and the size of the KV cache.

Owns: the rules that derive them, and the reason of each. Never does: allocate. Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.checkpoint import CheckpointManifest
from core.api.errors import UserError
from core.api.specs import AttentionSpec
from core.config.memory import MemoryPlan, block_bytes, human_bytes, weights_bytes
from core.config.settings import Settings

DTYPES = {"half": "float16", "float": "float32"}
FALLBACKS = {"block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 2048}


def settle_dtypes(settings: Settings, manifest: CheckpointManifest) -> None:
    """`dtype` and `kv_cache_dtype` as one of bfloat16, float16, float32."""
    dtype = settings["dtype"]
    if dtype in DTYPES:
        settings.derive("dtype", DTYPES[dtype], f"another name of {DTYPES[dtype]}")
    elif dtype == "auto":
        declared = manifest.config.get("dtype") or manifest.config.get("torch_dtype")
        value = declared if declared in ("bfloat16", "float16", "float32") else "bfloat16"
        settings.derive("dtype", value, "the checkpoint's own" if value == declared else "the default precision")
    if settings["kv_cache_dtype"] == "auto":
        settings.derive("kv_cache_dtype", settings["dtype"], "as dtype")


def settle_batch(settings: Settings) -> None:
    """What the platform left open: block size and batch limits; switches that are on unless switched off."""
    for name, value in FALLBACKS.items():
        if settings[name] is None:
            settings.derive(name, value, "the default")
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        if settings[name] is None:
            settings.derive(name, True, "the model supports it")
    budget = settings["max_num_batched_tokens"]
    if settings["max_num_seqs"] > budget and not settings.user_set("max_num_seqs"):
        settings.derive("max_num_seqs", budget, f"no more than max_num_batched_tokens, {budget}")


def settle_context(settings: Settings, limit: int) -> None:
    """`max_model_len` from the model's own limit. Raises UserError when the user asks for more."""
    wanted = settings["max_model_len"]
    if wanted is None or wanted == -1:
        settings.derive("max_model_len", limit, "the model's max_position_embeddings")
    elif wanted < 1:
        raise UserError(f"--max-model-len {wanted}: expected at least 1, or auto.")
    elif wanted > limit:
        raise UserError(
            f"--max-model-len {wanted}: the model's max_position_embeddings is {limit}. Choose at most {limit}, or "
            f"extend the model with --hf-overrides.max_position_embeddings {wanted} (and its RoPE scaling)."
        )
    if not settings["enable_chunked_prefill"] and settings["max_num_batched_tokens"] < settings["max_model_len"]:
        length = settings["max_model_len"]
        if settings.user_set("max_num_batched_tokens"):
            raise UserError(
                f"--no-enable-chunked-prefill: a prompt of {length} tokens must fit one step, but "
                f"--max-num-batched-tokens is {settings['max_num_batched_tokens']}; raise it or lower --max-model-len."
            )
        settings.derive("max_num_batched_tokens", length, "whole prompts in one step, as chunked prefill is off")


def settle_memory(
    settings: Settings,
    manifest: CheckpointManifest,
    specs: Sequence[AttentionSpec],
    device_memory: int,
    asked_length: int | None,
) -> tuple[MemoryPlan, list[str]]:
    """The plan and warnings. asked_length: `max_model_len` as the user gave it (None or -1: fit it to the cache).

    Raises UserError when what the user asked for does not fit.
    """
    size = settings["block_size"]
    block = block_bytes(specs, size, settings["kv_cache_dtype"])
    weights = weights_bytes(manifest, settings["dtype"])
    warnings: list[str] = []
    override = settings["num_gpu_blocks_override"]
    memory = settings["kv_cache_memory_bytes"]
    if override is not None:
        if settings.user_set("kv_cache_memory_bytes"):
            warnings.append("--kv-cache-memory-bytes has no effect beside --num-gpu-blocks-override.")
        memory = override * block
        settings.rows["kv_cache_memory_bytes"] = (memory, "derived", "num_gpu_blocks_override blocks")
    elif memory is None:
        memory = max(int(device_memory * settings["gpu_memory_utilization"]) - weights, 0)
        share = f"{settings['gpu_memory_utilization']:g} of {human_bytes(device_memory)}"
        settings.derive("kv_cache_memory_bytes", memory, f"{share}, less {human_bytes(weights)} of weights")
    if (
        override is None
        and settings.user_set("gpu_memory_utilization")
        and settings.rows["kv_cache_memory_bytes"][1] != "derived"
    ):
        given_by = settings.rows["kv_cache_memory_bytes"][1]
        warnings.append(
            f"--gpu-memory-utilization has no effect: the KV cache is set to {human_bytes(memory)} ({given_by}); "
            "--kv-cache-memory-bytes changes it."
        )
    plan = MemoryPlan(weights, block, override if override is not None else memory // block, size)
    warnings += _fit(settings, plan, asked_length)
    return plan, warnings


def _fit(settings: Settings, plan: MemoryPlan, asked_length: int | None) -> list[str]:
    """Hold the context length against the cache: lower a derived one, refuse one that the user set."""
    length = settings["max_model_len"]
    if plan.tokens < 1:
        raise UserError(
            f"The KV cache of {human_bytes(plan.kv)} holds {plan.num_blocks} blocks of {human_bytes(plan.block)}; "
            "at least 2 are needed. Raise --kv-cache-memory-bytes (or --num-gpu-blocks-override)."
        )
    if length <= plan.tokens:
        return []
    if asked_length is not None and asked_length != -1:
        need = (-(-length // plan.block_size) + 1) * plan.block
        raise UserError(
            f"--max-model-len {length}: the KV cache of {human_bytes(plan.kv)} holds {plan.tokens} tokens. "
            f"Give it {need} bytes with --kv-cache-memory-bytes, or choose --max-model-len {plan.tokens} or less."
        )
    settings.rows["max_model_len"] = (
        plan.tokens,
        "derived",
        f"the KV cache holds {plan.tokens} tokens, the model {length}",
    )
    return [f"max_model_len is lowered from {length} to {plan.tokens}, which is what the KV cache holds."]
