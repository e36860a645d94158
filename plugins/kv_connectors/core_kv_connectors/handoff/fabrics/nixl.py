"""NIXL as a fabric: pages move over UCX, whatever network that finds.

Owns: `NixlFabric`: the agent of this engine, and those of others that it has met. Never does: move GPU memory: pages lie in
host memory. Called by: the manifest of the connector `nixl`. Source: the documentation of nixl 1.5.

Memory is registered before the agent's description is taken, so that whoever gets it may read at once: NIXL answers "no
backend" to a description that was taken too early.
"""

from __future__ import annotations

import importlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from core.api.errors import ConfigError
from core_kv_connectors.peers.messages import PeerError

MODULES: Final = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
"""Where its Python interface is; the packages differ in the CUDA that they are built for, which host memory does not need."""
KIND: Final = "DRAM"
MOST_PEERS: Final = 128
"""Agents of others that are remembered; each is a new one after a restart of its engine."""
FIRST_WAIT_S, LONGEST_WAIT_S = 2e-5, 1e-3


def nixl() -> Any:
    """Import the library. Raises ConfigError where it is not installed or cannot be loaded."""
    reasons = []
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reasons.append(str(error))
    raise ConfigError(
        [
            f"the KV connector nixl needs NIXL, which cannot be imported ({'; '.join(dict.fromkeys(reasons))}); install it: "
            "pip install 'core-engine-kv-connectors[nixl]'."
        ]
    )


class NixlFabric:
    """The agent of one engine. See `Fabric`. backends: of NIXL, by their names there. Raises ConfigError."""

    name = "nixl"

    def __init__(self, backends: Sequence[str]) -> None:
        api = nixl()
        config = api.nixl_agent_config(
            backends=list(backends), sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        )
        try:
            self._agent = api.nixl_agent(f"core-{secrets.token_hex(8)}", config)
        except Exception as error:  # its errors have no common class of their own
            raise ConfigError(
                [f"the KV connector nixl: NIXL cannot start ({type(error).__name__}: {error})."]
            ) from error
        self.place = b""
        self._peers: dict[bytes, str] = {}
        self._num_reads: Counter[bytes] = Counter()
        self._failed: set[bytes] = set()
        self._lock = threading.Lock()

    def register(self, address: int, num_bytes: int) -> None:
        """See `Fabric`."""
        self._agent.register_memory([(address, num_bytes, 0, "")], KIND)
        self.place = self._agent.get_agent_metadata()

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        """See `Fabric`."""
        has_failed = True
        with self._lock:
            self._num_reads[place] += 1
        try:
            self._read(self._peer(place), source, target, num_bytes, limit_s)
            has_failed = False
        except PeerError:
            raise
        except Exception as error:
            raise PeerError(f"NIXL cannot read its memory ({type(error).__name__}: {error})") from error
        finally:
            self._ended(place, has_failed)

    def _read(self, peer: str, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        agent = self._agent
        here = agent.get_xfer_descs([(target, num_bytes, 0)], KIND)
        there = agent.get_xfer_descs([(source, num_bytes, 0)], KIND)
        handle = agent.initialize_xfer("READ", here, there, peer, b"")
        until = time.monotonic() + limit_s
        wait_s = FIRST_WAIT_S
        try:
            state = agent.transfer(handle)
            while state == "PROC":
                if time.monotonic() > until:
                    raise PeerError(f"NIXL has not read a page within {limit_s:.3g} s")
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                state = agent.check_xfer_state(handle)
        finally:
            agent.release_xfer_handle(handle)
        if state != "DONE":
            raise PeerError(f"NIXL ended the transfer of a page with {state}")

    def _peer(self, place: bytes) -> str:
        """Return the name of the other end's agent; its description is read at the first page."""
        with self._lock:
            name = self._peers.get(place)
            if name is None:
                while len(self._peers) >= MOST_PEERS:
                    self._remove(next(iter(self._peers)))
                added = self._agent.add_remote_agent(place)
                name = self._peers[place] = added.decode() if isinstance(added, bytes) else str(added)
            return name

    def _ended(self, place: bytes, has_failed: bool) -> None:
        """Note the end of a read. After one that failed the next page begins with a new connection.

        Not before all others of this end are over: NIXL would end these too.
        """
        with self._lock:
            if has_failed:
                self._failed.add(place)
            self._num_reads[place] -= 1
            if self._num_reads[place]:
                return
            del self._num_reads[place]
            if place in self._failed:
                self._failed.discard(place)
                if place in self._peers:
                    self._remove(place)

    def _remove(self, place: bytes) -> None:
        self._agent.remove_remote_agent(self._peers.pop(place))
