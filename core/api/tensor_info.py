"""The description of one tensor of a checkpoint.

Owns: `TensorInfo`. Never does: read files. Called by: the checkpoint's manifest, and messages about weights.
"""

from __future__ import annotations

import msgspec


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a checkpoint under its canonical (Hugging Face) name.

    shape:  logical shape, (N, K) for a matrix, whatever the packing.
    dtype:  `F32`, `F16`, `BF16`, `I32`, `U8`, ... or a GGUF type such as `Q4_1`.
    nbytes: bytes in the file.
    file:   index into the manifest's files. offset: bytes from the start of that file.
    source: the tensor's own name in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: int
    offset: int
    source: str
