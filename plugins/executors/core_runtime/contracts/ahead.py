"""Contract of ahead-of-time compilation of kernels, before their first launch.

Owns: the types of its calls. Never does: import torch at run time.
Called by: providers of kernels (the capability `ahead` names a `BuildAhead` as MODULE:NAME), `core kernels build`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class CompiledAhead(NamedTuple):
    """The outcome for one kernel.

    name: name of the kernel and its configuration.
    chip: target, such as `sm_90`.
    seconds: compilation time.
    was_there: whether it had been compiled before.
    error: why it was not compiled; empty if it was.
    """

    name: str
    chip: str
    seconds: float
    was_there: bool
    error: str = ""


Say = Callable[[CompiledAhead, int, int], None]
"""Callback after each kernel, with its outcome, the number of finished kernels and their total."""


Run = Callable[[str], None]
"""Callback that builds a model for a chip, such as `sm_90`, and runs every kind of step. The chip need not be present:
tensors are on torch's device `meta`, without memory.
"""


class BuildAhead(Protocol):
    """Compiles a provider's kernels for some chips, to the place where launches look for them."""

    def __call__(self, chips: Sequence[str], jobs: int, say: Say, run: Run | None = None) -> list[CompiledAhead]:
        """Compile for chips, which are named like device profiles, in `jobs` processes.

        run: runs the steps whose kernels are compiled, once per chip; None: compile the kernels of most models.
        Raises UserError for a chip that cannot be compiled for.
        """
        ...
