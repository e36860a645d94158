"""The layers that `cpu_paged` can serve. Torch-free.

Owns: the limits of the native attention kernel. Never does: import the kernel. Called by: the manifest, the backend.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec

ELEMENTS = {  # the number by which the kernel knows a type
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "fp8_e4m3": 3,
    "fp8_e5m2": 4,
    "fp8_per_token_head": 3,
    "int8_per_token_head": 5,
}
HEAD_MULTIPLE = 8
MIN_HEAD_SIZE = 16
VERSION = 2  # grows when results change
MAX_HEAD_SIZE = 512


def unsupported(query: AttentionQuery) -> list[Reason]:
    """The reasons why this backend cannot serve a kind of layer; empty: it can. Loads no library."""
    spec = query.spec
    if not isinstance(spec, AttentionSpec):
        return [Reason("layer_kind", "full or sliding", spec.kind)]
    reasons = []
    if query.device != "cpu":
        reasons.append(Reason("device", "cpu", query.device))
    if query.dtype not in ELEMENTS:
        reasons.append(Reason("kv_cache_dtype", " or ".join(ELEMENTS), query.dtype))
    for size in (spec.head_size, spec.head_size_v):
        if size % HEAD_MULTIPLE or not MIN_HEAD_SIZE <= size <= MAX_HEAD_SIZE:
            expected = f"a multiple of {HEAD_MULTIPLE} from {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}"
            reasons.append(Reason("head_size", expected, str(size)))
            break
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(Reason("num_kv_heads", f"a divisor of {spec.num_heads}", str(spec.num_kv_heads)))
    if query.role != "decoder":
        reasons.append(Reason("role", "decoder", query.role))
    return reasons
