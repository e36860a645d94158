"""Copies of the code of third-party plugins, as it was at good starts.

Owns: the folder of copies, their limits, and which files of a package differ from a copy. Never does: import a copy.
Called by: the book of runs (keeps), `core plugins doctor` (runs an engine with them).

A copy is a folder that may stand first on `sys.path`: the package with its code and data, and metadata with its entry points.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import importlib_metadata

from core.api.errors import UserError
from core.plugin.manifest import sha256_of, source_file
from core_observers.receipts.facts import CODE, digest_of_files
from core_observers.runs.run import Package

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 32 << 20
"""Largest package that is copied, in bytes."""
MAX_FILES: Final = 2000
METADATA: Final = ("METADATA", "entry_points.txt")


class Copies:
    """The copies below one folder, by `Package.key`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, package: Package) -> Path | None:
        """Return the folder for `sys.path` with a package's code (for a file: the file), None where there is no copy.

        A copy that has changed is none. Raises UserError where others may write to it, since its code will run.
        """
        folder = self._folder / package.key
        if not folder.is_dir():
            return None
        for place in (self._folder, folder):
            status = place.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise UserError(f"{place}: others may write there, and its code would run; give it to this user alone.")
        is_file = package.module.startswith("file:")
        if _digest_of_copy(folder, package) != package.digest:
            logger.warning("The copy of %s in %s has changed, so it is not used.", package.label, folder)
            return None
        return folder / Path(package.module).name if is_file else folder

    def keep(self, packages: Iterable[Package]) -> None:
        """Copy the third-party packages that are not there yet. Raises OSError where nothing can be written."""
        for package in packages:
            target = self._folder / package.key
            if package.is_own or package.digest == "unknown" or target.exists():
                continue
            files = dict(_files(package.module))
            size = sum(path.stat().st_size for path in files.values())
            if not files or len(files) > MAX_FILES or size > MAX_BYTES:
                logger.info("State canary: no copy of %s is kept: %d files, %d bytes.", package.label, len(files), size)
                continue
            draft = self._folder / f"{package.key}.{os.getpid()}.tmp"
            shutil.rmtree(draft, ignore_errors=True)
            try:
                self._copy(package, files, draft)
                draft.rename(target)
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                raise

    def drop_all_but(self, keys: set[str]) -> None:
        """Remove the copies that no run names any more."""
        for folder in self._folder.glob("*"):
            if folder.name not in keys:
                shutil.rmtree(folder, ignore_errors=True)

    def changed_files(self, package: Package) -> list[str]:
        """Return the names of files that differ between a package's copy and the installed one; none without a copy."""
        root = self._folder / package.key
        if not root.is_dir():
            return []
        now = dict(_files(package.module))
        then = {name: root / name for name in _names_below(root)}
        names = sorted(now.keys() | then.keys())
        return [name for name in names if _content(now.get(name)) != _content(then.get(name))]

    def _copy(self, package: Package, files: dict[str, Path], draft: Path) -> None:
        draft.mkdir(mode=0o700, parents=True)
        for name, path in files.items():
            place = draft / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        if package.distribution:
            name = package.distribution.replace("-", "_")
            info = draft / f"{name}-{package.version}.dist-info"
            info.mkdir(mode=0o700)
            installed = importlib_metadata.distribution(package.distribution)
            for part in METADATA:
                text = installed.read_text(part)
                if text is not None:
                    (info / part).write_text(text, encoding="utf-8")


def _files(module: str) -> Iterator[tuple[str, Path]]:
    """Yield (name below the folder of the copy, path) of a module's files; bytecode is none of them."""
    if module.startswith("file:"):
        source = source_file(module)
        if source is not None and source.is_file():
            yield source.name, source
        return
    found = importlib.util.find_spec(module)
    if found is None:
        return
    folders = list(found.submodule_search_locations or [])
    if not folders and found.origin:
        yield Path(found.origin).name, Path(found.origin)
    for folder in map(Path, folders):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
                yield f"{module}/{path.relative_to(folder)}", path


def _digest_of_copy(folder: Path, package: Package) -> str:
    """Return the digest of a copy, as `digest_of_module` takes that of the installed code."""
    if package.module.startswith("file:"):
        source = folder / Path(package.module).name
        return sha256_of(source)[:16] if source.is_file() else "unknown"
    prefix = f"{package.module}/"
    names = [name for name in _names_below(folder) if Path(name).suffix in CODE]
    return digest_of_files({name.removeprefix(prefix): folder / name for name in names})


def _names_below(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if path.is_file() and not name.parts[0].endswith(".dist-info") and "__pycache__" not in name.parts:
            yield str(name)


def _content(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
