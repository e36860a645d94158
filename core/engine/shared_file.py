"""Files without a name, in memory, that engine processes inherit, one after the other.

Owns: making them, and their descriptors. Never does: read or write them. Called by: `EngineProcess`, which passes them on;
`EngineProcesses`, which keeps them for the next one.

Nothing of them is left once nobody has them open, however the processes end.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Self

STEPS_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Descriptors, the same numbers here and in the process.

    steps:   of `STEPS_NBYTES`, in which the engine tells of its steps (see `core.engine.breadcrumbs`).
    weights: of weights that outlive the engine; empty until some are kept.
    """

    steps: int
    weights: int

    @classmethod
    def new(cls) -> Self:
        """Files that nobody has. Raises OSError."""
        steps = anonymous_file("core-engine-steps", STEPS_NBYTES)
        try:
            return cls(steps, anonymous_file("core-engine-weights", 0))
        except OSError:
            os.close(steps)
            raise

    def again(self) -> Self:
        """The same files, to be closed on their own."""
        return type(self)(os.dup(self.steps), os.dup(self.weights))

    def close(self) -> None:
        """To be called once."""
        os.close(self.steps)
        os.close(self.weights)


def anonymous_file(name: str, nbytes: int) -> int:
    """The descriptor of a new file of `nbytes` zeros, which take memory when they are written; the caller closes it.

    name: what tools such as lsof show. Raises OSError.
    """
    descriptor = _create(name)
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _create(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
