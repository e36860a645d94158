"""Logits as the host sees them, wherever they lie.

Owns: which rows of a device's logits have been brought to the host. Never does: change them.
Called by: `core_runtime.sampling.sampler` and whatever it asks to look at logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_runtime.sampling.noise import Float32


class HostLogits:
    """Rows of logits as numpy arrays; those of a device are brought when somebody looks, each once.

    tensor: [R, V], of any type on any device, not modified while this is used.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        on_host = tensor.device.type == "cpu" and tensor.dtype is torch.float32
        self._whole: Float32 | None = tensor.numpy() if on_host else None
        self._brought: dict[int, Float32] = {}

    def __getitem__(self, row: int) -> Float32:
        """One row, float32 [V], not to be modified."""
        if self._whole is not None:
            return self._whole[row]  # type: ignore[no-any-return]
        self.bring([row])
        return self._brought[row]

    def bring(self, rows: Sequence[int]) -> None:
        """Somebody is about to look at these rows: one copy brings them all."""
        if self._whole is not None:
            return
        missing = [row for row in rows if row not in self._brought]
        if not missing:
            return
        chosen = self.tensor[torch.tensor(missing, device=self.tensor.device)]
        values = chosen.float().cpu().numpy()
        self._brought.update(zip(missing, values, strict=True))

    def some(self, row: int, token_ids: Sequence[int]) -> list[float]:
        """The logits of some tokens of a row; nothing else leaves the device."""
        ids = torch.tensor(token_ids, device=self.tensor.device)
        found: list[float] = self.tensor[row, ids].float().tolist()
        return found
