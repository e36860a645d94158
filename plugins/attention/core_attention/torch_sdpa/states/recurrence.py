"""A recurrence over the tokens of a step's sequences, with its initial and final states.

Owns: the parts common to all ops of `core_runtime.models.state_ops`: the order of tokens, and the location of window
and recurrent state.
Never does: know a formula. Called by: the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core_attention.torch_sdpa.states.chance import rounded_by_chance
from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import silu
from core_attention.torch_sdpa.states.step import Rounds, StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates, as_stored

Token = Callable[..., Tensor]
"""One token of n sequences: (state [n, *shape], changed in place; rows [n, ...] of each input) → output rows [n, ...].
"""


class Recurrence:
    """One layer's convolution and states.

    convolution: None: the op has none.
    shape: of one sequence's recurrent state.
    """

    def __init__(self, states: StoredStates, convolution: Convolution | None, shape: Sequence[int]) -> None:
        self.convolution = convolution
        self.window_size = 0
        if convolution is not None:
            convolution.dtype = states.window
            self.window_size = convolution.window_size
        self.shape = tuple(shape)
        self.states = states

    def convolve(self, x: Tensor, states: Tensor, step: StateMetadata) -> Tensor:
        """Return silu(convolution of x [T, C]) and advance the windows in states [B, S]."""
        assert self.convolution is not None, "the op has no convolution"
        windows = states[:, : self.window_size]
        before = windows.view(len(states), self.convolution.past, self.convolution.channels)
        y, after = self.convolution(x, before, step)
        windows.copy_(after.flatten(1))
        return silu(y)

    def scan(self, token: Token, inputs: Sequence[Tensor], states: Tensor, step: StateMetadata) -> Tensor:
        """Return output rows [T, ...] of inputs, each [T, ...], and advance the recurrent states in states [B, S]."""
        rounds = step.rounds
        recurrent = states[:, self.window_size :].view(len(states), *self.shape)
        positions = step.view.positions
        if rounds.rows is None or rounds.sequences is None:
            return self._scan(token, inputs, recurrent, rounds, positions)
        ordered = recurrent[rounds.sequences]
        by_age = self._scan(token, [x[rounds.rows] for x in inputs], ordered, rounds, positions[rounds.rows])
        recurrent[rounds.sequences] = ordered
        out = torch.empty_like(by_age)
        out[rounds.rows] = by_age
        return out

    def _scan(self, token: Token, inputs: Sequence[Tensor], state: Tensor, rounds: Rounds, positions: Tensor) -> Tensor:
        """Scan rows and sequences in the order of the rounds. positions: of the rows, int64 [T]."""
        outputs = []
        end = 0
        for size in rounds.sizes:
            begin = end
            end = begin + size
            rows = [x[begin:end] for x in inputs]
            outputs.append(token(state[:size], *rows))
            if self.states.by_chance:
                state[:size] = rounded_by_chance(state[:size], self.states.rest, positions[begin:end])
            elif self.states.rest is not torch.float32:
                state[:size] = as_stored(state[:size], self.states.rest)
        return torch.cat(outputs)
