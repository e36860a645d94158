"""Shapes of models that transformers has told before, on disk: a later start asks nobody. Torch-free.

Owns: the files of one folder, and what makes an answer another one. Never does: ask transformers; fail for want of a disk.
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
"""Files that are kept; those written first go first."""
PACKAGES: Final = ("transformers", "torch")
SOURCES: Final = (
    Path(__file__).parent,
    Path(__file__).parents[2] / "specs",
)
"""Folders of the code that makes an answer."""


def usual_folder() -> Path | None:
    """In the user's folder of caches; None where there is no such user."""
    try:
        return Path.home() / ".cache" / "core" / "module_specs"
    except RuntimeError:
        return None


class KeptSpecs:
    """Answers in a folder, which is made when the first one is kept. folder: None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, question: bytes) -> ModuleSpec | None:
        """What was answered; None: nobody asked this under these releases, or the file is no answer."""
        if self._folder is None:
            return None
        try:
            text = self._file(self._folder, question).read_bytes()
            return msgspec.json.decode(text, type=ModuleSpec)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, question: bytes, spec: ModuleSpec) -> None:
        """Write an answer, and forget the oldest. Without a place to write to, nothing is kept."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # the next start asks again
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._folder, question, spec)
            _forget_oldest(self._folder)

    def _write(self, folder: Path, question: bytes, spec: ModuleSpec) -> None:
        """Whole or not at all, whoever else writes the same."""
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
    """Of the code that makes answers: other code may give another one."""
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
    """Also what a crash left half written, once it is that old."""
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[MOST:]:
        if path.suffix in (".json", ".tmp"):
            path.unlink(missing_ok=True)
