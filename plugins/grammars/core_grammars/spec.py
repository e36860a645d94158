"""Validation of a request's structured-output parameters into a specification for backends.

Owns: the checks of form and size, one per kind of grammar. Never does: know a backend, a vocabulary, or what a schema
means.
Called by: `core_grammars.compiler`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from core.api.config import StructuredOutputsConfig
from core.api.errors import RequestError
from core.api.structured_outputs import FIELD, GrammarKind, GrammarSpec, StructuredOutputsParams
from core_grammars.expressions import read_expression

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The fields of which exactly one must be given."""
JSON_KINDS: frozenset[GrammarKind] = frozenset({"json_schema", "json_object", "structural_tag"})
"""Kinds that contain JSON."""
MAX_NESTING = 256
"""Limit on the nesting of a schema or a tag: far above handwritten ones, and low enough for recursive code everywhere.
"""

MAX_PATTERN = 1024
"""Limit on the characters of a whitespace_pattern."""

_EBNF = re.compile(r"^[ \t\r\f\v]*[A-Za-z_][\w.-]*\s*::=", re.MULTILINE)
_LARK = re.compile(
    r"^[ \t]*[?!]?[A-Za-z_]\w*(\{[^{}\n]{0,1000}\})?(\[[^\n]{0,1000}?\])?(\.-?\d{1,9})?\s*:(?!:=)", re.MULTILINE
)
"""The first line of a rule. Takes linear time: white space is not rescanned from each of its positions, and brackets
are scanned to a limited length.
"""

Text = tuple[GrammarKind, str]


def grammar_spec(params: StructuredOutputsParams, config: StructuredOutputsConfig) -> GrammarSpec:
    """Return the specification of a request. Raises RequestError for an invalid or too large one."""
    _check_size(params, config.max_grammar_size)  # before any code parses the text
    kind, text = _read(params)
    size = len(text.encode())
    if size > config.max_grammar_size:
        raise _too_large(_field(params), size, config.max_grammar_size)
    pattern = params.whitespace_pattern
    if pattern is not None:
        _check_pattern(pattern, kind, params)
    return GrammarSpec(
        kind=kind,
        text=text,
        any_whitespace=not (params.disable_any_whitespace or (config.disable_any_whitespace and pattern is None)),
        additional_properties=not (params.disable_additional_properties or config.disable_additional_properties),
        whitespace_pattern=pattern,
    )


def as_text(params: StructuredOutputsParams, most: int) -> StructuredOutputsParams:
    """Return the parameters with schemas and tags as JSON text, which processes pass on without parsing.

    most: bytes (--structured-outputs-config.max-grammar-size). Raises RequestError for more, and for invalid JSON.
    """
    _check_size(params, most)
    found: dict[str, str] = {}
    for name in ("json", "structural_tag"):
        value = getattr(params, name)
        if isinstance(value, dict):
            found[name] = _dumped(name, value)
            size = len(found[name].encode(errors="surrogatepass"))
            if size > most:
                raise _too_large(name, size, most)
    return msgspec.structs.replace(params, **found) if found else params


def size_of(params: StructuredOutputsParams) -> int:
    """Return a lower limit on the characters of a request's texts; schemas and tags given as objects count as zero."""
    texts = [getattr(params, name) for name in (*KINDS, "whitespace_pattern")]
    total = sum(len(text) for text in texts if isinstance(text, str))
    if isinstance(params.choice, (list, tuple)):
        total += sum(len(text) for text in params.choice if isinstance(text, str))
    return total


def _check_size(params: StructuredOutputsParams, most: int) -> None:
    """Raise RequestError when the characters alone exceed the limit."""
    size = size_of(params)
    if size > most:
        raise _too_large(_field(params), size, most)


def _too_large(name: str, size: int, most: int) -> RequestError:
    return _wrong(
        f"has {size} bytes in its {name}; at most {most} are taken (--structured-outputs-config.max-grammar-size)"
    )


def _read(params: StructuredOutputsParams) -> Text:
    """Return kind and text. Raises RequestError."""
    name = _field(params)
    try:
        kind, text = READERS[name](getattr(params, name))
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(f"has a {name} with half a character (a lone surrogate) in it; send whole characters") from None
    except RecursionError:
        raise _wrong(f"has a {name} that is nested too deeply; send a flatter one") from None
    return kind, text


def _field(params: StructuredOutputsParams) -> str:
    """Return the one field that is given. Raises RequestError."""
    given = [name for name in KINDS if getattr(params, name) not in (None, False) or _is_schema(params, name)]
    if len(given) == 1:
        return given[0]
    listed = ", ".join(KINDS)
    had = " and ".join(given) or "none of them"
    raise _wrong(f"has {had}; expected exactly one of {listed}")


def _is_schema(params: StructuredOutputsParams, name: str) -> bool:
    """Whether `false` is meant as a schema; for other fields it means nothing."""
    return name == "json" and params.json is False


def _schema(value: object) -> Text:
    schema = _parsed("json", value)
    if not isinstance(schema, (dict, bool)):
        raise _wrong(f"has a json that is a {_type(schema)}; expected a JSON schema, an object")
    return "json_schema", _dumped("json", schema, was_text=isinstance(value, str))


def _json_object(value: object) -> Text:
    if value is not True:
        raise _wrong(f"has the json_object {value!r}; expected true")
    return "json_object", ""


def _regex(value: object) -> Text:
    if not isinstance(value, str) or not value:
        raise _wrong("has a regex that is no text, or empty; expected a regular expression")
    return "regex", _whole(value)


def _choice(value: object) -> Text:
    is_list = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if not is_list or not value:
        raise _wrong("has a choice that is no list of texts, or empty; expected the answers that there are")
    assert isinstance(value, (list, tuple))
    return "choice", json.dumps(list(dict.fromkeys(value)), ensure_ascii=False)


def _grammar(value: object) -> Text:
    if not isinstance(value, str) or not value.strip():
        raise _wrong("has a grammar that is no text, or empty; expected a grammar in EBNF or Lark")
    if _EBNF.search(value):
        return "ebnf", value
    if _LARK.search(value):
        return "lark", value
    raise _wrong("has a grammar with no rule in it; expected EBNF (`root ::= ...`) or Lark (`start: ...`)")


def _structural_tag(value: object) -> Text:
    tag = _parsed("structural_tag", value)
    if not isinstance(tag, dict):
        raise _wrong(f"has a structural_tag that is a {_type(tag)}; expected an object")
    if "structures" in tag:
        tag = _from_structures(tag)
    if not isinstance(tag.get("format"), dict):
        raise _wrong('has a structural_tag without a "format"; expected {"type": "structural_tag", "format": {...}}')
    whole = {"type": "structural_tag", "format": tag["format"]}
    return "structural_tag", _dumped("structural_tag", whole, was_text=isinstance(value, str))


READERS: Mapping[str, Callable[[object], Text]] = MappingProxyType(
    {
        "json": _schema,
        "json_object": _json_object,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
        "structural_tag": _structural_tag,
    }
)


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """Convert the older form of structural tags, with `structures` and `triggers`, to the newer one."""
    structures = tag["structures"]
    triggers = tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise _wrong("has a structural_tag whose structures or triggers are no list")
    tags: list[dict[str, Any]] = []
    for structure in structures:
        if not isinstance(structure, dict) or "begin" not in structure or "end" not in structure:
            raise _wrong("has a structural_tag with a structure that is not {begin, schema, end}")
        content = {"type": "json_schema", "json_schema": structure.get("schema", {})}
        tags.append({"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]})
    return {"format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _parsed(name: str, value: object) -> Any:
    """Parse an object that may be given as JSON text. Raises RequestError."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _wrong(f"has a {name} that is not valid JSON: {error}") from None


def _dumped(name: str, value: object, *, was_text: bool = False) -> str:
    """Return JSON with the original order. was_text: the value was just parsed from JSON. Raises RequestError."""
    _check_nesting(name, value)
    if was_text:
        return msgspec.json.encode(value).decode()  # ten times as fast as the general way, which does more checks
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise _wrong(f"has a {name} that is no JSON: {error}") from None


def _check_nesting(name: str, value: object) -> None:
    """Raise RequestError when a value is nested too deeply. Works level by level, so that any depth is safe."""
    level: list[object] = [value]
    for _ in range(MAX_NESTING):
        below: list[object] = []
        for part in level:
            if isinstance(part, dict):
                below += part.values()
            elif isinstance(part, list):
                below += part
        if not below:
            return
        level = below
    raise _wrong(f"has a {name} with more than {MAX_NESTING} levels; send a flatter one")


def _whole(regex: str) -> str:
    """Return a regular expression without anchors, which are redundant where the whole answer must match."""
    plain = regex.removeprefix("^")
    if plain.endswith("$"):
        before = plain[:-1]
        num_backslashes = len(before) - len(before.rstrip("\\"))
        if num_backslashes % 2 == 0:
            plain = before
    return plain


def _check_pattern(pattern: str, kind: GrammarKind, params: StructuredOutputsParams) -> None:
    """Raise RequestError for a whitespace_pattern that is invalid, or that would have no effect."""
    if kind not in JSON_KINDS:
        raise _wrong("has a whitespace_pattern, which is for JSON alone; leave it out")
    if params.disable_any_whitespace:
        raise _wrong("has both whitespace_pattern and disable_any_whitespace; leave one out")
    if not isinstance(pattern, str):
        raise _wrong("has a whitespace_pattern that is no text")
    if len(pattern) > MAX_PATTERN:
        raise _wrong(f"has a whitespace_pattern of {len(pattern)} characters; expected at most {MAX_PATTERN}")
    # Python's own compiler takes seconds for some patterns, and the backend decides in any case.
    problem = read_expression(pattern).problem
    if problem:
        raise _wrong(f"has a whitespace_pattern that is no regular expression: {problem}")


def _type(value: object) -> str:
    return type(value).__name__


def _wrong(what: str) -> RequestError:
    return RequestError(f"{FIELD} {what}.", param=FIELD)
