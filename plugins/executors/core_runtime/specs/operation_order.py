"""Which provider of kernels computes an operation, where that differs from their order for all others.

Owns: the names of operations that have such an order, its form, and how it is read from an `EngineConfig`. Never does: import
torch, or choose. Called by: configuration (writes), the loading of plugins (applies).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.api.config import EngineConfig

OPERATION_ORDER: Final = "executor.operation_order"
"""Key of the order among the arguments of plugins (`PluginChoices.arguments`)."""
OPERATIONS: Final = ("rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale", "soft_cap", "take_rows")
"""Operations that the blocks and the head of every model use in addition to matrices."""
SPECIAL_OPERATIONS: Final = ("layer_norm", "layer_norm_heads", "activate", "open_gate", "route")
"""Operations that only some models use."""
TORCH: Final = ("torch", "native")
"""Names of the reference in torch, which follows all providers; vLLM says native."""

Order = Mapping[str, Sequence[str]]
"""Operation → names of providers, best first; the others follow as they are."""


def as_order(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return an order as it was given: lists of names, or texts with commas. Raises ValueError for anything else."""
    found: dict[str, tuple[str, ...]] = {}
    for operation, value in given.items():
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError(operation)
        found[operation] = tuple(name.strip() for name in names if name.strip())
    return {operation: names for operation, names in found.items() if names}


def order_of(config: EngineConfig) -> Order:
    """Return the order of a configuration; empty: every operation follows the order of the providers."""
    return config.plugins.arguments.get(OPERATION_ORDER, {})


def order_name(order: Order) -> str:
    """Return what the name of the numerics says of an order; empty without one."""
    return "".join(f";{operation}:{','.join(names)}" for operation, names in sorted(order.items()))
