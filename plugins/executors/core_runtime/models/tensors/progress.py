"""The progress bar of weight loading.

Owns: its text and units. Never does: decide whether it is shown. Called by: the loading of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from core_runtime.specs.checkpoint import CheckpointManifest


def loading_bar(manifest: CheckpointManifest, reads: Iterable[str], *, shown: bool) -> tqdm[Any]:
    """Return a progress bar for the bytes of `reads`, with their rate. Update it by each tensor's `nbytes`.

    shown: whether it is shown in a terminal. It is never shown elsewhere: in a log every update would remain.
    """
    total = sum(manifest.tensors[name].nbytes for name in reads if name in manifest.tensors)
    return tqdm(
        total=total, desc="Loading weights", unit="B", unit_scale=True, disable=None if shown else True, leave=False
    )
