"""Prepared kernels in a file without a name, from which an engine that slept has them back without packing.

Owns: `SpilledWeights`: the kernels in use, and the file. Never does: prepare a weight, or decide when to sleep.
Called by: the worker (tells of kernels), the reloader (writes, finds).

The file lies in the directory for temporary files (TMPDIR), and goes with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Set
from pathlib import Path
from typing import BinaryIO

from core.api.config import EngineConfig
from core_runtime.contracts import SavedKernel
from core_runtime.executor.checkpoint import made_for
from core_runtime.executor.prepared_writer import NotedKernel, written_kernels
from core_runtime.models.prepared import PreparedIndex, PreparedWeights
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource


class SpilledWeights:
    """Of one set of weights: those that new kernels are told of."""

    def __init__(self, config: EngineConfig) -> None:
        self._made_for = made_for(config)
        self._manifest = CheckpointManifest(
            ref=config.model.model, format="", files=[], tensors={}, config={}, tokenizer=TokenizerSource()
        )
        self._kernels: list[NotedKernel] = []
        self._file: BinaryIO | None = None
        self._index: PreparedIndex | None = None

    def note(self, name: str, reads: set[str], layout: str, saved: SavedKernel) -> None:
        """A kernel was made; see `Recorder`."""
        self._kernels.append((name, reads, layout, saved))

    def take_over(self, before: SpilledWeights, names: Set[str]) -> None:
        """Layers of these names kept their kernels. before: of the weights until now."""
        self._kernels += [noted for noted in before._kernels if noted[0] in names]

    def write(self) -> None:
        """Write all kernels, unless they were written before, or there are none. Raises OSError; then nothing was written."""
        if self._file is not None or not self._kernels:
            return
        file = tempfile.TemporaryFile(prefix="core-sleep-")  # noqa: SIM115
        try:
            self._index = written_kernels(file, self._kernels, self._made_for, self._manifest)
            file.flush()
        except BaseException:
            file.close()
            raise
        self._file = file

    def forget_kernels(self) -> None:
        """The kernels are about to go; what was written stays."""
        self._kernels.clear()

    def find(self) -> PreparedWeights | None:
        """What was written; None when nothing was."""
        if self._file is None or self._index is None:
            return None
        return PreparedWeights(Path(f"/proc/self/fd/{self._file.fileno()}"), self._index)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None
