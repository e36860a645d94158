"""The walk names keyword and place of what a backend does not honour, within limits."""

import json
import time
from typing import Any

import pytest

from core.api.structured_outputs import GrammarSpec
from core_grammars.honoured import Honoured, HonouredTable, TableLimits
from core_grammars.keywords import unhonoured, unhonoured_spec
from core_grammars.lowering import lower
from tests.grammars.libraries import table
from tests.grammars.malicious import doubling, malicious, nested


def first(schema: Any, backend: str = "xgrammar") -> str:
    reasons = unhonoured(schema, table(backend))
    return str(reasons[0]) if reasons else ""


@pytest.mark.parametrize(
    ("schema", "keyword", "place"),
    [
        ({"type": "array", "contains": {"const": 5}}, "contains", "#/contains"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "not", "#/properties/a/not"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"if": {}, "type": "string"}}}, "if", "#/$defs/a~1b/if"),
        ({"anyOf": [{}, {"type": "array", "items": {"$ref": "http://x/y"}}]}, "$ref", "#/anyOf/1/items/$ref"),
        ({"allOf": [{}, {}]}, "allOf", "#/allOf"),
        ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, "minimum", "#/$ref"),
        ({"type": "object", "required": ["z"]}, "'z'", "#/required"),
        ({"type": "string", "format": "idn-hostname"}, "format", "#/format"),
    ],
)
def test_a_reason_names_keyword_and_place(schema: Any, keyword: str, place: str) -> None:
    reason = first(schema)
    assert keyword in reason
    assert place in reason


def test_what_cannot_be_met_is_not_walked() -> None:
    unused = {
        "type": "string",
        "$defs": {"a": {"not": {}}},
        "items": {"not": {}},
        "x-mine": {"not": {}},
        "default": {"not": {}},
    }
    assert not first(unused)


def test_a_keyword_that_nobody_measured_is_not_honoured() -> None:
    assert "nobody has measured it" in str(unhonoured({"minimum": 1}, HonouredTable({"type": Honoured()}))[0])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integre"}, "`type` at #"),
        ({"required": True}, "`required` at #"),
        ({"properties": ["a"]}, "`properties` at #"),
        ({"properties": {"a": 5}}, "`properties` at #"),
        ({"minLength": -1}, "`minLength` at #"),
        ({"enum": []}, "`enum` at #"),
        ({"$ref": "#/enum", "enum": [1]}, "`$ref` at #"),
        (5, "the schema at #"),
    ],
)
def test_a_malformed_schema_is_refused_by_name(schema: Any, expected: str) -> None:
    assert expected in first(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
)
def test_a_recursion_without_an_end_is_refused(schema: Any) -> None:
    assert "a document that ends" in first(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"n": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}]},
        doubling(40),
    ],
)
def test_a_recursion_with_an_end_is_honoured(schema: Any) -> None:
    assert not first(schema)


def test_limits_hold_for_depth_schemas_branches_and_values() -> None:
    small = HonouredTable(table("llguidance").rows, TableLimits(depth=10, nodes=20, alternatives=5, branches=3))
    assert "at most 10 levels" in str(unhonoured(json.loads(nested(11)), small)[0])
    few_values = TableLimits(depth=10, nodes=20, alternatives=50, branches=3)
    assert "at most 20 schemas" in str(unhonoured(doubling(30), HonouredTable(small.rows, few_values))[0])
    assert "at most 5 entries of `enum`" in str(unhonoured({"enum": list(range(6))}, small)[0])
    assert "at most 3 entries of `anyOf`" in str(unhonoured({"anyOf": [{}] * 4}, small)[0])


REFUSED_EARLY = {
    "100,000 values", "5,000 levels", "5 MB", "no JSON", "a number", "100,000 choices", "an expression of counts",
    "a reference to itself", "a remote reference",
}  # fmt: skip


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_malicious_specifications_are_judged_in_time_and_mostly_refused(backend: str) -> None:
    refused = set()
    for name, spec in malicious().items():
        begin = time.process_time()
        if unhonoured_spec(spec, table(backend)):
            refused.add(name)
        assert time.process_time() - begin < 10, name
    assert refused >= REFUSED_EARLY


def test_schemas_inside_a_structural_tag_are_judged() -> None:
    content = {"type": "json_schema", "json_schema": {"type": "string", "not": {}}}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    reasons = unhonoured_spec(GrammarSpec("structural_tag", json.dumps(tag)), table("xgrammar"))
    assert "#/not" in str(reasons[0])


def test_formats_become_expressions_and_keywords_that_demand_nothing_go() -> None:
    schema = {
        "type": "object",
        "properties": {"d": {"type": "string", "format": "date"}, "l": {"type": "array", "uniqueItems": False}},
    }
    lower(schema, table("xgrammar"))
    assert set(schema["properties"]["d"]) == {"type", "pattern"}  # type: ignore[index]
    assert set(schema["properties"]["l"]) == {"type"}  # type: ignore[index]
    assert not first(schema, "llguidance")


def test_objects_are_closed_where_no_other_schema_adds_to_them() -> None:
    said = {
        "properties": {"a": {"properties": {"b": {}}}, "c": {"properties": {}, "additionalProperties": True}},
        "enum": [{"properties": {}}],
    }
    lower(said, table("llguidance"), additional_properties=False)
    assert said["additionalProperties"] is said["properties"]["a"]["additionalProperties"] is False  # type: ignore[call-overload,comparison-overlap]
    assert said["properties"]["c"]["additionalProperties"] is True  # type: ignore[call-overload]
    assert said["enum"] == [{"properties": {}}]
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    together = {
        "allOf": [{"$ref": "#/$defs/o"}, {"type": "object", "properties": {"b": {}}}],
        "$defs": {"o": dict(inner)},
    }
    either = {"anyOf": [dict(inner), {"type": "null"}]}
    for schema in (together, either):
        lower(schema, table("llguidance"), additional_properties=False)
    assert "additionalProperties" not in json.dumps(together)
    assert json.dumps(either).count('"additionalProperties": false') == 1


def test_branches_that_a_property_tells_apart_are_disjoint() -> None:
    def branch(kind: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}

    assert not first({"oneOf": [branch("a"), branch("b"), {"type": "integer"}]})
    assert not first({"oneOf": [branch(1), branch(True)]})
    assert "oneOf" in first({"oneOf": [branch(1), branch(1.0)]})
    assert "oneOf" in first({"oneOf": [branch("a"), {"type": "object"}]})
    assert "oneOf" in first({"oneOf": [{"type": "integer"}, {"type": "number"}]})
