"""The half beside the worker: it copies pages between the KV cache and files in shared memory, on a thread of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from core_my_plugin.files import DIGEST_BYTES, file_name, seal
from torch import Tensor

from core_kv_connectors.halves.contract import Arena, BlockName, Layout, Moved, Ticket


class Half:
    """A half whose calls do the whole transfer. directory: of the files; empty: one that ends with this object."""

    def __init__(self, directory: str) -> None:
        self._own = None
        if not directory:
            place = "/dev/shm" if os.path.isdir("/dev/shm") else None
            self._own = tempfile.TemporaryDirectory(prefix="core-my-plugin-", dir=place)
        self._folder = Path(directory or self._own.name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._arena: Arena = ()
        self._done: list[int] = []
        self._failed: list[int] = []

    def register(self, arena: Arena, layout: Layout) -> None:
        """Use this memory."""
        self._arena = arena
        self._page = torch.empty(layout.page_bytes, dtype=torch.uint8)

    def release(self) -> None:
        """Drop the memory; no transfer outlives its call."""
        self._arena = ()

    def load(self, ticket: Ticket, slots: Sequence[int]) -> None:
        """Copy files into slots. One that is missing, short, or another page is not used."""
        for slot, name in zip(slots, ticket.names, strict=True):
            is_here = self._read(name)
            if is_here:
                for row, part in self._rows(slot):
                    row.copy_(part)
            (self._done if is_here else self._failed).append(slot)

    def save(self, slots: Sequence[int], names: Sequence[BlockName]) -> None:
        """Copy slots into files, each of which appears whole."""
        for slot, name in zip(slots, names, strict=True):
            for row, part in self._rows(slot):
                part.copy_(row)
            (self._done if self._write(name) else self._failed).append(slot)

    def drop(self, names: Sequence[BlockName]) -> None:
        """Delete files."""
        for name in names:
            (self._folder / file_name(name)).unlink(missing_ok=True)

    def poll(self) -> Moved:
        """Return what the calls since the last one have done."""
        moved = Moved(self._done, self._failed)
        self._done, self._failed = [], []
        return moved

    def close(self) -> None:
        """Remove the directory, if it is this object's own."""
        self._arena = ()
        if self._own is not None:
            self._own.cleanup()

    def _rows(self, slot: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each part of a slot in the arena, with its part of the page."""
        start = 0
        for buffer in self._arena:
            end = start + buffer.shape[1]
            yield buffer[slot], self._page[start:end]
            start = end

    def _read(self, name: BlockName) -> bool:
        """Read a file into the page; False when it is not the page of this block."""
        page = memoryview(self._page.numpy())
        try:
            with open(self._folder / file_name(name), "rb", buffering=0) as file:
                checksum = file.read(DIGEST_BYTES)
                is_whole = file.readinto(page) == len(page) and not file.read(1)
        except OSError:
            return False
        return is_whole and checksum == seal(name, page)

    def _write(self, name: BlockName) -> bool:
        """Write the page to a file; False on a full disk, or without the directory."""
        page = memoryview(self._page.numpy())
        path = self._folder / file_name(name)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            part.write_bytes(seal(name, page) + page)
            part.rename(path)
        except OSError:
            part.unlink(missing_ok=True)
            return False
        return True
