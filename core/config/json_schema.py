"""JSON Schema (2020-12) of a configuration file: all arguments, and those of available plugins.

Owns: the translation of declarations. Never does: resolve. Called by: `core config schema`.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from core.args.schema import Field, schema
from core.plugin.kinds import KINDS
from core.plugin.listing import listing
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.version import __version__

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}

Node = dict[str, Any]


def json_schema(registry: PluginRegistry) -> Node:
    """The schema. `x-unserved` says why values other than the default are refused today."""
    fields = schema().fields
    properties = {name: _argument(field) for name, field in fields.items() if not field.arg.internal}
    definitions: Node = {}
    usable = [listed.manifest for listed in listing(registry) if listed.manifest and listed.status == "available"]
    for kind in KINDS:
        if kind.config_argument is not None:
            mine = [m for m in usable if m.row.kind == kind.name and m.spec.arguments is not None]
            plugins = {m.row.name: _plugin(m, definitions) for m in mine}
            node = properties[kind.config_argument]
            node = node["anyOf"][0] if "anyOf" in node else node
            node |= _own_arguments(kind.name, plugins)
    for name, field in fields.items():
        for alias in field.arg.aliases if not field.arg.internal else ():
            properties.setdefault(alias.replace("-", "_"), {"$ref": f"#/properties/{name}"})
    return {
        "$schema": DIALECT,
        "title": f"Configuration of core {__version__}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _argument(field: Field) -> Node:
    """One argument, or one key of an argument."""
    arg = field.arg
    options = [_value(field)]
    if field.base is int and arg.human:
        options.append({"type": "string", "pattern": r"^[+-]?[0-9_]+(\.[0-9]+)?[kKmMgGtT]?$"})
    if field.is_list:
        options.append(_item(field))
    if arg.pairs:
        options.append({"type": "string", "pattern": r"^[^=,]+=\d+(,[^=,]+=\d+)*$"})
    if arg.words:
        options.append({"enum": [word for word, _ in arg.words]})
    if field.optional:
        options.append({"type": "null"})
    node: Node = options[0] if len(options) == 1 else {"anyOf": options}
    node = {"description": arg.help, **node, "default": field.default, "x-group": field.group}
    if not field.is_served:
        node["x-unserved"] = arg.unserved
    elif arg.served is not None:
        node["x-served"] = list(arg.served)
    return node


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
    limits = (("minimum", "ge"), ("exclusiveMinimum", "gt"), ("maximum", "le"), ("exclusiveMaximum", "lt"))
    node |= {key: getattr(field.arg, limit) for key, limit in limits if getattr(field.arg, limit) is not None}
    return node | ({"enum": list(field.arg.choices)} if field.arg.choices else {})


def _item(field: Field) -> Node:
    (kind,) = typing.get_args(field.base)
    return {"type": TYPES.get(kind, "string")} | ({"enum": list(field.arg.choices)} if field.arg.choices else {})


def _plugin(manifest: Manifest, definitions: Node) -> Node:
    """A reference to a plugin's own arguments, which are added to `definitions`."""
    struct = manifest.spec.arguments
    assert struct is not None
    prefix = f"{manifest.row.kind}.{manifest.row.name}"
    (node,), components = msgspec.json.schema_components([struct], ref_template=f"#/$defs/{prefix}.{{name}}")
    definitions |= {f"{prefix}.{name}": component for name, component in components.items()}
    top = node["$ref"].removeprefix("#/$defs/")
    definitions[top] = {**definitions[top], "additionalProperties": manifest.row.kind == "speculative"}
    return node


def _own_arguments(kind: str, plugins: dict[str, Node]) -> Node:
    """What an argument that carries plugins' own arguments may hold: those of the plugin that is chosen."""
    if kind == "attention":
        return {"properties": plugins}
    if kind == "speculative":
        drafts = {"method": {"type": "string"}, "num_speculative_tokens": {"type": "integer", "minimum": 1}}
        own = [{"if": {"properties": {"method": {"const": name}}}, "then": node} for name, node in plugins.items()]
        return {"properties": drafts, "required": list(drafts), "allOf": own}
    return {"anyOf": [*plugins.values(), {"maxProperties": 0}]} if plugins else {"maxProperties": 0}
