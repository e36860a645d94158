"""The kernels of one device: for each operation the best provider that supports it.

Owns: the choice among providers, once, when a device is opened. Never does: compute.
Called by: platforms (they build one for their runtime), models and layers (they call its operations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core.layers.reference import ReferenceKernels
from core.plugin.contracts import Kernels, LinearKernel, LogprobsKernel, RaceKernel
from core.weights.formats import CanonicalWeight

OPERATIONS = ("rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale")


class KernelSet:
    """Providers in order of preference, the reference kernels last. Operations are bound once and cost no extra call.

    numerics: names everything that results depend on here. native: whether any provider is not the reference.
    race, logprobs: the sampling kernels of the best provider that has them, or None.
    """

    name = "kernel_set"
    rms_norm: Callable[[Tensor, Tensor, float, Tensor], None]
    rms_norm_heads: Callable[[Tensor, Tensor, float], None]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    gated: Callable[[Tensor, str, Tensor], None]
    add: Callable[[Tensor, Tensor], None]
    scale: Callable[[Tensor, float], None]

    def __init__(self, providers: Sequence[Kernels], device: str = "cpu") -> None:
        self.providers: tuple[Kernels, ...] = (*providers, ReferenceKernels())
        self.device = device
        self.numerics = "+".join(provider.numerics for provider in self.providers)
        self.native = len(self.providers) > 1
        for op in OPERATIONS:
            setattr(self, op, getattr(self._best(KernelQuery(op, device)), op))
        self.race: RaceKernel | None = self._optional("race", providers)
        self.logprobs: LogprobsKernel | None = self._optional("logprobs", providers)

    def supports(self, query: KernelQuery) -> list[Reason]:
        """The reference supports everything."""
        return []

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> LinearKernel:
        """Prepare a weight with the best provider for its format, shape and activation."""
        attributes = {} if not hasattr(weight, "group_size") else {"group_size": weight.group_size}
        query = KernelQuery("linear", self.device, weight_format(weight), activation, weight.shape, attributes)
        return self._best(query).linear(weight, activation=activation, bias=bias)

    def _optional(self, op: str, providers: Sequence[Kernels]) -> Any:
        able = (p for p in providers if hasattr(p, op) and not p.supports(KernelQuery(op, self.device)))
        return getattr(next(able, None), op, None)

    def _best(self, query: KernelQuery) -> Kernels:
        return next(provider for provider in self.providers if not provider.supports(query))


def weight_format(weight: CanonicalWeight) -> str:
    """The format name that kernels are asked about: `float32`, `bfloat16`, `int4_groups`, ..."""
    dense = getattr(weight, "weight", None)
    return weight.name if dense is None else str(dense.dtype).removeprefix("torch.")
