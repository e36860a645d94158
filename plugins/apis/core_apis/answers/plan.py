"""The answer plan for the body of a chat request.

Owns: how such a body and the server's arguments determine the plan. Never does: parse, or compile (`core_formats`
does). Called by: preparation.
"""

from __future__ import annotations

from core.api.errors import RequestError
from core_apis.protocol.chat import ChatRequest
from core_formats.answers.plan import AnswerPlan, check_calls, resumes_reasoning
from core_formats.selection import AnswerFormat
from core_formats.tool_use import ToolUse


def answer_plan(body: ChatRequest, use: ToolUse, served: AnswerFormat | None, *, auto: bool) -> AnswerPlan:
    """Build the answer plan for a checked body. Raises RequestError.

    served: the format in which the model writes, if it is known.
    auto: whether the model may decide to call tools.
    """
    check_calls(use, served)
    _check_choice(use, auto=auto)
    reasoning = None if served is None else served.row.reasoning
    limit = body.reasoning_limit
    if limit is not None and reasoning is None:
        raise RequestError(
            "A limit of reasoning needs to know how the model reasons; start the server with --reasoning-parser, or leave "
            "the limit out.",
            param=body.reasoning_limit_name,
        )
    resumed: bool | None = None
    if body.continue_final_message:
        last = (body.messages or [{}])[-1]
        resumed = resumes_reasoning(last)
    # If there are no calls to parse, special tokens that the client wants to see stay in the text.
    as_it_is = body.skip_special_tokens is False and not use.callable
    parses = served is not None and not as_it_is and bool(use.callable or reasoning or served.row.dropped)
    return AnswerPlan(served if parses else None, use, limit, resumed)


def _check_choice(use: ToolUse, *, auto: bool) -> None:
    if use.callable and use.choice == "auto" and not auto:
        raise RequestError(
            "The server was started with --no-enable-auto-tool-choice, so the model may not decide on calls; set tool_choice "
            "to 'required', a tool or 'none'.",
            param="tool_choice",
        )
