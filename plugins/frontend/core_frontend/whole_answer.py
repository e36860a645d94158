"""Parsing of whole answers to conversations with tools.

Owns: the plan for such answers, and `AnswerParts` from a finished choice. Never does: know streams (the server's
`AnswerParser` does). Called by: `LLM.chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core_formats.answers.events import ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_formats.answers.parser import ResponseParser
from core_formats.answers.plan import AnswerPlan, check_calls, check_template
from core_formats.selection import AnswerFormat
from core_formats.server_limits import ServerLimits
from core_formats.tool_use import tool_use
from core_frontend.api.outputs import AnswerParts, CalledTool, CompletionOutput
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.detokenizer import Span


def tool_plan(
    tools: Sequence[Any],
    choice: str | Mapping[str, Any] | None,
    parallel: bool,
    template: ChatTemplate,
    served: AnswerFormat,
) -> AnswerPlan:
    """Return the plan for new answers. Raises RequestError.

    Without a format the answers are not parsed: no tool may be called, or the model's form of calls is unknown.
    """
    plain = [dict(tool) if isinstance(tool, Mapping) else tool for tool in tools]
    named = dict(choice) if isinstance(choice, Mapping) else choice
    use = tool_use(plain, named, parallel, ServerLimits())
    check_template(use, template, served)
    if use.restricts:
        check_calls(use, served)
    parses = bool(use.callable and served.row.calls)
    return AnswerPlan(served if parses else None, use, None, None)


def take_apart(completion: CompletionOutput, plan: AnswerPlan, prompt_tail: str, *, keeps_specials: bool) -> None:
    """Fill `parts` of a finished choice, whose text has its special tokens and their positions.

    prompt_tail: the text that the template wrote at the end of the prompt.
    keeps_specials: whether special tokens stay in `text`.
    """
    if plan.format is None:
        return
    parser = ResponseParser(
        plan.format.row,
        plan.use.callable,
        plan.tail(prompt_tail),
        special_tokens=plan.format.special_tokens,
        resumed=plan.resumed is not None,
    )
    events = parser.push(completion.text, completion.specials)
    events += parser.finish(complete=completion.finish_reason == "stop")
    custom = {tool.name for tool in plan.use.callable if tool.kind == "custom"}
    parts = AnswerParts()
    for event in events:
        match event:
            case TextDelta(text):
                parts.content += text
            case ReasoningDelta(text):
                parts.reasoning += text
            case CallStart(_, call_id, name):
                kind = "custom" if name in custom else "function"
                parts.tool_calls.append(CalledTool(call_id, name, "", kind))
            case ArgumentsDelta(index, text):
                parts.tool_calls[index].arguments += text
            case CallEnd(index, complete):
                parts.tool_calls[index].complete = complete
    completion.parts = parts
    if not keeps_specials:
        completion.text = _without(completion.text, completion.specials)
        completion.specials = ()


def _without(text: str, spans: Sequence[Span]) -> str:
    """Return the text without these parts of it."""
    kept: list[str] = []
    before = 0
    for start, end in spans:
        kept.append(text[before:start])
        before = end
    kept.append(text[before:])
    return "".join(kept)
