"""What compiles kernels ahead of their first launch.

Owns: the types that are exchanged. Never does: import torch at run time.
Called by: providers of kernels (the capability `ahead` names a `BuildAhead` as MODULE:NAME), `core kernels build`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class CompiledAhead(NamedTuple):
    """What became of one kernel.

    name: of the kernel and its configuration.
    chip: for which, such as `sm_90`.
    seconds: that it took.
    was_there: whether it had been compiled before.
    error: why it was not compiled; empty otherwise.
    """

    name: str
    chip: str
    seconds: float
    was_there: bool
    error: str = ""


Say = Callable[[CompiledAhead, int, int], None]
"""Is told of each kernel: what became of it, how many are done, how many there are."""


Run = Callable[[str], None]
"""Builds a model for a chip, such as `sm_90`, and runs every kind of step. The chip need not be there: tensors are those of
torch's device `meta`, which have no memory."""


class BuildAhead(Protocol):
    """Compiles kernels of a provider for some chips, to where launches find them."""

    def __call__(self, chips: Sequence[str], jobs: int, say: Say, run: Run | None = None) -> list[CompiledAhead]:
        """Compile for chips that are named as a device's profile is, with as many processes.

        run: compile what it calls, once a chip; None: what most models call.
        Raises UserError for a chip that cannot be compiled for.
        """
        ...
