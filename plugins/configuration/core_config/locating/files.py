"""Inspection of a model reference before any loader runs.

Owns: `FileFacts` of a reference, and a directory's own configuration.
Never does: raise for a missing model before the stage that locates it. Called by: resolve.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError
from core_config.locating.reference import is_url
from core_runtime.specs.checkpoint import FileFacts
from core_tokens.checkpoint_files import read_json


def file_facts(ref: str) -> FileFacts:
    """Return names and first bytes at a local path; for a URL its last part. Raises CheckpointError when nothing is
    there.
    """
    if is_url(ref):
        last = ref.rstrip("/").rpartition("/")[2]
        return FileFacts(ref, None, False, (last,))
    path = Path(ref).expanduser()
    try:
        path = path.resolve()
        if path.is_dir():
            names = sorted(entry.name for entry in path.iterdir())
            return FileFacts(ref, str(path), True, tuple(names))
        with path.open("rb") as file:
            return FileFacts(ref, str(path), False, (path.name,), file.read(8))
    except FileNotFoundError:
        raise CheckpointError(f"model '{ref}': no such file or directory.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"model '{ref}': cannot be read: {error}.") from error


def magic_of(ref: str | None) -> bytes:
    """Return the first bytes of a local file; empty when there is none."""
    if ref is None:
        return b""
    try:
        return file_facts(ref).magic
    except CheckpointError:
        return b""


def own_config(ref: str | None) -> dict[str, Any]:
    """Return `config.json` of a local directory; empty when it cannot be read (the loader says why)."""
    if ref is None:
        return {}
    try:
        found = read_json(Path(ref).expanduser() / "config.json")
    except (CheckpointError, RuntimeError):  # RuntimeError: no home directory
        return {}
    return found if isinstance(found, dict) else {}


def host_memory() -> int:
    """Return the bytes of memory of this machine; 0 when the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
