"""The embeddings that prompts bring with them, for the rows of a step.

Owns: `GivenRows`, and which rows of a step they are. Never does: write them into a model (its embedding does).
Called by: the persistent batch keeps the embeddings of its sequences here, the model runner asks for those of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.api.messages import EngineRequest
from core.api.step_plan import Slot


@dataclass(frozen=True, slots=True)
class GivenRows:
    """rows: int64 [R], of the step's tokens. values: float32 [R, H], their embeddings; both on the host."""

    rows: Tensor
    values: Tensor


def embeddings_of(request: EngineRequest) -> Tensor:
    """float32 [prompt tokens, H]: a copy of what the request brings."""
    values = np.frombuffer(request.prompt_embeds, np.float32).copy()
    return torch.from_numpy(values).view(len(request.prompt_token_ids), -1)


def given_rows(
    embedded: Mapping[Slot, Tensor], slots: Sequence[int], starts: Sequence[int], num_computed: Sequence[int]
) -> GivenRows | None:
    """Those of a step; None where it computes no position of such a prompt.

    embedded: of each sequence that has some.
    slots: of the step's sequences. starts: where the tokens of each begin among those of the step, and where the last end.
    num_computed: of each sequence, the position of its first token in the step.
    """
    rows: list[Tensor] = []
    values: list[Tensor] = []
    for index, slot in enumerate(slots):
        embeddings = embedded.get(slot)
        if embeddings is None:
            continue
        position = num_computed[index]
        here = embeddings[position : position + starts[index + 1] - starts[index]]
        if len(here):
            rows.append(torch.arange(starts[index], starts[index] + len(here)))
            values.append(here)
    if not rows:
        return None
    return GivenRows(torch.cat(rows), torch.cat(values))
