"""From the outputs of one choice to the events of its answer.

Owns: `AnswerParser`. Never does: write an API's bodies. Called by: the writers.
"""

from __future__ import annotations

from core.api.answer_events import AnswerEvent, TextDelta
from core.api.outputs import CompletionOutput
from core.serving.preparation import PreparedChat


class AnswerParser:
    """One for each choice of an answer; it is given all outputs of that choice, deltas or one whole, in their order.

    reasoning_tokens: of all tokens so far, those of reasoning.
    """

    def __init__(self, prepared: PreparedChat) -> None:
        self.prepared = prepared
        self.reasoning_tokens = 0

    def push(self, completion: CompletionOutput) -> list[AnswerEvent]:
        """The events that new text completes; all that are left when the choice has ended."""
        return [TextDelta(completion.text)] if completion.text else []
