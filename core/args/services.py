"""Answers about arguments that the core asks of the distribution which knows them.

Owns: finding these answers. Never does: give one. Called by: the plugin framework, the JSON schema of the arguments.

With the core alone there is no answer, and nothing to choose that would need one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.entry_points import load

GROUP: Final = "core.argument_services"
"""Entry points of this group are functions with the names and parameters of those here."""


def constraint_mistakes(constraints: Mapping[str, Any]) -> list[str]:
    """Mistakes in allowed values by argument: unknown arguments, values that an argument cannot have."""
    service = _service("constraint_mistakes")
    return [] if service is None else service(constraints)


def refused_value(argument: str, value: Any) -> str:
    """Why `value` of an argument is none of its choices, to stand before the choices; empty when nothing is known."""
    service = _service("refused_value")
    return "" if service is None else service(argument, value)


def neutral_keys(argument: str) -> dict[str, Any]:
    """JSON schema of the keys that other engines have in an argument, and that are accepted as long as they change nothing."""
    service = _service("neutral_keys")
    return {} if service is None else service(argument)


def _service(name: str) -> Any:
    return load(GROUP, name, "core-engine-configuration")
