"""JSON Schema of `--speculative-config`: the engine's own keys, those of a draft's checkpoint, and those of each method.

Owns: that translation. Never does: judge values (rules do). Called by: the schema of a configuration file.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core_config.speculation.acceptance import METHOD_KEYS, METHODS, SYNTHETIC_KEYS, TYPICAL_KEYS
from core_config.speculation.control import CONTROL_KEYS
from core_config.speculation.keys import NEUTRAL, DraftKeys

Node = dict[str, Any]

SIZES: Final[Node] = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
CONTROL: Final[dict[str, Node]] = {
    "num_speculative_tokens": {"type": "integer", "minimum": 1},
    "adaptive": {"type": "boolean"},
    "disable_by_batch_size": {"type": "integer", "minimum": 2},
    "num_speculative_tokens_per_batch_size": {"type": "array", "items": SIZES},
}
"""JSON types of `CONTROL_KEYS`."""
COUNTS_ITSELF: Final = ("suffix", "medusa", "mlp_speculator")
"""Methods that know the maximum number of drafts in a step themselves."""


def draft_schema(plugins: dict[str, Node], definitions: Node) -> Node:
    """Return the schema of the argument's value.

    plugins: references to the arguments of each method.
    definitions: receives the definitions of a draft's checkpoint.
    """
    own: list[Node] = []
    for name, node in plugins.items():
        is_chosen = {"properties": {"method": {"const": name}}}
        own.append({"if": is_chosen, "then": node})
    counts_itself: Node = {"properties": {"method": {"enum": list(COUNTS_ITSELF)}}}
    own.append({"if": counts_itself, "else": {"required": ["num_speculative_tokens"]}})
    properties: Node = {"method": {"type": "string", "description": "A plugin."}}
    for name, node in CONTROL.items():
        properties[name] = {"description": CONTROL_KEYS[name], **node}
    properties |= _acceptance() | _checkpoint(definitions)
    return {"properties": properties, "required": ["method"], "allOf": own}


def _acceptance() -> Node:
    """Return the schema of the keys about the acceptance of drafts."""
    found: Node = {name: {"enum": list(METHODS)} for name in METHOD_KEYS}
    found |= {name: {"type": "number"} for name in TYPICAL_KEYS}
    rates, length = SYNTHETIC_KEYS
    found[rates] = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}
    found[length] = {"type": "number", "minimum": 1}
    return found


def _checkpoint(definitions: Node) -> Node:
    """Return the schema of the keys that name a draft's checkpoint, and of those without effect."""
    references = "#/$defs/speculative.{name}"
    _, components = msgspec.json.schema_components([DraftKeys], ref_template=references)
    fields: Node = components.pop("DraftKeys")["properties"]
    for name, component in components.items():
        definitions[f"speculative.{name}"] = component
    for name, (allowed, why) in NEUTRAL.items():
        fields[name] = {"description": f"Changes nothing: {why}."}
        if allowed is not None:
            fields[name]["enum"] = list(allowed)
    return fields
