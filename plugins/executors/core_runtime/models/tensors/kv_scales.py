"""Scales of an 8-bit KV cache that a checkpoint contains.

Owns: their names and their meaning. Never does: compute scales from data. Called by: the worker.
"""

from __future__ import annotations

import math
import re
from typing import Final

from core.api.errors import CheckpointError
from core.api.specs import KV_TYPES
from core_runtime.contracts import AttentionParams, Loader
from core_runtime.specs.checkpoint import CheckpointManifest

_NAME: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.(?:.+\.)?(k|v|kv)(?:_scale|_proj\.output_scale)$")
_QUERIES: Final = re.compile(r"(?:^|\.)layers\.\d+\.(?:.+\.)?q_scale$")
"""Scales of queries that are rounded to 8 bits too. They are not rounded here, so these scales are not used."""


def is_kv_scale(name: str) -> bool:
    """Whether a tensor is a scale of the KV cache or of the queries."""
    return _NAME.search(name) is not None or _QUERIES.search(name) is not None


def kv_scales(loader: Loader, manifest: CheckpointManifest, dtype: str) -> dict[int, AttentionParams]:
    """Return the scales by layer, for a KV type that has one scale a layer; empty for the others. Raises
    CheckpointError.

    `….layers.3.self_attn.k_scale`, `v_scale`, or `kv_scale` for both: a stored number times the scale is the value. So
    are `k_proj.output_scale` and `v_proj.output_scale`, as Quark and older versions of compressed-tensors write them.
    """
    kind = KV_TYPES[dtype]
    if kind.item_bytes > 1 or kind.scaled:
        return {}
    names = [name for name in manifest.tensors if _NAME.search(name)]
    if not names:
        return {}
    found: dict[int, dict[str, float]] = {}
    for name, tensor in loader.iter(manifest, names):
        match = _NAME.search(name)
        value = math.nan
        if tensor.numel() == 1:
            value = float(tensor.float().item())
        if match is None or not 0.0 < value < math.inf:
            raise CheckpointError(
                f"{name} {tuple(tensor.shape)}: expected one positive number, the scale of a KV cache"
            )
        layer = found.setdefault(int(match[1]), {})
        if match[2] == "kv":
            layer.setdefault("k", value)
            layer.setdefault("v", value)
        else:
            layer[match[2]] = value
    params = {}
    for index, scales in found.items():
        k_scale = scales.get("k", 1.0)
        v_scale = scales.get("v", 1.0)
        params[index] = AttentionParams(k_scale=k_scale, v_scale=v_scale)
    return params
