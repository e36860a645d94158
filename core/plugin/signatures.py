"""Whether the object that a plugin built has its kind's contract: every part there, every method callable as the core calls it.

Owns: which Protocol belongs to which kind, and the comparison. Never does: call a method. Called by: the table,
`core.testing`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from core.api.policy import SchedulingPolicy
from core.plugin import contracts

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

BESIDE: dict[str, dict[str, type]] = {"attention": {"forward_state": contracts.StateBackend}}
"""Contracts that an object may have beside its kind's own, or alone, by a method that only they have."""


def contracts_of(kind: str, loaded: Any) -> list[type]:
    """The contracts that an object of a kind has to keep."""
    own, beside = CONTRACTS[kind], [c for method, c in BESIDE.get(kind, {}).items() if hasattr(loaded, method)]
    alone = beside and not any(hasattr(loaded, name) for name in contract_methods(own))
    return beside if alone else [own, *beside]


def contract_methods(contract: type) -> dict[str, Callable[..., Any]]:
    """The methods of a Protocol, by name."""
    return {name: value for name, value in vars(contract).items() if callable(value) and not name.startswith("_")}


def missing_parts(kind: str, loaded: Any) -> list[str]:
    """Names that its contracts ask for and `loaded` does not have."""
    found = contracts_of(kind, loaded)
    names = dict.fromkeys(name for c in found for name in (*c.__annotations__, *contract_methods(c)))
    return [name for name in names if not hasattr(loaded, name)]


def wrong_signatures(kind: str, loaded: Any) -> list[str]:
    """A sentence for every method of `loaded` that cannot be called with its contract's arguments."""
    found = []
    methods = {name: method for c in contracts_of(kind, loaded) for name, method in contract_methods(c).items()}
    for name, method in methods.items():
        mine = getattr(loaded, name, None)
        if not callable(mine):
            continue
        try:
            given = inspect.signature(mine)
        except (TypeError, ValueError):
            continue  # compiled code that does not tell
        wanted = list(inspect.signature(method).parameters.values())[1:]
        required = [p for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
        positional = [None] * len(required)
        named = {p.name: None for p in wanted if p.kind is p.KEYWORD_ONLY}
        try:
            given.bind(*positional, **named)
        except TypeError as error:
            shown = ", ".join([p.name for p in wanted if p.name not in named] + [f"{key}=..." for key in named])
            found.append(f"{name}{given} cannot be called as {name}({shown}): {error}")
    return found
