"""Publication of KV events over ZMQ.

Owns: `EventPublisher`: the sockets, their thread and the sequence numbers; `PublishedEvents`, the KV connector `events`. Never
does: make events, or wait in the caller's thread. Called by: `KVConnectors`, once a step.

A message has three frames: topic, sequence number (8 bytes, big-endian), batch (msgpack, `KVEventBatch`). A subscriber
that sees a gap in the numbers requests a replay: a DEALER socket sends an empty frame and the first number it wants (8
bytes) and gets a message (empty frame, number, batch) for each, then one with the number -1 and an empty batch. The
layout is vLLM's. Batches that are no longer kept are replaced by one with all that they left (`EventHistory`), so that a
subscriber which starts late, or again, asks for number 0 and knows every block.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import zmq

from core.api.config import EngineConfig, KVEventsConfig
from core.api.errors import ConfigError
from core.api.kv_transfer import PrefixKey
from core.api.specs import KVGroup
from core.kv.connector import BlockCache, Copy, KVConnector
from core_kv_connectors.event_history import EventHistory
from core_kv_connectors.events import EventLog, KVEventBatch
from core_kv_connectors.page_lists import PageLists, Source

logger = logging.getLogger(__name__)

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
POLL_MS = 100
CLOSE_S = 2.0
IDLE_MS = 1000
"""Pause between two looks at the lists of slow places while no request runs."""


class EventPublisher:
    """Publishes batches in the order of `publish`.

    num_dropped: batches that found the queue full; their numbers are missing, so that subscribers notice.

    Raises ConfigError when an endpoint cannot be bound.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self.num_dropped = 0
        self._topic = config.topic.encode()
        self._number = 0
        self._queue: queue.Queue[tuple[int, KVEventBatch]] = queue.Queue(config.max_queue_size)
        self._history = EventHistory(config.buffer_steps)
        self._closing = threading.Event()
        self._context: zmq.Context[Any] = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.setsockopt(zmq.SNDHWM, config.hwm)
        self._replay: zmq.Socket[bytes] | None = None
        self._wake = self._context.socket(zmq.PAIR)
        self._woken = self._context.socket(zmq.PAIR)
        try:
            self._bind(self._publisher, "endpoint", config.endpoint)
            if config.replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._bind(self._replay, "replay_endpoint", config.replay_endpoint)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._woken.bind("inproc://wake")
        self._wake.connect("inproc://wake")
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch) -> None:
        """Queue a batch; never waits."""
        number, self._number = self._number, self._number + 1
        try:
            self._queue.put_nowait((number, batch))
        except queue.Full:
            self.num_dropped += 1
            return
        try:
            self._wake.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            return  # The thread is busy and will see this batch, too.

    def close(self) -> None:
        """Send the queued batches and end the thread."""
        self._closing.set()
        try:
            self._wake.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("The thread of the KV events is awake.")
        self._thread.join(CLOSE_S)
        self._wake.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], name: str, address: str) -> None:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                [f"--kv-events-config.{name} {address}: it cannot be bound ({error.strerror}); choose another one."]
            ) from error

    def _run(self) -> None:
        """Run the publisher's thread."""
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(POLL_MS))
            if self._woken in ready:
                self._woken.recv()
            while not self._queue.empty():
                number, batch = self._queue.get_nowait()
                payload = msgspec.msgpack.encode(batch)
                if self._replay is not None:
                    self._history.add(number, payload)
                self._publisher.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)
            if self._closing.is_set() and self._queue.empty():
                break
        for socket in (self._publisher, self._replay, self._woken):
            if socket is not None:
                socket.close(linger=int(CLOSE_S * 500))

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Replay the batches from the requested number on."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("A replay of KV events was asked for with %d frames; expected a number.", len(frames))
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._history.since(first):
            replay.send_multipart((client, b"", number.to_bytes(8, "big"), payload))
        replay.send_multipart((client, b"", END_OF_REPLAY, b""))


class PublishedEvents(KVConnector):
    """Publishes the events of each step. Arguments: as for `EventLog`. Raises ConfigError for an endpoint in use."""

    def __init__(
        self, config: KVEventsConfig, block_size: int, groups: Sequence[KVGroup] = (), *, shortens: bool = False
    ) -> None:
        self._log = EventLog(block_size, groups, shortens=shortens)
        self._publisher = EventPublisher(config)
        self._lists = PageLists()

    def watch(self, medium: str, source: Source) -> None:
        """Publish events of a slow place, whose pages `source` lists on a thread; see `PageLists`."""
        self._lists.watch(medium, source)

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Record a stored block."""
        self._log.stored(block_id, group, key, parent)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Record a removed block."""
        self._log.removed(block_id, group, key, valid=valid)

    def cleared(self) -> None:
        """Record that no block is cached any more."""
        self._log.cleared()
        self._lists.forget()

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Record that no page of the earlier weights may be used; what slow places have for these is listed again."""
        self.cleared()

    def pool_replaced(self) -> None:
        """Record that the KV cache has no block, because the pool was replaced."""
        self._log.pool_replaced()

    def host_stored(self, group: int, digest: bytes) -> None:
        """Record a page in host memory."""
        self._log.host_stored(group, digest)

    def host_removed(self, pages: Iterable[tuple[int, bytes]]) -> None:
        """Record pages that have left host memory."""
        self._log.host_removed(pages)

    def after_step(self, cache: BlockCache) -> None:
        """Publish the changes of a step, including prompts of running sequences."""
        cache.register_starting()
        self._publish()

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Publish what slow places have while no request runs; see `KVConnector.save_idle`."""
        if not self._lists.is_used:
            return None
        self._publish()
        return 1 if self._lists.has_changes else IDLE_MS

    def close(self, timeout_s: float) -> None:
        """Send the queued batches and end the threads."""
        self._lists.close()
        self._publisher.close()

    def _publish(self) -> None:
        for medium, stored, removed in self._lists.take():
            for group, digest in removed:
                self._log.page_removed(medium, group, digest)
            for group, digest in stored:
                self._log.page_stored(medium, group, digest)
        batch = self._log.take()
        if batch is not None:
            self._publisher.publish(batch)
