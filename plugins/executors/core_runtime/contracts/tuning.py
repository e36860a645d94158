"""What measures kernels on the device that is there, and says how to set them.

Owns: the types that are exchanged. Never does: import torch at run time.
Called by: providers of kernels (the capability `tune` names a `Tune` as MODULE:NAME), `core kernels tune`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core_runtime.contracts.ahead import Run

Tuned = Callable[[str], None]
"""Is told of each result, as soon as it is there."""


class Tune(Protocol):
    """Measures what a model calls."""

    def __call__(self, chip: str, run: Run, say: Tuned) -> str:
        """Text for the provider's own argument. chip: of this machine's first device. run: see `Run`."""
        ...
