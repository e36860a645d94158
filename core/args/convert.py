"""From what a user wrote to a value of the declared type, or a sentence that says what was expected.

Owns: conversion of one value, whether the engine serves it, and a plugin's own arguments. Never does: know which
argument means what. Called by: parser (text), sources (YAML, keyword arguments), config, plugin (own arguments).
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.errors import nearest
from core.args.numbers import human_int
from core.args.schema import Field

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_INTEGER = re.compile(r"[+-]?\d{1,400}")


def convert(field: Field, value: Any) -> Any:
    """`value` as `field` declares it, when the engine serves it. Raises ValueError with an expectation."""
    understood = understand(field, value)
    reasons = unserved(field, understood)
    if reasons:
        raise ValueError("; ".join(f"{path}: {reason}" if path else reason for path, _, reason in reasons))
    return understood


def understand(field: Field, value: Any) -> Any:
    """`value` as `field` declares it, served or not. Text is read as on the command line. Raises ValueError."""
    arg = field.arg
    for word, meaning in arg.words:
        if (isinstance(value, str) and value.lower() == word) or (value is True and word == "true"):
            return meaning
    if value is None or (isinstance(value, str) and field.optional and value.lower() in ("none", "null")):
        if field.optional:
            return None
        raise ValueError(f"expected {describe(field)}")
    return _in_range(field, _typed(field, value))


def unserved(field: Field, value: Any) -> list[tuple[str, Any, str]]:
    """Why the engine does not serve `value`: (dotted key or an empty string, its value, reason); empty when it does."""
    if field.keys and isinstance(value, Mapping):
        found = []
        for key, entry in value.items():
            for path, part, reason in unserved(field.keys[key], entry):
                found.append((f"{key}.{path}" if path else key, part, reason))
        return found
    arg = field.arg
    if arg.served is None or any(value == allowed and type(value) is type(allowed) for allowed in arg.served):
        return []
    others = [str(allowed) for allowed in arg.served if allowed not in (None, "", field.raw_default)]
    way_out = (
        f"use {' or '.join([str(field.raw_default), *others])}" if others and field.raw_default else "leave it out"
    )
    return [("", value, f"this engine does not serve it yet: {arg.unserved}; {way_out}")]


def describe(field: Field) -> str:
    """What `field` expects, for errors and help: `an integer from 0 to 65535`, `one of 'a', 'b'`."""
    arg = field.arg
    words = "".join(f" or '{word}'" for word, _ in arg.words if word != "true")
    if arg.choices:
        text = "one of " + ", ".join(f"'{choice}'" if field.base is not int else str(choice) for choice in arg.choices)
        if field.is_list:
            text = "a list of " + text.removeprefix("one of ")
        return text + words + (" or none" if field.optional else "")
    text = {bool: "true or false", int: "an integer", float: "a number", str: "text"}.get(field.base, "")
    if not text:
        lists = "a list of integers" if field.base == list[int] else "a list of texts"
        text = lists if field.is_list else "a JSON object"
    return text + limits(arg.ge, arg.gt, arg.le, arg.lt) + words + (" or none" if field.optional else "")


def limits(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    """` from 1 to 8`, ` above 0`, ` from 0 and below 1`, or an empty string."""
    low = f" from {ge:g}" if ge is not None else f" above {gt:g}" if gt is not None else ""
    if le is not None:
        return f"{low} {'to' if low else 'up to'} {le:g}"
    return low + (f"{' and' if low else ''} below {lt:g}" if lt is not None else "")


def loose(text: str) -> Any:
    """The value of a dotted key: JSON when it reads as JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _typed(field: Field, value: Any) -> Any:
    expected = f"expected {describe(field)}"
    if field.base is bool:
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        if isinstance(value, bool):
            return value
    elif field.base is int:
        return _integer(value, field.arg.human, expected)
    elif field.base is float:
        return _float(value, expected)
    elif field.base is str:
        if isinstance(value, str):
            return value
        if hasattr(value, "__fspath__"):
            return str(value)
    elif field.is_list:
        return _list(field, value, expected)
    elif field.is_mapping:
        return _keyed(field, _mapping(value, field.arg.pairs, expected))
    raise ValueError(expected)


def _integer(value: Any, human: bool, expected: str) -> int:
    if isinstance(value, str):
        if human:
            return human_int(value)
        if _INTEGER.fullmatch(value.strip()):
            return int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    elif isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError(expected)


def _float(value: Any, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(expected)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not math.isfinite(number):
        raise ValueError(expected)
    return number


def _list(field: Field, value: Any, expected: str) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        value = loose(text) if text.startswith("[") else text.split(",") if field.arg.commas else [value]
    if isinstance(value, int) and not isinstance(value, bool) and field.base == list[int]:
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError(expected)
    if field.arg.commas and all(isinstance(item, str) for item in value):
        value = [part.strip() for item in value for part in item.split(",")]
    (kind,) = typing.get_args(field.base)
    if kind is int:
        return [_integer(item, False, expected) for item in value]
    if all(isinstance(item, str) for item in value):
        return list(value)
    raise ValueError(expected)


def _mapping(value: Any, pairs: bool, expected: str) -> dict[str, Any]:
    if isinstance(value, str) and pairs and not value.lstrip().startswith("{"):
        return _pairs(value, expected)
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{expected} such as {{"key": 1}}; it is not valid JSON: {error}') from None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError(expected)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that comes twice is a mistake."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"the key '{twice}' is given twice")
    return found


def _pairs(text: str, expected: str) -> dict[str, Any]:
    """`image=16,video=2` as a mapping."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, number = part.partition("=")
        if not equals or not key.strip() or not _INTEGER.fullmatch(number.strip()):
            raise ValueError(f'{expected} such as {{"image": 2}}')
        if key.strip() in found:
            raise ValueError(f"'{key.strip()}' is given twice")
        found[key.strip()] = int(number)
    return found


def _keyed(field: Field, values: dict[str, Any]) -> dict[str, Any]:
    """The keys of a mapping, converted by their own declarations; all mistakes in one sentence."""
    if not field.keys:
        return values
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in values.items():
        declared = field.keys.get(key.replace("-", "_"))
        if declared is None:
            hint = nearest(key, field.keys) or f" Known: {', '.join(field.keys)}."
            mistakes.append(f"'{key}' is no key of it.{hint}")
            continue
        try:
            found[declared.name] = understand(declared, value)
        except ValueError as error:
            mistakes.append(f"'{key}' {value!r}: {error}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return found


def _in_range(field: Field, value: Any) -> Any:
    arg = field.arg
    if arg.choices:
        for item in value if field.is_list else [value]:
            if item not in arg.choices:
                raise ValueError(f"expected {describe(field)}." + nearest(str(item), map(str, arg.choices)))
    low = (arg.ge is not None and value < arg.ge) or (arg.gt is not None and value <= arg.gt)
    if low or (arg.le is not None and value > arg.le) or (arg.lt is not None and value >= arg.lt):
        raise ValueError(f"expected {describe(field)}")
    return value


def choices(hint: Any) -> list[str]:
    """Every value that a type of literals allows; empty for other types."""
    if hasattr(hint, "__metadata__"):
        return choices(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return [str(value) for value in typing.get_args(hint)]
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    found = [["none"] if member is type(None) else choices(member) for member in members]
    return [word for words in found for word in words] if all(found) else []


def convert_struct(
    struct: type[msgspec.Struct] | None, values: Mapping[str, Any], prefix: str
) -> tuple[msgspec.Struct | None, list[str]]:
    """A plugin's own arguments: the Struct (None when it declares none) and every problem, not only the first.

    prefix: what stands before a key on the command line, such as `--attention-config.cpu_paged`.
    """
    infos = {info.name: info for info in msgspec.structs.fields(struct)} if struct is not None else {}
    problems: list[str] = []
    converted: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in infos:
            valid = f"known: {', '.join(infos)}." if infos else "it takes no arguments."
            problems.append(f"{prefix}.{key}: unknown key; {valid}{nearest(name, infos)}")
            continue
        try:
            converted[name] = msgspec.convert(value, infos[name].type, strict=False)
        except msgspec.ValidationError as error:
            words = choices(infos[name].type)
            said = f"expected one of {', '.join(words)}" if words else f"{str(error)[:1].lower()}{str(error)[1:]}"
            problems.append(f"{prefix}.{key} {value!r}: {said}.{nearest(str(value), words)}")
    missing = [name for name, info in infos.items() if info.required and name not in converted]
    problems += [f"{prefix}.{name}: required, but not given." for name in missing if name not in values]
    if struct is None or problems:
        return None, problems
    try:
        return struct(**converted), []
    except (TypeError, ValueError) as error:
        return None, [f"{prefix}: {error}"]
