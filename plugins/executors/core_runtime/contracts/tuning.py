"""Contract of kernel tuning: measuring kernels on the present device to set their parameters.

Owns: the types of its calls. Never does: import torch at run time.
Called by: providers of kernels (the capability `tune` names a `Tune` as MODULE:NAME), `core kernels tune`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core_runtime.contracts.ahead import Run

Tuned = Callable[[str], None]
"""Callback for each result, as soon as it is known."""


class Tune(Protocol):
    """Measures the kernels that a model calls."""

    def __call__(self, chip: str, run: Run, say: Tuned) -> str:
        """Return the value for the provider's own argument. chip: chip of this machine's first device. run: see `Run`."""
        ...
