"""The check that a plugin's object satisfies its kind's contract: all parts exist, and methods take the core's arguments.

Owns: the comparison. Never does: call a method, or know a contract: the table of kinds names them. Called by: the table,
`core_kit`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from core.plugin.capabilities import layer_kinds
from core.plugin.kinds import Kind, kind_named


def contracts_of(kind: str, capabilities: Mapping[str, Any], loaded: Any) -> dict[str, type]:
    """Return the Protocols that an object must satisfy, by their `module:name`.

    There is one, except for attention: one for each kind of layers that the plugin declares.
    """
    row = kind_named(kind)
    for name in row.alternatives:
        alternative = protocol(name)
        if isinstance(loaded, alternative) and not isinstance(loaded, protocol(row.contract)):
            return {name: alternative}
    return {name: protocol(name) for name in _wanted(row, capabilities)}


def _wanted(row: Kind, capabilities: Mapping[str, Any]) -> dict[str, None]:
    """Return the names of the contracts that a plugin's declared layer kinds require, in order, each once."""
    if not row.layer_contracts:
        return {row.contract: None}
    by_layers = dict(row.layer_contracts)
    return dict.fromkeys(by_layers.get(layers, row.contract) for layers in layer_kinds(capabilities))


def protocol(name: str) -> type:
    """Import and return the Protocol that `module:name` names."""
    module, _, attribute = name.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def contract_methods(contract: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods that a Protocol itself defines, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for name, member in vars(contract).items():
        if callable(member) and not name.startswith("_"):
            methods[name] = member
    return methods


def missing_parts(contracts: Iterable[type], loaded: Any) -> list[str]:
    """Return the names that the contracts require and `loaded` does not have."""
    names: dict[str, None] = {}  # An ordered set: the message lists the names in the contracts' order.
    for contract in contracts:
        names |= dict.fromkeys(contract.__annotations__)
        names |= dict.fromkeys(contract_methods(contract))
    return [name for name in names if not hasattr(loaded, name)]


def wrong_signatures(contracts: Iterable[type], loaded: Any) -> list[str]:
    """Return a sentence for every method of `loaded` that cannot be called with the contracts' arguments."""
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
    """Say why a method cannot be called with the contract's arguments; empty when it can."""
    if not callable(given):
        return ""  # `missing_parts` reports it.
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return ""  # Compiled code may have no signature.
    positional: list[str] = []
    named: list[str] = []
    num_required = 0
    _, *parameters = inspect.signature(wanted).parameters.values()  # The first parameter is `self`.
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
