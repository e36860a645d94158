"""Conditions that rows of `honoured.toml` name: when a backend honours a keyword.

Owns: one function a condition, and their names. Never does: know which backend asks. Called by: `core_grammars.keywords`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from core_grammars.disjoint import are_disjoint, type_of
from core_grammars.expressions import read_expression
from core_grammars.honoured import HonouredTable, known_formats
from core_grammars.schema_walk import Node, Walk


@dataclass(frozen=True, slots=True)
class Use:
    """One keyword of one schema.

    keyword: its name.
    value:   what it was given.
    node:    the schema.
    found:   the whole walk.
    table:   what the backend honours.
    """

    keyword: str
    value: Any
    node: Node
    found: Walk
    table: HonouredTable


Condition = Callable[[Use, str], str]


def _listed_in(argument: str) -> list[str]:
    return [name.strip() for name in argument.split(",") if name.strip()]


def _beside(use: Use, argument: str) -> str:
    """No keyword that asserts something stands beside it but these."""
    allowed = {use.keyword, "$id", "id", *_listed_in(argument)}
    for name, _ in use.node.assertions():
        if name not in allowed:
            return f"`{use.keyword}` without `{name}` beside it"
    return ""


def _without(use: Use, argument: str) -> str:
    """None of these keywords stands beside it."""
    present = {name for name, _ in use.node.assertions()}
    for name in _listed_in(argument):
        if name in present:
            return f"`{use.keyword}` without `{name}` beside it"
    return ""


def _typed(use: Use, argument: str) -> str:
    """`type` stands beside it."""
    return "" if use.node.types() else f"`type` beside `{use.keyword}`"


def _integers(use: Use, argument: str) -> str:
    """`type` beside it names integers and no other numbers, and the value is one."""
    types = use.node.types()
    whole = isinstance(use.value, int) or float(use.value).is_integer()
    if types and "number" not in types and whole:
        return ""
    return f"`type: integer` beside an integer as `{use.keyword}`"


def _number(use: Use, argument: str) -> str:
    """The value is a number, not the flag of draft 4."""
    return f"a number as `{use.keyword}`" if isinstance(use.value, bool) else ""


def _magnitude(use: Use, argument: str) -> str:
    """The value is at most this far from zero."""
    most = float(argument)
    if isinstance(use.value, bool) or abs(use.value) <= most:
        return ""
    return f"`{use.keyword}` at most {argument} away from zero"


def _fits(use: Use, argument: str) -> str:
    """Each value has a `type` that stands beside it."""
    types = use.node.types()
    if not types:
        return ""
    values = use.value if use.keyword == "enum" else [use.value]
    for value in values:
        narrow = type_of(value)
        if narrow not in types and not (narrow in ("integer", "fraction") and "number" in types):
            return f"values of `{use.keyword}` that are of the `type` beside it"
    return ""


def _escapable(use: Use, argument: str) -> str:
    """No control characters but those with a short escape."""
    text = json.dumps(list(use.value) if use.keyword == "properties" else use.value, ensure_ascii=False)
    if "\\u00" not in text.replace("\\\\", ""):
        return ""
    return f"`{use.keyword}` without control characters other than tab, line and page ends"


def _pointer(use: Use, argument: str) -> str:
    """A pointer into the same document."""
    if use.found.target(use.value) is not None:
        return ""
    return "`$ref` as a pointer into this document that exists, such as `#/$defs/name`"


def _base(use: Use, argument: str) -> str:
    """At the root, or in a schema without references."""
    if use.node.pointer == "#" or not use.found.has_references:
        return ""
    return f"`{use.keyword}` at the root only, as there are references"


def _single(use: Use, argument: str) -> str:
    """One entry only."""
    return "" if len(use.value) == 1 else f"one entry in `{use.keyword}`"


def _disjoint(use: Use, argument: str) -> str:
    """The branches differ in type, or in a required property with fixed values, so that none can match with another."""
    if are_disjoint(use.value, use.found):
        return ""
    return f"branches of `{use.keyword}` that differ in `type`, or in a required property with one value each"


def _schema(use: Use, argument: str) -> str:
    """One schema, not a list."""
    return f"one schema as `{use.keyword}`" if isinstance(use.value, list) else ""


def _listed(use: Use, argument: str) -> str:
    """All names are in `properties`."""
    properties = use.node.schema.get("properties", {})
    for name in use.value:
        if name not in properties:
            return f"`properties` that list {name!r}, which `{use.keyword}` names"
    return ""


def _plain_names(use: Use, argument: str) -> str:
    """Printable ASCII names without quotes, or no additional properties."""
    if _is_closed(use.node.schema):
        return ""
    for name in use.value:
        if not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
            return f"names of ASCII characters that JSON does not escape, or `additionalProperties: false`, beside {name!r}"
    return ""


def _open_names(use: Use, argument: str) -> str:
    """Names of at most so many characters in all, or no additional properties."""
    letters = sum(map(len, use.value))
    if letters <= int(argument) or _is_closed(use.node.schema):
        return ""
    return f"`additionalProperties: false`, or names of at most {argument} characters in all (there are {letters})"


def _distinct(use: Use, argument: str) -> str:
    """No additional properties, or no more than are required."""
    schema = use.node.schema
    required = schema.get("required")
    certain = len(set(required)) if isinstance(required, list) else 0
    if use.value <= max(certain, 1) or _is_closed(schema):
        return ""
    return f"`additionalProperties: false`, or as many required properties as `{use.keyword}` says"


def _is_closed(schema: dict[str, Any]) -> bool:
    """Whether an object has the listed properties only, each at most once."""
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _values(use: Use, argument: str) -> str:
    """One of these, or one that no draft defines."""
    honoured = _listed_in(argument)
    if use.value in honoured or use.value not in known_formats():
        return ""
    return f"`{use.keyword}` as one of {', '.join(honoured)}"


def _expressions(use: Use) -> Iterable[str]:
    return use.value if isinstance(use.value, dict) else [use.value]


def _anchored(use: Use, argument: str) -> str:
    """From `^` to `$`."""
    if all(read_expression(text).anchored for text in _expressions(use)):
        return ""
    return f"`{use.keyword}` from `^` to `$`, with alternatives in a group"


def _expression(use: Use, argument: str) -> str:
    """Only parts of expressions that are honoured (below)."""
    for text in _expressions(use):
        complaint = judge_expression(text, "pattern", use.table)
        if complaint:
            return f"{complaint} in `{use.keyword}`"
    return ""


def _plain_expressions(use: Use, argument: str) -> str:
    """Expressions of ASCII characters."""
    if all(text.isascii() for text in _expressions(use)):
        return ""
    return f"expressions of ASCII characters in `{use.keyword}`"


def judge_expression(text: str, place: str, table: HonouredTable) -> str:
    """What an expression would have to be, empty when the backend honours it. place: `pattern` or `regex`."""
    expression = read_expression(text)
    if expression.problem:
        return f"a regular expression ({expression.problem})"
    if expression.size > table.limits.expression:
        return f"an expression of at most {table.limits.expression} states, counts multiplied out (it has {expression.size}),"
    shape = {"outer alternative"}
    unknown = sorted(expression.parts - table.expressions.get(place, frozenset()) - shape)
    return f"no {' or '.join(unknown)}" if unknown else ""


CONDITIONS: dict[str, Condition] = {
    "beside": _beside,
    "without": _without,
    "typed": _typed,
    "integers": _integers,
    "number": _number,
    "magnitude": _magnitude,
    "fits": _fits,
    "escapable": _escapable,
    "pointer": _pointer,
    "base": _base,
    "single": _single,
    "disjoint": _disjoint,
    "schema": _schema,
    "listed": _listed,
    "plain names": _plain_names,
    "open names": _open_names,
    "distinct": _distinct,
    "values": _values,
    "anchored": _anchored,
    "expression": _expression,
    "plain expressions": _plain_expressions,
}
