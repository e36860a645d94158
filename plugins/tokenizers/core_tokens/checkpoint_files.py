"""Safe access to the files of a checkpoint: the places to which a name may lead, and the sizes that are read.

Owns: the rule about names and links, and the size limits of files that are read whole. Never does: interpret a file.
Called by: all code that reads a checkpoint, in `core` and in loaders.

A checkpoint is untrusted. A name in one of its files (a module, a shard, a template) must be that of a file below its
directory. A link may lead to such a file, or into `blobs` of the same repository in the hub's cache, which stores each file
there once and links to it from the directories of `snapshots`. Nothing else is opened.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from core.api.errors import CheckpointError

MAX_SMALL = 8 << 20
"""Maximum bytes of a configuration, a template, or another file of settings."""
MAX_INDEX = 64 << 20
"""Maximum bytes of an index of weights: that of a model with 100,000 tensors has 10 MB."""
MAX_VOCABULARY = 256 << 20
"""Maximum bytes of a tokenizer's file: the largest known ones have 40 MB."""
MAX_JSON_VALUES = 8_000_000
"""Maximum number of commas and colons in one document, each of which may become an object of 60 bytes. The index of 100,000
tensors has 200,000."""


def inside(directory: Path, name: str) -> Path:
    """Return the path of the file `name` in a checkpoint's directory. Raises CheckpointError if missing or outside of it."""
    path = directory / _checked(directory, name)
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing, or is no file. Is the download complete?")
    _check_link(directory, path)
    return path


def folder_inside(directory: Path, name: str) -> Path:
    """Return the path of the folder `name` below a checkpoint's directory, or the directory itself for an empty name.

    The folder need not exist. Raises CheckpointError for a folder outside of the directory.
    """
    path = directory / _checked(directory, name) if name else directory
    _check_link(directory, path)
    return path


def read_file(path: Path, most: int) -> bytes:
    """Read a file of a checkpoint. most: maximum size in bytes.

    Raises CheckpointError for a file that is larger, is not a regular file, or is a link out of its directory.
    """
    _check_link(path.parent, path)
    try:
        # NONBLOCK: opening a pipe without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)  # Of the open file: the path could be replaced between a check and the read.
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: is no regular file; expected one.")
            if status.st_size > most:
                raise CheckpointError(f"{path}: has {status.st_size} bytes; expected at most {most}.")
            return file.read(most)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def read_text(path: Path, most: int = MAX_SMALL) -> str:
    """Read a file of a checkpoint as UTF-8 text. Raises CheckpointError; see `read_file`."""
    try:
        return read_file(path, most).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not valid UTF-8 ({error}).") from None


def read_json(path: Path, most: int = MAX_SMALL) -> Any:
    """Read a file of a checkpoint as JSON. Raises CheckpointError; see `read_file`."""
    return parse_json(path, read_file(path, most))


def parse_json(path: Path | str, raw: bytes) -> Any:
    """Parse JSON with at most `MAX_JSON_VALUES` values. path: source, for error messages. Raises CheckpointError."""
    # Counted before parsing: each may become an object of 60 bytes, many times its size in the file.
    count = raw.count(b",") + raw.count(b":")
    if count > MAX_JSON_VALUES:
        raise CheckpointError(f"{path}: has {count} commas and colons; expected at most {MAX_JSON_VALUES}.")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}).") from None


def _checked(directory: Path, name: str) -> str:
    """Return `name` if it stays below the directory as spelled, links aside. Raises CheckpointError."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise CheckpointError(
            f"{directory}: names the file {name[:200]!r}, which would lie outside of it; expected a name below the directory."
        )
    return name


def _check_link(directory: Path, path: Path) -> None:
    """Raise CheckpointError for a path that is, or goes through, a link out of the directory."""
    try:
        home, real = directory.resolve(), path.resolve()
    except (OSError, RuntimeError) as error:  # Links that form a cycle.
        raise CheckpointError(f"{path}: cannot be followed ({error}).") from None
    if real.is_relative_to(home):
        return
    for parent in home.parents:
        if parent.name == "snapshots" and real.is_relative_to(parent.parent / "blobs"):
            return
    raise CheckpointError(
        f"{path}: is a link to {real}, out of the model's directory; copy the file, or name the directory it lies in."
    )
