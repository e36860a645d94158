"""LMCache's MP server (`lmcache server`) as a store, by the shared memory that it offers to engines of its machine.

Owns: `LMCacheMPStore`, and what is asked for which call. Never does: import LMCache, send or read a pickled object, or map the
server's memory: it is a file that is read and written, so that a server which shortens it ends no engine. Called by: the
manifest of the connector `lmcache`. Source: what server and client of lmcache 0.5.6 send, by ZMQ.

To this server an object is one chunk of tokens, so a name is sent as the tokens of a chunk. All objects of an engine have the
size of its largest page with a header. A look-up locks what it finds, and whoever looked unlocks it. The server never deletes
an object when asked to; one that has to be replaced is written over where it lies, which readers notice by its checksum.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec
import zmq

from core_kv_connectors.stores.store import LIMIT_S, Parts, StoreError

LOOKUP, WAIT, UNLOCK, END, REGISTER, UNREGISTER = 8, 10, 12, 13, 14, 15
PREPARE_WRITE, COMMIT_WRITE, PREPARE_READ, COMMIT_READ, CHUNK_SIZE = 16, 17, 18, 19, 21
"""Numbers of the server's calls."""
AT_ONCE: Final = 64
"""Names that are looked up before the first answer is read."""
SIZE_BYTES: Final = 8
"""Length of an object's content, which precedes it."""
NAME_STEP: Final = 6
"""Hexadecimal digits of a name in a token."""
MOST_BYTES: Final = 1 << 20
"""Longest message that is taken from a server."""
MEMORY: Final = re.compile(r"/?([A-Za-z0-9._-]{1,200})")
SHARED: Final = "/dev/shm"
OPTIONS: Final = "--supported-transfer-mode engine_driven --shm-name NAME --no-l1-use-lazy"


class Key(msgspec.Struct, frozen=True):
    """An object, as the server names it. worker_id: None in look-ups."""

    model_name: str
    token_ids: tuple[int, ...]
    end: int
    request_id: str
    worker_id: int | None
    world_size: int = 1
    start: int = 0
    cache_salt: str = ""
    num_kv_readers: int = 1


class Registration(msgspec.Struct, frozen=True):
    """What a client says of its objects: their size in bytes, as the only dimension of a tensor."""

    instance_id: int
    model_name: str
    block_size: int
    hidden_dim_size: int
    world_size: int = 1
    num_layers: int = 1
    dtype_str: str = "uint8"
    use_mla: bool = True
    num_physical_slots: int = 1


class Memory(msgspec.Struct, frozen=True):
    """The memory that a server offers."""

    shm_name: str
    pool_size: int


class Slot(msgspec.Struct, frozen=True):
    """Where an object lies in it."""

    offset: int
    length: int


class Slots(msgspec.Struct, frozen=True):
    """The places of the objects that were asked for; none: the server has them already, or has no room."""

    slots: list[Slot] = []


class Prepared(msgspec.Struct, frozen=True):
    """Answer to the question for a place. success: of a read alone."""

    context: Slots
    success: bool = True


class LMCacheMPStore:
    """One server. See `Store`. host, port: where it listens."""

    def __init__(self, host: str, port: int, limit_s: float = LIMIT_S) -> None:
        self.place = f"LMCache's MP server at {host}:{port}"
        self._reads = Client(host, port, limit_s)
        self._writes = Client(host, port, limit_s)
        self._buffer = memoryview(b"")

    def prepare(self, buffer: memoryview) -> None:
        """See `Store`. Nothing is dialled: a server may come later."""
        self._buffer = buffer
        for client in (self._reads, self._writes):
            client.num_bytes = buffer.nbytes + SIZE_BYTES

    def has(self, names: Sequence[str]) -> list[bool]:
        """See `Store`."""
        found: list[bool] = []
        with self._reads.call():
            for begin in range(0, len(names), AT_ONCE):
                found += self._reads.look_up(names[begin : begin + AT_ONCE])
        return found

    def read(self, name: str) -> int | None:
        """See `Store`."""
        with self._reads.call(), self._reads.locked(name) as place:
            if place is None:
                return None
            descriptor, slot = place
            size = bytearray(SIZE_BYTES)
            _all(os.preadv(descriptor, [size], slot.offset), SIZE_BYTES)
            # A wrong length is damage of this object alone: what is read of it is no page then.
            count = min(int.from_bytes(size, "little"), len(self._buffer), slot.length - SIZE_BYTES)
            _all(os.preadv(descriptor, [self._buffer[:count]], slot.offset + SIZE_BYTES), count)
        return count

    def write(self, name: str, parts: Parts, *, replaces: bool) -> None:
        """See `Store`."""
        head, page = parts
        count = len(head) + page.nbytes
        content: list[bytes | memoryview] = [count.to_bytes(SIZE_BYTES, "little"), head, page.cast("B")]
        client = self._writes
        if count + SIZE_BYTES > client.num_bytes:
            raise StoreError(f"an object has {count} bytes, expected at most {client.num_bytes - SIZE_BYTES}")
        with client.call():
            key = client.key(name)
            slot = client.slot(PREPARE_WRITE, key)
            if slot is not None:
                _all(os.pwritev(client.descriptor, content, slot.offset), count + SIZE_BYTES)
                if not client.asked(bool, COMMIT_WRITE, key, client.instance, b""):
                    raise StoreError("it did not take an object")
                return
            with client.locked(name) as place:
                if place is None:
                    raise StoreError("it has no room for an object")
                if replaces:
                    _all(os.pwritev(place[0], content, place[1].offset), count + SIZE_BYTES)

    def close(self) -> None:
        """See `Store`."""
        self._reads.end()
        self._writes.end()


class Client:
    """A connection with a registration of its own, made at its first call and again after an error.

    One thread calls, but for `end`. num_bytes: of each object. instance: its number at the server. descriptor: of the server's
    memory.
    """

    num_bytes = 0

    def __init__(self, host: str, port: int, limit_s: float) -> None:
        self._url = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._has_ended = False
        self._open = ExitStack()
        self._socket: zmq.Socket[bytes] | None = None
        self._number = self._chunk = self._pool_bytes = 0
        self.instance, self.descriptor = 0, -1

    @contextmanager
    def call(self) -> Iterator[None]:
        """Be registered. After an error nothing that still comes is read."""
        with self._lock:
            try:
                self._register()
                yield
            except BaseException:
                self._hang_up()
                raise

    def look_up(self, names: Sequence[str]) -> list[bool]:
        """Whether the server has each object."""
        keys = [self.key(name, is_lookup=True) for name in names]
        self._all_asked(LOOKUP, [(key, 1) for key in keys])
        limit = self._limit_s / 2
        waited = self._all_asked(WAIT, [(key.request_id, limit) for key in keys])
        found = [_decoded(int | None, content) == 1 for content in waited]
        self._all_asked(UNLOCK, [(key, 1) for key, is_there in zip(keys, found, strict=True) if is_there])
        self._all_asked(END, [(key.request_id,) for key in keys])
        return found

    @contextmanager
    def locked(self, name: str) -> Iterator[tuple[int, Slot] | None]:
        """Keep an object where it lies: file and place; None without one."""
        lookup = self.key(name, is_lookup=True)
        self._all_asked(LOOKUP, [(lookup, 1)])
        if self.asked(int | None, WAIT, lookup.request_id, self._limit_s / 2) == 1:
            key = msgspec.structs.replace(lookup, worker_id=0)
            slot = self.slot(PREPARE_READ, key)
            yield None if slot is None else (self.descriptor, slot)
            self.asked(bool, COMMIT_READ, key, self.instance)
        else:
            yield None
        self._all_asked(END, [(lookup.request_id,)])

    def slot(self, call: int, key: Key) -> Slot | None:
        """Ask for the place of an object; None without one."""
        answer: Prepared = self.asked(Prepared, call, key, self.instance)
        slots = answer.context.slots
        if not answer.success or not slots:
            return None
        slot = slots[0]
        is_right = len(slots) == 1 and slot.offset >= 0 and slot.length >= self.num_bytes
        if not is_right or slot.offset + slot.length > self._pool_bytes:
            raise StoreError(
                f"it gives {len(slots)} places, the first one with {slot.length} bytes at {slot.offset}; expected one with "
                f"{self.num_bytes} bytes in {self._pool_bytes}"
            )
        return slot

    def key(self, name: str, *, is_lookup: bool = False) -> Key:
        """Return how the server names an object."""
        tokens = [int(name[begin : begin + NAME_STEP], 16) for begin in range(0, len(name), NAME_STEP)]
        self._number += 1
        return Key(
            f"core-kv-1-{self.num_bytes}",
            (*tokens, *[0] * (self._chunk - len(tokens))),
            self._chunk,
            f"{self.instance}-{self._number}",
            None if is_lookup else 0,
        )

    def asked(self, kind: Any, call: int, *values: object) -> Any:
        """Call, and return the answer. kind: its type."""
        return _decoded(kind, self._all_asked(call, [values])[0])

    def end(self) -> None:
        """Hang up, and dial no more."""
        self._has_ended = True
        if self._lock.acquire(timeout=2 * self._limit_s):
            if self._socket is not None:
                self._send(0, UNREGISTER, [self.instance])
            self._hang_up(linger_ms=100)
            self._lock.release()

    def _register(self) -> None:
        """Dial if need be, and register: a second time it only says that this client still lives."""
        if self._has_ended:
            raise StoreError("the connector is closed")
        if self._socket is None:
            context = zmq.Context()
            self._open.callback(context.term)
            self._socket = context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._open.callback(self._socket.close)
            self._socket.connect(self._url)
            self.instance = secrets.randbits(48)
            self._chunk = self.asked(int, CHUNK_SIZE)
            if not 16 <= self._chunk <= 1 << 14:
                raise StoreError(f"its chunks have {self._chunk} tokens, expected 16 to 16384 (--chunk-size)")
        known = Registration(self.instance, f"core-kv-1-{self.num_bytes}", self._chunk, self.num_bytes)
        self._take(self.asked(Memory, REGISTER, known))

    def _take(self, memory: Memory) -> None:
        """Open the file of the server's memory. Raises StoreError where it is another one than before, which has no object."""
        if not memory.shm_name:
            raise StoreError(f"it offers no memory, and nothing pickled is sent; start it with {OPTIONS}")
        name = MEMORY.fullmatch(memory.shm_name)
        if name is None or name[1].startswith("."):
            raise StoreError(f"its memory is called {memory.shm_name[:80]!r}, which is no name in {SHARED}")
        path = os.path.join(SHARED, name[1])
        if self.descriptor >= 0:
            if not os.path.samestat(os.fstat(self.descriptor), os.lstat(path)):
                raise StoreError("it was started again")
            return
        self.descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._open.callback(os.close, self.descriptor)
        self._pool_bytes = min(memory.pool_size, os.fstat(self.descriptor).st_size)

    def _hang_up(self, linger_ms: int = 0) -> None:
        if self._socket is not None:
            self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._open.close()
        self._socket, self.descriptor = None, -1

    def _send(self, number: int, call: int, values: Sequence[object]) -> None:
        assert self._socket is not None
        self._socket.send_multipart([msgspec.msgpack.encode(value) for value in (number, call, *values)])

    def _all_asked(self, call: int, each: Sequence[Sequence[object]]) -> list[bytes | None]:
        """Make a call several times; returns what each answered, in order. The server answers in any."""
        assert self._socket is not None
        expected = {}
        for index, values in enumerate(each):
            self._number += 1
            expected[self._number] = index
            self._send(self._number, call, values)
        answers: list[bytes | None] = [None] * len(each)
        while expected:
            if self._has_ended or not self._socket.poll(int(self._limit_s * 1e3)):
                raise StoreError("it does not answer in time")
            frames = self._socket.recv_multipart()
            if not 2 <= len(frames) <= 3:
                raise StoreError(f"it answers in {len(frames)} parts, expected 2 or 3")
            index = expected.pop(_decoded(int, frames[0]), -1)
            if index < 0 or _decoded(int, frames[1]) != call:
                raise StoreError("it answers what was not asked")
            if len(frames) == 3:
                answers[index] = frames[2]
        return answers


def _decoded(kind: Any, content: bytes | None) -> Any:
    try:
        return msgspec.msgpack.decode(b"\xc0" if content is None else content, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(f"it answers otherwise than LMCache's MP server does ({error})") from error


def _all(count: int, expected: int) -> None:
    if count != expected:
        raise StoreError(f"its memory ends after {count} of {expected} bytes")
