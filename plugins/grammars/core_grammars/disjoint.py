"""Whether no document can match two branches of a `oneOf`.

Owns: the proof by types, by single values, and by a distinguishing property. Never does: solve more.
Called by: `core_grammars.conditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from core_grammars.forms import TYPES
from core_grammars.schema_walk import Walk

ALL_TYPES = (TYPES - {"number"}) | {"fraction"}


def are_disjoint(branches: Sequence[Any], found: Walk) -> bool:
    """Whether the branches are provably disjoint. Takes time linear in their size."""
    resolved = [_resolved(branch, found) for branch in branches]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for branch in resolved:
        for each in _types(branch):
            by_type.setdefault(each, []).append(branch)
    return all(_apart(together, name) for name, together in by_type.items())


def _resolved(branch: Any, found: Walk) -> dict[str, Any]:
    for _ in range(len(found.nodes) + 1):
        if not isinstance(branch, dict):
            return {}
        reference = branch.get("$ref")
        pointer = found.target(reference) if isinstance(reference, str) else None
        if pointer is None:
            return branch
        branch = found.value(pointer)
    return {}


def _types(branch: dict[str, Any]) -> frozenset[str]:
    values = _values(branch)
    if values is not None:
        return frozenset(type_of(value) for value in values)
    named = branch.get("type")
    if named is None:
        return ALL_TYPES
    names = [named] if isinstance(named, str) else named
    atoms = {name for name in names if name != "number"}
    return frozenset(atoms | {"integer", "fraction"}) if "number" in names else frozenset(atoms)


def _values(branch: dict[str, Any]) -> list[Any] | None:
    if "const" in branch:
        return [branch["const"]]
    values = branch.get("enum")
    return values if isinstance(values, list) else None


def _apart(branches: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether branches that all accept instances of the type `name` are disjoint."""
    if len(branches) < 2:
        return True
    if _sets_apart(_values(branch) for branch in branches):
        return True
    if name != "object":
        return False
    candidates = branches[0].get("required", ())
    return any(_sets_apart(_tag(branch, name) for branch in branches) for name in candidates)


def _tag(branch: dict[str, Any], name: str) -> list[Any] | None:
    """Return the values of a property that the branch requires, None when they are open."""
    if name not in branch.get("required", ()):
        return None
    schema = branch.get("properties", {}).get(name)
    return _values(schema) if isinstance(schema, dict) else None


def _sets_apart(sets: Iterable[list[Any] | None]) -> bool:
    seen: set[tuple[str, str]] = set()
    for values in sets:
        if values is None or any(isinstance(value, list | dict) for value in values):
            return False
        names = {(type_of(value), _text(value)) for value in values}
        if names & seen:
            return False
        seen |= names
    return True


def _text(value: Any) -> str:
    return str(int(value)) if type_of(value) == "integer" else str(value)


def type_of(value: Any) -> str:
    """Return the narrowest type of a value; `fraction` for a number that is not an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
