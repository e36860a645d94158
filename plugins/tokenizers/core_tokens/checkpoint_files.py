"""Files of a checkpoint: where a name may lead, and how much of a file is read.

Owns: the rule about names and links, and the limits of files that are read whole. Never does: know what a file means.
Called by: everything that reads a checkpoint, in `core` and in loaders.

A checkpoint comes from others. A name in one of its files (a module, a shard, a template) is a name of a file below its
directory, and a link may lead to such a file, or to one in `blobs` of the same repository in the hub's cache, which keeps
each file once there and links to it from the directories of `snapshots`. Nothing else is opened.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from core.api.errors import CheckpointError

MAX_SMALL = 8 << 20
"""Bytes of a configuration, a template, or another file of settings."""
MAX_INDEX = 64 << 20
"""Bytes of an index of weights: a model of 100,000 tensors has 10 MB."""
MAX_VOCABULARY = 256 << 20
"""Bytes of a file of a tokenizer: the largest known ones have 40 MB."""
MAX_JSON_VALUES = 8_000_000
"""Commas and colons of one document, each of which may become an object of 60 bytes. 100,000 tensors make 200,000."""


def inside(directory: Path, name: str) -> Path:
    """The file `name` of a checkpoint's directory. Raises CheckpointError for one that is not there, or leads out of it."""
    path = directory / _checked(directory, name)
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing, or is no file. Is the download complete?")
    _check_link(directory, path)
    return path


def folder_inside(directory: Path, name: str) -> Path:
    """The folder `name` below a checkpoint's directory, or the directory itself for an empty name.

    Raises CheckpointError for one that leads out of it. It need not be there.
    """
    path = directory / _checked(directory, name) if name else directory
    _check_link(directory, path)
    return path


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a file next to others of its checkpoint. most: bytes that it may have.

    Raises CheckpointError for one that is larger, is no regular file, or is a link out of its directory.
    """
    _check_link(path.parent, path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer would block
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: is no regular file; expected one.")
            if status.st_size > most:
                raise CheckpointError(f"{path}: has {status.st_size} bytes; expected at most {most}.")
            return file.read(most)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None


def read_text(path: Path, most: int = MAX_SMALL) -> str:
    """The text of such a file, in UTF-8. Raises CheckpointError; see `read_file`."""
    try:
        return read_file(path, most).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: is not valid UTF-8 ({error}).") from None


def read_json(path: Path, most: int = MAX_SMALL) -> Any:
    """What such a file holds, which is JSON. Raises CheckpointError; see `read_file`."""
    return parse_json(path, read_file(path, most))


def parse_json(path: Path | str, raw: bytes) -> Any:
    """A document in JSON of a bounded number of values. path: for errors. Raises CheckpointError."""
    count = raw.count(b",") + raw.count(b":")
    if count > MAX_JSON_VALUES:
        raise CheckpointError(f"{path}: has {count} commas and colons; expected at most {MAX_JSON_VALUES}.")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}).") from None


def _checked(directory: Path, name: str) -> str:
    """A name that stays below the directory as it is spelled. Raises CheckpointError."""
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
    except (OSError, RuntimeError) as error:  # links that go round in circles
        raise CheckpointError(f"{path}: cannot be followed ({error}).") from None
    if real.is_relative_to(home):
        return
    for parent in home.parents:
        if parent.name == "snapshots" and real.is_relative_to(parent.parent / "blobs"):
            return
    raise CheckpointError(
        f"{path}: is a link to {real}, out of the model's directory; copy the file, or name the directory it lies in."
    )
