"""The layers that the backend `triton` can serve. Torch-free.

Owns: the limits of its kernels. Never does: import triton. Called by: the manifest, the backend.
"""

from __future__ import annotations

from typing import Final

from core.api.reason import Reason
from core.api.specs import KV_TYPES, STATE_DTYPE, AttentionQuery, AttentionSpec, LatentSpec, StateQuery

VERSION: Final = 2  # raise when results change
NUMERICS: Final = f"triton-attention-{VERSION}"

ELEMENTS: Final = {  # the kernels' name of each KV type
    "float32": "plain",
    "bfloat16": "plain",
    "float16": "plain",
    "fp8_e4m3": "e4m3",
    "fp8_e5m2": "e5m2",
    "fp8_per_token_head": "e4m3",
    "int8_per_token_head": "int8",
}
BLOCK_SIZES: Final = (16, 32, 64, 128)
MAX_HEAD_SIZE: Final = 512
MAX_RANK: Final = 512
MAX_ROPE_SIZE: Final = 128
STATE_OPS: Final = ("short_conv", "mamba1", "mamba2", "gated_delta", "kda")
MAX_STATE_ROW: Final = 256

Cached = AttentionSpec | LatentSpec


def numerics_name(chunked_states: bool) -> str:
    """Return the name of the arithmetic. chunked_states: whether prompts advance states in chunks."""
    return f"{NUMERICS}-chunked-states" if chunked_states else NUMERICS


def unsupported(query: AttentionQuery) -> list[Reason]:
    """Return the reasons why this backend cannot serve a kind of layer; empty if it can. Loads no library."""
    spec = query.spec
    reasons = []
    if query.dtype not in ELEMENTS:
        reasons.append(Reason("kv_cache_dtype", " or ".join(ELEMENTS), query.dtype))
    if query.block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        reasons.append(Reason("block_size", f"one of {sizes}", str(query.block_size), "--block-size chooses another"))
    if query.role != "decoder":
        reasons.append(Reason("role", "decoder", query.role))
    if isinstance(spec, AttentionSpec):
        return reasons + _head_reasons(spec)
    return reasons + _latent_reasons(spec, query.dtype)


def unsupported_state(query: StateQuery) -> list[Reason]:
    """Return the reasons why this backend cannot serve a kind of layer with a state; empty if it can. Loads no library."""
    spec = query.spec
    reasons = []
    if query.dtype != STATE_DTYPE:
        reasons.append(Reason("dtype", STATE_DTYPE, query.dtype))
    if spec.op not in STATE_OPS:
        return [*reasons, Reason("state_op", " or ".join(STATE_OPS), spec.op)]
    row = spec.sizes.get("state") or spec.sizes.get("key_size") or 1
    if row > MAX_STATE_ROW:
        reasons.append(Reason("state", f"at most {MAX_STATE_ROW}", str(row)))
    return reasons


def _head_reasons(spec: AttentionSpec) -> list[Reason]:
    reasons = []
    largest = max(spec.head_size, spec.head_size_v)
    if largest > MAX_HEAD_SIZE:
        reasons.append(Reason("head_size", f"at most {MAX_HEAD_SIZE}", str(largest)))
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(Reason("num_kv_heads", f"a divisor of {spec.num_heads}", str(spec.num_kv_heads)))
    if not spec.causal:
        reasons.append(Reason("bidirectional", "layers that see no later keys", "yes"))
    return reasons


def _latent_reasons(spec: LatentSpec, dtype: str) -> list[Reason]:
    reasons = []
    if spec.rank > MAX_RANK:
        reasons.append(Reason("rank", f"at most {MAX_RANK}", str(spec.rank)))
    if spec.rope_size > MAX_ROPE_SIZE:
        reasons.append(Reason("rope_size", f"at most {MAX_ROPE_SIZE}", str(spec.rope_size)))
    if dtype in KV_TYPES and KV_TYPES[dtype].scaled:
        expected = "a type without scales of single tokens, for latent layers"
        reasons.append(Reason("kv_cache_dtype", expected, dtype))
    return reasons
