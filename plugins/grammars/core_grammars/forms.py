"""Forms of keyword values, and the schemas inside them.

Owns: one row per form. Never does: judge what a backend honours. Called by: `core_grammars.schema_walk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

Inside = Iterator[tuple[tuple[str, ...], Any]]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and value == int(value)


def _schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and all(_schema(each) for each in value)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _types(value: Any) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _names(value) and bool(value) and TYPES.issuperset(value)


def _by_name(value: Any, judge: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(judge(each) for each in value.values())


def _nothing(value: Any) -> Inside:
    return iter(())


def _one(value: Any) -> Inside:
    yield (), value


def _each(value: Any) -> Inside:
    for position, schema in enumerate(value):
        yield (str(position),), schema


def _each_named(value: Any) -> Inside:
    for name, schema in value.items():
        if not isinstance(schema, list):
            yield (name,), schema


def _one_or_each(value: Any) -> Inside:
    return _each(value) if isinstance(value, list) else _one(value)


@dataclass(frozen=True, slots=True)
class Form:
    """A form of values.

    words: its name in messages.
    judge: whether a value has this form.
    inside: the schemas in such a value, each with its path.
    """

    words: str
    judge: Callable[[Any], bool]
    inside: Callable[[Any], Inside] = _nothing


FORMS: dict[str, Form] = {
    "any": Form("any value", lambda value: True),
    "text": Form("a string", lambda value: isinstance(value, str)),
    "expression": Form("a regular expression", lambda value: isinstance(value, str)),
    "flag": Form("true or false", lambda value: isinstance(value, bool)),
    "number": Form("a number", _number),
    "number or flag": Form("a number", lambda value: _number(value) or isinstance(value, bool)),
    "positive number": Form("a number above zero", lambda value: _number(value) and value > 0),
    "count": Form("an integer from zero on", _count),
    "types": Form("the name of a type, or a list of such names", _types),
    "values": Form("a list of values", lambda value: isinstance(value, list) and bool(value)),
    "names": Form("a list of names", _names),
    "names by name": Form("an object of lists of names", lambda value: _by_name(value, _names)),
    "schema": Form("a schema", _schema, _one),
    "schemas": Form("a list of schemas", _schemas, _each),
    "schema or schemas": Form("a schema, or a list", lambda value: _schema(value) or _schemas(value), _one_or_each),
    "schemas by name": Form("an object of schemas", lambda value: _by_name(value, _schema), _each_named),
    "schemas by expression": Form("an object of schemas", lambda value: _by_name(value, _schema), _each_named),
    "names or schemas by name": Form(
        "an object of names or schemas",
        lambda value: _by_name(value, lambda each: _schema(each) or _names(each)),
        _each_named,
    ),
}
