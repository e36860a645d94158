"""JSON Schema (2020-12) of a configuration file: all arguments, and those of available plugins.

Owns: the translation of declarations. Never does: resolve. Called by: `core config schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.args.schema import Field, schema
from core.config.draft_schema import draft_schema
from core.plugin.kinds import KINDS
from core.plugin.listing import listing
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.version import __version__

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}

Node = dict[str, Any]


def json_schema(registry: PluginRegistry) -> Node:
    """The schema of all arguments that the engine serves."""
    fields = schema().fields
    properties = {name: _argument(field) for name, field in fields.items()}
    definitions: Node = {}
    manifests = _with_arguments(registry)
    for kind in KINDS:
        if kind.config_argument is None:
            continue
        plugins: dict[str, Node] = {}
        for manifest in manifests:
            if manifest.row.kind == kind.name:
                plugins[manifest.row.name] = _plugin(manifest, definitions)
        node = properties[kind.config_argument]
        if "anyOf" in node:
            node = node["anyOf"][0]
        node |= _own_arguments(kind.name, plugins, definitions)
    for name, field in fields.items():
        for alias in field.arg.aliases:
            properties[alias] = {"$ref": f"#/properties/{name}"}
    return {
        "$schema": DIALECT,
        "title": f"Configuration of core {__version__}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _with_arguments(registry: PluginRegistry) -> list[Manifest]:
    """The available plugins that have arguments of their own."""
    found = []
    for listed in listing(registry):
        manifest = listed.manifest
        if manifest is not None and listed.status == "available" and manifest.spec.arguments is not None:
            found.append(manifest)
    return found


def _argument(field: Field) -> Node:
    """One argument, or one key of an argument."""
    arg = field.arg
    options = [_value(field)]
    if field.base is int and arg.human:
        options.append({"type": "string", "pattern": r"^[+-]?[0-9_]+(\.[0-9]+)?[kKmMgGtT]?$"})
    if field.is_list:
        options.append(_item(field))
    if arg.words:
        options.append({"enum": [word for word, _ in arg.words]})
    if field.optional:
        options.append({"type": "null"})
    node: Node = options[0] if len(options) == 1 else {"anyOf": options}
    return {"description": arg.help, **node, "default": field.default, "x-group": field.group}


def _value(field: Field) -> Node:
    """The declared type without its other spellings."""
    if field.is_list:
        return {"type": "array", "items": _item(field)}
    if field.is_mapping:
        if not field.keys:
            return {"type": "object"}
        keys = {name: _argument(key) for name, key in field.keys.items()}
        return {"type": "object", "properties": keys, "additionalProperties": False}
    node: Node = {"type": TYPES[field.base]}
    limits = {"minimum": field.arg.ge, "exclusiveMinimum": field.arg.gt, "maximum": field.arg.le}
    for key, limit in limits.items():
        if limit is not None:
            node[key] = limit
    if field.arg.choices:
        node["enum"] = list(field.arg.choices)
    return node


def _item(field: Field) -> Node:
    node: Node = {"type": "string"}
    if field.arg.choices:
        node["enum"] = list(field.arg.choices)
    return node


def _plugin(manifest: Manifest, definitions: Node) -> Node:
    """A reference to a plugin's own arguments, which are added to `definitions`."""
    struct = manifest.spec.arguments
    assert struct is not None
    prefix = f"{manifest.row.kind}.{manifest.row.name}"
    references = f"#/$defs/{prefix}.{{name}}"
    (node,), components = msgspec.json.schema_components([struct], ref_template=references)
    for name, component in components.items():
        definitions[f"{prefix}.{name}"] = component
    top = definitions[node["$ref"].removeprefix("#/$defs/")]
    # A proposer's arguments share their mapping with the engine's own keys.
    top["additionalProperties"] = manifest.row.kind == "speculative"
    return node


def _own_arguments(kind: str, plugins: dict[str, Node], definitions: Node) -> Node:
    """The values of an argument that carries plugins' own arguments: those of the plugin that is chosen."""
    if kind == "attention":
        return {"properties": plugins}
    if kind == "speculative":
        return draft_schema(plugins, definitions)
    nothing: Node = {"maxProperties": 0}
    if not plugins:
        return nothing
    return {"anyOf": [*plugins.values(), nothing]}
