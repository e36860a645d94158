"""Mooncake's store as a store of pages, by its own client.

Owns: `MooncakeStore`: the client of this engine, and the memory that it adds to the store. Never does: start a master
(`mooncake_master`), or hand a page to another engine by itself: objects lie in the memory of clients, wherever the master puts
them. Called by: the manifest of the connector `mooncake_store`. Source: the documentation of mooncake-transfer-engine 0.3, and
what its calls return.

The client's calls have time limits of their own, up to tens of seconds while a master or the holder of an object is gone;
requests do not wait for them.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from core.api.errors import ConfigError
from core_kv_connectors.stores.store import Parts, StoreError

logger = logging.getLogger(__name__)

MODULE: Final = "mooncake.store"
METADATA: Final = "P2PHANDSHAKE"
"""In place of a metadata server's address."""
LOCAL_BYTES: Final = 64 << 20
"""Memory through which objects pass on their way to other clients."""
CLOSE_S: Final = 1.0
"""Seconds for which the end waits for a call in progress."""
NO_OBJECT, NO_SUCH_REPLICA = -704, -703
"""Codes of an object that is not there, or whose bytes are not whole yet."""


def mooncake_store() -> Any:
    """Import the library. Raises ConfigError where it is not installed or lacks a library of the system."""
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise ConfigError(
            [
                f"the KV connector mooncake_store needs Mooncake's client, which cannot be imported ({error}); install it: "
                "pip install 'core-engine-kv-connectors[mooncake]', and the libraries of the system that it links: "
                "apt install libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 libcurl4."
            ]
        ) from error


class MooncakeStore:
    """A client of one store. See `Store`.

    master: HOST:PORT of its master. host: at which other clients reach this one. segment: bytes of this engine's memory that
    the store may use for objects of all clients; 0: none. Raises ConfigError.
    """

    def __init__(self, master: str, host: str, segment: int, protocol: str = "tcp", metadata: str = METADATA) -> None:
        self.place = f"Mooncake's store at {master}"
        self._client = mooncake_store().MooncakeDistributedStore()
        status = self._client.setup(host, metadata, segment, LOCAL_BYTES, protocol, "", master)
        if status:
            raise ConfigError(
                [
                    f"the KV connector mooncake_store: the client cannot join the store at {master} (status {status}); "
                    "is its master running (mooncake_master), and can this address be used?"
                ]
            )
        self._buffer = memoryview(b"")
        self._address = 0
        self._reads, self._writes = threading.Lock(), threading.Lock()

    def prepare(self, buffer: memoryview) -> None:
        """See `Store`. The library writes to registered memory alone."""
        self._buffer = buffer
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        status = self._client.register_buffer(self._address, buffer.nbytes)
        if status:
            raise ConfigError(
                [f"the KV connector mooncake_store: {buffer.nbytes} bytes cannot be registered ({status})."]
            )

    def has(self, names: Sequence[str]) -> list[bool]:
        """See `Store`."""
        with self._reads:
            answers = self._client.batch_is_exist(list(names))
        if len(answers) != len(names) or any(answer not in (0, 1) for answer in answers):
            raise StoreError(f"it answers {answers[:3]} to the question which objects it has")
        return [answer == 1 for answer in answers]

    def read(self, name: str) -> int | None:
        """See `Store`. The library itself refuses an object that is larger than the buffer."""
        with self._reads:
            count = int(self._client.get_into(name, self._address, self._buffer.nbytes))
        if count in (NO_OBJECT, NO_SUCH_REPLICA):
            return None
        if count < 0:
            raise StoreError(f"it cannot read an object (status {count})")
        return count

    def write(self, name: str, parts: Parts, *, replaces: bool) -> None:
        """See `Store`."""
        put = self._client.upsert_parts if replaces else self._client.put_parts
        with self._writes:
            status = put(name, *parts)
        if status:
            raise StoreError(f"it cannot store an object (status {status})")

    def close(self) -> None:
        """See `Store`. The memory that this engine has added leaves the store, with the objects in it."""
        with ExitStack() as calls:
            for lock in (self._reads, self._writes):
                if not lock.acquire(
                    timeout=CLOSE_S
                ):  # a client that is closed in the middle of a call ends the process
                    logger.warning("%s does not answer; its client is left to the end of the process.", self.place)
                    return
                calls.callback(lock.release)
            self._client.close()
