"""The types of arguments that are written without types.

Owns: the types that a tool's schema allows for a key, and a text read as one of them. Never does: validate. Called by: the
readers of bodies.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from core.formats.tool_spec import ToolSpec
from core.tokens.message_forms import CUSTOM_INPUT

MAX_DEPTH = 16  # of `anyOf` and `$ref` in each other

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


def argument_types(tool: ToolSpec | None, key: str) -> tuple[str, ...]:
    """The JSON types that the value of this key may have; empty when the schema does not say."""
    if tool is None:
        return ()
    if tool.kind == "custom" and key == CUSTOM_INPUT:
        return ("string",)
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict) or key not in properties:
        return ()
    found: dict[str, None] = {}
    known = _collect(properties[key], tool.parameters, found, 0)
    return tuple(found) if known else ()


def _collect(schema: Any, root: dict[str, Any], found: dict[str, None], depth: int) -> bool:
    """Add the types of a schema; False when it does not say."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _collect(_local(reference, root), root, found, depth + 1)
    declared = _declared(schema)
    if declared is not None:
        found.update(dict.fromkeys(declared))
        return True
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return all([_collect(part, root, found, depth + 1) for part in schema[word]])
    parts = schema.get("allOf")
    if isinstance(parts, list):
        return any([_collect(part, root, found, depth + 1) for part in parts])
    return False


def _declared(schema: dict[str, Any]) -> list[str] | None:
    """The types that a schema names, or those of the values that it lists; None when it does neither."""
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
    """The part of the schema that a local `$ref` names, or None."""
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
    """The text as JSON of one of these types, any when there are none; a string when it is of none of them.

    A text that is a number and may be one is no string, although it could be.
    """
    stripped = text.strip()
    for name in types or ("object", "array", "integer", "number", "boolean", "null"):
        read = _READ.get(name)
        found = None if read is None else read(stripped)
        if found is not None:
            return found
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of characters cannot be sent
    return json.dumps(whole, ensure_ascii=False)


def no_string(types: tuple[str, ...]) -> bool:
    """Whether the schema speaks of a type, and not of strings: what stands in quotes then is no string."""
    return bool(types) and "string" not in types


def _integer(text: str) -> str | None:
    if _WHOLE.fullmatch(text):
        return text
    number = _number(text)
    return None if number is None or not float(number).is_integer() else str(int(float(number)))


def _number(text: str) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
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
        try:
            return text if isinstance(json.loads(text), kind) else None
        except (ValueError, RecursionError):
            return _python_literal(text, kind)

    return read


def _python_literal(text: str, kind: type) -> str | None:
    """Models sometimes write Python where JSON is asked."""
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, kind) else None
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
