"""A row from the `response_template` of a checkpoint's tokenizer configuration, transformers' own description of
answers.

Owns: the translation. Never does: parse answers. Called by: `core_formats.detection`.

The translation covers the forms that rows can express: thinking and text between literal markers, calls whose content
is JSON (also with loose keys and strings) or pairs between tags. Regular expressions are supported if they consist of a
marker, a name and a marker. Anything else is reported, and the row is then detected from the chat template.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from core_formats.response_format import CallForm, Reasoning, ResponseFormat, ValueForm

_THINKING = ("thinking", "reasoning_content", "reasoning")
_NAME_GROUP = re.compile(r"\(\?P<name>[^()]*\)")
_PAIRS = re.compile(r"(?P<open>.*?)\(\?P<key>[^()]*\)(?P<after>.*?)\(\?P<value>[^()]*\)(?P<close>.*)", re.DOTALL)
_SPECIAL = re.compile(r"(?<!\\)[.*+?()\[\]{}^$|]|\\[A-Za-z0-9]")
_SPACE_PATTERN = re.compile(r"\\s[*+]|\\n\??|\\n[*+]")


class _NotSaid(ValueError):
    """Raised for a template feature that rows cannot express."""


def row_of_response_template(template: Any) -> tuple[ResponseFormat | None, str]:
    """Return the row and why, or None and why not."""
    try:
        row = _row(template)
    except (_NotSaid, msgspec.ValidationError) as error:
        return None, f"The checkpoint's response_template is not used: {error}."
    return row, "the checkpoint's tokenizer configuration has a response_template."


def _row(template: Any) -> ResponseFormat:
    fields = template.get("fields") if isinstance(template, dict) else None
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values()):
        raise _NotSaid("it is no object with fields")
    unknown = sorted(set(fields) - {"content", "tool_calls", *_THINKING})
    if unknown:
        raise _NotSaid(f"it has the field {unknown[0]!r}")
    thinking = next((fields[name] for name in _THINKING if name in fields), None)
    content, dropped = _content(fields.get("content"))
    section, form = _call(fields["tool_calls"]) if "tool_calls" in fields else (None, None)
    return ResponseFormat(
        name="response_template",
        summary="as the checkpoint's tokenizer configuration says",
        reasoning=None if thinking is None else _reasoning(thinking),
        content=content,
        dropped=dropped,
        section=section,
        calls=() if form is None else (form,),
    )


def _literals(field: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return the literal markers under a key. Raises _NotSaid for more general regular expressions."""
    value = field.get(key)
    if value is None and f"{key}_pattern" in field:
        return (_plain(str(field[f"{key}_pattern"])),)
    texts = tuple(value) if isinstance(value, list) else (value,)
    if value is None:
        return ()
    if not all(isinstance(text, str) for text in texts):
        raise _NotSaid(f"{key} is no text")
    return texts


def _plain(pattern: str) -> str:
    """Return the text that a regular expression stands for, without white space. Raises _NotSaid."""
    bare = _SPACE_PATTERN.sub("", pattern)
    if _SPECIAL.search(bare):
        raise _NotSaid(f"the regular expression {pattern!r} is no marker")
    return re.sub(r"\\(.)", r"\1", bare)


def _reasoning(field: dict[str, Any]) -> Reasoning:
    opens = _literals(field, "open")
    closes = _literals(field, "close")
    if not opens or not closes:
        raise _NotSaid("thinking has no markers")
    return Reasoning(open=opens, close=closes, anywhere=True)


def _content(field: dict[str, Any] | None) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
    """Return the markers around text, and markers to drop."""
    if field is None:
        return None, ()
    opens = _literals(field, "open")
    closes = _literals(field, "close")
    if not opens:
        return None, closes
    return (opens[0], closes[0] if closes else ""), (*opens[1:], *closes[1:])


def _call(field: dict[str, Any]) -> tuple[tuple[str, str] | None, CallForm]:
    """Return the section of calls and their form."""
    closes = _literals(field, "close")
    kind = field.get("content", "text")
    if kind not in ("json", "xml-inline"):
        raise _NotSaid(f"calls have the content {kind!r}")
    pattern = str(field.get("open_pattern", ""))
    if not _NAME_GROUP.search(pattern):
        return None, _whole_call(field, kind, closes)
    around = _around_name(pattern)
    function = _function(field)
    if function.get("name") != "{name}" or function.get("arguments") != "{content}":
        raise _NotSaid("names and arguments stand elsewhere than expected")
    form = _json_call(field, around) if kind == "json" else _pairs_call(field, around)
    close = closes[0] if closes else ""
    if around.section:
        return (around.section, close), form
    return None, msgspec.structs.replace(form, close=close, also_close=closes[1:])


def _json_call(field: dict[str, Any], around: _AroundName) -> CallForm:
    arguments = field.get("content_args") or {}
    delimiters = arguments.get("string_delims") or []
    if arguments.get("unquoted_keys") or delimiters:
        delimiter = str(delimiters[0][0]) if delimiters else '"'
        return CallForm(kind="loose", open=around.before, string_delimiter=delimiter)
    opens = (around.after,) if around.after else ("{",)
    return CallForm(kind="named_json", open=around.before, args_open=opens, header=_HEADER)


def _whole_call(field: dict[str, Any], kind: str, closes: tuple[str, ...]) -> CallForm:
    """Return the form of a call that is one JSON object, or a list of them."""
    if kind != "json" or field.get("content_args"):
        raise _NotSaid("calls are no JSON")
    name, args = _keys(field, _function(field))
    opening = _literals(field, "open")
    if not opening:
        raise _NotSaid("calls have no marker")
    form = CallForm(open=opening[0], name_key=name, args_key=args, also_close=closes[1:])
    form = msgspec.structs.replace(form, close=closes[0] if closes else "")
    return msgspec.structs.replace(form, group="list", separator=", ") if field.get("transform_each") else form


_HEADER = r"(?P<name>[^\s<{]+).*"


def _function(field: dict[str, Any]) -> dict[str, Any]:
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}":
        return {"name": "{content.name}", "arguments": "{content.arguments}"}
    if not isinstance(function, dict):
        raise _NotSaid("calls have no transform to a function")
    return function


def _keys(field: dict[str, Any], function: dict[str, Any]) -> tuple[str, str]:
    """Return the keys of name and arguments in an object. Raises _NotSaid."""
    prefix = "" if field.get("transform_each") else "content."
    found: list[str] = []
    for key in ("name", "arguments"):
        placed = re.fullmatch(r"\{" + re.escape(prefix) + r"(\w+)\}", str(function.get(key)))
        if placed is None:
            raise _NotSaid(f"the {key} of a call is {function.get(key)!r}")
        found.append(placed.group(1))
    return found[0], found[1]


class _AroundName(msgspec.Struct, frozen=True):
    """The markers around a name. section: marker before `before`, separated by white space, or empty."""

    section: str
    before: str
    after: str


def _around_name(pattern: str) -> _AroundName:
    """Return the markers before and after the name in a regular expression. Raises _NotSaid."""
    before, after = _NAME_GROUP.split(pattern, maxsplit=1)
    pieces = [piece for piece in map(_plain, _SPACE_PATTERN.split(before)) if piece]
    if not 1 <= len(pieces) <= 2:
        raise _NotSaid(f"the regular expression {pattern!r} is no marker before a name")
    return _AroundName("".join(pieces[:-1]), pieces[-1], _plain(after.replace(".*?", "")))


def _pairs_call(field: dict[str, Any], around: _AroundName) -> CallForm:
    tags = _PAIRS.fullmatch(str((field.get("content_args") or {}).get("tag_pattern", "")))
    if tags is None:
        raise _NotSaid("calls have no tags around keys and values")
    return CallForm(
        kind="pairs",
        open=around.before,
        args_open=(around.after,) if around.after else (),
        key_open=_plain(tags.group("open")),
        values=(ValueForm(_plain(tags.group("after"))),),
        value_close=_plain(tags.group("close")),
        trim="\n",
    )
