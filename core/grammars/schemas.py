"""Changes of a JSON schema that all backends share.

Owns: `closed`. Never does: judge a schema. Called by: grammar backends.
"""

from __future__ import annotations

import json
from typing import Any

SAYS_MORE = ("additionalProperties", "unevaluatedProperties", "patternProperties")
"""Keywords with which a schema itself speaks of properties that it does not list."""
SCHEMAS = ("additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
"""Keywords whose value is a schema."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
"""Keywords whose value is a list of schemas."""
TABLES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value holds schemas by name."""


def closed(schema: str) -> str:
    """A schema (as JSON) whose objects have only the properties that it lists, where it does not say otherwise."""
    return json.dumps(_closed(json.loads(schema)), ensure_ascii=False, separators=(",", ":"))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in SCHEMAS:
        if isinstance(found.get(name), dict):
            found[name] = _closed(found[name])
    for name in LISTS:
        if isinstance(found.get(name), list):
            found[name] = [_closed(part) for part in found[name]]
    for name in TABLES:
        if isinstance(found.get(name), dict):
            found[name] = {key: _closed(part) for key, part in found[name].items()}
    if "properties" in found and not any(name in found for name in SAYS_MORE):
        found["additionalProperties"] = False
    return found
