"""Names of a model's blocks in profiles.

Owns: the ranges, which torch's profiler records, and NVTX on CUDA. Never does: record. Called by: the decoder, around each
block of a step that runs by the layers' own code.
"""

from __future__ import annotations

from typing import Any, Final

from torch.autograd.profiler import record_function

BLOCK: Final = "block "
"""Beginning of the name of a range; the number of the block in the whole model follows."""


class LayerRanges:
    """The ranges of one model. nvtx: torch's module of that name, where a tool reads such ranges; None elsewhere."""

    def __init__(self, nvtx: Any = None) -> None:
        self._nvtx = nvtx
        self._open: record_function | None = None

    def begin(self, block: int) -> None:
        """Begin the range of a block. The one before it ends, also where its step has failed in it."""
        self.end()
        name = f"{BLOCK}{block}"
        if self._nvtx is not None:
            self._nvtx.range_push(name)
        self._open = record_function(name)
        self._open.__enter__()

    def end(self) -> None:
        """End the range that was begun last, if it has not ended."""
        if self._open is None:
            return
        self._open.__exit__(None, None, None)
        self._open = None
        if self._nvtx is not None:
            self._nvtx.range_pop()
