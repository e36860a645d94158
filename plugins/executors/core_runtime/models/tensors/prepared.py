"""A model's prepared kernels on disk: one file of page-aligned bytes, and its index.

Owns: the layout of the directory, writing and reading it. Never does: prepare a weight, or interpret one (providers
do).
Called by: the conversion (writes), the packed loader (the index, without torch), weight loading (reads kernels).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from core.api.errors import UNREADABLE, CheckpointError
from core.api.specs import LayerSpec
from core_runtime.contracts import LinearKernel, SavedKernel
from core_runtime.specs.checkpoint import CheckpointManifest
from core_tokens.checkpoint_files import MAX_INDEX, inside, read_file

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.layers.kernels import KernelSet
    from core_runtime.layers.preparing import Room

Recorder = Callable[[str, set[str], str, SavedKernel], None]
"""Callback for a kernel: its layer's name, the tensors that the layer is made of, its layout, its saved form."""

INDEX = "prepared.json"
DATA = "prepared.weights"
VERSION = 1
"""Version of the index format."""
PAGE = 4096
READ_BYTES = 16 << 20
READERS = 4


class Block(msgspec.Struct, frozen=True):
    """A range of the data file. dtype, shape: dtype and shape of the tensor in it."""

    offset: int
    nbytes: int
    dtype: str = "U8"
    shape: tuple[int, ...] = ()


class PreparedKernel(msgspec.Struct, frozen=True):
    """One kernel in the index. facts: values that only its provider interprets."""

    layout: str
    facts: dict[str, Any]
    memory: Block
    tables: dict[str, Block] = {}


class MadeFor(msgspec.Struct, frozen=True):
    """The settings that prepared kernels depend on, by their arguments' names."""

    dtype: str
    numerics: str
    quantization: str | None = None
    quantization_config: dict[str, Any] = {}


class Source(msgspec.Struct, frozen=True):
    """The origin of the directory. files: sizes by name. sha256: hash of names, types, shapes and places of its
    tensors.
    """

    ref: str
    files: dict[str, int]
    sha256: str


class PreparedIndex(msgspec.Struct, frozen=True):
    """The index of the directory: everything but the bytes.

    kernels: kernels of each layer, by name.
    stored: names of tensors in the manifest that lie in the data file unchanged; all others are part of kernels.
    data_nbytes: bytes of the data file.
    """

    version: int
    engine: str
    made_for: MadeFor
    source: Source
    manifest: CheckpointManifest
    kernels: dict[str, list[PreparedKernel]]
    stored: list[str]
    data_nbytes: int


def kernel_name(parts: Sequence[LayerSpec]) -> str:
    """Return the name of a layer that is made of `parts`."""
    return "+".join(part.name for part in parts)


def read_index(directory: Path) -> PreparedIndex:
    """Return the index of a directory whose data file is complete. Raises CheckpointError."""
    path = directory / INDEX
    again = "convert the model again with core convert"
    try:
        raw = read_file(path, MAX_INDEX)
        version = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("version", msgspec.Raw(b"null"))
        if bytes(version) != str(VERSION).encode():
            raise CheckpointError(f"{path}: is of version {bytes(version).decode()}, expected {VERSION}; {again}.")
        index = msgspec.json.decode(raw, type=PreparedIndex)
        size = inside(directory, DATA).stat().st_size
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror}); {again}.") from None
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: is not understood ({error}); {again}.") from None
    if size != index.data_nbytes:
        raise CheckpointError(
            f"{directory / DATA}: has {size} bytes, expected {index.data_nbytes}. Is the download complete?"
        )
    check_places(index, str(path))
    return index


def check_places(index: PreparedIndex, told: str) -> None:
    """Check that each kernel lies in the data file. told: the index, in the message. Raises CheckpointError."""
    for name, kernels in index.kernels.items():
        for kernel in kernels:
            for block in (kernel.memory, *kernel.tables.values()):
                end = block.offset + block.nbytes
                if min(block.offset, block.nbytes) < 0 or end > index.data_nbytes or block.offset % PAGE:
                    raise CheckpointError(f"{told}: a kernel of '{name}' does not lie in {DATA}. The file is damaged.")


@runtime_checkable
class HasPrepared(Protocol):
    """A loader whose checkpoints contain prepared kernels in addition to tensors."""

    def prepared(self, manifest: CheckpointManifest) -> PreparedWeights:
        """Return the kernels of a manifest that the loader has resolved. Raises CheckpointError."""
        ...


class RestoredKernel(NamedTuple):
    """A restored kernel, with its layout and saved form."""

    layout: str
    saved: SavedKernel
    kernel: LinearKernel


class PreparedWeights:
    """The kernels in a data file, read into memory on request. `finish` must be called before any of them computes.

    mapped: the file's own pages serve as memory, without a copy, and processes share them.
    advice: what to do about kernels that cannot be used, a sentence; None: convert the checkpoint again.
    """

    def __init__(self, data: Path, index: PreparedIndex, *, mapped: bool = False, advice: str | None = None) -> None:
        self._path = data
        self._index = index
        self._mapped = mapped
        self._advice = advice or f"Convert {index.source.ref} again with core convert."
        self._map: Tensor | None = None
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="read-weights")
        self._reads: list[tuple[int, Future[None]]] = []

    @property
    def unread(self) -> int:
        """Bytes that `finish` waits for."""
        return sum(nbytes for nbytes, _ in self._reads)

    def check(self, wanted: MadeFor) -> None:
        """Check that the kernels were made for these settings. Raises CheckpointError."""
        made_for = self._index.made_for
        for field in msgspec.structs.fields(MadeFor):
            mine = getattr(made_for, field.name)
            theirs = getattr(wanted, field.name)
            if mine != theirs:
                flag = f"--{field.name.replace('_', '-')}"
                raise CheckpointError(
                    f"{self._path}: was made with {flag} {mine}, here it is {theirs}; start it with the same. {self._advice}"
                )

    def kernels(self, name: str, providers: KernelSet, room: Room | None) -> list[RestoredKernel] | None:
        """Return the kernels of a layer, whose bytes are still being read; None for a layer that is made of tensors.

        Raises CheckpointError when they cannot be used here.
        """
        saved = self._index.kernels.get(name)
        if saved is None:
            return None
        kernels: list[RestoredKernel] = []
        for entry in saved:
            try:
                form = self._form(entry, room)
                kernel = providers.restore(entry.layout, form)
            except (ValueError, TypeError, KeyError) as error:
                raise CheckpointError(
                    f"{self._path}: the kernel of '{name}' cannot be used here: {error}. {self._advice}"
                ) from None
            kernels.append(RestoredKernel(entry.layout, form, kernel))
        return kernels

    def finish(self, progress: Callable[[int], None] | None = None) -> None:
        """Wait until all bytes have been read. progress: called with numbers of them. Raises CheckpointError."""
        try:
            for nbytes, read in self._reads:
                read.result()
                if progress is not None:
                    progress(nbytes)
        except OSError as error:
            raise CheckpointError(f"{self._path}: cannot be read ({error.strerror}).") from None
        finally:
            self._reads.clear()
            self._pool.shutdown(cancel_futures=True)

    def _form(self, entry: PreparedKernel, room: Room | None) -> SavedKernel:
        """Return a kernel in the form that its provider takes."""
        import torch

        memory = self._memory(entry.memory, room)
        torch_types = {"F32": torch.float32, "I32": torch.int32}
        tables: dict[str, Tensor] = {}
        for name, place in entry.tables.items():
            table = torch.empty(place.nbytes, dtype=torch.uint8)
            self._read(table, place.offset)
            tables[name] = table.view(torch_types[place.dtype]).view(place.shape)
        return SavedKernel(entry.facts, tables, memory)

    def _memory(self, block: Block, room: Room | None) -> Tensor:
        """Return the bytes of a block, or the memory that they are being read into."""
        read: Callable[[Tensor, int], None] = _touch if self._mapped else self._read
        if self._mapped:
            memory = self._whole()[block.offset : block.offset + block.nbytes]
        elif room is None:
            raise ValueError("this device gives no memory for prepared weights")
        else:
            memory = room(block.nbytes)
        # In pieces, so that several threads read one kernel.
        for start in range(0, block.nbytes, READ_BYTES):
            piece = memory[start : start + READ_BYTES]
            self._reads.append((len(piece), self._pool.submit(read, piece, block.offset + start)))
        return memory

    def _whole(self) -> Tensor:
        """Return the memory-mapped file."""
        import torch

        if self._map is None:
            with open(self._path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch requires writable memory
            if hasattr(mmap, "MADV_HUGEPAGE"):
                # The system then reads pieces of a huge page's size, and maps them as such where the file system can.
                with contextlib.suppress(OSError):  # a kernel without huge pages
                    data.madvise(mmap.MADV_HUGEPAGE)
            self._map = torch.frombuffer(data, dtype=torch.uint8)
        return self._map

    def _read(self, into: Tensor, offset: int) -> None:
        """Fill `into` from the file. Raises OSError."""
        view = memoryview(into.numpy())
        with open(self._path, "rb", buffering=0) as file:
            file.seek(offset)
            while view:
                # One call may read fewer bytes than requested.
                count = file.readinto(view)
                if not count:
                    raise OSError(0, "it became shorter while it was read")
                view = view[count:]


def _touch(mapped: Tensor, offset: int) -> None:
    """Have the system read and map the pages of a mapped file."""
    mapped.numpy()[::PAGE].max()
