"""A directory of prepared kernels, from which later starts of the same model need no packing.

Owns: the file of a model in that directory, when it fits, and who may have written it; which file an engine has at all. Never
does: prepare a weight, or read a checkpoint. Called by: the worker.

A file is a model's kernels as they lie in memory, the index, and the index's length. It is written beside its final name and
renamed when all of it is on the disk, so a file under that name is complete. It is mapped, as a converted model is: engines
share its pages, and whoever could write to it could change their answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from core.api.config import EngineConfig
from core.api.errors import UNREADABLE, CheckpointError, UserError
from core.version import __version__
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.executor.reloading.file_states import known_states
from core_runtime.executor.saved_weights import LENGTH_BYTES, Kept, SpilledWeights, kept_weights, path_of
from core_runtime.models.tensors.prepared import PreparedWeights, check_places

logger = logging.getLogger(__name__)

MAX_INDEX = 64 << 20
"""Bytes of an index. That of 50,000 kernels has about a third of it."""
READERS = frozenset({"attention", "kernels", "loader", "model", "platform", "quantization"})
"""Kinds of plugins that decide what a kernel's bytes are."""


class StoredWeights(SpilledWeights):
    """The kernels of one model in the directory of `--prepared-weights`.

    files: those of the checkpoint, all on this machine. Raises UserError for a directory that cannot be used.
    """

    def __init__(self, config: EngineConfig, directory: str, files: Sequence[str]) -> None:
        super().__init__(config)
        self._place = _own_directory(Path(directory)) / _file_name(config.model.model)
        self._states = known_states(files)
        self._thread: threading.Thread | None = None
        self._opened: BinaryIO | None = None

    def find(self) -> PreparedWeights | None:
        """Return the kernels that an earlier start stored; None if there are none for these settings and files."""
        try:
            descriptor = os.open(self._place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._ignored(error.strerror or str(error))
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(open(descriptor, "rb"))
            try:
                kept = _index_of(descriptor)
            except (OSError, ValueError, CheckpointError, *UNREADABLE) as error:
                return self._ignored(str(error).rstrip("."))
            if kept.key != self._key():
                logger.info("%s: was made with other settings or files, so the weights are packed again.", self._place)
                return None
            # It stays open until it is mapped, under a path that no other file is given.
            self._opened = file
            undo.pop_all()
        advice = f"Remove {self._place}; the next start makes it again."
        return PreparedWeights(path_of(descriptor), kept.index, mapped=True, advice=advice)

    def started(self) -> None:
        """Write the recorded kernels, in a thread, so that the engine can serve meanwhile."""
        if self._opened is not None or not self._kernels:
            self._kernels.clear()
            return
        self._thread = threading.Thread(target=self._write, name="store-weights")
        self._thread.start()

    def close(self) -> None:
        """Wait until the writing thread has ended."""
        if self._thread is not None:
            self._thread.join()
        if self._opened is not None:
            self._opened.close()

    def _write(self) -> None:
        draft = self._place.with_name(f"{self._place.name}.part")
        begun = time.monotonic()
        try:
            # An engine that died may have left it; its lock ended with it.
            with open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
                if not _is_alone(file.fileno(), draft):
                    return
                self._write_all(file.fileno(), draft)
            size = self._place.stat().st_size
            logger.info("Prepared weights: %d bytes in %s (%.1f s).", size, self._place, time.monotonic() - begun)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            logger.warning("%s: cannot be written (%s); the next start packs the weights again.", draft, error.strerror)
        finally:
            self._kernels.clear()

    def _write_all(self, descriptor: int, draft: Path) -> None:
        """Write a complete file and give it its name. Raises OSError."""
        os.ftruncate(descriptor, 0)
        with open(descriptor, "wb", closefd=False) as file:
            raw = msgspec.msgpack.encode(Kept(self._key(), self._written(file)))
            file.write(raw)
            file.write(len(raw).to_bytes(LENGTH_BYTES, "little"))
        # Before the name: after a power failure, a complete length may otherwise stand over empty pages.
        os.fsync(descriptor)
        draft.rename(self._place)

    def _ignored(self, reason: str) -> PreparedWeights | None:
        logger.warning("%s: is not used (%s); the weights are packed again.", self._place, reason)
        return None

    def _key(self) -> str:
        """Return a digest that is equal when the same kernels would be made again."""
        config = self._config
        model, plugins = config.model, config.plugins
        told = (
            __version__,
            (model.model, model.dtype, model.numerics, model.hf_config, model.pooling is None, config.device),
            (plugins.quantization, plugins.kernels, plugins.attention, plugins.arguments),
            [row for row in plugins.table if row.kind in READERS],
            (config.adapters, config.media, self._states),
        )
        return hashlib.sha256(msgspec.msgpack.encode(told, order="deterministic")).hexdigest()


def saved_weights(config: EngineConfig, checkpoint: Checkpoint, *, is_whole: bool) -> SpilledWeights | None:
    """Return the file of prepared weights that an engine has; None: none. Raises UserError.

    Configurations have one at most: of a sleep, of a directory, or of memory that outlives the engine. is_whole: the worker
    computes the whole model; a rank reads the checkpoint again after a sleep.
    """
    if config.sleeps and is_whole:
        return SpilledWeights(config)
    if config.prepared_weights is not None:
        return stored_weights(config, config.prepared_weights, checkpoint)
    return kept_weights(config, checkpoint)


def stored_weights(config: EngineConfig, directory: str, checkpoint: Checkpoint) -> StoredWeights | None:
    """Return a model's place in a directory; None for files whose changes could not be seen. Raises UserError."""
    if config.model.implementation == "transformers":
        raise UserError("--prepared-weights: cannot be used with layers of transformers; leave it out.")
    if config.device != "cpu":
        raise UserError(f"--prepared-weights: cannot be used with --device {config.device}; leave it out.")
    if checkpoint.prepared is not None:
        logger.warning("--prepared-weights has no effect: a converted model is ready to be used.")
        return None
    files = checkpoint.manifest.files
    if not files or not all(Path(file).is_file() for file in files):
        logger.warning("--prepared-weights has no effect: %s has no files on this machine.", config.model.model)
        return None
    return StoredWeights(config, directory, files)


def _file_name(model: str) -> str:
    """Return the name of a model's file: one a model, so that other settings replace it."""
    path = os.path.realpath(model) if os.path.exists(model) else model
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in Path(model).name)
    return f"{stem[:80]}-{hashlib.sha256(path.encode()).hexdigest()[:12]}.prepared"


def _own_directory(path: Path) -> Path:
    """Return the absolute path of a directory that this user alone can write, made if need be. Raises UserError."""
    path = Path(os.path.abspath(path.expanduser()))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except FileExistsError:
        raise UserError(f"--prepared-weights {path}: is not a directory; choose another.") from None
    except OSError as error:
        raise UserError(
            f"--prepared-weights {path}: cannot be made ({error.strerror}); choose another directory."
        ) from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UserError(
            f"--prepared-weights {path}: others may write there, and could change answers; give it to this user alone "
            f"(chmod 700 {path}), or choose another directory."
        )
    return path


def _index_of(descriptor: int) -> Kept:
    """Return the index of a complete file. Raises OSError, ValueError, or one of UNREADABLE."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ValueError("it is not a file that this user alone can write")
    length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, max(0, status.st_size - LENGTH_BYTES)), "little")
    start = status.st_size - LENGTH_BYTES - length
    if length > MAX_INDEX or start < 0:
        raise ValueError("it is cut or damaged")
    kept = msgspec.msgpack.decode(os.pread(descriptor, length, start), type=Kept)
    if kept.index.data_nbytes != start:
        raise ValueError("it is cut or damaged")
    check_places(kept.index, "the index")
    return kept


def _is_alone(descriptor: int, path: Path) -> bool:
    """Return whether this process may write an open file. Another engine may be writing it, or have just renamed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
