"""Files of prepared kernels, from which an engine is built again without packing.

Owns: the records of kernels, the file, when it is complete, and its key. Never does: prepare a weight, or decide when to sleep.
Called by: the worker (records kernels, uses them again), the reloader (writes them before a sleep).

- `SpilledWeights`: a file without a name in the directory for temporary files (TMPDIR), for a sleeping engine. It disappears
  with the process, even after a crash.
- `KeptWeights`: a file in memory that outlives the process, for the next engine. It is sealed once it is complete: a sealed
  file can never change again, and an unsealed one was left incomplete. It ends with the index and the index's length.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Sequence, Set
from pathlib import Path
from typing import BinaryIO

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.version import __version__
from core_runtime.contracts import SavedKernel
from core_runtime.executor.reloading.checkpoint import Checkpoint, made_for
from core_runtime.executor.reloading.file_states import known_states
from core_runtime.executor.reloading.prepared_writer import PreparedWriter
from core_runtime.models.tensors.prepared import PreparedIndex, PreparedWeights, Source
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource

logger = logging.getLogger(__name__)

LENGTH_BYTES = 8


class SpilledWeights:
    """The kernels of one set of weights, and the file that they are written to when the engine sleeps. The worker owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._kernels: list[tuple[str, set[str], str, SavedKernel]] = []
        self._file: BinaryIO | None = None
        self._index: PreparedIndex | None = None

    @property
    def is_written(self) -> bool:
        """Whether the file is complete."""
        return self._file is not None

    def note(self, name: str, reads: set[str], layout: str, saved: SavedKernel) -> None:
        """Record a kernel that was made; see `Recorder`."""
        self._kernels.append((name, reads, layout, saved))

    def take_over(self, before: SpilledWeights, names: Set[str]) -> None:
        """Take over the records of layers that kept their kernels. before: records of the old weights."""
        self._kernels += [noted for noted in before._kernels if noted[0] in names]

    def started(self) -> None:
        """Called when the engine has started."""

    def write(self) -> None:
        """Write all kernels, unless they are written already or there are none. Raises OSError; nothing is written then."""
        if self._file is not None or not self._kernels:
            return
        file = tempfile.TemporaryFile(prefix="core-sleep-")  # noqa: SIM115
        try:
            self._index = self._written(file)
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
        """Return the kernels in the file; None if there are none, or if they do not fit."""
        if self._file is None or self._index is None:
            return None
        return PreparedWeights(path_of(self._file.fileno()), self._index)

    def close(self) -> None:
        """Close the file, which deletes it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _written(self, file: BinaryIO) -> PreparedIndex:
        """Write the recorded kernels to an empty file and return their index. Raises OSError."""
        writer = PreparedWriter(file)
        for noted in self._kernels:
            writer.kernel(*noted)
        ref = self._config.model.model
        # The index describes the kernels only; the rest is read from the checkpoint again.
        rest = CheckpointManifest(ref, "", files=[], tensors={}, config={}, tokenizer=TokenizerSource())
        return writer.index(made_for(self._config), Source(ref, {}, ""), rest)


class Kept(msgspec.Struct, frozen=True):
    """Index of the file. key: digest of the configuration and the checkpoint that the kernels were made from."""

    key: str
    index: PreparedIndex


class KeptWeights(SpilledWeights):
    """The kernels of one engine and of its successors.

    descriptor: the file, which may be empty. files: files of the checkpoint.
    """

    def __init__(self, config: EngineConfig, descriptor: int, files: Sequence[str]) -> None:
        super().__init__(config)
        self._descriptor = descriptor
        self._files = files
        self._thread: threading.Thread | None = None

    def find(self) -> PreparedWeights | None:
        """Return the kernels that an earlier engine kept; None if there are none for this configuration and checkpoint."""
        if not self.is_written:
            return None
        size = os.fstat(self._descriptor).st_size
        length = int.from_bytes(os.pread(self._descriptor, LENGTH_BYTES, size - LENGTH_BYTES), "little")
        raw = os.pread(self._descriptor, length, size - LENGTH_BYTES - length)
        kept = msgspec.msgpack.decode(raw, type=Kept)
        if kept.key != self._key():
            logger.warning("The checkpoint has changed since its weights were kept; it is loaded again.")
            return None
        mapped = self._config.keep_weights == "map"
        return PreparedWeights(path_of(self._descriptor), kept.index, mapped=mapped)

    def started(self) -> None:
        """Write the recorded kernels, in a thread, so that the engine can serve meanwhile."""
        if self.is_written:
            self._kernels.clear()
        elif self._kernels:
            self._thread = threading.Thread(target=self._write, name="keep-weights")
            self._thread.start()

    def close(self) -> None:
        """Wait until the writing thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        try:
            # An earlier engine may have died while writing.
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            with open(self._descriptor, "wb", closefd=False) as file:
                self._write_all(file)
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            logger.warning("The weights cannot be kept in memory (%s); each new engine loads them.", error.strerror)
        finally:
            self._kernels.clear()

    def _write_all(self, file: BinaryIO) -> None:
        index = self._written(file)
        raw = msgspec.msgpack.encode(Kept(self._key(), index))
        file.write(raw)
        file.write(len(raw).to_bytes(LENGTH_BYTES, "little"))

    @property
    def is_written(self) -> bool:
        """Whether the file is complete, and so sealed."""
        try:
            return bool(fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
        except OSError:  # a file that cannot be sealed is never complete
            return False

    def _key(self) -> str:
        """Return a digest that is equal when the same kernels would be made again."""
        config = self._config
        told = (__version__, config.model, config.plugins, config.device, self._files, known_states(self._files))
        return hashlib.sha256(msgspec.msgpack.encode(told)).hexdigest()


def path_of(descriptor: int) -> Path:
    """Return a path of an open file that has no name of its own."""
    return Path(f"/proc/self/fd/{descriptor}")


def check_keeping(config: EngineConfig, device_type: str) -> None:
    """Raise UserError if weights cannot be kept with this device or these layers."""
    unfit = None
    if config.model.implementation == "transformers":
        unfit = "layers of transformers"
    elif device_type != "cpu":
        unfit = f"--device {config.device}"
    if unfit is not None:
        raise UserError(f"--keep-weights {config.keep_weights}: cannot be used with {unfit}; leave it out.")


def kept_weights(config: EngineConfig, checkpoint: Checkpoint) -> KeptWeights | None:
    """Return the memory for weights that outlives this process; None if it is not configured or not needed."""
    if config.weights_file is None:
        return None
    if checkpoint.prepared is not None:
        logger.warning("--keep-weights has no effect: a converted model is ready to be used.")
        return None
    return KeptWeights(config, config.weights_file, checkpoint.manifest.files)
