"""Transformers' attention interface, implemented by attention backends.

Owns: the two functions that are registered there, and the dispatch of a layer to its backend. Never does: choose a
backend, make a mask. Called by: attention modules of transformers, once a layer and step.

Modules reach the calls of their own model through an attribute, `core_calls`, so nothing here holds a state of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from core.api.config import CacheConfig
from core.api.specs import AttentionSpec
from core_runtime.contracts import AttentionParams, HeadsKernel, LinearKernel
from core_runtime.models.mixers.cached import KeyedMixer

TRIAL: Final = "core_trial"
PAGED: Final = "core_paged"


class Calls(Protocol):
    """The attention implementation that the attention modules of a model call."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, given: dict[str, Any]
    ) -> Tensor:
        """Return outputs [1, T, Hq, Dv] of query [1, Hq, T, D], key [1, Hkv, T, D] and value [1, Hkv, T, Dv]."""
        ...


def register() -> str:
    """Register both implementations with transformers and return the name of the one for trials.

    Masks are made in a trial only: an implementation without a mask function receives none.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from core_runtime.models.fallback.mask import described_mask

    ALL_ATTENTION_FUNCTIONS.register(TRIAL, attend)
    ALL_ATTENTION_FUNCTIONS.register(PAGED, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TRIAL, described_mask)
    return TRIAL


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **given: Any
) -> tuple[Tensor, None]:
    """Implement the interface's function: return (outputs of the heads, no attention weights)."""
    calls: Calls = module.core_calls
    return calls.attend(module, query, key, value, attention_mask, given), None


class PagedLayer(KeyedMixer):
    """One call of attention in a forward pass.

    sinks: sinks of its heads, set by the loading; None without.
    """

    linears: Sequence[LinearKernel | HeadsKernel] = ()

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.spec = spec
        self.sinks: Tensor | None = None

    def bind_cache(self, backend: Any, cache: CacheConfig, raw: Tensor, learned: AttentionParams | None) -> None:
        """Bind the backend and this layer's blocks, see `KeyedMixer`."""
        if self.sinks is not None:
            learned = replace(learned or AttentionParams(), sinks=self.sinks)
        super().bind_cache(backend, cache, raw, learned)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: Any) -> Tensor:
        """Run the backend on one call; shapes as in `Calls.attend`."""
        q = query[0].transpose(0, 1)
        k = key[0].transpose(0, 1)
        v = value[0].transpose(0, 1)
        out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
        backend = self.backend
        backend.write(self.handle, _rows(k), _rows(v), metadata)
        backend.forward(self.handle, _rows(q), metadata, out)
        return out.unsqueeze(0)


class PagedCalls:
    """The calls of one model, layer after layer.

    layers: layers in the order of the calls.
    """

    def __init__(self, layers: list[PagedLayer]) -> None:
        self.layers = layers
        self._metadata: Sequence[Any] = ()
        self._next = 0

    def begin(self, metadata: Sequence[Any]) -> None:
        """Begin a step. metadata: attention metadata of each layer."""
        self._metadata = metadata
        self._next = 0

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, given: dict[str, Any]
    ) -> Tensor:
        """Dispatch a call to the next layer, see `Calls`."""
        index = self._next
        self._next = index + 1
        return self.layers[index].attend(query, key, value, self._metadata[index])


class StandIn:
    """Attention of each token to itself alone, which leaves tokens independent of each other."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, given: dict[str, Any]
    ) -> Tensor:
        """Return the values, repeated for each query head; see `Calls`."""
        repeats = query.shape[1] // value.shape[1]
        return value.repeat_interleave(repeats, dim=1).transpose(1, 2).contiguous()


def answer_with(model: nn.Module, calls: Calls, modules: Sequence[str]) -> None:
    """Bind these attention modules to `calls`."""
    for name in modules:
        model.get_submodule(name).core_calls = calls


def _rows(x: Tensor) -> Tensor:
    """Return x [T, H, D] in the layout of backends: the numbers of a head and the heads of a token are contiguous."""
    _, head, item = x.stride()
    return x if item == 1 and head == x.shape[2] else x.contiguous()
