"""Answers about arguments that the core asks for: entry points of `core.argument_services`.

Owns: mistakes in plugins' constraints, and the neutral keys of an argument as JSON schema. Never does: choose.
Called by: the core, through `core.args.services`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.api.errors import nearest
from core.args.schema import Field, schema
from core_config.arguments import foreign
from core_config.arguments.convert import convert
from core_config.arguments.plain import loose

Node = dict[str, Any]


def constraint_mistakes(constraints: Mapping[str, Any]) -> list[str]:
    """Mistakes in allowed values by argument: unknown arguments, values that an argument cannot have."""
    fields = schema().fields
    mistakes: list[str] = []
    for name, allowed in constraints.items():
        is_list = isinstance(allowed, (list, tuple))
        constrains = f"it constrains {name} to {allowed!r}"
        row = foreign.named(str(name))
        if row is not None and row.neutral:
            # an argument that is not served: only the value that changes nothing can be asked for
            if is_list and not any(map(row.is_neutral, allowed)):
                mistakes.append(f"{constrains}: {row.sentence}")
        elif name not in fields:
            hint = nearest(str(name), fields)
            mistakes.append(f"it constrains '{name}', which is no engine argument.{hint}".rstrip("."))
        elif not is_list or not allowed:
            mistakes.append(f"{constrains}, expected a list of allowed values")
        else:
            mistakes += _impossible(fields[name], allowed)
    return mistakes


def _impossible(field: Field, values: Sequence[Any]) -> list[str]:
    """A sentence for each of these values that the argument cannot have."""
    mistakes: list[str] = []
    for value in values:
        try:
            convert(field, value)
        except ValueError as error:
            mistakes.append(f"it constrains {field.name} to {value!r}: {error}".rstrip("."))
    return mistakes


def neutral_keys(argument: str) -> Node:
    """JSON schema of the keys that other engines have in an argument, and that are accepted as long as they change nothing."""
    found: Node = {}
    for name, row in foreign.table().items():
        head, _, key = name.partition(".")
        if head == argument and key.isidentifier() and row.neutral:
            found[key] = {"description": f"Changes nothing: {row.text}."}
            if row.takes in ("value", "switch"):
                words = [None if word == "none" else loose(word) for word in row.neutral]
                found[key]["enum"] = [*words, None]
            else:
                found[key]["maxProperties" if row.takes == "keys" else "maxItems"] = 0
    return found
