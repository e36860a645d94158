"""What the weights of an engine are made of: the checkpoint, and what was laid over it since.

Owns: the Structs in which updates are asked for, remembered and handed from one engine to the next. Never does: read a tensor.
Called by: the executor (applies updates), the engine (versions, cache keys, what outlives a death), library and server (ask).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core.api.tensor_info import TensorInfo

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of requests that run or wait: they end with `abort`, get their last token first, or go on later."""

MemoryPart = Literal["weights", "kv_cache"]
"""What an engine that sleeps has given back, and is woken for."""

MOST_TENSORS = 1 << 20
LONGEST_NAME = 1024

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Version = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
"""Of weights, as it can stand in a header."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read.

    changed: time of its last change, in nanoseconds.
    """

    path: str
    nbytes: int
    changed: int


class WeightSource(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that took the place of those before them.

    path:    checkpoint that they lie in; empty: they came from memory and were kept.
    names:   of the tensors, as the checkpoint's files have them.
    files:   of the checkpoint.
    kept:    places in the file of kept tensors.
    digest:  of the bytes that were kept; empty for files.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    files: tuple[FileState, ...] = ()
    kept: tuple[TensorInfo, ...] = ()
    digest: str = ""


class WeightsState(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of an engine.

    version: as their sender named it, or the number of the update; empty for those of the checkpoint.
    number:  of updates so far.
    sources: laid over the checkpoint in this order.
    """

    version: str = ""
    number: int = 0
    sources: tuple[WeightSource, ...] = ()


class TensorPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in shared memory.

    dtype:  as in safetensors (`BF16`), or torch's name (`bfloat16`).
    offset: bytes from the beginning of the memory.
    """

    name: Name
    dtype: Annotated[str, msgspec.Meta(max_length=32)]
    shape: Annotated[list[Natural], msgspec.Meta(max_length=8)]
    offset: Natural = 0


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New values for some or all tensors.

    path:           a checkpoint of the engine's own format, folder or file.
    names:          of the tensors to take from it; None: all that it has.
    shared_memory:  name of POSIX shared memory (a file of /dev/shm), in place of `path`.
    tensors:        what lies there.
    weight_version: what the weights are called from then on; None: the number of the update.
    frees_first:    whether the weights in use go before the new ones are read, so that memory is not taken twice.
    """

    path: Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[^\0]+$")] | None = None
    names: Annotated[list[Name], msgspec.Meta(max_length=MOST_TENSORS)] | None = None
    shared_memory: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    tensors: Annotated[list[TensorPlace], msgspec.Meta(max_length=MOST_TENSORS)] = []
    weight_version: Version | None = None
    frees_first: bool = False
