"""Tensors stored unpacked in files: views of mapped files, one tensor at a time, in file order.

Owns: mapping, views, the release of pages. Never does: know a format, or convert a value.
Called by: the loaders whose manifests locate each tensor.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from core.api.errors import CheckpointError
from core_loaders.prefetch import prefetching, wants_prefetch
from core_loaders.reads import wanted_of
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Bytes = mmap.mmap | memoryview | bytearray
"""A file's content."""
Make = Callable[[Bytes, TensorInfo], "Tensor"]

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""torch's dtype names by manifest type."""


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype for a manifest type. Raises KeyError."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[name])
    assert isinstance(dtype, torch.dtype)
    return dtype


def mapped_tensors(
    manifest: CheckpointManifest, reads: Sequence[str], strategy: str | None = None, make: Make | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor), each a view that keeps its file mapped.

    strategy: `lazy` maps files; `eager` reads each file into memory first; `prefetch` maps, while a thread reads the
        files ahead into the page cache; None: `lazy`, but `prefetch` where the files lie on a network.
    make: a tensor from a file's bytes, for tensors that do not lie there element after element.
    Raises CheckpointError for an unknown name, or a file that is not as it was when it was resolved.
    """
    wanted = wanted_of(manifest, reads)
    by_file: dict[int, list[TensorInfo]] = {}
    for info in wanted:
        by_file.setdefault(info.file, []).append(info)
    paths = [manifest.files[number] for number in by_file]
    ahead = wants_prefetch(paths) if strategy is None else strategy == "prefetch"
    with prefetching(paths) if ahead else contextlib.nullcontext():
        for number, infos in by_file.items():
            path = manifest.files[number]
            data = read_whole(path) if strategy == "eager" else open_map(path)
            yield from _tensors_of(path, data, infos, make or view)


def _tensors_of(path: str, data: Bytes, infos: Sequence[TensorInfo], make: Make) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of one file; pages of a mapped file are released when the next tensor is requested."""
    for info in infos:
        end = info.offset + info.nbytes
        try:
            tensor = make(data, info)
        except ValueError:
            raise CheckpointError(
                f"{path}: tensor '{info.name}' ends at byte {end}, but the file has {len(data)}; was the file changed "
                "meanwhile?"
            ) from None
        yield info.name, tensor
        if isinstance(data, mmap.mmap):
            # From the start of the file: a page fault also maps neighbouring pages, some of them of tensors already
            # released.
            data.madvise(mmap.MADV_DONTNEED, 0, min(end, len(data)))


def open_map(path: str) -> mmap.mmap:
    """Map a file copy-on-write, so that torch accepts the memory as writable while the file stays unchanged. Raises
    CheckpointError.
    """
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:
        raise CheckpointError(f"{path}: the file is empty. Is the download complete?") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None


def read_whole(path: str) -> memoryview:
    """Return the file's bytes, writable. Raises CheckpointError."""
    import torch

    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(0, 2)
            # A bytearray would be written twice, the first time with the interpreter's lock, while steps wait for it.
            data = memoryview(torch.empty(file.tell(), dtype=torch.uint8).numpy())
            file.seek(0)
            rest = data
            while rest:
                count = file.readinto(rest)
                if not count:
                    raise CheckpointError(f"{path}: became shorter while it was read.")
                rest = rest[count:]
            return data
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from None


def view(data: Bytes, info: TensorInfo) -> Tensor:
    """Return a view of the tensor in the file; a copy only where it is not aligned."""
    import torch

    dtype = torch_dtype(info.dtype)
    if info.nbytes == 0:
        return torch.empty(info.shape, dtype=dtype)
    raw = torch.frombuffer(data, dtype=torch.uint8, count=info.nbytes, offset=info.offset)
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(info.shape)
