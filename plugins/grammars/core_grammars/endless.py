"""Detection of schemas with only infinite documents: a reference to itself, a required property that contains its
parent.

Owns: the proof that a finite document exists, from the leaves upward. Never does: recurse, know backends.
Called by: `core_grammars.keywords`.
"""

from __future__ import annotations

from collections.abc import Iterator

from core_grammars.schema_walk import Node, Walk


def is_endless(found: Walk) -> bool:
    """Whether no document of the root is finite. Linear in the number of schemas and references."""
    unmet: dict[str, int] = {}
    met_by: dict[str, list[tuple[str, int]]] = {}
    for node in found.nodes.values():
        needs = [places for places in _needs(node) if places]
        unmet[node.pointer] = len(needs)
        for number, places in enumerate(needs):
            for place in places:
                met_by.setdefault(place, []).append((node.pointer, number))
    ending = [pointer for pointer, count in unmet.items() if count == 0]
    met: set[tuple[str, int]] = set()
    while ending:
        for need in met_by.get(ending.pop(), ()):
            if need in met:
                continue
            met.add(need)
            unmet[need[0]] -= 1
            if unmet[need[0]] == 0:
                ending.append(need[0])
    return unmet["#"] > 0


def _needs(node: Node) -> Iterator[list[str]]:
    """Yield for each requirement of this schema the schemas of which at least one must have a finite document."""
    for name in ("$ref", "allOf"):
        for place in node.inside.get(name, ()):
            yield [place]
    yield node.inside.get("anyOf", [])
    yield node.inside.get("oneOf", [])
    types = node.types()
    contents = _required(node) if types == {"object"} else _first_items(node) if types == {"array"} else []
    for place in contents:
        yield [place]


def _required(node: Node) -> list[str]:
    names = node.schema.get("required", ())
    properties = node.schema.get("properties", {})
    places = dict(zip(properties, node.inside.get("properties", ()), strict=False))
    return [places[name] for name in names if name in places]


def _first_items(node: Node) -> list[str]:
    least = int(node.schema.get("minItems", 0))
    prefix = node.inside.get("prefixItems", [])
    items = node.inside.get("items", [])
    if isinstance(node.schema.get("items"), list):
        prefix, items = items, node.inside.get("additionalItems", [])
    needed = prefix[:least]
    return [*needed, *items] if least > len(prefix) else needed
