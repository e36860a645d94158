"""The canonical weight formats: the in-memory meaning of a packed weight, independent of checkpoints and chips.

Owns: nothing of its own; each format has a file, their common part is `canonical`, saving is in `state`.
Called by: quantization methods (they build these), kernels (they `prepare` these), tests (the oracle).

Every format describes one logical matrix W of shape [N, K] (output features, input features; y = x @ W.T).
All quantized formats group along K; rows are independent, so rows can be permuted, concatenated and sharded.
"""

from __future__ import annotations

from core_runtime.weights.canonical import CanonicalWeight, HasGroups, can_fuse, fuse
from core_runtime.weights.codebook import Codebook
from core_runtime.weights.dense import Dense
from core_runtime.weights.fp8 import FP8
from core_runtime.weights.int8_channel import Int8Channel
from core_runtime.weights.int_groups import IntGroups
from core_runtime.weights.stored_rows import StoredRows
from core_runtime.weights.super_groups import SuperGroups

__all__ = [
    "FP8",
    "CanonicalWeight",
    "Codebook",
    "Dense",
    "HasGroups",
    "Int8Channel",
    "IntGroups",
    "StoredRows",
    "SuperGroups",
    "can_fuse",
    "fuse",
]
