"""What the answer to a chat request is parsed by, and held to: its format, its tools, a limit of reasoning.

Owns: `AnswerPlan`, and the refusal of tools that the model or its template does not know. Never does: check the definitions of
tools (`core.serving.tools`), parse, or compile. Called by: preparation.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core.formats.selection import AnswerFormat
from core.serving.constraining import constrained
from core.serving.protocol.chat import ChatRequest
from core.serving.protocol.messages import message_reasoning
from core.serving.tools import ToolUse
from core.tokens.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """For one request.

    format: by which the answer is parsed; None: all of it is text.
    use:    the request's tools.
    limit:  most tokens of reasoning, or None.
    resumed: for an answer that goes on from the last message, whether it goes on with reasoning; None: a new answer.
    """

    format: AnswerFormat | None
    use: ToolUse
    limit: int | None
    resumed: bool | None

    @classmethod
    def of(cls, body: ChatRequest, use: ToolUse, served: AnswerFormat | None, *, auto: bool) -> AnswerPlan:
        """For a checked body. Raises RequestError.

        served: how the model writes, if that is known.
        auto: whether the model may decide on calls.
        """
        if use.callable:
            _check_served(use, served, auto=auto)
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
            resumed = bool(message_reasoning(last)) and not last.get("content")
        # Without calls to find, special tokens that the client wants to see are left in the text.
        as_it_is = body.skip_special_tokens is False and not use.callable
        parses = served is not None and not as_it_is and bool(use.callable or reasoning or served.row.dropped)
        return cls(served if parses else None, use, limit, resumed)

    def tail(self, prompt: str) -> str:
        """The end of a prompt, as the parser needs it."""
        reasoning = None if self.format is None else self.format.row.reasoning
        if reasoning is None or self.resumed is None:
            return prompt
        return reasoning.open[0] if self.resumed else reasoning.close[0]

    def held(self, params: SamplingParams, prompt: str) -> SamplingParams:
        """The parameters of a request whose answer keeps to this plan. Raises RequestError where that cannot be had."""
        asks = self.use.restricts or self.limit is not None or params.structured_outputs is not None
        if self.format is None or not asks:
            return params
        return constrained(params, self.format, self.use, self.limit, self.tail(prompt))


def check_template(use: ToolUse, template: ChatTemplate) -> None:
    """Refuse tools that the model would never see."""
    if use.callable and "tools" not in template.variables(with_tools=True):
        raise RequestError(
            "The model's chat template does not show tools, so the model would not know of them; give another one with "
            "--chat-template, or set tool_choice to 'none'.",
            param="tools",
        )


def _check_served(use: ToolUse, served: AnswerFormat | None, *, auto: bool) -> None:
    if served is None or not served.row.calls:
        raise RequestError(
            "The form in which this model writes calls is not known; start the server with --tool-call-parser, or set "
            "tool_choice to 'none'.",
            param="tools",
        )
    if use.choice == "auto" and not auto:
        raise RequestError(
            "The server was started with --no-enable-auto-tool-choice, so the model may not decide on calls; set tool_choice "
            "to 'required', a tool or 'none'.",
            param="tool_choice",
        )
