"""Host view of logits on any device.

Owns: which rows of a device's logits were copied to the host. Never does: change them.
Called by: `core_runtime.sampling.sampler` and the modules to which it passes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_runtime.sampling.noise import Float32


class HostLogits:
    """Rows of logits as numpy arrays. A device's rows are copied on first use, each once.

    tensor: [R, V], of any type on any device; must not change while this object is used.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        on_host = tensor.device.type == "cpu" and tensor.dtype is torch.float32
        self._whole: Float32 | None = tensor.numpy() if on_host else None
        self._brought: dict[int, Float32] = {}

    def __getitem__(self, row: int) -> Float32:
        """Return one row, float32 [V]; read-only by convention."""
        if self._whole is not None:
            return self._whole[row]  # type: ignore[no-any-return]
        self.bring([row])
        return self._brought[row]

    def bring(self, rows: Sequence[int]) -> None:
        """Copy these rows to the host in one transfer, because they will be read."""
        if self._whole is not None:
            return
        missing = [row for row in rows if row not in self._brought]
        if not missing:
            return
        chosen = self.tensor[torch.tensor(missing, device=self.tensor.device)]
        values = chosen.float().cpu().numpy()
        self._brought.update(zip(missing, values, strict=True))

    def some(self, row: int, token_ids: Sequence[int]) -> list[float]:
        """Return the logits of some tokens of a row; nothing else leaves the device."""
        ids = torch.tensor(token_ids, device=self.tensor.device)
        found: list[float] = self.tensor[row, ids].float().tolist()
        return found
