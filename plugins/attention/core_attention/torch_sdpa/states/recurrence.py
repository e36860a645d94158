"""A recurrence over the tokens of a step's sequences, and the state that it starts from and leaves.

Owns: what `core_runtime.models.state_ops` says of all its ops: the order of tokens, and where window and recurrent state lie.
Never does: know a formula. Called by: the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import silu
from core_attention.torch_sdpa.states.step import Rounds, StateMetadata
from core_runtime.layers.states import StateStore

Token = Callable[..., Tensor]
"""(state [n, *shape], changed in place; rows [n, ...] of each input) → output rows [n, ...]: one token of n sequences."""


class Recurrence:
    """One layer's convolution and states.

    shape: of the recurrent state of one sequence.
    """

    def __init__(self, raw: Tensor, convolution: Convolution, shape: Sequence[int]) -> None:
        self.convolution = convolution
        self.shape = tuple(shape)
        size = torch.Size(shape).numel()
        self.states = StateStore(raw, (convolution.window_size + size,))

    def convolve(self, x: Tensor, states: Tensor, step: StateMetadata) -> Tensor:
        """silu(convolution of x [T, C]); the windows in states [B, S] move on."""
        window_size = self.convolution.window_size
        windows = states[:, :window_size]
        before = windows.view(len(states), self.convolution.past, self.convolution.channels)
        y, after = self.convolution(x, before, step)
        windows.copy_(after.flatten(1))
        return silu(y)

    def scan(self, token: Token, inputs: Sequence[Tensor], states: Tensor, step: StateMetadata) -> Tensor:
        """Output rows [T, ...] of inputs, each [T, ...]; the recurrent states in states [B, S] move on."""
        rounds = step.rounds
        recurrent = states[:, self.convolution.window_size :].view(len(states), *self.shape)
        if rounds.rows is None or rounds.sequences is None:
            return _scan(token, inputs, recurrent, rounds)
        ordered = recurrent[rounds.sequences]
        by_age = _scan(token, [x[rounds.rows] for x in inputs], ordered, rounds)
        recurrent[rounds.sequences] = ordered
        out = torch.empty_like(by_age)
        out[rounds.rows] = by_age
        return out


def _scan(token: Token, inputs: Sequence[Tensor], state: Tensor, rounds: Rounds) -> Tensor:
    """The same, with rows and sequences in the order of the rounds."""
    outputs = []
    end = 0
    for size in rounds.sizes:
        begin = end
        end = begin + size
        rows = [x[begin:end] for x in inputs]
        outputs.append(token(state[:size], *rows))
    return torch.cat(outputs)
