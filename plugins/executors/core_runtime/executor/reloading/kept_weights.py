"""Prepared kernels in memory that outlives the engine process, so that the next one need not load them again.

Owns: `KeptWeights`: the file in memory, whose descriptor the processes inherit; when it is complete, and its key.
Never does: prepare a weight. Called by: the worker.

The file is sealed once it is complete. A sealed file can never change again, even if the process dies, and an unsealed one
was left incomplete. The file ends with the index and the index's length.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.version import __version__
from core_runtime.contracts import SavedKernel
from core_runtime.executor.reloading.checkpoint import Checkpoint, made_for
from core_runtime.executor.reloading.prepared_writer import NotedKernel, written_kernels
from core_runtime.models.tensors.prepared import PreparedIndex, PreparedWeights
from core_runtime.specs.checkpoint import CheckpointManifest

logger = logging.getLogger(__name__)

LENGTH_BYTES = 8


class Kept(msgspec.Struct, frozen=True):
    """Index of the file. key: digest of the configuration and the checkpoint that the kernels were made from."""

    key: str
    index: PreparedIndex


class KeptWeights:
    """The weights of one engine and of its successors.

    descriptor: the file, which may be empty.
    manifest:   manifest of the checkpoint.
    """

    def __init__(self, config: EngineConfig, descriptor: int, manifest: CheckpointManifest) -> None:
        self._config = config
        self._descriptor = descriptor
        self._manifest = manifest
        self._kernels: list[NotedKernel] = []
        self._thread: threading.Thread | None = None

    def find(self) -> PreparedWeights | None:
        """Return the kernels that an earlier engine kept; None if there are none for this configuration and checkpoint."""
        if not self._is_sealed():
            return None
        size = os.fstat(self._descriptor).st_size
        length = int.from_bytes(os.pread(self._descriptor, LENGTH_BYTES, size - LENGTH_BYTES), "little")
        raw = os.pread(self._descriptor, length, size - LENGTH_BYTES - length)
        kept = msgspec.msgpack.decode(raw, type=Kept)
        if kept.key != self._key():
            logger.warning("The checkpoint has changed since its weights were kept; it is loaded again.")
            return None
        # The path reaches the inherited file, which has no name of its own.
        mapped = self._config.keep_weights == "map"
        return PreparedWeights(Path(f"/proc/self/fd/{self._descriptor}"), kept.index, mapped=mapped)

    def note(self, name: str, reads: set[str], layout: str, saved: SavedKernel) -> None:
        """Record a kernel that was made; see `Recorder`."""
        self._kernels.append((name, reads, layout, saved))

    def keep(self) -> None:
        """Write the recorded kernels, in a thread, so that the engine can start meanwhile."""
        if self._is_sealed():
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
        index = written_kernels(file, self._kernels, made_for(self._config), self._manifest)
        raw = msgspec.msgpack.encode(Kept(self._key(), index))
        file.write(raw)
        file.write(len(raw).to_bytes(LENGTH_BYTES, "little"))

    def _is_sealed(self) -> bool:
        try:
            return bool(fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
        except OSError:  # a file that cannot be sealed is never complete
            return False

    def _key(self) -> str:
        """Return a digest that is equal when the same kernels would be made again."""
        config = self._config
        files = [_state(Path(name)) for name in self._manifest.files]
        told = (__version__, config.model, config.plugins, config.device, files)
        return hashlib.sha256(msgspec.msgpack.encode(told)).hexdigest()


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
    return KeptWeights(config, config.weights_file, checkpoint.manifest)


def _state(path: Path) -> tuple[str, int, int]:
    """Return (name, bytes, modification time) of a file; zeros if it is no file of this machine."""
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_size, found.st_mtime_ns
