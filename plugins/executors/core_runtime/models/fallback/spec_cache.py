"""Disk cache of shapes that transformers has computed: a later start needs no helper process. Torch-free.

Owns: the files of one folder, and the cache key. Never does: call transformers; fail for lack of a disk.
Called by: the description.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from core_runtime.specs.module_spec import ModuleSpec

MOST: Final = 64
"""Limit of cached files; the oldest are removed first."""
PACKAGES: Final = ("transformers", "torch")
SOURCES: Final = (
    Path(__file__).parent,
    Path(__file__).parents[2] / "specs",
)
"""Folders of the code that computes an answer."""


def usual_folder() -> Path | None:
    """Return the folder in the user's cache directory; None where the user has no home directory."""
    try:
        return Path.home() / ".cache" / "core" / "module_specs"
    except RuntimeError:
        return None


class KeptSpecs:
    """Cached answers in a folder, which is created with the first answer. folder: None: nothing is cached."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, question: bytes) -> ModuleSpec | None:
        """Return the cached answer; None: these releases have no answer to this question yet, or the file is not
        valid.
        """
        if self._folder is None:
            return None
        try:
            text = self._file(self._folder, question).read_bytes()
            return msgspec.json.decode(text, type=ModuleSpec)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, question: bytes, spec: ModuleSpec) -> None:
        """Write an answer, and remove the oldest ones. Without a place to write to, nothing is cached."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # the next start computes it again
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._folder, question, spec)
            _forget_oldest(self._folder)

    def _write(self, folder: Path, question: bytes, spec: ModuleSpec) -> None:
        """Write the whole file or none of it, even if another process writes the same file."""
        descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(spec))
            os.replace(temporary, self._file(folder, question))
        except OSError:
            os.unlink(temporary)
            raise

    def _file(self, folder: Path, question: bytes) -> Path:
        digest = sha256(question)
        digest.update(_makers())
        return folder / f"{digest.hexdigest()}.json"


def _makers() -> bytes:
    """Return a digest of the code that computes answers. Other code may give another answer."""
    digest = sha256()
    for package in PACKAGES:
        try:
            release = version(package)
        except PackageNotFoundError:
            release = ""
        digest.update(f"{package} {release}\n".encode())
    for folder in SOURCES:
        for path in sorted(folder.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


def _forget_oldest(folder: Path) -> None:
    """Remove the oldest files, incomplete files of a crashed process included."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[MOST:]:
        if path.suffix in (".json", ".tmp"):
            path.unlink(missing_ok=True)
