"""A walk over the schemas reachable from the root along keywords and references, within limits.

Owns: the walk, JSON pointers, whether a schema has a document that ends. Never does: know backends, recurse.
Called by: `core_grammars.keywords` and its conditions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from core.api.reason import Reason
from core_grammars.forms import FORMS
from core_grammars.honoured import TableLimits, asserting_keywords

MAX_VALUES = 500_000
LONGEST_SHOWN = 120


@dataclass(slots=True)
class Node:
    """A visited schema.

    pointer: its place, such as `#/properties/a`.
    schema: an object, or true or false.
    inside: pointers of the schemas in each of its keywords, in their order.
    """

    pointer: str
    schema: Any
    inside: dict[str, list[str]] = field(default_factory=dict)

    def types(self) -> frozenset[str]:
        """Return the types that its `type` names; empty without one."""
        if not isinstance(self.schema, dict):
            return frozenset()
        named = self.schema.get("type", ())
        return frozenset([named] if isinstance(named, str) else named)

    def assertions(self) -> Iterator[tuple[str, Any]]:
        """Yield its keywords that constrain an instance, with their values."""
        if not isinstance(self.schema, dict):
            return
        types = self.types()
        for name, value in self.schema.items():
            keyword = asserting_keywords().get(name)
            if keyword is None or _equal(value, keyword.vacuous):
                continue
            if not types or not keyword.of or types.intersection(keyword.of):
                yield name, value


@dataclass(slots=True)
class Walk:
    """The result of a walk.

    root: the whole schema.
    nodes: by pointer, the root first.
    has_references: whether there is a `$ref` anywhere.
    reasons: problems of form or size.
    """

    root: Any
    nodes: dict[str, Node] = field(default_factory=dict)
    has_references: bool = False
    reasons: list[Reason] = field(default_factory=list)

    def target(self, reference: str) -> str | None:
        """Return the pointer that a `$ref` leads to; None for one that does not point into this document."""
        if not reference.startswith("#"):
            return None
        parts = _parts(reference)
        if parts is None:
            return None
        value = self.root
        for part in parts:
            value = _step(value, part)
            if value is _MISSING:
                return None
        return _pointer(parts)

    def value(self, pointer: str) -> Any:
        """Return the value at an existing pointer."""
        value = self.root
        for part in _parts(pointer) or []:
            value = _step(value, part)
        return value


_MISSING = object()


def walk(schema: Any, limits: TableLimits) -> Walk:
    """Walk over `schema`. It stops at the first part that is too large; all problems of form are listed."""
    found = Walk(schema)
    too_large = _too_large(schema, limits)
    if too_large:
        found.reasons.append(too_large)
        return found
    if not isinstance(schema, dict | bool):
        found.reasons.append(malformed("the schema", "#", "an object, true or false", schema))
        return found
    waiting: deque[tuple[str, Any]] = deque([("#", schema)])
    while waiting:
        pointer, value = waiting.popleft()
        if pointer in found.nodes:
            continue
        if len(found.nodes) >= limits.nodes:
            found.reasons.append(_limit("schemas", limits.nodes, "more", pointer))
            return found
        node = Node(pointer, value)
        found.nodes[pointer] = node
        waiting.extend(_enter(node, found, limits))
    return found


def _enter(node: Node, found: Walk, limits: TableLimits) -> Iterator[tuple[str, Any]]:
    for name, value in node.assertions():
        form = FORMS[asserting_keywords()[name].value]
        if not form.judge(value):
            found.reasons.append(malformed(f"`{name}`", node.pointer, form.words, value))
            continue
        branches = name in ("allOf", "anyOf", "oneOf")
        most = limits.branches if branches else limits.alternatives
        if isinstance(value, list | dict) and len(value) > most:
            found.reasons.append(_limit(f"entries of `{name}`", most, str(len(value)), node.pointer))
            continue
        if name == "properties" and _num_optional(node.schema) > limits.optional:
            actual = str(_num_optional(node.schema))
            found.reasons.append(_limit("optional entries of `properties`", limits.optional, actual, node.pointer))
            continue
        places = node.inside.setdefault(name, [])
        for parts, schema in form.inside(value):
            pointer = "/".join([node.pointer, _escaped(name), *map(_escaped, parts)])
            places.append(pointer)
            yield pointer, schema
        if name == "$ref":
            found.has_references = True
            yield from _follow(node, value, found)


def _num_optional(schema: dict[str, Any]) -> int:
    """Return the number of optional properties."""
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return len(schema["properties"].keys() - names)


def _follow(node: Node, reference: str, found: Walk) -> Iterator[tuple[str, Any]]:
    pointer = found.target(reference)
    if pointer is None:
        return
    value = found.value(pointer)
    if not isinstance(value, dict | bool):
        found.reasons.append(malformed("`$ref`", node.pointer, "the place of a schema", reference))
        return
    node.inside["$ref"].append(pointer)
    yield pointer, value


def _too_large(schema: Any, limits: TableLimits) -> Reason | None:
    """Return a reason if the depth or number of all values is too large, checked level by level."""
    level = [schema]
    seen = 0
    for _ in range(limits.depth + 1):
        seen += len(level)
        if seen > MAX_VALUES:
            return _limit("values", MAX_VALUES, "more", "#")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        if not below:
            return None
        level = below
    return _limit("levels", limits.depth, "more", "#")


def malformed(subject: str, pointer: str, expected: str, value: Any) -> Reason:
    """Return the reason for a value without its keyword's form."""
    return Reason("schema_form", f"{subject} at {pointer} to be {expected}", shown(value))


def shown(value: Any) -> str:
    """Format a value for messages, shortened."""
    text = repr(value) if isinstance(value, str | int | float | bool | type(None)) else type(value).__name__
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def _limit(subject: str, most: int, actual: str, pointer: str) -> Reason:
    hint = "split the schema, or use `pattern` instead of many values"
    return Reason("schema_size", f"at most {most} {subject} at {pointer}", actual, hint)


def _equal(value: Any, vacuous: Any) -> bool:
    return vacuous is not None and type(value) is type(vacuous) and value == vacuous


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, _MISSING)
    if isinstance(value, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(value):
        return value[int(part[:9])]
    return _MISSING


def _parts(pointer: str) -> list[str] | None:
    text = pointer.removeprefix("#")
    if not text:
        return []
    if not text.startswith("/"):
        return None
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _pointer(parts: list[str]) -> str:
    return "/".join(["#", *map(_escaped, parts)])


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1").replace("%", "%25")
