"""The executor. It holds the sequences of the batch and gives each its next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.api.config import EngineConfig
from core.api.messages import EngineRequest
from core.api.step_plan import StepPlan, StepResult

NUM_BLOCKS = 1024


@dataclass
class Sequence:
    """A sequence of the batch: the tokens it has, and how many of them are computed."""

    request: EngineRequest
    token_ids: list[int]
    num_computed: int

    def next_token(self) -> int:
        """The token of the prompt that lies one prompt length back."""
        return self.token_ids[-len(self.request.prompt_token_ids)]


class Executor:
    """Implements `core.engine.executor.Executor`."""

    numerics = "my_plugin"
    page_bytes = 64

    def __init__(self, config: EngineConfig) -> None:
        self.num_blocks = config.cache.num_blocks or NUM_BLOCKS
        self.phases = [("weights", 0.0)]
        self._sequences: dict[int, Sequence] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the changes of the batch, then compute; a sequence whose tokens are all computed gets one more."""
        for slot in plan.removed:
            self._sequences.pop(slot, None)
        for new in plan.new:
            known = new.request.prompt_token_ids + new.output_token_ids
            self._sequences[new.slot] = Sequence(new.request, known, new.num_computed_tokens)
        result = StepResult()
        sampled: dict[int, int] = {}
        for slot, count in zip(plan.slots.tolist(), plan.query_lens.tolist(), strict=True):
            sequence = self._sequences[slot]
            problem = unserved(sequence.request)
            if problem:
                result.errors[slot] = problem
                continue
            sequence.num_computed += count
            if sequence.num_computed == len(sequence.token_ids):
                sampled[slot] = sequence.next_token()
                sequence.token_ids.append(sampled[slot])
        result.slots = np.array(list(sampled), np.int32)
        result.token_ids = np.array(list(sampled.values()), np.int32)
        return result

    def close(self) -> None:
        """Give nothing back: there is no device."""


class Maker:
    """Implements `core.engine.executor.ExecutorMaker`."""

    def build(self, config: EngineConfig) -> Executor:
        """An executor for this configuration."""
        return Executor(config)


def unserved(request: EngineRequest) -> str:
    """A sentence about a part of the request that this executor does not compute; empty when there is none."""
    params = request.params
    if request.grammar is not None:
        return "The executor my_plugin serves no structured outputs."
    if params.logprobs is not None or params.prompt_logprobs is not None:
        return "The executor my_plugin gives no log-probabilities."
    if request.pooling is not None:
        return "The executor my_plugin pools no hidden states."
    return ""
