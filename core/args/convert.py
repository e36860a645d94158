"""From what a user wrote to a value of the declared type, or a sentence that says what was expected.

Owns: conversion of one value, and of a plugin's own arguments. Never does: know which argument means what.
Called by: parser (text), sources (YAML, keyword arguments), plugin (plugins' own arguments).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from core.api.errors import nearest
from core.args.schema import Field

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_HUMAN = re.compile(r"([+-]?\d+(?:\.\d+)?)([kKmMgGtT]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def convert(field: Field, value: Any) -> Any:
    """`value` as `field` declares it. Text is read as on the command line. Raises ValueError with an expectation."""
    arg = field.arg
    if value is None or (isinstance(value, str) and field.optional and value.lower() in ("none", "null")):
        if field.optional:
            return _served(field, None)
        raise ValueError(f"expected {describe(field)}")
    for word, meaning in arg.words:
        if isinstance(value, str) and value.lower() == word:
            return meaning
    return _served(field, _in_range(field, _typed(field, value)))


def describe(field: Field) -> str:
    """What `field` expects, for errors and help: `an integer from 0 to 65535`, `one of 'a', 'b'`."""
    arg = field.arg
    if arg.choices:
        return "one of " + ", ".join(f"'{choice}'" for choice in arg.choices)
    text = {bool: "true or false", int: "an integer", float: "a number", str: "text"}.get(field.base)
    if text is None:
        text = "a list of texts" if field.is_list else "a JSON object"
    low = arg.ge if arg.ge is not None else arg.gt
    if low is not None:
        text += f" {'from' if arg.ge is not None else 'above'} {low:g}"
    if arg.le is not None:
        text += f" {'to' if low is not None else 'up to'} {arg.le:g}"
    words = "".join(f" or '{word}'" for word, _ in arg.words)
    return text + words + (" or none" if field.optional else "")


def human_int(text: str) -> int:
    """`2048`, `25.6k` (25600), `1K` (1024), `1G` (2**30). Raises ValueError when it is no whole number."""
    match = _HUMAN.fullmatch(text.strip().replace("_", ""))
    if not match:
        raise ValueError("expected an integer such as 2048, 25.6k (thousands) or 1K (1024)")
    number = Decimal(match[1]) * _FACTORS[match[2]]
    if number != number.to_integral_value():
        raise ValueError(f"expected a whole number, {text} is {number}")
    return int(number)


def loose(text: str) -> Any:
    """The value of a dotted key: JSON when it reads as JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _typed(field: Field, value: Any) -> Any:
    expected = f"expected {describe(field)}"
    if field.base is bool:
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        if isinstance(value, bool):
            return value
    elif field.base is int:
        if isinstance(value, str):
            if field.arg.human:
                return human_int(value)
            if re.fullmatch(r"[+-]?\d+", value.strip()):
                return int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            return value
        elif isinstance(value, float) and value.is_integer():
            return int(value)
    elif field.base is float:
        return _float(value, expected)
    elif field.base is str:
        if isinstance(value, str):
            return value
        if hasattr(value, "__fspath__"):
            return str(value)
    elif field.is_list:
        return _list(value, expected)
    elif field.is_mapping:
        return _mapping(value, expected)
    raise ValueError(expected)


def _float(value: Any, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(expected)
    try:
        number = float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(number):
        raise ValueError(expected)
    return number


def _list(value: Any, expected: str) -> list[str]:
    if isinstance(value, str):
        value = loose(value) if value.lstrip().startswith("[") else [value]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    raise ValueError(expected)


def _mapping(value: Any, expected: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f'{expected} such as {{"key": 1}}; it is not valid JSON: {error}') from None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError(expected)


def _in_range(field: Field, value: Any) -> Any:
    arg = field.arg
    if arg.choices and value not in arg.choices:
        raise ValueError(f"expected {describe(field)}." + nearest(str(value), map(str, arg.choices)))
    low = (arg.ge is not None and value < arg.ge) or (arg.gt is not None and value <= arg.gt)
    if low or (arg.le is not None and value > arg.le):
        raise ValueError(f"expected {describe(field)}")
    return value


def _served(field: Field, value: Any) -> Any:
    arg = field.arg
    if arg.served is None or any(value == allowed and type(value) is type(allowed) for allowed in arg.served):
        return value
    shown = " or ".join("unset" if allowed is None else str(allowed) for allowed in arg.served)
    raise ValueError(f"this engine does not serve it: {arg.unserved}; use {shown}")


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
            problems.append(f"{prefix}.{key} {value!r}: {str(error)[:1].lower()}{str(error)[1:]}.")
    missing = [name for name, info in infos.items() if info.required and name not in converted]
    problems += [f"{prefix}.{name}: required, but not given." for name in missing if name not in values]
    if struct is None or problems:
        return None, problems
    try:
        return struct(**converted), []
    except (TypeError, ValueError) as error:
        return None, [f"{prefix}: {error}"]
