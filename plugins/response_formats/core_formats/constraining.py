"""Sampling parameters that constrain an answer to its tools, to a form after reasoning, or to a limit of reasoning.

Owns: the one place where a response format's constraint becomes structured output. Never does: compile.
Called by: `core_formats.answers.plan`.
"""

from __future__ import annotations

import logging
import sys
from functools import lru_cache

import msgspec

from core.api.config import StructuredOutputsConfig
from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core_formats.calls.arguments_grammar import holds_input
from core_formats.constraint import constraint
from core_formats.selection import AnswerFormat
from core_formats.tool_use import ToolUse
from core_grammars.spec import KINDS, grammar_spec

logger = logging.getLogger(__name__)

ANY_SIZE = StructuredOutputsConfig(max_grammar_size=sys.maxsize)
"""No size limit here: the whole grammar is checked, with the server's settings, when it is compiled."""


def constrained(
    params: SamplingParams, served: AnswerFormat, use: ToolUse, max_reasoning: int | None, prompt_tail: str
) -> SamplingParams:
    """Return `params` with the constraint on the whole answer: markers, reasoning, calls, and the form that `params`
    request.

    max_reasoning: tokens, or None.
    prompt_tail: the end of the prompt. Raises RequestError where the format cannot be constrained that way.
    """
    for tool in use.callable:
        if not holds_input(served.row.calls[0], tool):
            _note_free_input(tool.name)
    asked = params.structured_outputs
    thinks = asked is None or not served.form_in_reasoning
    if max_reasoning is not None and not thinks:
        raise RequestError(
            "The form of the answer holds from its first token on this server (enable_in_reasoning), so that there is no "
            "reasoning to limit; leave the limit out.",
            param="max_thinking_tokens",
        )
    spec = constraint(
        served.row,
        use.callable,
        use.choice if use.callable else "auto",
        use.parallel,
        reasoning=thinks,
        answer=None if asked is None else grammar_spec(asked, ANY_SIZE),
        prompt_tail=prompt_tail,
        max_reasoning=max_reasoning,
        limited=use.limited,
        special_tokens=served.special_tokens,
        stops=served.stops,
    )
    if spec is None:
        return params
    # Other grammar settings of the request, such as backend and white space, apply to the whole.
    nothing = dict.fromkeys(KINDS)
    held = msgspec.structs.replace(asked or StructuredOutputsParams(), **{**nothing, "structural_tag": spec.text})
    return msgspec.structs.replace(params, structured_outputs=held)


@lru_cache(maxsize=64)
def _note_free_input(name: str) -> None:
    """Log once per tool that its input is not constrained to its grammar."""
    logger.warning(
        "The input of the custom tool %r is not held to its Lark grammar, which says more than is understood here, or the "
        "model does not write strings as JSON does.",
        name,
    )
