"""The experts of a layer, run together by one provider of kernels.

Owns: which provider takes all of them. Never does: prepare a weight, or run experts one by one (`ReferenceExperts` does).
Called by: `KernelSet.experts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core_runtime.contracts import ExpertsKernel, HasExperts, Kernels
from core_runtime.layers.activations import parse
from core_runtime.layers.features import features_of
from core_runtime.layers.linear import Linear


def joint_experts(
    providers: Iterable[Kernels],
    gate_up: Sequence[Linear],
    down: Sequence[Linear],
    activation: str,
    options: Mapping[str, Any],
) -> ExpertsKernel | None:
    """Return the experts of the first provider that takes them, None if there is none.

    options: arguments that a provider must know, beside the kernels and the activation.
    """
    first = [expert.single for expert in gate_up if expert.single is not None]
    second = [expert.single for expert in down if expert.single is not None]
    if not len(first) == len(second) == len(gate_up):
        return None  # an expert whose matrix consists of several kernels
    kind = parse(activation).kind
    for provider in providers:
        if not isinstance(provider, HasExperts) or kind not in features_of(provider):
            continue
        if not options.keys() <= inspect.signature(provider.experts).parameters.keys():
            continue
        layer = provider.experts(first, second, activation, **options)
        if layer is not None:
            return layer
    return None
