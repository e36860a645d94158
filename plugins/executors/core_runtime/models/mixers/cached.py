"""The binding of a mixer to its part of the KV cache.

Owns: the backend of one layer and the handle that it returned. Never does: compute, allocate.
Called by: the model's instance (it binds the cache), the forward pass (it builds a step's metadata).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from core.api.config import CacheConfig
from core.api.specs import AttentionSpec, LatentSpec
from core_runtime.contracts import AttentionParams, BatchView


class CachedMixer:
    """A layer with a cache. `bind_cache`, or `bind`, must be called before the first step.

    backend: backend for the layer's kind; None until it is bound.
    handle: the backend's handle of this layer.
    borrows: whether the layer reads the blocks of another one, and writes none.
    """

    borrows = False

    def __init__(self) -> None:
        self.backend: Any = None
        self.handle: Any = None

    def bind(self, backend: Any, handle: Any) -> None:
        """Set the backend and its handle of this layer."""
        self.backend = backend
        self.handle = handle


class KeyedMixer(CachedMixer):
    """A layer whose cache grows with each token: keys and values, or latents."""

    def __init__(self, spec: AttentionSpec | LatentSpec) -> None:
        super().__init__()
        self._cached = spec

    def layer_bytes(self, backend: Any, cache: CacheConfig) -> int:
        """Return the bytes of one block of this layer."""
        layout = backend.kv_layout(self._cached, cache.block_size, cache.dtype)
        return int(layout.block_bytes)

    def bind_cache(self, backend: Any, cache: CacheConfig, raw: Tensor, learned: AttentionParams | None) -> None:
        """Bind the backend and this layer's blocks.

        raw: uint8 [num_blocks, block bytes].
        learned: the layer's scales, or None.
        """
        params = () if learned is None else (learned,)  # backends without scales do not take the argument
        handle = backend.bind(self._cached, cache.block_size, cache.dtype, raw, *params)
        self.bind(backend, handle)

    def build(self, view: BatchView) -> Any:
        """Return the backend's metadata of a step."""
        return self.backend.build(view)
