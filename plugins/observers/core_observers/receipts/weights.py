"""The digest of a model's weight files, read whole.

Owns: `WeightsDigest`, and the cache of digests in the user's cache directory. Never does: decide when to read (`step` reads one
piece), or load a tensor. Called by: the server in idle time, `LLM` and the commands at once.

A file is read once for its size, times and inode, whichever process reads it. The time of the last change of the inode counts
too, since a program that replaces a file may set back its modification time.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from core.kv.fingerprint import weight_files, weights_digest
from core_observers.receipts.receipt import WeightsFact

logger = logging.getLogger(__name__)

PIECE: Final = 4 << 20
"""Bytes of one step: a few milliseconds."""
MOST_CACHED: Final = 256
FILE: Final = "weight-digests.json"


class _Cached(msgspec.Struct):
    """Digests of files by their identity, the newest ones last."""

    files: dict[str, str] = {}


class WeightsDigest:
    """The digest of one model's weight files.

    model: path of the model. folder: of the cache; None: the user's own.
    sampled: digest over sizes and samples, known at once.
    """

    def __init__(self, model: str, folder: Path | None = None) -> None:
        self._model = model
        self._folder = folder
        self.sampled = weights_digest(model)
        self._files = weight_files(Path(model))
        self._states = [_identity(path) for path in self._files]
        self._found: list[str] = []
        self._hash = hashlib.sha256()
        self._position = 0
        self._is_unreadable = False
        self._cached = self._read().files
        self._skip_cached()

    @property
    def is_whole(self) -> bool:
        """Whether every file has been read, or there is none."""
        return len(self._found) == len(self._files)

    def fact(self, update: str = "") -> WeightsFact:
        """Return what is known now. update: version of weights that replaced those of the files.

        A file that has changed since the engine read it is no longer the engine's, so only the samples of the start count.
        """
        if not self._files:
            return WeightsFact("", "unknown", update)
        if not self.is_whole or not self._is_unchanged():
            return WeightsFact(self.sampled, "sampled", update)
        whole = hashlib.sha256()
        for path, digest in zip(self._files, self._found, strict=True):
            whole.update(f"{path.suffix}:{digest};".encode())
        return WeightsFact(whole.hexdigest(), "whole", update)

    def step(self) -> bool:
        """Read one piece; return whether there is more to read. A file that cannot be read leaves the digest sampled."""
        if self.is_whole or self._is_unreadable:
            return False
        path = self._files[len(self._found)]
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                piece = file.read(PIECE)
        except OSError as error:
            logger.warning("%s cannot be read whole for receipts (%s); they say that it was sampled.", path, error)
            self._is_unreadable = True
            return False
        self._hash.update(piece)
        self._position += len(piece)
        if len(piece) < PIECE:
            self._end_file(self._hash.hexdigest())
            self._keep()
            self._skip_cached()
        return not self.is_whole

    def finish(self) -> WeightsFact:
        """Read everything now."""
        while self.step():
            pass
        return self.fact()

    def _end_file(self, digest: str) -> None:
        self._found.append(digest)
        self._hash = hashlib.sha256()
        self._position = 0

    def _skip_cached(self) -> None:
        while not self.is_whole:
            digest = self._cached.get(self._states[len(self._found)])
            if digest is None:
                return
            self._end_file(digest)

    def _is_unchanged(self) -> bool:
        try:
            return [_identity(path) for path in self._files] == self._states
        except OSError:
            return False

    def _path(self) -> Path | None:
        if self._folder is not None:
            return self._folder / FILE
        try:
            return Path.home() / ".cache" / "core" / FILE
        except RuntimeError:  # a user without a home directory
            return None

    def _read(self) -> _Cached:
        path = self._path()
        try:
            data = b"" if path is None else path.read_bytes()
            return msgspec.json.decode(data, type=_Cached) if data else _Cached()
        except (OSError, msgspec.DecodeError):
            return _Cached()  # the files are read again

    def _keep(self) -> None:
        """Write what is known into the cache; a directory that cannot be written costs reading the files again."""
        path = self._path()
        if path is None:
            return
        known = self._read().files | dict(zip(self._states, self._found, strict=False))
        rows = dict(list(known.items())[-MOST_CACHED:])
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_Cached(rows)))
            temporary.replace(path)
        except OSError as error:
            logger.debug("Digests of weights are not cached: %s", error)


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
