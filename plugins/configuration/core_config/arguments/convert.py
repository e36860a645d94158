"""Conversion of a value, as a user wrote it, to the declared type, or an error sentence that says what was expected.

Owns: the conversion of one value. Never does: know the meaning of an argument.
Called by: parser (text), sources (YAML, keyword arguments), config, the plugin framework.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import nearest
from core.args.schema import Field
from core_config.arguments.numbers import human_int
from core_config.arguments.plain import FALSE, TRUE, loose

_INTEGER = re.compile(r"[+-]?\d{1,400}")
MOST_DIGITS = 1e15
"""Numbers from here on are written with an exponent."""
_NOUNS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def convert(field: Field, value: Any) -> Any:
    """Convert `value` to the type that `field` declares; text is read as on the command line.

    Raises ValueError with a sentence that says what was expected.
    """
    if not field.declared:
        return _as_written(value)
    for word, meaning in field.arg.words:
        spelling = "true" if value is True else value  # `hf_token=True` in Python, or in YAML, is the word `true`.
        if isinstance(spelling, str) and spelling.lower() == word:
            return meaning
    if _is_unset(field, value):
        if field.optional:
            return None
        raise ValueError(f"expected {describe(field)}")
    converted = _typed(field, value)
    _check_choices(field, converted)
    _check_range(field, converted)
    return converted


def describe(field: Field) -> str:
    """Describe the values that `field` takes, for errors and help: `an integer from 0 to 65535`, `one of 'a', 'b'`."""
    arg = field.arg
    words = "".join(f" or '{word}'" for word, _ in arg.words if word != "true")
    none = " or none" if field.optional else ""
    if arg.choices:
        listed = ", ".join(f"'{choice}'" for choice in arg.choices)
        text = f"a list of {listed}" if field.is_list else f"one of {listed}"
    else:
        text = _noun(field) + limits(arg.ge, arg.gt, arg.le)
    return text + words + none


def limits(ge: float | None, gt: float | None, le: float | None) -> str:
    """Describe the limits of a number: ` from 1 to 8`, ` above 0`, ` up to 3`, or an empty string."""
    low = ""
    if ge is not None:
        low = f" from {_written(ge)}"
    elif gt is not None:
        low = f" above {_written(gt)}"
    if le is None:
        return low
    return f"{low} {'to' if low else 'up to'} {_written(le)}"


def _written(number: float) -> str:
    """Format a number as people write it: whole numbers with all digits."""
    is_whole = abs(number) < MOST_DIGITS and number == int(number)
    return str(int(number)) if is_whole else f"{number:g}"


def _as_written(value: Any) -> Any:
    """Return the value of an undeclared name unchanged; only a JSON object is parsed, so that its keys can be checked."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    return loose(value)


def _is_unset(field: Field, value: Any) -> bool:
    """Whether `value` means unset: None, or for an argument that may be unset also the text `none`."""
    if isinstance(value, str):
        return field.optional and value.lower() in ("none", "null")
    return value is None


def _noun(field: Field) -> str:
    if field.is_list:
        return f"a list of {'integers' if field.item is int else 'texts'}"
    return _NOUNS.get(field.base, "a JSON object")


def _typed(field: Field, value: Any) -> Any:
    """Convert `value` to the declared type, without checking choices and limits. Raises ValueError."""
    expected = f"expected {describe(field)}"
    if field.base is bool:
        return _bool(value, expected)
    if field.base is int:
        return _integer(value, field.arg.human, expected)
    if field.base is float:
        return _float(value, expected)
    if field.is_list:
        return _list(field, value, expected)
    if field.is_mapping:
        if callable(value) and field.name in FUNCTIONS:
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = _changed_fields(value)
        if field.name in AS_PAIRS and isinstance(value, str) and not value.lstrip().startswith("{"):
            value = _pairs(value, expected)
        return _keyed(field, _mapping(value, expected))
    return _text(value, expected)


def _bool(value: Any, expected: str) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    if word in TRUE:
        return True
    if word in FALSE:
        return False
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


def _text(value: Any, expected: str) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return str(value)
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value).removeprefix("torch.")
    raise ValueError(expected)


OF_OBJECTS: Final = frozenset({"lora_modules"})
"""Lists whose items may be objects, which stay texts of JSON."""


def _list(field: Field, value: Any, expected: str) -> list[Any]:
    """Read a list of texts or integers: a JSON list, one text, or with `commas` several items in one text."""
    if isinstance(value, str):
        text = value.strip()
        value = loose(text) if text.startswith("[") else [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError(expected)
    parts: list[Any] = []
    for item in value:
        if isinstance(item, str) and field.arg.commas:
            parts += [part.strip() for part in item.split(",")]
        elif isinstance(item, Mapping) and field.name in OF_OBJECTS:
            parts.append(json.dumps(item))
        else:
            parts.append(item)
    if field.item is int:
        return [_integer(part, field.arg.human, expected) for part in parts]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(expected)
    return parts


FUNCTIONS: Final = frozenset({"hf_overrides"})
"""Mappings that a script may give as a function."""


def _changed_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults: those that a script gave."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        mine = getattr(value, each.name)
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if default is dataclasses.MISSING or mine != default:
            is_nested = dataclasses.is_dataclass(mine) and not isinstance(mine, type)
            found[each.name] = _changed_fields(mine) if is_nested else mine
    return found


AS_PAIRS: Final = frozenset({"limit_mm_per_prompt"})
"""Mappings that may also be written `a=1,b=2`."""


def _pairs(text: str, expected: str) -> dict[str, Any]:
    """Read `a=1,b=2`. Raises ValueError."""
    pairs: list[tuple[str, Any]] = []
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not equals:
            raise ValueError(expected)
        pairs.append((name.strip(), _integer(number.strip(), human=False, expected=expected)))
    return _once(pairs)


def _mapping(value: Any, expected: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{expected} such as {{"key": 1}}; it is not valid JSON: {error}') from None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError(expected)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs. Raises ValueError for a key that is given twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key '{key}' is given twice")
        found[key] = value
    return found


def _keyed(field: Field, values: dict[str, Any]) -> dict[str, Any]:
    """Convert the values of a mapping by the declarations of its keys. Raises ValueError with all mistakes in one sentence."""
    if not field.keys:
        return values
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in values.items():
        declared = field.keys.get(key.replace("-", "_"))
        if declared is None:
            from core_config.arguments.foreign import refusals, table  # the table is read for mistakes only

            row = table().get(f"{field.name}.{key.replace('-', '_')}")
            if row is not None:
                mistakes += [f"'{key}': {sentence}" for _, _, sentence in refusals(row, value)]
                continue
            hint = nearest(key, field.keys) or f" Known: {', '.join(field.keys)}."
            mistakes.append(f"'{key}' is no key of it.{hint}")
            continue
        try:
            found[declared.name] = convert(declared, value)
        except ValueError as error:
            mistakes.append(f"'{key}' {value!r}: {error}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return found


def _check_choices(field: Field, value: Any) -> None:
    """Raise ValueError for a value (or an item of a list) that is not one of the choices."""
    choices = field.arg.choices
    for item in value if field.is_list else [value]:
        if choices and item not in choices:
            from core_config.arguments.foreign import refused_value  # the table is read for mistakes only

            why = refused_value(field.name, item)
            raise ValueError(f"{why}expected {describe(field)}." + nearest(str(item), map(str, choices)))


def _check_range(field: Field, value: Any) -> None:
    """Raise ValueError for a number outside of the limits."""
    arg = field.arg
    for number in value if field.is_list else [value]:
        low = arg.ge is not None and number < arg.ge
        too_low = arg.gt is not None and number <= arg.gt
        too_high = arg.le is not None and number > arg.le
        if low or too_low or too_high:
            raise ValueError(f"expected {describe(field)}")
