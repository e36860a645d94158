"""Types of arguments in formats that write values without types.

Owns: the types that a tool's schema allows for a key, and the conversion of a text to one of them. Never does:
validate. Called by: the readers of bodies.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from core_formats.tool_spec import ToolSpec
from core_tokens.chat.message_forms import CUSTOM_INPUT

MAX_DEPTH = 16
"""Maximum nesting of `anyOf`, `oneOf`, `allOf` and `$ref`; deeper schemas count as not specifying a type."""
MAX_SCHEMAS = 20_000
"""Limit on the schemas visited per tool. Each is visited once, so only a very large tool reaches it."""
MAX_LITERAL = 8192
"""Limit in characters on a literal in Python's notation; parsing 1,000 of them takes 1 ms. Longer ones count as text,
unless they are JSON.
"""

NOT_JSON = object()
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NAMES = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (type(None), "null"),
    (list, "array"),
    (dict, "object"),
)


Types = tuple[str, ...]


def argument_types(tool: ToolSpec | None, key: str) -> Types:
    """Return the JSON types that the value of this key may have; empty when the schema does not say."""
    if tool is None:
        return ()
    if tool.kind == "custom" and key == CUSTOM_INPUT:
        return ("string",)
    known = property_types(tool.parameters) if tool.types is None else tool.types
    return tuple(known.get(key, ()))


def property_types(parameters: dict[str, Any]) -> dict[str, Types]:
    """Return the types of all properties of a tool's schema, in order; empty where the schema does not say.

    Time is linear in the size of the schema: a circular reference, or a schema referenced a thousand times, is visited
    once.
    """
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    walk = TypeWalk(parameters)
    found: dict[str, Types] = {}
    for key, schema in properties.items():
        found[key] = walk.types(schema) or ()
    return found


class TypeWalk:
    """Determines the types of one tool's schemas.

    root: the tool's whole schema, which references name parts of. It must stay unchanged during the walk.
    num_seen: schemas visited.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self.num_seen = 0
        self._root = root
        self._known: dict[int, Types | None] = {}

    def types(self, schema: Any, depth: int = 0) -> Types | None:
        """Return the types of a schema; None when it does not say."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        if id(schema) in self._known:
            return self._known[id(schema)]
        if self.num_seen >= MAX_SCHEMAS:
            return None
        self.num_seen += 1
        self._known[id(schema)] = ()  # a circular reference adds no type
        found = self._known[id(schema)] = self._look(schema, depth)
        return found

    def _look(self, schema: dict[str, Any], depth: int) -> Types | None:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self.types(_local(reference, self._root), depth + 1)
        declared = _declared(schema)
        if declared is not None:
            return tuple(dict.fromkeys(declared))
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                return self._any_of(schema[word], depth)
        if isinstance(schema.get("allOf"), list):
            return self._all_of(schema["allOf"], depth)
        return None

    def _any_of(self, parts: list[Any], depth: int) -> Types | None:
        """Return the types of all parts; None as soon as one part does not say."""
        found: dict[str, None] = {}
        for part in parts:
            types = self.types(part, depth + 1)
            if types is None:
                return None
            found.update(dict.fromkeys(types))
        return tuple(found)

    def _all_of(self, parts: list[Any], depth: int) -> Types | None:
        """Return the types of those parts that specify some."""
        found: dict[str, None] = {}
        for part in parts:
            found.update(dict.fromkeys(self.types(part, depth + 1) or ()))
        return tuple(found) or None


def _declared(schema: dict[str, Any]) -> list[str] | None:
    """Return the types that a schema names, or those of its listed values; None if it does neither."""
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = [declared] if isinstance(declared, str) else declared
        nullable = ["null"] if schema.get("nullable") is True else []
        return [name for name in names if isinstance(name, str)] + nullable
    if "const" in schema:
        return [_type_name(schema["const"])]
    if isinstance(schema.get("enum"), list):
        return [_type_name(value) for value in schema["enum"]]
    return None


def _local(reference: str, root: dict[str, Any]) -> Any:
    """Return the part of the schema that a local `$ref` names, or None."""
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    at: Any = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, dict) else None
    return at


def _type_name(value: Any) -> str:
    return next((name for kind, name in _NAMES if isinstance(value, kind)), "string")


def typed_json(text: str, types: tuple[str, ...]) -> str:
    """Return the text as JSON of one of these types, or of any type if there are none; a string if it matches none.

    A number is preferred to a string where both are allowed.
    """
    stripped = text.strip()
    for name in types or ("object", "array", "integer", "number", "boolean", "null"):
        read = _READ.get(name)
        found = None if read is None else read(stripped)
        if found is not None:
            return found
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # lone surrogates cannot be sent
    return json.dumps(whole, ensure_ascii=False)


def no_string(types: tuple[str, ...]) -> bool:
    """Whether the schema specifies types that exclude strings: a quoted value is then not a string."""
    return bool(types) and "string" not in types


def strict_json(text: str) -> Any:
    """Return the value of a JSON text; `NOT_JSON` for any other text, including NaN and Infinity, which Python's parser
    accepts.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return NOT_JSON


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> str | None:
    if _WHOLE.fullmatch(text):
        return text
    number = _number(text)
    return None if number is None or not float(number).is_integer() else str(int(float(number)))


def _number(text: str) -> str | None:
    value = strict_json(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return text


def _boolean(text: str) -> str | None:
    lowered = text.lower()
    return lowered if lowered in ("true", "false") else None


def _null(text: str) -> str | None:
    return "null" if text.lower() in ("null", "none") else None


def _container(kind: type) -> Callable[[str], str | None]:
    def read(text: str) -> str | None:
        if not text.startswith("{" if kind is dict else "["):
            return None
        value = strict_json(text)
        return text if isinstance(value, kind) else _python_literal(text, kind)

    return read


def _python_literal(text: str, kind: type) -> str | None:
    """Convert a value in Python's notation, which models sometimes write instead of JSON, to JSON."""
    if len(text) > MAX_LITERAL:
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, kind) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


_READ: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "object": _container(dict),
        "array": _container(list),
        "integer": _integer,
        "number": _number,
        "boolean": _boolean,
        "null": _null,
    }
)
