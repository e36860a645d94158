"""Contract of ahead-of-time compilation of kernels, before their first launch.

Owns: the types of its calls. Never does: import torch at run time.
Called by: providers of kernels (the capability `ahead` names a `BuildAhead` as MODULE:NAME), `core kernels build`, the
start of an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


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


class WarmUp(Protocol):
    """The compilation of one engine's kernels, under way in other processes."""

    def finish(self) -> None:
        """Wait for it, and load the kernels into this process. Raises UserError for a kernel that cannot be compiled."""
        ...

    def stop(self) -> None:
        """End it, whether or not it is finished."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """A provider of kernels that are compiled, which it does before an engine is ready.

    Providers without this part have nothing to compile.

    late: kernels that were compiled in front of a launch since a warm-up was finished; a launch waited for each.
    """

    @property
    def late(self) -> int:
        """The number of these kernels."""
        ...

    def warm_up(self, run: str, config: str) -> WarmUp | None:
        """Begin to compile what `run` launches on the present device; returns at once. None: there is nothing to do.

        run: MODULE:NAME of a function of (config, chip), which is a `Run` with its first argument given.
        config: text of the engine's configuration; equal ones have equal launches.
        """
        ...
