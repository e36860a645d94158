"""Anonymous files in memory that successive engine processes inherit.

Owns: creating them, and their descriptors. Never does: read or write them. Called by: `EngineProcess`, which passes them on;
`EngineProcesses`, which keeps them for the next engine.

The system frees them once no process has them open, however the processes end.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Self

from core_supervision.link.anonymous_file import anonymous_file

STEPS_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Descriptors of the files, with the same numbers in the owner and in the engine process.

    steps:   file of `STEPS_NBYTES` in which the engine records its steps (see `core_supervision.watch.breadcrumbs`).
    weights: weights that outlive the engine; empty until some are kept.
    kv:      cached KV blocks that outlive the engine; empty until some are kept.
    lasting: flags that the next engine must know (see `core_supervision.persistent_flags`).
    tensors: tensors that came from memory and so cannot be read again.
    """

    steps: int
    weights: int
    kv: int
    lasting: int
    tensors: int

    @classmethod
    def new(cls) -> Self:
        """Create new files. Raises OSError."""
        sizes = {"steps": STEPS_NBYTES, "weights": 0, "kv": 0, "lasting": 0, "tensors": 0}
        with ExitStack() as undo:
            made: dict[str, int] = {}
            for name, nbytes in sizes.items():
                made[name] = anonymous_file(f"core-engine-{name}", nbytes)
                # Should a later file fail, those made so far are closed; `pop_all` below keeps them otherwise.
                undo.callback(os.close, made[name])
            undo.pop_all()
        return cls(**made)

    @property
    def all(self) -> tuple[int, ...]:
        """All descriptors, to be passed on to a process."""
        return astuple(self)

    def again(self) -> Self:
        """Return duplicates of the descriptors, to be closed separately."""
        return type(self)(*map(os.dup, self.all))

    def close(self) -> None:
        """Close the descriptors; to be called once."""
        for descriptor in self.all:
            os.close(descriptor)
