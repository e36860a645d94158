"""The executor contract: each sequence gets its prompt again, every token raised by a number."""

import numpy as np

from core.api.errors import UserError
from core.api.step_plan import StepResult


class Maker:
    """Builds executors."""

    def __init__(self, shift):
        self.shift = shift

    def build(self, config):
        """An executor for this configuration."""
        if config.model.pooling is not None:
            raise UserError("--executor parrot: it pools no hidden states; choose another executor.")
        return Parrot(config, self.shift)


class Parrot:
    """Holds the batch."""

    numerics = "parrot"
    page_bytes = 64

    def __init__(self, config, shift):
        self.num_blocks = config.cache.num_blocks or 1024
        self.phases = [("hatch", 0.0)]
        self.shift = shift
        self.vocab_size = config.model.vocab_size
        self.batch = {}

    def execute(self, plan):
        """One step."""
        for slot in plan.removed:
            self.batch.pop(slot, None)
        for new in plan.new:
            known = new.request.prompt_token_ids + new.output_token_ids
            self.batch[new.slot] = [new.request, known, new.num_computed_tokens]
        result, sampled = StepResult(), {}
        for slot, count in zip(plan.slots.tolist(), plan.query_lens.tolist(), strict=True):
            request, known, computed = self.batch[slot]
            if request.grammar is not None or request.params.logprobs is not None:
                result.errors[slot] = "The executor parrot has neither grammars nor log-probabilities."
                continue
            self.batch[slot][2] = computed = computed + count
            if computed == len(known):
                prompt = request.prompt_token_ids
                place = (len(known) - len(prompt)) % len(prompt)
                sampled[slot] = (prompt[place] + self.shift) % self.vocab_size
                known.append(sampled[slot])
        result.slots = np.array(list(sampled), np.int32)
        result.token_ids = np.array(list(sampled.values()), np.int32)
        return result

    def close(self):
        """Nothing to give back."""
