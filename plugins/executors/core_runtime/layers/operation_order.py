"""Providers of kernels that leave single operations to others.

Owns: the refusals by which a provider that comes first for all operations gives way for one. Never does: compute, or know what
a name means to a user. Called by: the loading of plugins, before a device is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core_runtime.contracts import Kernels
from core_runtime.specs.operation_order import TORCH, Order


class GivesWay:
    """A provider's `supports` that refuses an operation which another one computes. by: its name."""

    def __init__(self, provider: Kernels, operation: str, by: str) -> None:
        self._supports = provider.supports
        self._operation = operation
        self._by = by

    def __call__(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons against an operation."""
        if query.op == self._operation:
            return [Reason("operation_order", f"{self._operation} of {self._by}", "another", "--ir-op-priority")]
        return self._supports(query)


def apply_order(providers: Mapping[str, Kernels], order: Order, device: str) -> None:
    """Let the first provider of an order that supports its operation compute it, whatever comes before that provider.

    providers: by name, best first for all operations. device: type of the device.
    """
    for operation, names in order.items():
        query = KernelQuery(operation, device)
        able = (name for name in names if name in TORCH or (name in providers and not providers[name].supports(query)))
        chosen = next(able, None)
        for name, provider in providers.items():
            if chosen is None or name == chosen:
                break
            provider.supports = GivesWay(provider, operation, chosen)  # type: ignore[method-assign]
