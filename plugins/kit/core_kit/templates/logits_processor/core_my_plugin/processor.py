"""The processor. A request asks for it with `extra_args={"parity": "even"}` or `"odd"`; others never come here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core_runtime.contracts import BatchChanges, LogitsRow

ARGUMENT = "parity"
FIRST = {"even": 0, "odd": 1}
"""The first token that may come."""


class Processor:
    """Implements `core_runtime.contracts.LogitsProcessor`."""

    is_argmax_invariant = False

    def validate_params(self, params: SamplingParams) -> None:
        """The argument is one of two words."""
        wanted = self._argument(params)
        if wanted is not None and wanted not in FIRST:
            raise ValueError(f"{ARGUMENT} is {wanted!r}; expected even or odd.")

    def wants(self, params: SamplingParams) -> bool:
        """Requests with the argument."""
        return self._argument(params) is not None

    def update(self, changes: BatchChanges) -> None:
        """Nothing is kept of sequences."""

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """Only every other token is left."""
        changed = torch.full_like(logits, -torch.inf)
        for index, row in enumerate(rows):
            first = FIRST[str(self._argument(row.params))]
            changed[index, first::2] = logits[index, first::2]
        return changed

    def example_params(self) -> SamplingParams:
        """For `core plugins check`."""
        return SamplingParams(extra_args={ARGUMENT: "odd"})

    def _argument(self, params: SamplingParams) -> str | None:
        return (params.extra_args or {}).get(ARGUMENT)
