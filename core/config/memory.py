"""The memory plan: weights, KV cache and what fits, computed from shapes alone.

Owns: bytes per KV block, the estimate of weights. Never does: read a weight, allocate. Called by: resolve, explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from core.api.checkpoint import CheckpointManifest
from core.api.specs import AttentionSpec

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
PLAIN = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, and tokens that the cache holds.

    weights: packed types as in the file, plain matrices in the run's dtype. block: bytes of one KV block in all layers.
    """

    weights: int
    block: int
    num_blocks: int
    block_size: int

    @property
    def kv(self) -> int:
        """Bytes of the KV cache."""
        return self.block * self.num_blocks

    @property
    def tokens(self) -> int:
        """Tokens that one sequence may have at most. One block is reserved as padding."""
        return max(self.num_blocks - 1, 0) * self.block_size


def block_bytes(specs: Sequence[AttentionSpec], block_size: int, dtype: str) -> int:
    """Bytes of one KV block over all layers."""
    heads = sum(spec.num_kv_heads * (spec.head_size + spec.head_size_v) for spec in specs)
    return heads * block_size * ITEM_BYTES[dtype]


def weights_bytes(manifest: CheckpointManifest, dtype: str) -> int:
    """Bytes of all tensors as they will be held, before a kernel repacks them."""
    total = 0
    for info in manifest.tensors.values():
        if info.dtype in PLAIN:
            item = ITEM_BYTES[dtype] if len(info.shape) > 1 else 4
            total += math.prod(info.shape) * item
        else:
            total += info.nbytes
    return total


def human_bytes(count: int) -> str:
    """`123.4 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the loop returns")
