"""The grammar of an answer in a row's format: calls with valid arguments, structured output after reasoning.

Owns: the structural tag of a row, in xgrammar's form with one additional type: `lark`, a Lark grammar, with `ends` if
the text after it cannot be part of it. Never does: compile it, or know a vocabulary.
Called by: the server and `LLM`, before a request's grammar is compiled.

Markers and reasoning are part of the grammar, so no other code has to detect the end of reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core_formats.answers.beginning import begins_inside
from core_formats.answers.reader import SPACE
from core_formats.calls.arguments_grammar import arguments_format
from core_formats.calls.writing import call_frame, group_frame
from core_formats.response_format import ResponseFormat
from core_formats.stop_markers import without_stops
from core_formats.tag_parts import Format, const, either, json_value, optional, sequence
from core_formats.tool_spec import ToolSpec

_INDEX = "[0-9]+"
_PARTS = ("content", "elements")
_SPACE = r"[ \n]{0,2}"
_NO_CALL = r"[^\[{ \t\r\n](.|\n)*"
"""Text that is not a call, in formats without a marker before calls. It uses only regex features that all backends
know, which excludes `\s`.
"""


def constraint(
    row: ResponseFormat,
    tools: Sequence[ToolSpec],
    choice: str,
    parallel: bool = True,
    reasoning: bool = False,
    answer: GrammarSpec | None = None,
    prompt_tail: str = "",
    max_reasoning: int | None = None,
    limited: bool = False,
    special_tokens: Collection[str] = (),
    stops: Collection[str] = (),
) -> GrammarSpec | None:
    """Return the grammar of the answer; None when any text is allowed.

    choice: `required`, `auto`, or the name of the one tool to call.
    parallel: whether more than one call is allowed.
    reasoning: whether the model may think before it answers.
    answer: form of a text without calls, or None for any text.
    prompt_tail: the end of the prompt, as in `ResponseParser`.
    max_reasoning: maximum tokens of reasoning, after which only the end marker is allowed. None: any number.
    limited: the model sees further tools that it must not call.
    special_tokens: texts of the vocabulary's special tokens. In the tag they stand for the tokens themselves.
    stops: texts of the special tokens that end an answer.

    Raises RequestError for an unknown tool, and for constraints that the row's calls cannot express.
    """
    calling = [tool for tool in tools if choice in ("auto", "required", tool.name)]
    if choice not in ("auto", "required") and not calling:
        raise RequestError(f"tool_choice: there is no tool {choice!r} among the tools.", param="tool_choice")
    if choice != "auto":
        body = _calls(row, calling, parallel and choice == "required")
    elif answer is not None or _is_held(calling, parallel, limited):
        body = _auto(row, calling, parallel, answer)
    elif max_reasoning is not None:
        body = _anything(row, special_tokens)
    else:
        return None
    whole = _behind_reasoning(row, body, prompt_tail, max_reasoning) if reasoning else body
    tag = {"type": "structural_tag", "format": without_stops(whole, stops)}
    return GrammarSpec(kind="structural_tag", text=json.dumps(tag, ensure_ascii=False, separators=(",", ":")))


def _is_held(tools: Sequence[ToolSpec], parallel: bool, limited: bool) -> bool:
    """Whether an answer with optional calls needs a constraint on them."""
    keeps = any(tool.strict or tool.grammar is not None for tool in tools)
    return bool(tools) and (keeps or limited or not parallel)


def _auto(row: ResponseFormat, tools: Sequence[ToolSpec], parallel: bool, answer: GrammarSpec | None) -> Format:
    """Return a choice between calls and text, left to the model."""
    if not tools or not row.calls:
        return _text(row, answer)
    if answer is not None:
        return {"type": "or", "elements": [_calls(row, tools, parallel), _text(row, answer)]}
    calls = _calls(row, tools, parallel)
    marker = _first_marker(row)
    if not marker:
        return {"type": "or", "elements": [calls, {"type": "regex", "pattern": _NO_CALL}]}
    free = sequence({"type": "any_text", "excludes": [marker]}, optional(calls))
    return free if row.content is None else {"type": "or", "elements": [free, _text(row, None)]}


def _anything(row: ResponseFormat, special_tokens: Collection[str]) -> Format:
    """Return any text and any token except the reasoning marker, because reasoning could otherwise continue as text."""
    if not special_tokens:
        return {"type": "any_text"}
    opening = row.reasoning.open[0].strip() if row.reasoning else ""
    kept_out = [opening] if opening in special_tokens else []
    return {"type": "any_tokens", "exclude_tokens": kept_out}


def _first_marker(row: ResponseFormat) -> str:
    """Return the text with which an answer's calls begin, without white space; empty if there is no marker."""
    before, _ = group_frame(row)
    return (before or row.calls[0].open).strip()


def _calls(row: ResponseFormat, tools: Sequence[ToolSpec], many: bool) -> Format:
    """Return one call or more, and nothing else."""
    if not row.calls:
        raise RequestError(f"tool_choice: the response format {row.name} has no calls.", param="tool_choice")
    before, after = group_frame(row)
    before = before.lstrip(SPACE)
    separator = row.calls[0].separator
    one = [_call(row, tool, first=not before) for tool in tools]
    parts = [const(before), either(one)]
    if many:
        further = [_call(row, tool, first=False) for tool in tools]
        parts.append({"type": "star", "content": sequence(const(separator), either(further))})
    return sequence(*parts, const(after))


def _call(row: ResponseFormat, tool: ToolSpec, first: bool) -> Format:
    form = row.calls[0]
    frame = call_frame(form, tool.name)
    before = frame.before.lstrip(SPACE) if first else frame.before
    parts: list[Format] = []
    for number, piece in enumerate(before.split("{index}")):
        if number:
            parts.append({"type": "regex", "pattern": _INDEX})
        parts.append(const(piece))
    return sequence(*parts, arguments_format(row, form, tool), const(frame.after))


def _behind_reasoning(row: ResponseFormat, body: Format, prompt_tail: str, most: int | None) -> Format:
    """Return the reasoning that the prompt has begun, or that the model may begin, followed by `body`."""
    if row.reasoning is None:
        return body
    close = row.reasoning.close[0].strip()
    opening = row.reasoning.open[0].strip()
    thoughts: Format = {"type": "any_text", "excludes": [close]}
    if most is not None:
        thoughts["max_tokens"] = most
        body = _excluding(body, opening)  # otherwise reasoning could continue as text
    thinking = sequence(thoughts, const(close))
    space: Format = {"type": "regex", "pattern": _SPACE}
    if begins_inside(row, prompt_tail):
        return sequence(optional(const(opening)), thinking, space, body)
    return sequence(optional(sequence(const(opening), thinking, space)), body)


def _excluding(part: Any, text: str) -> Any:
    """Return a format whose free text excludes `text`."""
    if isinstance(part, list):
        return [_excluding(inner, text) for inner in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "any_text":
        return {**part, "excludes": [*part.get("excludes", ()), text]}
    # Objects inside schemas are not parts of the tag.
    return {key: _excluding(inner, text) if key in _PARTS else inner for key, inner in part.items()}


def _text(row: ResponseFormat, answer: GrammarSpec | None) -> Format:
    """Return the answer's text, with the text that templates write around it."""
    before, after = row.content or ("", "")
    ends = [after.strip()] if after.strip() else []
    inner: Format = {"type": "any_text", "excludes": ends} if answer is None else _answer(answer)
    return sequence(const(before), inner, const(after))


def _answer(spec: GrammarSpec) -> Format:
    """Return a constraint as a structural tag part. Raises RequestError."""
    match spec.kind:
        case "json_schema":
            return json_value(json.loads(spec.text))
        case "json_object":
            return json_value({"type": "object"})
        case "regex":
            return {"type": "regex", "pattern": spec.text}
        case "choice":
            return either([const(text) for text in json.loads(spec.text)])
        case "ebnf":
            return {"type": "grammar", "grammar": spec.text}
        case "lark":
            return {"type": "lark", "grammar": spec.text}
        case "structural_tag":
            return dict(json.loads(spec.text)["format"])
