"""The experts that the routers of a step choose, kept for the answers.

Owns: a buffer of ids for each block with a router, instead of one that all blocks use in turn. Never does: choose experts.
Called by: the construction of a runner (it makes one a model), and the executor, after each step.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from core_runtime.models.decoder import Decoder
from core_runtime.models.experts_beside import ExpertsBeside
from core_runtime.models.mlp import ExpertsMLP


class ToldExperts:
    """The choices of one model. Routers write there themselves, so that a recorded step needs no copies."""

    def __init__(self, model: Decoder, max_tokens: int) -> None:
        blocks = model.weights.blocks
        workspace = model.workspace
        self._workspace = workspace
        self._names: dict[int, str] = {}
        top_k = 0
        for index, block in enumerate(blocks):
            mlp = block.mlp.experts if isinstance(block.mlp, ExpertsBeside) else block.mlp
            if not isinstance(mlp, ExpertsMLP):
                continue
            name = f"expert_ids of block {index}"
            if mlp.told is None:  # a model keeps its buffers when another runner is built for it
                workspace.reserve(name, max_tokens, mlp.routing.top_k, torch.int64)
                mlp.told = workspace.cached(name, partial(workspace.view, name))
            self._names[index] = name
            top_k = max(top_k, mlp.routing.top_k)
        self._shape = len(blocks), top_k

    def read(self, num_tokens: int) -> NDArray[np.int16]:
        """Return the choices of the latest step's tokens, int16 [tokens, blocks, top_k]; -1 in blocks without a router."""
        found = np.full((num_tokens, *self._shape), -1, np.int16)
        for index, name in self._names.items():
            ids = self._workspace.view(name, num_tokens).cpu().numpy()
            found[:, index, : ids.shape[1]] = ids
        return found
