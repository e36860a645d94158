"""The facts about a checkpoint, or about files, that plugins claim by.

Owns: `CheckpointFacts` and `FileFacts`. Never does: read files. Called by: configuration (gathers them), selection (shows them
to plugins), manifests (`core_claim`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class CheckpointFacts(msgspec.Struct, frozen=True):
    """What plugins are shown in `core_claim`.

    quantization: the method that the checkpoint declares, in its own word, or None.
    declaration: as it stands in the checkpoint, wherever that is; empty without one.
    """

    ref: str
    format: str
    model_type: str
    architectures: tuple[str, ...] = ()
    quantization: str | None = None
    tensor_dtypes: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    declaration: dict[str, Any] = {}


class FileFacts(msgspec.Struct, frozen=True):
    """What loaders are shown in `core_claim`: the reference as given and what lies there.

    path:  absolute path, or None when the reference is no local path. is_directory: whether it is a directory.
    names: file names in the directory (or the file's own name). magic: first 8 bytes of a file.
    """

    ref: str
    path: str | None
    is_directory: bool
    names: tuple[str, ...]
    magic: bytes = b""
