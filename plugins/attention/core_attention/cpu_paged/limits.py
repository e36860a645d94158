"""The layers that `cpu_paged` can serve. Torch-free.

Owns: the limits of the native attention kernel. Never does: import the kernel. Called by: the manifest, the backend.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import KV_TYPES, STATE_TYPES, AttentionQuery, AttentionSpec, LatentSpec, StateQuery

GATHERED_BYTES = 32 << 20
"""Room for the chosen keys of the rows that attend together, unless one row takes more."""
ELEMENTS = {  # the kernel's number of each KV type
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "fp8_e4m3": 3,
    "fp8_e5m2": 4,
    "fp8_per_token_head": 3,
    "int8_per_token_head": 5,
    "k8v4_per_token_head": 6,
    "fp8_ds_mla": 1,  # the keys of an index, and the expanded latents, are bfloat16
}
HEAD_MULTIPLE = 8
MIN_HEAD_SIZE = 16
CODED_MULTIPLE = 16  # of head sizes where values are 4-bit codes
VERSION = 4  # raise when results change
STATE_OPS = ("short_conv", "mamba1", "mamba2", "gated_delta", "kda")
MAX_TAPS = 8
MAX_STATE_ROW = 256
MAX_STATE_ROWS = 512
MAX_HEAD_SIZE = 512
SERVED_STATES = tuple(dtype for dtype in STATE_TYPES if ":" not in dtype)
"""Storage types of states, except those that are rounded by chance."""
MAX_KEY_SIZE = 576  # of a latent and its rotated key together
MAX_INDEX_SIZE = 256  # of a key of an index


def unsupported_state(query: StateQuery) -> list[Reason]:
    """Return the reasons why this backend cannot serve a kind of layer with a state; empty if it can. Loads no library."""
    spec = query.spec
    reasons = []
    if query.device != "cpu":
        reasons.append(Reason("device", "cpu", query.device))
    if not set(query.dtype.split("+")) <= set(SERVED_STATES):
        reasons.append(Reason("state_dtype", " or ".join(SERVED_STATES), query.dtype))
    if spec.op not in STATE_OPS:
        return [*reasons, Reason("state_op", " or ".join(STATE_OPS), spec.op)]
    sizes = spec.sizes
    if sizes["kernel"] > MAX_TAPS:
        reasons.append(Reason("kernel", f"at most {MAX_TAPS}", str(sizes["kernel"])))
    row = sizes.get("state") or sizes.get("key_size") or 1
    if row > MAX_STATE_ROW:
        reasons.append(Reason("state", f"at most {MAX_STATE_ROW}", str(row)))
    rows = sizes.get("head_size") or sizes.get("value_size") or 1
    if rows > MAX_STATE_ROWS:
        reasons.append(Reason("head_size", f"at most {MAX_STATE_ROWS}", str(rows)))
    return reasons


def unsupported(query: AttentionQuery) -> list[Reason]:
    """Return the reasons why this backend cannot serve a kind of layer; empty if it can. Loads no library."""
    spec = query.spec
    reasons = []
    if query.device != "cpu":
        reasons.append(Reason("device", "cpu", query.device))
    if query.dtype not in ELEMENTS:
        reasons.append(Reason("kv_cache_dtype", " or ".join(ELEMENTS), query.dtype))
    if query.role != "decoder":
        reasons.append(Reason("role", "decoder", query.role))
    if isinstance(spec, AttentionSpec):
        return reasons + _head_reasons(spec, query.dtype)
    if isinstance(spec, LatentSpec):
        return reasons + _latent_reasons(spec, query.dtype)
    return [Reason("layer_kind", "full, sliding or latent", spec.kind)]


def _head_reasons(spec: AttentionSpec, dtype: str) -> list[Reason]:
    reasons = []
    if dtype in KV_TYPES and KV_TYPES[dtype].group:
        reasons.append(Reason("kv_cache_dtype", "a type for layers without latents", dtype))
    multiple = CODED_MULTIPLE if dtype in KV_TYPES and KV_TYPES[dtype].packed > 1 else HEAD_MULTIPLE
    for size in (spec.head_size, spec.head_size_v):
        if size % multiple or not MIN_HEAD_SIZE <= size <= MAX_HEAD_SIZE:
            expected = f"a multiple of {multiple} from {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}"
            reasons.append(Reason("head_size", expected, str(size)))
            break
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(Reason("num_kv_heads", f"a divisor of {spec.num_heads}", str(spec.num_kv_heads)))
    for name in ("alibi", "chunked"):
        if getattr(spec, name) and not spec.causal:
            reasons.append(Reason(name, f"layers without {name} where queries see later keys", "yes"))
    return reasons


def _latent_reasons(spec: LatentSpec, dtype: str) -> list[Reason]:
    reasons = []
    if spec.rank % HEAD_MULTIPLE or not MIN_HEAD_SIZE <= spec.rank <= MAX_HEAD_SIZE:
        expected = f"a multiple of {HEAD_MULTIPLE} from {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}"
        reasons.append(Reason("rank", expected, str(spec.rank)))
    most = MAX_KEY_SIZE - spec.rank
    if spec.rope_size % 2 or not 0 < spec.rope_size <= most:
        reasons.append(Reason("rope_size", f"an even number up to {most}", str(spec.rope_size)))
    if spec.index_size > MAX_INDEX_SIZE:
        reasons.append(Reason("index_head_dim", f"at most {MAX_INDEX_SIZE}", str(spec.index_size)))
    group = KV_TYPES[dtype].group if dtype in KV_TYPES else 0
    if group and spec.rank % group:
        reasons.append(Reason("rank", f"a multiple of {group}, whose numbers share a scale", str(spec.rank)))
    if dtype in KV_TYPES and KV_TYPES[dtype].scaled and not group:
        expected = "a type without scales of single tokens, for latent layers"
        reasons.append(Reason("kv_cache_dtype", expected, dtype))
    return reasons
