"""Rewriting of a specification to terms that a backend honours: formats become expressions, keywords without effect are
removed.

Owns: the rewriting; a rewritten schema never accepts a document that the original rejects. Never does: judge.
Called by: `core_grammars.keywords` before it judges, grammar plugins before they compile.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from core.api.structured_outputs import GrammarSpec
from core_grammars.dialects import portable
from core_grammars.honoured import HonouredTable, asserting_keywords
from core_grammars.schema_walk import Walk, walk

MAX_TAG_VALUES = 100_000
ADDING = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas")
"""Keywords whose subschemas describe the same object as the schema around them."""
SPEAKING = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "$ref")


def lowered(spec: GrammarSpec, table: HonouredTable) -> GrammarSpec:
    """Return `spec` as it is compiled. Raises msgspec.DecodeError and RecursionError for invalid JSON."""
    if spec.kind not in ("json_schema", "structural_tag"):
        return spec
    value = msgspec.json.decode(spec.text)
    schemas = [value] if spec.kind == "json_schema" else schemas_of_tag(value)
    for schema in schemas:
        lower(schema, table, spec.additional_properties)
    return msgspec.structs.replace(spec, text=msgspec.json.encode(value).decode())


def lower(schema: Any, table: HonouredTable, additional_properties: bool = True) -> None:
    """Rewrite a decoded schema in place; a malformed or too large one is left unchanged.

    additional_properties: whether objects may have undeclared properties, where their schema does not say.
    """
    found = walk(schema, table.limits)
    if found.reasons:
        return
    for node in found.nodes.values():
        if isinstance(node.schema, dict):
            _drop_vacuous(node.schema)
            _spell_out_classes(node.schema)
            _spell_out_format(node.schema, _native_formats(table))
    if not additional_properties:
        _close_objects(found)


def schemas_of_tag(tag: Any) -> list[Any]:
    """Return the schemas inside a structural tag, within the first MAX_TAG_VALUES values."""
    schemas = []
    waiting = [tag]
    for _ in range(MAX_TAG_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        if not isinstance(value, dict):
            continue
        for name, inner in value.items():
            if name in ("json_schema", "schema"):
                schemas.append(inner)
            else:
                waiting.append(inner)
    return schemas


def _drop_vacuous(schema: dict[str, Any]) -> None:
    for name, keyword in asserting_keywords().items():
        if keyword.vacuous is not None and schema.get(name) is keyword.vacuous:
            del schema[name]


def _close_objects(found: Walk) -> None:
    """Close objects to additional properties, except those described by several schemas together."""
    shared = _shared(found)
    for node in found.nodes.values():
        if not isinstance(node.schema, dict) or node.pointer in shared:
            continue
        if "properties" in node.schema and not any(name in node.schema for name in (*SPEAKING, *ADDING)):
            node.schema["additionalProperties"] = False


def _shared(found: Walk) -> set[str]:
    """Return the places of schemas whose object is also described by another schema."""
    shared: set[str] = set()
    waiting: list[str] = []
    for node in found.nodes.values():
        alone = len(list(node.assertions())) == 1
        for name in ADDING:
            places = node.inside.get(name, [])
            if not (alone and (name in ("anyOf", "oneOf") or len(places) == 1)):
                waiting.extend(places)
    while waiting:
        place = waiting.pop()
        if place in shared:
            continue
        shared.add(place)
        inside = found.nodes[place].inside
        for name in ("$ref", *ADDING):
            waiting.extend(inside.get(name, ()))
    return shared


def _spell_out_classes(schema: dict[str, Any]) -> None:
    if "pattern" in schema:
        schema["pattern"] = portable(schema["pattern"])
    by_expression = schema.get("patternProperties")
    if by_expression:
        rewritten = {portable(expression): inner for expression, inner in by_expression.items()}
        if len(rewritten) == len(by_expression):
            schema["patternProperties"] = rewritten


def _spell_out_format(schema: dict[str, Any], native: frozenset[str]) -> None:
    named = schema.get("format")
    if not isinstance(named, str) or named in native:
        return
    rows = _rows()
    named = rows["narrower"].get(named, named)
    if named in native:
        schema["format"] = named
        return
    pattern = rows["patterns"].get(named)
    if pattern is None:
        return
    del schema["format"]
    if "pattern" not in schema:
        schema["pattern"] = pattern
    else:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": pattern}]


def _native_formats(table: HonouredTable) -> frozenset[str]:
    row = table.rows.get("format")
    for name, argument in row.when if row else ():
        if name == "values":
            return frozenset(each.strip() for each in argument.split(","))
    return frozenset()


@cache
def _rows() -> dict[str, dict[str, str]]:
    path = Path(__file__).with_name("formats.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))
