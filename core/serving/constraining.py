"""The sampling parameters of an answer that is held to its tools, or to a limit of reasoning.

Owns: the one place where a response format's constraint becomes structured output. Never does: compile.
Called by: `core.serving.answer_plan`.
"""

from __future__ import annotations

from core.api.sampling_params import SamplingParams
from core.formats.response_format import ResponseFormat
from core.serving.tools import ToolUse


def constrained(
    params: SamplingParams, row: ResponseFormat, use: ToolUse, limit: int | None, prompt_tail: str
) -> SamplingParams:
    """`params` with the constraint. Raises RequestError where the format has none for what is asked."""
    raise NotImplementedError
