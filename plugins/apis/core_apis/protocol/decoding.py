"""Decoding of a request body into a Struct, with errors that name the field.

Owns: the translation of msgspec's errors into `RequestError`. Never does: read the network. Called by:
`core_apis.prepare.preparation`; the intake and the helper process, for bodies that are too deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from core.api.errors import RequestError, nearest

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_DIRECT = re.compile(r"- at `\$\.(\w+)`$")
"""The end of a message about the value of a field of the body itself."""
_SHOWN = 140
"""Characters of an invalid value that an error repeats."""
_PATH = re.compile(r"- at (?:`key` in )?`\$\.?(\w*)")


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes | bytearray | memoryview) -> T:
    """Decode `body`, or raise RequestError (400) with the invalid field as `param`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), decoder, body) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"The request body is not valid UTF-8: {error}.", code="invalid_json") from None
    except RecursionError:
        raise too_deep() from None


def too_deep() -> RequestError:
    """Return the refusal of a body that is nested too deep for some step: a body that can be decoded may be too deep to
    encode.
    """
    return RequestError("The request body is nested too deeply; send a flatter one.", code="invalid_json")


def _invalid(message: str, decoder: msgspec.json.Decoder[T], body: bytes | bytearray | memoryview) -> RequestError:
    unknown = _UNKNOWN.match(message)
    if unknown:
        name, place = unknown.group(1), unknown.group(2)
        hint = "" if place else nearest(name, _field_names(decoder))
        where = f" in '{place}'" if place else ""
        return RequestError(
            f"Unknown field '{name}'{where}.{hint} Leave out what this server does not know.",
            param=name,
            code="unknown_field",
        )
    missing = _MISSING.match(message)
    if missing:
        name = missing.group(1)
        return RequestError(f"The field '{name}' is missing; the request needs it.", param=name, code="missing_field")
    path = _PATH.search(message)
    param = path.group(1) if path and path.group(1) else None
    described = _DIRECT.search(message)
    words = _description(decoder, described.group(1)) if described else ""
    if described and words:
        name = described.group(1)
        return RequestError(f"{name} is {_value(body, name)}; expected {words}.", param=name, code="invalid_type")
    expected = ""
    if param is not None and message.startswith("Invalid enum value"):
        expected = f" Expected one of {', '.join(map(repr, _choices(decoder, param)))}."
    return RequestError(f"Invalid request: {message}.{expected}", param=param, code="invalid_type")


def _description(decoder: msgspec.json.Decoder[T], name: str) -> str:
    """Return the values of a field in words: those of the annotation of its type, or "" if it has none."""
    for kind in _kinds(decoder, name):
        if isinstance(kind, msgspec.inspect.Metadata):
            return str((kind.extra_json_schema or {}).get("description", ""))
    return ""


def _value(body: bytes | bytearray | memoryview, name: str) -> str:
    """Return the beginning of a field's value as it was sent; no other field is built."""
    text = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])[name]).decode(errors="replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _choices(decoder: msgspec.json.Decoder[T], name: str) -> list[Any]:
    """Return the values that a field of the body, or the entries of its list, may have."""
    found: list[Any] = []
    for kind in _kinds(decoder, name):
        if isinstance(kind, msgspec.inspect.LiteralType):
            found += kind.values
    return found


def _kinds(decoder: msgspec.json.Decoder[T], name: str) -> Iterator[Any]:
    """Yield the types of a field of the body: each one's alternatives and entries after it."""
    info = msgspec.inspect.type_info(decoder.type)
    kinds: list[Any] = [field.type for field in getattr(info, "fields", ()) if field.encode_name == name]
    while kinds:
        kind = kinds.pop(0)
        yield kind
        kinds += getattr(kind, "types", ())
        if isinstance(kind, msgspec.inspect.Metadata):
            kinds.append(kind.type)
        if isinstance(kind, msgspec.inspect.CollectionType):
            kinds.append(kind.item_type)


def _field_names(decoder: msgspec.json.Decoder[T]) -> tuple[str, ...]:
    fields = getattr(decoder.type, "__struct_fields__", ())
    return tuple(fields)
