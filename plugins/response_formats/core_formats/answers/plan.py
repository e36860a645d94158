"""The plan of an answer: the format that parses it, and its constraints (tools, a limit of reasoning).

Owns: `AnswerPlan`, and the rejection of tools that the model or its template does not support. Never does: check the
definitions of tools (`core_formats.tool_use`), or compile. Called by: the server's preparation, `LLM.chat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_formats.constraining import constrained
from core_formats.selection import AnswerFormat
from core_formats.tool_use import ToolUse
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.message_forms import REASONING_NAMES


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The plan of the answer to one request.

    format: parses the answer; None: all of it is text.
    use: the request's tools.
    limit: maximum tokens of reasoning, or None.
    resumed: for an answer that continues the last message, whether it continues its reasoning; None: a new answer.
    """

    format: AnswerFormat | None
    use: ToolUse
    limit: int | None
    resumed: bool | None

    def resuming(self, last: Mapping[str, Any]) -> AnswerPlan:
        """Return the plan for an answer that continues this message."""
        return replace(self, resumed=resumes_reasoning(last))

    def tail(self, prompt: str) -> str:
        """Return the end of a prompt that the parser needs."""
        reasoning = None if self.format is None else self.format.row.reasoning
        if reasoning is None or self.resumed is None:
            return prompt
        return reasoning.open[0] if self.resumed else reasoning.close[0]

    def held(self, params: SamplingParams, prompt: str) -> SamplingParams:
        """Return the request's parameters with the plan's constraint. Raises RequestError where it is not possible."""
        asks = self.use.restricts or self.limit is not None or params.structured_outputs is not None
        if self.format is None or not asks:
            return params
        return constrained(params, self.format, self.use, self.limit, self.tail(prompt))


def resumes_reasoning(last: Mapping[str, Any]) -> bool:
    """Whether an answer that continues this message continues its reasoning."""
    return bool(message_reasoning(last)) and not last.get("content")


def message_reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a message, or an empty text."""
    return next((message[name] for name in REASONING_NAMES if message.get(name)), "")


def check_template(use: ToolUse, template: ChatTemplate, served: AnswerFormat | None) -> None:
    """Reject tools that the model would never see, neither through its template nor through a message describing them."""
    is_guided = served is not None and served.guide is not None
    if use.callable and not is_guided and "tools" not in template.variables(with_tools=True):
        raise RequestError(
            "The model's chat template does not show tools, so the model would not know of them; give another one with "
            "--chat-template, or set tool_choice to 'none'.",
            param="tools",
        )


def check_calls(use: ToolUse, served: AnswerFormat | None) -> None:
    """Reject tools whose calls could not be parsed from the answer."""
    if use.callable and (served is None or not served.row.calls):
        raise RequestError(
            "The form in which this model writes calls is not known; start the server with --tool-call-parser, or set "
            "tool_choice to 'none'.",
            param="tools",
        )
