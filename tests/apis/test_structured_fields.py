"""All spellings of what an answer must look like mean the same."""

import msgspec
import pytest

from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams as Params
from core_apis.protocol.chat import ChatRequest

SCHEMA = {"type": "object"}


def form(**fields):
    body = msgspec.convert({"messages": [], **fields}, ChatRequest)
    return body.params({}).structured_outputs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Params(json_object=True)),
        ({"response_format": {"type": "json_object", "schema": None}}, Params(json_object=True)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, Params(json=SCHEMA)),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, Params(json=SCHEMA)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            Params(json=SCHEMA),
        ),
        ({"response_format": {"type": "grammar", "grammar": "root ::= 'a'"}}, Params(grammar="root ::= 'a'")),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            Params(structural_tag={"type": "structural_tag", "format": {"type": "any_text"}}),
        ),
        ({"structured_outputs": {"choice": ["a"], "backend": "guidance"}}, Params(choice=["a"], backend="guidance")),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, Params(json=SCHEMA, whitespace_pattern=" ?")),
        ({"guided_choice": ["a"], "guided_decoding_backend": "outlines"}, Params(choice=["a"], backend="outlines")),
        ({"guided_grammar": "start: A"}, Params(grammar="start: A")),
        (
            {"response_format": {"type": "json_object"}, "guided_decoding_backend": "xgrammar"},
            Params(json_object=True, backend="xgrammar"),
        ),
    ],
)
def test_fields(fields, expected):
    assert form(**fields) == expected


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"shema": SCHEMA}, "has 'shema'"),
        ({"schema": SCHEMA, "value": SCHEMA}, "has 'schema' and 'value'"),
        ({"value": "[a-z]+"}, "needs a JSON schema, an object, at 'value'"),
    ],
)
def test_what_stands_beside_json_object_is_no_schema(more, words):
    with pytest.raises(RequestError, match=words):
        form(response_format={"type": "json_object", **more})


def test_two_at_once_are_refused():
    with pytest.raises(RequestError, match="twice"):
        form(guided_json=SCHEMA, structured_outputs={"json": SCHEMA})
