"""The types of a tool's arguments: found with bounded work, and read as JSON that every reader takes."""

import json

import pytest

from core_formats.calls.value_types import argument_types, typed_json
from core_formats.server_limits import ServerLimits
from core_formats.tool_spec import ToolSpec
from core_formats.tool_use import tool_use
from tests.response_formats.test_response_parser import calls_of, parsed, row

MOST_READS = 500


class Counted(dict):
    """A schema that counts how often it is read, and ends a walk that goes on and on."""

    num_reads = 0

    def get(self, key, default=None):
        Counted.num_reads += 1
        assert Counted.num_reads <= MOST_READS, "the walk goes on and on"
        return super().get(key, default)


def counted(value):
    if isinstance(value, dict):
        return Counted({key: counted(part) for key, part in value.items()})
    return [counted(part) for part in value] if isinstance(value, list) else value


def circle(width):
    return {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * width}}}


def ladder(steps):
    """Each definition names the next one twice."""
    definitions = {f"d{step}": {"anyOf": [{"$ref": f"#/$defs/d{step + 1}"}] * 2} for step in range(steps)}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, f"d{steps}": {"type": "integer"}}}


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize("schema", [circle(6), ladder(12)], ids=["circle", "ladder"])
def test_a_schema_that_leads_in_circles_is_walked_once(schema, word):
    Counted.num_reads = 0
    schema = counted(json.loads(json.dumps(schema).replace("anyOf", word)))
    argument_types(ToolSpec("t", "", schema), "a")


def test_a_reference_to_itself_adds_no_type():
    schema = {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "integer"}, {"type": "null"}]}}}
    assert argument_types(ToolSpec("t", "", schema), "a") == ("integer", "null")
    assert argument_types(ToolSpec("t", "", ladder(6)), "a") == ("integer",)


def test_the_types_of_a_request_are_found_before_its_answer():
    function = {
        "name": "f",
        "parameters": counted({"type": "object", "properties": {"x": {"type": ["integer", "null"]}}}),
    }
    (tool,) = tool_use([{"type": "function", "function": function}], "auto", None, ServerLimits()).callable
    Counted.num_reads = 0
    assert argument_types(tool, "x") == ("integer", "null")
    assert Counted.num_reads == 0


@pytest.mark.parametrize("text", ["NaN", "[NaN]", '{"a": Infinity}', "[1, -Infinity]", "[1e999, 'a']", "{'a': 1e999}"])
@pytest.mark.parametrize("types", [(), ("array",), ("object",), ("number", "array", "object")])
def test_what_json_has_no_word_for_is_text(text, types):
    written = typed_json(text, types)
    assert json.loads(written, parse_constant=pytest.fail) == text


@pytest.mark.parametrize("value", ["NaN", "[NaN, 1]", "(1e999, 'a')", "-Infinity"])
def test_python_calls_give_json_that_every_reader_takes(value):
    tool = ToolSpec("f", parameters={"properties": {"x": {}}})
    (call,) = calls_of(parsed(row("llama4_pythonic"), f"[f(x={value})]", tools=[tool]))
    assert json.loads(json.dumps(call[1]["x"]), parse_constant=pytest.fail) == value


def test_a_long_literal_of_python_is_text_and_long_json_is_not():
    tool = ToolSpec("f", parameters={"properties": {"x": {"type": "array"}}})
    for item, is_json in (("1", True), ("'a'", False)):
        text = f"[{', '.join([item] * 20_000)}]"
        (call,) = calls_of(parsed(row("llama4_pythonic"), f"[f(x={text})]", tools=[tool]))
        assert call[1]["x"] == (json.loads(text) if is_json else text)


def test_a_tool_is_read_from_an_answer_without_its_schema():
    properties = {f"p{number}": {"type": "integer", "description": "x" * 1000} for number in range(100)}
    function = {"name": "f", "parameters": {"type": "object", "properties": {**properties, "any": {}}}}
    (tool,) = tool_use([{"type": "function", "function": function}], "auto", None, ServerLimits()).callable
    lean = tool.for_parsing()
    assert len(str(lean)) < len(str(tool)) / 10
    for one in (tool, lean):
        assert calls_of(parsed(row("llama4_pythonic"), "[f(1, p7='2', any='3')]", tools=[one])) == [
            ("f", {"p0": 1, "p7": 2, "any": "3"})
        ]
