"""Files without a name, in memory, that engine processes inherit, one after the other.

Owns: making them, and their descriptors. Never does: read or write them. Called by: `EngineProcess`, which passes them on;
`EngineProcesses`, which keeps them for the next one.

Nothing of them is left once nobody has them open, however the processes end.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Self

from core.anonymous_file import anonymous_file

STEPS_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Descriptors, the same numbers here and in the process.

    steps:   of `STEPS_NBYTES`, in which the engine tells of its steps (see `core_supervision.breadcrumbs`).
    weights: of weights that outlive the engine; empty until some are kept.
    lasting: in which the engine notes what the next one has to know (see `core_supervision.lasting`).
    tensors: that came from memory, so that nobody could read them again.
    """

    steps: int
    weights: int
    lasting: int
    tensors: int

    @classmethod
    def new(cls) -> Self:
        """Files that nobody has. Raises OSError."""
        sizes = {"steps": STEPS_NBYTES, "weights": 0, "lasting": 0, "tensors": 0}
        with ExitStack() as undo:
            made: dict[str, int] = {}
            for name, nbytes in sizes.items():
                made[name] = anonymous_file(f"core-engine-{name}", nbytes)
                undo.callback(os.close, made[name])
            undo.pop_all()
        return cls(**made)

    @property
    def all(self) -> tuple[int, ...]:
        """All descriptors."""
        return astuple(self)

    def again(self) -> Self:
        """The same files, to be closed on their own."""
        return type(self)(*map(os.dup, self.all))

    def close(self) -> None:
        """To be called once."""
        for descriptor in self.all:
            os.close(descriptor)
