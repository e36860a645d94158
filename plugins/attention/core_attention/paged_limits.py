"""Layers that backends with joint K and V blocks cannot serve. Torch-free.

Owns: the reasons shared by these backends. Called by: their manifests.
"""

from __future__ import annotations

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec


def of_one_size(query: AttentionQuery) -> list[Reason]:
    """Return reasons against layers whose values are not as wide as their keys, and against roles other than the
    decoder's.
    """
    reasons = []
    if query.role != "decoder":
        reasons.append(Reason("role", "decoder", query.role))
    spec = query.spec
    if not isinstance(spec, AttentionSpec):
        return reasons
    if spec.head_size != spec.head_size_v:
        reasons.append(Reason("head_size", f"values as wide as keys ({spec.head_size})", str(spec.head_size_v)))
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(Reason("num_kv_heads", f"a divisor of {spec.num_heads}", str(spec.num_kv_heads)))
    return reasons
