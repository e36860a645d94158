"""Data types, and the check that the context fits the KV cache.

Owns: those two. Never does: check relations between arguments (`core_config.rules` does), allocate. Called by: resolve.
"""

from __future__ import annotations

from core.api.errors import UserError
from core_config.stages.memory import MemoryPlan, human_bytes
from core_config.stages.settings import Settings
from core_runtime.specs.checkpoint import CheckpointManifest

DTYPES = {"half": "float16", "float": "float32"}


def settle_dtypes(settings: Settings, manifest: CheckpointManifest) -> None:
    """Settle `dtype` and `kv_cache_dtype` as one of bfloat16, float16, float32."""
    dtype = settings["dtype"]
    if dtype in DTYPES:
        settings.derive("dtype", DTYPES[dtype], f"another name of {DTYPES[dtype]}")
    elif dtype == "auto":
        declared = manifest.config.get("dtype") or manifest.config.get("torch_dtype")
        value = declared if declared in ("bfloat16", "float16", "float32") else "bfloat16"
        settings.derive("dtype", value, "the checkpoint's own" if value == declared else "the default precision")
    if settings["kv_cache_dtype"] == "auto":
        settings.derive("kv_cache_dtype", settings["dtype"], "as dtype")


def fit(settings: Settings, plan: MemoryPlan, asked_length: int | None) -> list[str]:
    """Compare the context length with the cache: lower a derived length (a warning says so), refuse one that the user
    set.

    asked_length: `max_model_len` as the user gave it; None or -1: fit it to the cache. Raises UserError.
    """
    length = settings["max_model_len"]
    if plan.tokens < 1:
        raise UserError(
            f"The KV cache of {human_bytes(plan.kv)} holds {plan.num_blocks} blocks of {human_bytes(plan.block)}; "
            f"at least {plan.blocks_of(1) + 1} are needed. Raise --kv-cache-memory-bytes (or --num-gpu-blocks-override, or "
            "--gpu-memory-utilization)."
        )
    if length <= plan.tokens:
        return []
    if asked_length is not None and asked_length != -1:
        need = (plan.blocks_of(length) + 1) * plan.block
        raise UserError(
            f"--max-model-len {length}: the KV cache of {human_bytes(plan.kv)} holds {plan.tokens} tokens. "
            f"Give it {need} bytes with --kv-cache-memory-bytes, or choose --max-model-len {plan.tokens} or less."
        )
    settings.replace("max_model_len", plan.tokens, f"the KV cache holds {plan.tokens} tokens, the model {length}")
    return [f"max_model_len is lowered from {length} to {plan.tokens}, which is what the KV cache holds."]
