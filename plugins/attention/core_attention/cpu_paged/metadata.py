"""A step's sequences in the form that native kernels read.

Owns: `Metadata`. Never does: build one (the backend does). Called by: the backend, latent layers.
"""

from __future__ import annotations

from typing import NamedTuple

from core_runtime.contracts import BatchView


class Metadata(NamedTuple):
    """One step's sequences, as pointers.

    view: the batch; it keeps the tensors alive.
    tables: arguments of the native attention call, in order.
    slots: address of the slot mapping.
    tails: address and depth of the tails, 0 without.
    sees_to: address of the last position that each row sees, 0 without.
    sources: address of the table of blocks in which states are read; 0 for attention. It has the stride of the block table.
    """

    view: BatchView
    tables: tuple[int, int, int, int, int]
    slots: int
    tails: tuple[int, int] = (0, 0)
    sources: int = 0
    sees_to: int = 0
