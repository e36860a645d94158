"""A stand-in for LMCache's MP server (`lmcache server`), which speaks as that does to engines, and on request worse."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

CHUNK = 256
Object = tuple[str, tuple[int, ...]]


class MPServer:
    """Listens at a port of 127.0.0.1 between enter and exit.

    memory:  the file that it shares. places: offset and length of each object.
    changed: what becomes of an answer; None: it is not sent.
    """

    def __init__(self, pool_bytes: int = 1 << 22) -> None:
        self.memory = Path("/dev/shm") / f"lmcache_l1_pool_{secrets.token_hex(8)}"
        self.places: dict[Object, tuple[int, int]] = {}
        self.num_locks = 0
        self.changed: Callable[[int, Any], Any] = lambda call, answer: answer
        self._pool_bytes = pool_bytes
        self._registered: dict[int, int] = {}
        self._pending: dict[tuple[int, Object], tuple[int, int]] = {}
        self._found: dict[str, int] = {}
        self._next = 0
        self._has_ended = threading.Event()

    def __enter__(self) -> Self:
        self._share()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.port: int = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self._socket.close(0)
        self._context.term()
        self.memory.unlink()

    def start_again(self) -> None:
        """Be as after a restart: with new memory of the same name, and nothing in it."""
        self.memory.unlink()
        self._share()
        for known in (self.places, self._registered, self._pending, self._found):
            known.clear()
        self._next = 0

    def _share(self) -> None:
        with self.memory.open("xb") as file:
            os.truncate(file.fileno(), self._pool_bytes)

    def _serve(self) -> None:
        while not self._has_ended.is_set():
            if not self._socket.poll(20):
                continue
            sender, number, called, *frames = self._socket.recv_multipart()
            call = msgspec.msgpack.decode(called)
            try:
                answer = self._answer(call, [msgspec.msgpack.decode(frame) for frame in frames])
            except KeyError:
                continue  # the real server logs an error, and sends nothing
            answer = self.changed(call, answer)
            if answer is not None:
                content = [msgspec.msgpack.encode(answer)] if answer != "nothing" else []
                self._socket.send_multipart([sender, number, called, *content])

    def _answer(self, call: int, values: list[Any]) -> Any:
        if call == 21:
            return CHUNK
        if call == 14:
            self._registered[values[0]["instance_id"]] = values[0]["hidden_dim_size"]
            return {"shm_name": self.memory.name, "pool_size": self._pool_bytes}
        if call in (8, 12):
            of = _object(values[0])
            if call == 8:
                self._found[values[0]["request_id"]] = int(of in self.places)
            self.num_locks += (call == 8) - (call == 12) if of in self.places else 0
        elif call == 10:
            return self._found.pop(values[0])
        elif call in (16, 18):
            size = self._registered[values[1]]
            return self._place(call, _object(values[0]), values[1], size)
        elif call == 17:
            self.places[_object(values[0])] = self._pending.pop((values[1], _object(values[0])))
            return True
        elif call == 19:
            self.num_locks -= 1
            return True
        return "nothing"

    def _place(self, call: int, of: Object, instance: int, size: int) -> Any:
        if call == 18:
            found = self.places.get(of)
            return {"success": found is not None, "data": b"", "context": _slots(found)}
        if of in self.places or self._next + size > self._pool_bytes:
            return {"context": {"slots": [], "chunk_indices": []}}
        place = self._pending[instance, of] = self._next, size
        self._next += size
        return {"context": _slots(place) | {"chunk_indices": [0]}}


def _object(key: dict[str, Any]) -> Object:
    assert (len(key["token_ids"]), key["end"], key["num_kv_readers"]) == (CHUNK, CHUNK, 1)
    return key["model_name"], tuple(key["token_ids"])


def _slots(place: tuple[int, int] | None) -> dict[str, Any]:
    if place is None:
        return {}
    offset, length = place
    return {"slots": [{"offset": offset, "length": length, "shape": [1, 1, length], "dtype": "uint8"}]}
