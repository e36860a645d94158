"""Features: needs of single calls that go beyond the operations of every provider.

Owns: the features that a call needs, and the choice of a provider by them. Never does: compute.
Called by: `KernelSet`, for operations whose best provider lacks a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from core_runtime.contracts import HasFeatures, Kernels
from core_runtime.layers import activations
from core_runtime.specs.routing_spec import RoutingSpec


def features_of(provider: Any) -> Collection[str]:
    """Return the features that a provider or a kernel declares, plus the activations that every one supports."""
    declared = provider.features if isinstance(provider, HasFeatures) else ()
    return {*activations.BASIC, *declared}


def routing_feature(routing: RoutingSpec) -> str | None:
    """Return the feature that a choice of experts needs, or None."""
    if routing.scores == "sparse_mixer":
        return "sparse_mixer"
    return "routing_epsilon" if routing.epsilon else None


class ByFeature:
    """An operation of several providers: each call goes to the first provider with the feature that it needs."""

    def __init__(self, op: str, providers: Sequence[Kernels]) -> None:
        able = [provider for provider in providers if hasattr(provider, op)]
        self._feature = FEATURE_OF[op]
        self._providers = [(getattr(provider, op), features_of(provider)) for provider in able]

    def __call__(self, *args: Any) -> None:
        """Call the operation; see its contract."""
        feature = self._feature(*args)
        for operation, features in self._providers:
            if feature is None or feature in features:
                operation(*args)
                return


def _norm_feature(x: Tensor, weight: Tensor, eps: float) -> str | None:
    return "norms_by_head" if weight.dim() > 1 else None


def _rotary_feature(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> str | None:
    return "partial_rotary" if 2 * cos.shape[1] < q.shape[-1] else None


def _activation_feature(x: Tensor, activation: str, out: Tensor) -> str:
    return activations.parse(activation).kind


def _routing_feature(
    logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor
) -> str | None:
    return routing_feature(routing)


FEATURE_OF: dict[str, Callable[..., str | None]] = {
    "rms_norm_heads": _norm_feature,
    "rotary": _rotary_feature,
    "gated": _activation_feature,
    "activate": _activation_feature,
    "route": _routing_feature,
}
"""Function from the arguments of each operation to the feature that the call needs, or None."""
