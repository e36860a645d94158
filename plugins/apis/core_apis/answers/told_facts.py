"""What choices carry besides text and tokens: the tokens that could have come, and the chosen experts.

Owns: their form in JSON, which is vLLM's. Never does: gather them (`core_frontend.told_facts` does). Called by: the writers
of choices.
"""

from __future__ import annotations

import base64
import io
from typing import Protocol

import numpy as np
from msgspec import UnsetType

from core_frontend.api.outputs import CompletionOutput


class TellsFacts(Protocol):
    """A choice, or a new part of one.

    sampling_mask:  for each token the ids that could have been drawn.
    routed_experts: base64 of a file of numpy (.npy), int16 [tokens, layers, top_k], once the choice has ended.
    """

    sampling_mask: list[list[int]] | UnsetType
    routed_experts: str | UnsetType


def add_facts(choice: TellsFacts, completion: CompletionOutput) -> None:
    """Put what the completion carries into the choice; see `CompletionOutput`."""
    if completion.sampling_mask is not None:
        choice.sampling_mask = completion.sampling_mask.token_ids
    if completion.routed_experts is None:
        return
    file = io.BytesIO()
    np.save(file, completion.routed_experts, allow_pickle=False)
    choice.routed_experts = base64.b64encode(file.getvalue()).decode("ascii")
