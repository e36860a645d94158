"""Whether an answer begins inside reasoning.

Owns: the decision. Never does: read the answer. Called by: the parser, the constraint.
"""

from __future__ import annotations

from core_formats.answers.reader import SPACE
from core_formats.response_format import ResponseFormat


def begins_inside(row: ResponseFormat, prompt_tail: str) -> bool:
    """Whether the answer begins inside reasoning, given the end of its prompt."""
    if row.reasoning is None:
        return False
    tail = prompt_tail.rstrip(SPACE)
    if tail.endswith(tuple(text.strip() for text in row.reasoning.open)):
        return True
    if tail.endswith(tuple(text.strip() for text in row.reasoning.close)):
        return False
    return row.reasoning.implied_open
