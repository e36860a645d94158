"""Prompt embeddings for the rows of a step.

Owns: `InputEmbeddings`, and which rows of a step have given embeddings. Never does: write them into a model (its embedding
does). Called by: the persistent batch (keeps the embeddings of its sequences here), the model runner (requests those of a
step).
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
class InputEmbeddings:
    """Given embeddings of a step, on the host. rows: int64 [R], rows of the step. values: float32 [R, H]."""

    rows: Tensor
    values: Tensor


def embeddings_of(request: EngineRequest) -> Tensor:
    """Return a copy of the request's prompt embeddings, float32 [prompt tokens, H]."""
    values = np.frombuffer(request.prompt_embeds, np.float32).copy()
    return torch.from_numpy(values).view(len(request.prompt_token_ids), -1)


def input_embeddings(
    embedded: Mapping[Slot, Tensor], slots: Sequence[int], starts: Sequence[int], num_computed: Sequence[int]
) -> InputEmbeddings | None:
    """Return the given embeddings of a step; None if it computes no position of such a prompt.

    embedded: embeddings by slot, for sequences that have them.
    slots: slots of the step's sequences. starts: first row of each sequence in the step, and the end of the last one.
    num_computed: position of each sequence's first token in the step.
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
    return InputEmbeddings(torch.cat(rows), torch.cat(values))
