"""Facts about a checkpoint, or about files, by which plugins decide whether to claim it.

Owns: `CheckpointFacts` and `FileFacts`. Never does: read files. Called by: configuration (gathers them), selection (passes them
to plugins), manifests (`core_claim`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class CheckpointFacts(msgspec.Struct, frozen=True):
    """Facts about a checkpoint, the argument of `core_claim`.

    quantization: the quantization method that the checkpoint declares, under the checkpoint's own name, or None.
    declaration: the declaration of that method as the checkpoint has it, in whichever file; empty without one.
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
    """Facts for loaders, the argument of `core_claim`: the reference as given, and the files at that place.

    path:  absolute path, or None when the reference is no local path. is_directory: whether it is a directory.
    names: file names in the directory (or the file's own name). magic: first 8 bytes of a file.
    """

    ref: str
    path: str | None
    is_directory: bool
    names: tuple[str, ...]
    magic: bytes = b""
