"""The command `core config schema`: the JSON Schema (2020-12) of all arguments, and of those of available plugins.

Owns: the translation of declarations. Never does: resolve a configuration. Called by: the frame.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.args.arg import Arg
from core.args.schema import Field, schema
from core.args.services import neutral_keys
from core.args.show import show
from core.commands.tables import print_json
from core.commands.words import refuse_words, take_help
from core.plugin.kinds import KINDS, Kind
from core.plugin.listing import listing
from core.plugin.manifest import Manifest
from core.plugin.registry import PluginRegistry
from core.version import __version__
from core_config.speculation.schema import draft_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}

Node = dict[str, Any]


def config_schema(words: list[str]) -> int:
    """Run the command with the words after its name; return the exit code."""
    if take_help(words) is not None:
        show("core config schema", "JSON Schema (2020-12) of all arguments, those of available plugins included.", [])
        return 0
    refuse_words("core config schema", words)
    print_json(json_schema(PluginRegistry()))
    return 0


def json_schema(registry: PluginRegistry) -> Node:
    """Return the JSON Schema of all arguments that the engine serves. Imports all manifests and probes all platforms."""
    fields = schema().fields
    properties = {name: _argument(field) for name, field in fields.items()}
    definitions: Node = {}
    manifests = _with_arguments(registry)
    for kind in KINDS:
        if kind.config_argument is None or kind.config_argument.partition(".")[0] not in fields:
            continue
        plugins: dict[str, Node] = {}
        for manifest in manifests:
            if manifest.row.kind == kind.name:
                plugins[manifest.row.name] = _plugin(manifest, definitions)
        node = _mapping_at(properties, kind.config_argument)
        node |= _own_arguments(kind, plugins, definitions)
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


def _mapping_at(properties: Node, path: str) -> Node:
    """Return the node of a mapping: an argument, or a key of one."""
    name, _, rest = path.partition(".")
    node: Node = properties[name]
    if "anyOf" in node:
        node = node["anyOf"][0]
    return _mapping_at(node["properties"], rest) if rest else node


def _with_arguments(registry: PluginRegistry) -> list[Manifest]:
    """Return the manifests of the available plugins that have arguments of their own."""
    found = []
    for listed in listing(registry):
        manifest = listed.manifest
        if manifest is not None and listed.status == "available" and manifest.spec.arguments is not None:
            found.append(manifest)
    return found


def _argument(field: Field) -> Node:
    """Describe one argument, or one key of an argument, in all its spellings."""
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
    """Describe the declared type, without the other spellings of its values."""
    if field.is_list:
        return {"type": "array", "items": _item(field)}
    if field.is_mapping:
        if not field.keys:
            return {"type": "object"}
        keys = {name: _argument(key) for name, key in field.keys.items()}
        keys |= neutral_keys(field.name)
        return {"type": "object", "properties": keys, "additionalProperties": False}
    node = _limited(field.base, field.arg)
    if field.arg.choices:
        node["enum"] = list(field.arg.choices)
    return node


def _item(field: Field) -> Node:
    node = _limited(field.item, field.arg)
    if field.arg.choices:
        node["enum"] = list(field.arg.choices)
    return node


def _limited(base: type, arg: Arg) -> Node:
    """Describe a type with the limits of its numbers."""
    node: Node = {"type": TYPES[base]}
    limits = {"minimum": arg.ge, "exclusiveMinimum": arg.gt, "maximum": arg.le}
    for key, limit in limits.items():
        if limit is not None:
            node[key] = limit
    return node


def _plugin(manifest: Manifest, definitions: Node) -> Node:
    """Add a plugin's own arguments to `definitions`, and return a reference to them."""
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


def _own_arguments(kind: Kind, plugins: dict[str, Node], definitions: Node) -> Node:
    """Describe the value of an argument that holds plugins' own arguments: those of the chosen plugin."""
    if kind.by_name:
        return {"properties": plugins}
    if kind.config_argument == "speculative_config":  # some of its keys belong to no plugin
        return draft_schema(plugins, definitions)
    nothing: Node = {"maxProperties": 0}
    if not plugins:
        return nothing
    return {"anyOf": [*plugins.values(), nothing]}
