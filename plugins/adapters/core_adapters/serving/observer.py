"""The adapters of an engine: names, and the gate for requests whose adapter is not in memory.

Owns: `AdapterObserver`, an observer and a gate: the thread that reads adapters, what it has to read, and the sequences that
wait for it. Never does: read itself, or decide which sequence is computed. Called by: the engine core, between steps.

A sequence waits for its adapter; no step does, and no other sequence. When all adapters in memory are in use, the one with the
fewest requests takes no newcomers until it is free, so that the wait is bounded by the requests that are there already.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, Self

from core.api.adapters import AdapterFacts, AdaptersConfig
from core.api.errors import ConfigError, EngineDeadError
from core.api.messages import EngineRequest
from core.engine.observer import Engine, EngineStart
from core_adapters.serving.calls import AdapterCalls, Load
from core_adapters.serving.executor_part import AdaptingExecutor
from core_adapters.serving.holder import AdapterHolder, sentence_of
from core_adapters.serving.probes import probe_adapters
from core_adapters.serving.record import storage
from core_supervision.waiting_gate import WaitingGate

logger = logging.getLogger(__name__)

POLL_MS: Final = 5
"""Milliseconds between two looks of an idle engine at an adapter that is being read."""
NICENESS: Final = 10
"""What a thread adds to its niceness to read an adapter that a client loads; at 19 it would hardly run on a busy machine."""
TOUCHES_MEMORY: Final = frozenset({"sleep", "wake_up", "update_weights", "finish_weight_update", "reload_weights"})
"""Calls during which no adapter is read."""


class AdapterObserver(WaitingGate):
    """The adapters of one engine. config: None: it has none, and every request with an adapter is refused.

    loads: adapters that clients load, by ticket.
    """

    order = 35  # its gate is the last, so that a sequence that passes it is in the scheduler, where its adapter counts as used

    holder: AdapterHolder

    def __init__(self, config: AdaptersConfig | None, lasting_file: int | None = None) -> None:
        super().__init__()
        self.loads: dict[int, Load] = {}
        self._config = config
        self._lasting_file = lasting_file
        self._wanted: deque[Load] = deque()
        self._read: tuple[Load | str, Future[AdapterFacts]] | None = None
        self._last_was_load = False
        self._closed: str | None = None
        self._threads: dict[int, ThreadPoolExecutor] = {}

    @classmethod
    def open(cls, start: EngineStart) -> Self:
        """Make the observer, which every engine has."""
        return cls(start.config.adapters, start.config.lasting_file)

    def attach(self, engine: Engine) -> None:
        """Keep the engine, and learn which adapters the engine before it had."""
        self._engine = engine
        if self._config is not None and isinstance(engine.executor, AdaptingExecutor):
            file = self._lasting_file
            self.holder = AdapterHolder(engine, engine.executor, self._config.max_cpu_loras, storage(file), file)

    def before_first(self) -> None:
        """Read the adapters that must be there before the first request, and probe them. Raises ConfigError, StateError."""
        if self._config is None:
            return
        if not isinstance(self._engine.executor, AdaptingExecutor):
            raise ConfigError(["--enable-lora: this executor computes no adapters; leave it out."])
        self.holder.begin(self._config.modules)
        # An engine that goes on asleep or paused computes nothing.
        if self._engine.config.state_canary is not None and not self._engine.is_halted:
            probe_adapters(self._engine, self.holder.book.resident)

    def before_step(self) -> None:
        """Place what was read, let sequences go on, and begin to read what is needed next."""
        if self._config is not None and (self.held or self._wanted or self._read or self.holder.book.nameless):
            self.advance()

    def idle(self) -> int | None:
        """Go on reading while there is no work."""
        if self._config is None:
            return None
        self.before_step()
        return POLL_MS if self._read or self._wanted else None

    def calling(self, method: str) -> None:
        """Finish what is being read before memory or weights change; afterwards follow the change."""
        if self._config is None:
            return
        if method in TOUCHES_MEMORY and self._read is not None:
            wait([self._read[1]])
            self._take_read(self.in_use())
        if not method:
            for digest, sentence in self.holder.follow_memory().items():
                self._engine.sequences.end_scheduled(digest, sentence)

    def utilities(self, client: int) -> dict[str, Callable[..., Any]]:
        """Return the calls by which clients load, list, pin and unload adapters."""
        return {} if self._config is None else AdapterCalls(self).by_name()

    def in_use(self) -> Counter[str]:
        """Return the number of sequences of each adapter that may be computed."""
        requests = (sequence.request for sequence in self._engine.scheduler.sequences)
        return Counter(request.adapter for request in requests if request.adapter)

    def load(self, load: Load) -> None:
        """Read an adapter that a client has asked for."""
        self._wanted.append(load)
        self.advance()

    def advance(self) -> None:
        """Place what was read, let sequences go on, and begin to read what is needed next."""
        in_use = self.in_use()
        self._take_read(in_use)
        self.holder.drop_nameless(in_use + Counter(request.adapter for request in self.held))
        self._release()
        self._begin_next()

    def hold(self, request: EngineRequest) -> bool:
        """Keep a sequence until its adapter is in memory; False: it need not wait."""
        digest = request.adapter
        if not digest:
            return False
        kept = None if self._config is None else self.holder.book.known.get(digest)
        if kept is None:
            self.refuse(request, "The adapter of this request is not loaded, or not any more; load it and ask again.")
            return True
        self.holder.book.touch(digest)
        if kept.is_resident and digest != self._closed:
            return False
        self.held.append(request)
        self._begin_next()  # at once, so that no later sequence passes this one
        return True

    def awaited(self) -> Collection[Future[AdapterFacts]]:
        """Return the adapter that is being read."""
        return () if self._read is None else (self._read[1],)

    def close(self) -> None:
        """Wait for the adapter that is being read; do not read others."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
        if hasattr(self, "holder"):
            self.holder.sent.close()

    def _take_read(self, in_use: Counter[str]) -> None:
        """Use what was read, if reading has ended."""
        if self._read is not None and self._read[1].done():
            (wanted, future), self._read = self._read, None
            self._take(wanted, future, in_use)

    def _take(self, wanted: Load | str, future: Future[AdapterFacts], in_use: Counter[str]) -> None:
        """Use an adapter that was read, or say why it cannot be used."""
        try:
            facts = future.result()
            if isinstance(wanted, Load):
                wanted.check_name(self.holder.book, facts, self.holder.discard)
                self.holder.enter(wanted.source, facts, in_use)
                wanted.facts = facts
            elif not self.holder.take(wanted, facts, in_use):
                self.holder.discard(facts.digest)
        except EngineDeadError:
            raise
        except Exception as error:  # whatever a file or a plugin does, only those that want this adapter end
            sentence = f"The adapter cannot be used: {sentence_of(error)}"
            if isinstance(wanted, Load):
                wanted.failure = sentence_of(error)
            else:
                logger.error("%s", sentence)
                self._end_held(wanted, sentence)
        if isinstance(wanted, Load) and wanted.sent is not None:
            self.holder.sent.arrived(wanted.source.path)
            self.holder.free_sent()

    def _release(self) -> None:
        """Let the sequences go on whose adapter is in memory, or whose deadline has passed: the scheduler ends those."""
        held, self.held = self.held, []
        now = time.monotonic()
        for request in held:
            kept = self.holder.book.known.get(request.adapter)
            if request.deadline and request.deadline <= now:
                self._engine.sequences.schedule(request)
            elif kept is not None and kept.is_resident and request.adapter != self._closed:
                self._engine.sequences.add([request], after=self)
            else:
                self.held.append(request)

    def _begin_next(self) -> None:
        """Begin to read an adapter that a sequence waits for, if it has room, and one that a client loads in turn."""
        if self._read is not None or self.holder.is_asleep:
            return
        needed = self._first_needed(self.in_use())
        if self._wanted and (needed is None or not self._last_was_load):
            load = self._wanted.popleft()
            self._read = (load, self._submit(lambda: load.read(self.holder), NICENESS))
        elif needed is not None:
            source = self.holder.book.known[needed].source
            self._read = (needed, self._submit(lambda: self.holder.read(source), 0))
        self._last_was_load = self._read is not None and isinstance(self._read[0], Load)

    def _first_needed(self, in_use: Counter[str]) -> str | None:
        """Return the adapter that the first waiting sequence needs; None: there is none, or no room for it yet."""
        known = self.holder.book.known
        needed = next((request.adapter for request in self.held if not known[request.adapter].is_resident), None)
        if needed is None:
            self._closed = None
        elif self.holder.make_room(in_use):
            return needed
        elif self._closed is None:
            self._closed = self.holder.book.least_used(in_use)
            if self._closed is None:
                self._end_held(needed, "All adapters in memory are pinned (--max-cpu-loras); unload one of them.")
        return None

    def _end_held(self, digest: str, sentence: str) -> None:
        """End the waiting sequences of an adapter."""
        for request in self.held:
            if request.adapter == digest:
                self.refuse(request, sentence)
        self.held = [request for request in self.held if request.adapter != digest]

    def _submit(self, read: Callable[[], AdapterFacts], niceness: int) -> Future[AdapterFacts]:
        """Begin to read an adapter in the thread with this niceness: one that sequences wait for takes its turn like steps.

        With the niceness of loads, requests by Zipf's law over many adapters have two thirds of the speed on two processors.
        """
        if niceness not in self._threads:
            self._threads[niceness] = ThreadPoolExecutor(1, "adapters", _lower_priority, (niceness,))
        return self._threads[niceness].submit(read)


def _lower_priority(niceness: int) -> None:
    """Lower the priority of this thread: a step's threads wait for each other, so all wait for one that this one displaces.

    Measured with eight streams on two processors: the usual gap beside a load is 10 ms instead of 14.
    """
    if niceness and sys.platform == "linux":  # elsewhere threads have no priority of their own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
