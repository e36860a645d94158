"""The fields of a body that prescribe the form of an answer, unified from all their spellings.

Owns: `response_format`, vLLM's `structured_outputs`, and the older `guided_...` fields. Never does: compile, or look
into a schema. Called by: the shared fields of both completion endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from core.api.errors import RequestError, nearest
from core.api.structured_outputs import StructuredOutputsParams

FORMAT = "response_format"
GUIDED: Mapping[str, str] = MappingProxyType(
    {
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_choice": "choice",
        "guided_grammar": "grammar",
    }
)
"""The field of `structured_outputs` that each older field has become. Exactly one of these may be given."""
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "guided_decoding_backend": "backend",
        "guided_whitespace_pattern": "whitespace_pattern",
    }
)
"""The options of `structured_outputs` that older fields have become."""
SCHEMA_NAMES = ("schema", "value")
"""Where other servers have the schema of `json_object`: llama.cpp, and TGI."""
WORDS: Mapping[str, Any] = MappingProxyType(
    {
        "name": str,
        "description": str,
        "strict": bool,
        "schema": (dict, bool),
        "json_schema": (dict, bool),
    }
)
"""Types of the fields of `json_schema`; the last one is an alias that some clients use for the schema."""


def structured_outputs(
    response_format: Mapping[str, Any] | None, given: StructuredOutputsParams | None, guided: Mapping[str, Any]
) -> StructuredOutputsParams | None:
    """Combine the fields of one request; None: any text. Raises RequestError.

    given:  the field `structured_outputs`.
    guided: the fields of `GUIDED` and `OPTIONS` that are not null, by name.
    """
    asked = from_format(response_format)
    said = [FORMAT] if asked is not None else []
    if given is not None:
        said.append("structured_outputs")
    said += guided
    if given is not None and (guided or asked is not None):
        raise RequestError(f"{' and '.join(said)} ask for an answer's form twice; leave one out.", param=said[0])
    if given is not None or not guided:
        return asked if given is None else given
    return _by_guided(asked, guided, said)


def _by_guided(
    asked: StructuredOutputsParams | None, guided: Mapping[str, Any], said: list[str]
) -> StructuredOutputsParams:
    """Apply the older fields, alone or with `response_format`.

    asked: its form. said: names of all fields that prescribe a form.
    """
    kinds = [name for name in guided if name in GUIDED]
    if len(kinds) > 1 or (kinds and asked is not None):
        raise RequestError(f"{' and '.join(said)} ask for an answer's form twice; leave one out.", param=kinds[0])
    if not kinds and asked is None:
        name = next(iter(guided))
        listed = ", ".join(GUIDED)
        raise RequestError(f"{name} says how, and nothing says what; give one of {listed} as well.", param=name)
    names = {**GUIDED, **OPTIONS}
    values = {names[name]: value for name, value in guided.items()}
    if asked is not None:
        return _with(asked, values)
    return StructuredOutputsParams(**values)


def _with(asked: StructuredOutputsParams, options: Mapping[str, Any]) -> StructuredOutputsParams:
    for name, value in options.items():
        setattr(asked, name, value)
    return asked


def from_format(response_format: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """Return the form that `response_format` prescribes; None: any text. Raises RequestError."""
    if response_format is None:
        return None
    kind = response_format.get("type")
    reader = FORMATS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        hint = nearest(kind, FORMATS) if isinstance(kind, str) else ""
        listed = ", ".join(f"'{name}'" for name in FORMATS)
        raise _wrong(f"is of type {kind!r}; expected one of {listed}.{hint}")
    return reader(response_format)


def _text(given: Mapping[str, Any]) -> None:
    return None


def _json_object(given: Mapping[str, Any]) -> StructuredOutputsParams:
    """Read OpenAI's form, any object; with a schema where TGI (`value`, sent by Hugging Face's client) and llama.cpp
    (`schema`) have it, that schema. Raises RequestError for anything else beside the type.
    """
    named = {name: value for name, value in given.items() if name != "type" and value is not None}
    if not named:
        return StructuredOutputsParams(json_object=True)
    name, schema = next(iter(named.items()))
    if name not in SCHEMA_NAMES or len(named) > 1:
        extra = " and ".join(f"'{name}'" for name in named)
        raise _wrong(
            f"of type 'json_object' has {extra}; expected nothing else, or a schema at one of {' and '.join(SCHEMA_NAMES)}: "
            'write "type": "json_schema" instead.'
        )
    if not isinstance(schema, (dict, bool)):
        raise _wrong(f"of type 'json_object' needs a JSON schema, an object, at '{name}'.")
    return StructuredOutputsParams(json=schema)


def _json_schema(given: Mapping[str, Any]) -> StructuredOutputsParams:
    """Read OpenAI's form: {"json_schema": {"name", "schema", "strict", "description"}}.

    A schema is always enforced exactly, so `strict` changes nothing; `name` and `description` are for people.
    """
    named = given.get("json_schema")
    if not isinstance(named, dict):
        raise _wrong('needs "json_schema": {"name": ..., "schema": {...}}.')
    schema = named.get("schema", named.get("json_schema"))
    if not isinstance(schema, (dict, bool)):
        raise _wrong('needs a JSON schema, an object, at "json_schema": {"schema": {...}}.')
    _check_words(named)
    return StructuredOutputsParams(json=schema)


def _check_words(named: Mapping[str, Any]) -> None:
    """Raise RequestError for fields of another type, and for unknown ones."""
    for name, value in named.items():
        if name not in WORDS:
            raise _wrong(f"has '{name}' in json_schema, which is unknown.{nearest(name, WORDS)}")
        if value is not None and not isinstance(value, WORDS[name]):
            raise _wrong(f"has a '{name}' of type {type(value).__name__} in json_schema.")


def _structural_tag(given: Mapping[str, Any]) -> StructuredOutputsParams:
    """Read xgrammar's form, with `format`, or the older one, with `structures` and `triggers`."""
    return StructuredOutputsParams(structural_tag=dict(given))


def _grammar(given: Mapping[str, Any]) -> StructuredOutputsParams:
    grammar = given.get("grammar")
    if not isinstance(grammar, str):
        raise _wrong('needs "grammar": a grammar in EBNF or Lark.')
    return StructuredOutputsParams(grammar=grammar)


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], StructuredOutputsParams | None]] = MappingProxyType(
    {
        "text": _text,
        "json_object": _json_object,
        "json_schema": _json_schema,
        "structural_tag": _structural_tag,
        "grammar": _grammar,
    }
)
"""The reader of each type of `response_format`."""


def _wrong(what: str) -> RequestError:
    return RequestError(f"{FORMAT} {what}", param=FORMAT)
