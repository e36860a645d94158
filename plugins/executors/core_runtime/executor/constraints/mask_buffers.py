"""Buffers for the token masks of a step on a device with memory of its own.

Owns: their device memory, allocated with the first mask, and the one copy per step. Never does: decide what a mask
allows, or which rows have one. Called by: the sampler, through `DeviceRows`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.contracts import Uploads
from core_runtime.executor.steps.staging import Staging

INDEX_BYTES = 8
WORD_BYTES = 4


class MaskBuffers:
    """Masks of at most `num_rows` rows of `num_words` words. uploads: a runtime with asynchronous copies, or None."""

    def __init__(self, num_rows: int, num_words: int, device: torch.device, uploads: Uploads | None) -> None:
        self._num_rows = num_rows
        self._num_words = num_words
        self._device = device
        self._uploads = uploads
        self._made: tuple[Tensor, Tensor, Staging] | None = None

    def send(self, words: NDArray[np.int32], index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Copy the masks of a step to the device: words int32 [M, W] and index int64 [R], as a `MaskedRaceKernel` takes them.

        The returned tensors are valid until the next call.
        """
        host, there, staging = self._made or self._make()
        table = self._num_rows * INDEX_BYTES  # the index comes first, so that the used bytes lie side by side
        end = table + words.size * WORD_BYTES
        host.numpy()[: index.size * INDEX_BYTES].view(np.int64)[:] = index
        host.numpy()[table:end].view(np.int32)[:] = words.reshape(-1)
        staging.changed(0, end)
        staging.send()
        sent_index = there[: index.size * INDEX_BYTES].view(torch.int64)
        sent_words = there[table:end].view(torch.int32).view(words.shape)
        return sent_words, sent_index

    def _make(self) -> tuple[Tensor, Tensor, Staging]:
        nbytes = self._num_rows * (INDEX_BYTES + self._num_words * WORD_BYTES)
        host = torch.zeros(nbytes, dtype=torch.uint8)
        there = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        made = host, there, Staging(host, there, self._uploads)
        self._made = made
        return made
