"""The adapters that an engine received from shared memory.

Owns: `SentAdapters`: their bytes, which the engine reads again after a sleep, after new weights, and when the adapter was out
of memory. Never does: interpret them. Called by: the holder of adapters.

The bytes lie in the file in memory that engines inherit, behind the records of their state, so that the engine that follows
a death has them. Places are only ever appended; those that are no longer needed become holes, which take no memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable
from typing import Final

import msgspec

from core.api.adapters import AdapterSource
from core.api.errors import UserError
from core_adapters.room import check_room
from core_adapters.sent import ALIGNMENT, SentAdapter, SentHeader, SentPlace, SentTensor, checked_tensors
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.sparse_file import PAGE, punch, shared_file, write_at

START: Final = 1 << 33
"""First byte of the file that sent adapters may take: behind both records of `core_adapters.serving.record`."""
PIECE: Final = 16 << 20
"""Bytes that are copied per call."""


class SentAdapters:
    """The store of one engine.

    file: descriptor of its file; None: nothing was sent, and no engine follows.

    descriptor: the file that the next engine inherits; None: a private one is made when it is first needed.
    paths:      of adapters that the engine before this one recorded; the memory of all others is freed.
    """

    def __init__(self, descriptor: int | None, paths: Iterable[str]) -> None:
        self.file = descriptor
        self._is_private = descriptor is None
        self._lock = threading.Lock()  # adapters arrive in a thread next to that of the steps
        self._arriving: set[str] = set()
        self._places = {path: place for path in paths if (place := SentPlace.of(path)) is not None}
        self._end = START
        if descriptor is None:
            return
        for place in sorted(self._places.values(), key=lambda place: place.offset):
            punch(descriptor, self._end, place.offset - self._end)
            self._end = _page_after(place)
        nbytes = os.fstat(descriptor).st_size
        punch(descriptor, self._end, nbytes - self._end)
        self._end = max(self._end, nbytes + -nbytes % PAGE)

    def receive(self, sent: SentAdapter) -> str:
        """Copy an adapter out of shared memory, and return its path. It stays at least until `arrived` is called.

        Called in another thread than that of the steps. Raises UserError for what cannot be read, OSError without memory.
        """
        try:
            memory = shared_file(sent.shared_memory)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"shared memory {sent.shared_memory}: cannot be read ({reason}).") from None
        try:
            return self._copied(sent, memory)
        finally:
            os.close(memory)

    def _copied(self, sent: SentAdapter, memory: int) -> str:
        """Copy an adapter to a new place, and return its path. memory: descriptor of the shared memory."""
        wanted = list(checked_tensors(sent, os.fstat(memory).st_size))
        check_room(f"shared memory {sent.shared_memory}", sum(tensor.nbytes for tensor in wanted))
        stored, end = [], 0
        for tensor in wanted:
            stored.append(msgspec.structs.replace(tensor, offset=end))
            end += tensor.nbytes + -tensor.nbytes % ALIGNMENT
        header = SentHeader(sent.configuration, tuple(stored)).encoded()
        place = self._new_place(len(header) + end)
        file = self._descriptor()
        try:
            os.ftruncate(file, _page_after(place))  # what lies between tensors is read with them
            write_at(file, header, place.offset)
            start = place.offset + len(header)
            for source, target in zip(wanted, stored, strict=True):
                self._copy(memory, source, start + target.offset, sent.shared_memory)
        except (OSError, UserError):
            self._free(place.path)
            raise
        return place.path

    def _copy(self, memory: int, tensor: SentTensor, offset: int, name: str) -> None:
        """Copy a tensor to an offset of the file. name: of the shared memory. Raises UserError, OSError.

        The memory is read, not mapped: a client that cuts it meanwhile would end the engine with SIGBUS.
        """
        done = 0
        while done < tensor.nbytes:
            piece = os.pread(memory, min(PIECE, tensor.nbytes - done), tensor.offset + done)
            if not piece:
                raise UserError(f"shared memory {name}: was cut while tensor '{tensor.name}' was read; send it again.")
            write_at(self._descriptor(), piece, offset + done)
            done += len(piece)

    def arrived(self, path: str) -> None:
        """Note that an adapter was recorded or has failed; from now on `keep_only` decides about it."""
        self._arriving.discard(path)

    def reachable(self, source: AdapterSource) -> AdapterSource:
        """Return a source as the executor of this process reads it."""
        place = self._places.get(source.path)
        if place is None:
            return source
        return AdapterSource(source.name, msgspec.structs.replace(place, file=self._descriptor()).path)

    def keep_only(self, paths: Container[str]) -> None:
        """Free the memory of all adapters but these, and those that arrive."""
        with self._lock:
            gone = [path for path in self._places if path not in paths and path not in self._arriving]
        for path in gone:
            self._free(path)

    @property
    def is_empty(self) -> bool:
        """Whether no adapter was sent, so that there is nothing to free."""
        return not self._places

    def close(self) -> None:
        """Close the file, unless it is the next engine's too."""
        if self._is_private and self.file is not None:
            os.close(self.file)
            self.file = None

    def _free(self, path: str) -> None:
        with self._lock:
            place = self._places.pop(path)
            self._arriving.discard(path)
        punch(self._descriptor(), place.offset, place.nbytes)

    def _new_place(self, nbytes: int) -> SentPlace:
        with self._lock:
            place = SentPlace(self._end, nbytes)
            self._end = _page_after(place)
            self._places[place.path] = place
            self._arriving.add(place.path)
        return place

    def _descriptor(self) -> int:
        if self.file is None:
            self.file = anonymous_file("core-sent-adapters", 0)
        return self.file


def _page_after(place: SentPlace) -> int:
    end = place.offset + place.nbytes
    return end + -end % PAGE
