"""The work of an engine's steps, from what they computed and the model's shapes.

Owns: `StepWork`. Never does: count steps (an observer does), or measure. Called by: the resolution (makes it), the server's
metrics (call it).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from core_config.token_work import TokenWork
from core_observers.work import SAMPLED, STEPS, TOKENS, Work, keys_of, pairs_of


class StepWork(msgspec.Struct, frozen=True):
    """The work of one model. token: that of one token. num_devices: devices that share it evenly.

    As `core bench card` counts: a number of a matrix is multiplied and added once for each token, in the head for each row
    that gets one; weights are read once a step, of experts those that a step of average size takes if choices are even.
    """

    token: TokenWork
    num_devices: int = 1

    def of(self, counts: Mapping[str, int]) -> Work:
        """Return the work of one device for counts of `core_observers.engine.work_counts`."""
        token, steps, tokens = self.token, counts[STEPS], counts[TOKENS]
        products = (token.blocks.numbers + token.experts.numbers) * tokens + token.head.numbers * counts[SAMPLED]
        read = (token.blocks.nbytes + token.head.nbytes + self._expert_bytes(steps, tokens)) * steps
        written = 0
        for layer in token.keys:
            width = layer.window or 0
            width = width if pairs_of(width) in counts else 0
            products += layer.numbers * counts[pairs_of(width)]
            read += layer.nbytes * counts[keys_of(width)]
            written += layer.nbytes * tokens
        return Work(2 * products / self.num_devices, read / self.num_devices, written / self.num_devices)

    def _expert_bytes(self, steps: int, tokens: int) -> float:
        """Return the bytes of experts that a step of average size reads."""
        token = self.token
        if not token.num_experts or not steps:
            return 0.0
        untouched: float = (1 - token.num_choices / token.num_experts) ** (tokens / steps)
        return token.one_expert.nbytes * token.num_experts * (1 - untouched)
