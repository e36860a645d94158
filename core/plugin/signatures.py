"""Whether the object that a plugin built has its kind's contract: every part there, every method callable as the core calls it.

Owns: which Protocol belongs to which kind, and the comparison. Never does: call a method. Called by: the table,
`core.testing`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.api.policy import SchedulingPolicy
from core.plugin import contracts
from core.plugin.capabilities import layer_kinds

CONTRACTS: dict[str, type] = {
    "loader": contracts.Loader,
    "quantization": contracts.QuantizationMethod,
    "kernels": contracts.Kernels,
    "attention": contracts.AttentionBackend,
    "platform": contracts.Platform,
    "speculative": contracts.Proposer,
    "policy": SchedulingPolicy,
    "model": contracts.ModelFamily,
}
OF_LAYERS: dict[str, type] = {"latent": contracts.LatentBackend, "state": contracts.StateBackend}
"""Contracts of attention backends for layer kinds that have one of their own."""


def contracts_of(kind: str, capabilities: Mapping[str, Any]) -> list[type]:
    """The Protocols that an object must have: one, or for attention one for each sort of layers that it declares."""
    if kind != "attention":
        return [CONTRACTS[kind]]
    return list(dict.fromkeys(OF_LAYERS.get(layers, CONTRACTS[kind]) for layers in layer_kinds(capabilities)))


def contract_methods(contract: type) -> dict[str, Callable[..., Any]]:
    """The methods of a Protocol, by name."""
    return {name: value for name, value in vars(contract).items() if callable(value) and not name.startswith("_")}


def missing_parts(contracts: Sequence[type], loaded: Any) -> list[str]:
    """Names that the contracts ask for and `loaded` does not have."""
    names = [name for contract in contracts for name in (*contract.__annotations__, *contract_methods(contract))]
    return [name for name in dict.fromkeys(names) if not hasattr(loaded, name)]


def wrong_signatures(contracts: Sequence[type], loaded: Any) -> list[str]:
    """A sentence for every method of `loaded` that cannot be called with the contracts' arguments."""
    wanted = {name: method for contract in contracts for name, method in contract_methods(contract).items()}
    found = [_mistake(name, method, getattr(loaded, name, None)) for name, method in wanted.items()]
    return [mistake for mistake in found if mistake]


def _mistake(name: str, wanted: Callable[..., Any], given: Any) -> str:
    """Why a method cannot be called as the contract's, or an empty string. What is no method is told elsewhere."""
    if not callable(given):
        return ""
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return ""  # compiled code that does not tell
    parameters = list(inspect.signature(wanted).parameters.values())[1:]
    required = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    try:
        signature.bind(*[None] * len(required), **dict.fromkeys(named))
    except TypeError as error:
        positional = [p.name for p in parameters if p.name not in named]
        shown = ", ".join([*positional, *(f"{name}=..." for name in named)])
        return f"{name}{signature} cannot be called as {name}({shown}): {error}"
    return ""
