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
    "grammar": contracts.GrammarBackend,
    "response_format": contracts.ResponseFormats,
    "logits_processor": contracts.LogitsProcessor,
    "api": contracts.Api,
}
OF_LAYERS: dict[str, type] = {"latent": contracts.LatentBackend, "state": contracts.StateBackend}
"""Contracts of attention backends for layer kinds that have one of their own."""


def contracts_of(kind: str, capabilities: Mapping[str, Any], loaded: Any) -> list[type]:
    """The Protocols that an object must have: one, or for attention one for each sort of layers that it declares."""
    has_row = isinstance(loaded, contracts.HasRow) and not isinstance(loaded, contracts.ModelFamily)
    if kind == "model" and has_row:
        return [contracts.HasRow]
    has_heads = isinstance(loaded, contracts.DraftHeads) and not isinstance(loaded, contracts.Proposer)
    if kind == "speculative" and has_heads:
        return [contracts.DraftHeads]
    if kind != "attention":
        return [CONTRACTS[kind]]
    wanted: list[type] = []
    for layers in layer_kinds(capabilities):
        contract = OF_LAYERS.get(layers, CONTRACTS[kind])
        if contract not in wanted:
            wanted.append(contract)
    return wanted


def contract_methods(contract: type) -> dict[str, Callable[..., Any]]:
    """The methods of a Protocol, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for name, member in vars(contract).items():
        if callable(member) and not name.startswith("_"):
            methods[name] = member
    return methods


def missing_parts(contracts: Sequence[type], loaded: Any) -> list[str]:
    """Names that the contracts ask for and `loaded` does not have."""
    names: dict[str, None] = {}  # a set that keeps the contracts' order
    for contract in contracts:
        names |= dict.fromkeys(contract.__annotations__)
        names |= dict.fromkeys(contract_methods(contract))
    return [name for name in names if not hasattr(loaded, name)]


def wrong_signatures(contracts: Sequence[type], loaded: Any) -> list[str]:
    """A sentence for every method of `loaded` that cannot be called with the contracts' arguments."""
    wanted: dict[str, Callable[..., Any]] = {}
    for contract in contracts:
        wanted |= contract_methods(contract)
    mistakes: list[str] = []
    for name, method in wanted.items():
        given = getattr(loaded, name, None)
        mistake = _mistake(name, method, given)
        if mistake:
            mistakes.append(mistake)
    return mistakes


def _mistake(name: str, wanted: Callable[..., Any], given: Any) -> str:
    """Why a method cannot be called as the contract's, or an empty string."""
    if not callable(given):
        return ""  # a part that is missing is told elsewhere
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return ""  # compiled code that does not tell
    positional: list[str] = []
    named: list[str] = []
    num_required = 0
    _, *parameters = inspect.signature(wanted).parameters.values()  # the first one is `self`
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY:
            named.append(parameter.name)
            continue
        positional.append(parameter.name)
        is_plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if is_plain and parameter.default is parameter.empty:
            num_required += 1
    arguments = [None] * num_required
    options = dict.fromkeys(named)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        shown = positional + [f"{option}=..." for option in named]
        call = f"{name}({', '.join(shown)})"
        return f"{name}{signature} cannot be called as {call}: {error}"
    return ""
