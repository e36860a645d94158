"""What the worker tells of answers besides their tokens: the tokens that could have come, and the chosen experts.

Owns: the experts of a sequence's tokens until it samples. Never does: sample, or choose experts.
Called by: the model runner, once a step, where the engine's outputs carry any of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.step_plan import Slot, StepResult
from core_runtime.executor.steps.batch import StepInput
from core_runtime.models.told_experts import ToldExperts
from core_tokens.answer_facts import AnswerFacts, ChosenExperts, encode_facts


class FactKeeper:
    """The facts of one runner's sequences. experts: choices of its model; None: they are not told."""

    def __init__(self, experts: ToldExperts | None) -> None:
        self._experts = experts
        self._waiting: dict[Slot, list[ChosenExperts]] = {}

    def forget(self, slots: Sequence[Slot]) -> None:
        """Drop what waits for sequences that left."""
        for slot in slots:
            self._waiting.pop(slot, None)

    def computed(self, step: StepInput) -> None:
        """Keep the experts of the step's tokens, drafts included: those of a rejected draft are told again by the step that
        computes the position once more.
        """
        if self._experts is None:
            return
        ids = self._experts.read(step.num_tokens)
        bounds = step.cu_seqlens.tolist()
        for index, (slot, start) in enumerate(zip(step.slots.tolist(), step.num_computed.tolist(), strict=True)):
            part = ChosenExperts.of(start, ids[bounds[index] : bounds[index + 1]])
            self._waiting.setdefault(slot, []).append(part)

    def tell(self, step: StepInput, result: StepResult) -> None:
        """Add the facts of the sequences that sampled to the result."""
        supports, step.supports = step.supports, {}
        for slot in result.slots.tolist():
            rows = [ids.astype("int32").tobytes() for ids in supports.get(slot, ())]
            result.facts[slot] = encode_facts(AnswerFacts(rows, self._waiting.pop(slot, [])))
