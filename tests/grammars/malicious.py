"""Specifications that are meant to hurt.

Owns: the list. Called by: `tests.grammars.prove`, the test of malicious input.
"""

import json
from functools import cache

from core.api.structured_outputs import GrammarSpec


def nested(levels: int) -> str:
    """Text of a schema of arrays of arrays."""
    return '{"type":"array","items":' * levels + "{}" + "}" * levels


def doubling(levels: int) -> dict[str, object]:
    """Definitions that each refer twice to the next: small, and 2 ** levels documents."""
    definitions: dict[str, object] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        further = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "array", "prefixItems": [further, further], "items": False, "minItems": 2}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@cache
def malicious() -> dict[str, GrammarSpec]:
    """By name."""
    words = [f"v{number}" for number in range(100_000)]
    objects = [
        {"type": "object", "properties": {word: {"type": "integer"}}, "required": [word]} for word in words[:1_000]
    ]
    large = {
        "type": "object",
        "properties": {word * 5: {"type": "string", "description": "x" * 20} for word in words[:60_000]},
    }
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    inside = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
    optional = "^" + "(a?){500}" + "a{500}" + "$"
    schemas: dict[str, object] = {
        "nested quantifiers": {"type": "string", "pattern": "^(a+)+$"},
        "optional parts": {"type": "string", "pattern": optional},
        "counts of counts": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
        "100,000 values": {"enum": words},
        "1,000 objects": {"anyOf": objects},
        "a reference to itself": {"$ref": "#"},
        "references in a circle": circle,
        "a document without an end": inside,
        "doubling references": doubling(40),
        "a million items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
        "a billion items": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
        "a billion characters": {"type": "string", "maxLength": 10**9},
        "5 MB": large,
        "a remote reference": {"$ref": "http://127.0.0.1:1/schema.json"},
        "a type that is none": {"type": "integre"},
        "a pattern that is none": {"type": "string", "pattern": "(["},
        "properties that are none": {"type": "object", "properties": ["a"]},
        "a number": 5,
    }
    specs = {name: GrammarSpec("json_schema", json.dumps(schema)) for name, schema in schemas.items()}
    specs["100 levels"] = GrammarSpec("json_schema", nested(100))
    specs["5,000 levels"] = GrammarSpec("json_schema", nested(5_000))
    specs["no JSON"] = GrammarSpec("json_schema", '{"type":')
    specs["100,000 choices"] = GrammarSpec("choice", json.dumps(words))
    specs["an expression of nested quantifiers"] = GrammarSpec("regex", "(a+)+")
    specs["an expression of counts"] = GrammarSpec("regex", "((a{1,1000}){1,1000}){1,1000}")
    specs["an expression that looks ahead"] = GrammarSpec("regex", "(?=a)a")
    specs["a long expression"] = GrammarSpec("regex", "a" * 1_000_000)
    specs["a long grammar"] = GrammarSpec("ebnf", 'root ::= "a"\n' * 100_000)
    return specs
