"""The weights of an engine: the tensors of the checkpoint, and the updates applied to it since.

Owns: the Structs that describe a tensor, and in which updates are requested, remembered and passed from one engine to the
next. Never does: read a tensor.
Called by: the executor (applies updates), the engine (versions, cache keys, restarts), library and server (request updates).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PauseMode = Literal["abort", "wait", "keep"]
"""Treatment of running and waiting requests by a pause: `abort` ends them, `wait` lets them finish first, `keep` continues them
later."""

MemoryPart = Literal["weights", "kv_cache"]
"""Memory that a sleeping engine has released, and that a wake-up can restore."""

MOST_TENSORS = 1 << 20
LONGEST_NAME = 1024

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Version = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
"""A version of weights, limited to characters that an HTTP header can carry."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


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


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a file when it was read, by which later changes are detected.

    changed: time of its last modification, in nanoseconds.
    """

    path: str
    nbytes: int
    changed: int


class WeightSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of one update: tensors that replaced earlier ones.

    path:    checkpoint with the tensors; empty: they came from memory and were kept.
    names:   names of the tensors in the checkpoint's files.
    files:   files of the checkpoint.
    kept:    positions in the file of kept tensors.
    digest:  digest of the kept bytes; empty for files.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    files: tuple[FileState, ...] = ()
    kept: tuple[TensorInfo, ...] = ()
    digest: str = ""


class WeightsState(msgspec.Struct, frozen=True, kw_only=True):
    """The current weights of an engine, as a sequence of updates to its checkpoint.

    version: version given by the sender, or the number of the update; empty for the checkpoint's own weights.
    number:  number of updates so far.
    sources: updates, in the order in which they are applied to the checkpoint.
    """

    version: str = ""
    number: int = 0
    sources: tuple[WeightSource, ...] = ()


class TensorPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of one tensor in shared memory.

    dtype:  name of the type in safetensors (`BF16`) or in torch (`bfloat16`).
    offset: bytes from the beginning of the memory.
    """

    name: Name
    dtype: Annotated[str, msgspec.Meta(max_length=32)]
    shape: Annotated[list[Natural], msgspec.Meta(max_length=8)]
    offset: Natural = 0


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to replace some or all tensors.

    path:           a checkpoint of the engine's own format, folder or file.
    names:          names of the tensors to read from it; None: all of them.
    shared_memory:  name of POSIX shared memory (a file of /dev/shm), instead of `path`.
    tensors:        tensors in the shared memory.
    weight_version: version of the weights from then on; None: the number of the update.
    frees_first:    whether the current weights are freed before the new ones are read, so that memory is not needed twice.
    """

    path: Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[^\0]+$")] | None = None
    names: Annotated[list[Name], msgspec.Meta(max_length=MOST_TENSORS)] | None = None
    shared_memory: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    tensors: Annotated[list[TensorPlace], msgspec.Meta(max_length=MOST_TENSORS)] = []
    weight_version: Version | None = None
    frees_first: bool = False
