"""Prepared kernels in an unnamed file, from which a sleeping engine restores them without packing.

Owns: `SpilledWeights`: the kernels in use, and the file. Never does: prepare a weight, or decide when to sleep.
Called by: the worker (records kernels), the reloader (writes, finds).

The file lies in the directory for temporary files (TMPDIR), and disappears with the process, even after a crash.
"""

from __future__ import annotations

import tempfile
from collections.abc import Set
from pathlib import Path
from typing import BinaryIO

from core.api.config import EngineConfig
from core_runtime.contracts import SavedKernel
from core_runtime.executor.reloading.checkpoint import made_for
from core_runtime.executor.reloading.prepared_writer import NotedKernel, written_kernels
from core_runtime.models.tensors.prepared import PreparedIndex, PreparedWeights
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource


class SpilledWeights:
    """The prepared kernels of one set of weights, and their file. The worker owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self._made_for = made_for(config)
        self._manifest = CheckpointManifest(
            ref=config.model.model, format="", files=[], tensors={}, config={}, tokenizer=TokenizerSource()
        )
        self._kernels: list[NotedKernel] = []
        self._file: BinaryIO | None = None
        self._index: PreparedIndex | None = None

    def note(self, name: str, reads: set[str], layout: str, saved: SavedKernel) -> None:
        """Record a kernel that was made; see `Recorder`."""
        self._kernels.append((name, reads, layout, saved))

    def take_over(self, before: SpilledWeights, names: Set[str]) -> None:
        """Take over the records of layers that kept their kernels. before: records of the old weights."""
        self._kernels += [noted for noted in before._kernels if noted[0] in names]

    def write(self) -> None:
        """Write all kernels, unless they are written already or there are none. Raises OSError; nothing is written then."""
        if self._file is not None or not self._kernels:
            return
        file = tempfile.TemporaryFile(prefix="core-sleep-")  # noqa: SIM115
        try:
            self._index = written_kernels(file, self._kernels, self._made_for, self._manifest)
            file.flush()
        except BaseException:
            file.close()
            raise
        # Set last: a file that is not complete is never found.
        self._file = file

    def forget_kernels(self) -> None:
        """Drop the records, so that the kernels can be freed; the file stays."""
        self._kernels.clear()

    def find(self) -> PreparedWeights | None:
        """Return the written kernels; None if there are none."""
        if self._file is None or self._index is None:
            return None
        return PreparedWeights(Path(f"/proc/self/fd/{self._file.fileno()}"), self._index)

    def close(self) -> None:
        """Close the file, which deletes it."""
        if self._file is not None:
            self._file.close()
            self._file = None
