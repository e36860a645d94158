"""Random answers under a grammar validate; `make test-grammars` does this for hundreds of schemas."""

from typing import Any

import pytest

from tests.grammars.generation import attempt

NESTED = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "number", "minimum": 0.5}, "next": {"$ref": "#/$defs/node"}},
        }
    },
    "type": "array",
    "items": {"$ref": "#/$defs/node"},
    "maxItems": 3,
}
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "é"]}},
        "required": ["b"],
    },
    {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "date-time"}},
        "required": ["at"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 2, "maxLength": 4}]},
        "minItems": 1,
    },
    {"allOf": [{"minimum": 3}, {"type": "integer", "multipleOf": 7}]},
    NESTED,
]


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_what_ends_validates(name: str) -> None:
    pytest.importorskip(name)
    stopped = 0
    for seed, schema in enumerate(SCHEMAS):
        outcome = attempt(schema, seed, 1, (name,))
        assert not outcome.wrong, (schema, outcome.wrong)
        stopped += outcome.stopped
    assert stopped >= 2
