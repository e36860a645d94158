"""Hidden states of the target for a draft: copies of the residual stream after chosen blocks.

Owns: the buffer `taps` and its columns. Never does: choose the blocks (a proposer does), or allocate during a step.
Called by: the decoder, after each chosen block of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.workspace import Workspace
from core_runtime.models.norm import Norm
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import BEHIND_NORM


class Taps:
    """The copies of a step's tokens: row i of the buffer `taps`, [T, taps x H], has those of token i side by side.

    norm: the model's final norm, for a tap after it.
    """

    def __init__(
        self, spec: DecoderSpec, kernels: KernelSet, workspace: Workspace, max_tokens: int, norm: Norm | None
    ) -> None:
        self._kernels = kernels
        self._norm = norm
        self._size = spec.hidden_size
        self._columns: dict[int, list[int]] = {}
        for number, block in enumerate(spec.taps):
            self._columns.setdefault(block, []).append(number)
        every_row = torch.arange(max_tokens, device=workspace.device)
        # a copy is `take_rows` of all rows: every device has a kernel for it that can be recorded
        self._views = workspace.cached("taps", lambda rows: (every_row[:rows], workspace.view("taps", rows)))

    def after_block(self, index: int, residual: Tensor) -> None:
        """Copy the residual stream [T, H] at the exit of block `index`, if a tap is there."""
        if index in self._columns:
            self._copy(index, residual)

    def after_blocks(self, residual: Tensor) -> None:
        """Copy the residual stream [T, H] after the final norm, if a tap is there."""
        if BEHIND_NORM not in self._columns:
            return
        if self._norm is None:
            self._copy(BEHIND_NORM, residual)
            return
        for place in self._places(BEHIND_NORM, len(residual)):
            self._norm(residual, place)

    def _copy(self, tap: int, residual: Tensor) -> None:
        every_row, _ = self._views(len(residual))
        for place in self._places(tap, len(residual)):
            self._kernels.take_rows(residual, every_row, place)

    def _places(self, tap: int, rows: int) -> list[Tensor]:
        """Return the destinations of a tap, [rows, H] each."""
        _, taps = self._views(rows)
        found = []
        for number in self._columns[tap]:
            first = number * self._size
            found.append(taps[:, first : first + self._size])
        return found
