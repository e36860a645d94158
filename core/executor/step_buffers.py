"""The inputs of a step, at addresses that never change, so that a recorded forward pass finds them again.

Owns: one buffer for each flat array of a step. Never does: decide what is in them (the persistent batch fills them).
Called by: the persistent batch (writes), the forward pass (reads).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class StepBuffer:
    """One array on the host and, for another device, its copy there.

    array: numpy view of the host memory. tensor: on the device; on the CPU the same memory.
    """

    __slots__ = ("_host", "array", "tensor")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.array: np.ndarray = self._host.numpy()
        self.tensor = self._host if device.type == "cpu" else torch.zeros(shape, dtype=dtype, device=device)

    def upload(self, rows: int) -> Tensor:
        """The first `rows` rows, as the host wrote them, on the device."""
        part = self.tensor[:rows]
        if self.tensor is not self._host:
            part.copy_(self._host[:rows], non_blocking=True)
        return part


class StepBuffers:
    """T tokens, B sequences, M blocks a sequence, R rows of logits.

    token_ids, positions, slot_mapping: int64 [T]. cu_seqlens_q: int32 [B + 1]. seq_lens: int32 [B].
    block_table: int32 [B, M]. logit_rows: int64 [R].
    """

    def __init__(
        self, max_num_tokens: int, max_num_seqs: int, max_blocks_per_seq: int, max_logits: int, device: torch.device
    ) -> None:
        self.token_ids = StepBuffer((max_num_tokens,), torch.int64, device)
        self.positions = StepBuffer((max_num_tokens,), torch.int64, device)
        self.slot_mapping = StepBuffer((max_num_tokens,), torch.int64, device)
        self.cu_seqlens_q = StepBuffer((max_num_seqs + 1,), torch.int32, device)
        self.seq_lens = StepBuffer((max_num_seqs,), torch.int32, device)
        self.block_table = StepBuffer((max_num_seqs, max_blocks_per_seq), torch.int32, device)
        self.logit_rows = StepBuffer((max_logits,), torch.int64, device)
